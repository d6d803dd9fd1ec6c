"""The Dispatcher killed on either side of every commit that routes: callers repeat, and there are the same tasks.

The scenario goes from a deploy over triggers, events and completions to a cutover with its build. It is run once for
each time that a crash point is reached.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec
import pytest

from tests.faults.crash_driver import PATIENCE, CrashDriver
from tests.routing.support import block
from tests.routing.versions import Version
from tests.support.configs import USER_TOKEN_RULES
from tests.support.postgres import TestCluster
from tracelake.adapters.shared_secrets import utc_now
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.stack.credentials import user_token

State = Any
_names = count(1)

_TASKS = """
    SELECT n.job_name, t.edge, t.unit_key, t.revision, t.unit -> 'cursor' ->> 'after' AS after, t.status
    FROM tasks t JOIN nodes n USING (node_id) JOIN orgs o ON o.org_id = t.org_id WHERE o.name = $1"""

_READY = """
    SELECT t.task_id FROM tasks t JOIN jobs j USING (job_id) JOIN orgs o ON o.org_id = t.org_id
    WHERE o.name = $1 AND j.name = $2 AND t.status = 'Queued' AND NOT t.held ORDER BY t.unit_end, t.task_id"""

_ACTIVE = """
    SELECT v.number FROM dags d JOIN orgs o USING (org_id) JOIN dag_versions v ON v.dag_version_id = d.active_version
    WHERE o.name = $1 AND d.dag_name = 'd'"""


class Scenario:
    """One org, from its first deploy on. Every call is repeated until it is answered."""

    def __init__(self, driver: CrashDriver, state: State) -> None:
        self.driver, self.state = driver, state
        self.org = f"org{next(_names)}"
        keys = driver.credentials.user_keys
        self.token = user_token(keys, USER_TOKEN_RULES, subject="me", org=self.org, roles=["admin"], now=utc_now())

    async def user(self, path: str, body: bytes, kind: str = "application/json") -> Any:
        head = [("authorization", f"Bearer {self.token}"), ("content-type", kind)]
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    reply = await self.driver.clients["public"].request("POST", path, body=body, headers=head)
                except DispatcherUnavailableError:
                    await asyncio.sleep(0.02)
                    continue
                if reply.status != 503:
                    assert reply.status == 200, reply
                    return msgspec.json.decode(reply.body)

    async def deploy(self, version: Version) -> Any:
        return await self.user("/v1/dags/d/versions?activate=true", version.text.encode(), "application/yaml")

    async def trigger(self, job: str, key: str, **unit: Any) -> Any:
        body = msgspec.json.encode({"idempotency_key": key} | unit)
        return await self.user(f"/v1/dags/d/jobs/{job}/trigger", body)

    async def ready(self, job: str, number: int) -> list[UUID]:
        """So many, as soon as they are there."""
        async with asyncio.timeout(PATIENCE):
            while True:
                rows = await self.state.fetch(_READY, self.org, job)
                if len(rows) >= number:
                    return [row["task_id"] for row in rows]
                await asyncio.sleep(0.02)

    async def claim(self, task_id: UUID) -> Any:
        body = {"task_id": str(task_id), "worker_id": "w", "claim_id": str(uuid4())}
        lease = await self.driver.worker("/internal/task-claim", body)
        assert lease["status"] == "Claimed", lease
        return lease

    async def say(self, verb: str, task_id: UUID, lease: Any, **fields: Any) -> Any:
        body = {"task_id": str(task_id), "attempt": lease["attempt"], "lease_token": lease["lease_token"]} | fields
        return await self.driver.task(verb, lease["capability_token"], body)

    async def pass_on(self, job: str, number: int) -> None:
        for task_id in await self.ready(job, number):
            lease = await self.claim(task_id)
            unit = lease["task"]["inputs"][0]["unit"]
            said = {"cursor": unit["cursor"]["to"]} if "cursor" in unit else unit
            outputs = lease["task"]["outputs"]
            events = [{key: out[key] for key in ("dataset_uuid", "dataset_version")} | said for out in outputs]
            await self.say("complete", task_id, lease, status="Completed", events=events)

    async def run(self) -> None:
        first, second = Version(slow=1), Version(each=1, part=False, slow=1)
        await self.deploy(first)
        await self.trigger("src", "one", cursor=3)
        (feeder,) = await self.ready("feeder", 1)
        lease = await self.claim(feeder)
        left, right = (
            {key: out[key] for key in ("dataset_uuid", "dataset_version")} for out in lease["task"]["outputs"]
        )
        await self.say("events", feeder, lease, events=[left | {"cursor": 1}, left | block(0, 9)])
        await self.say(
            "complete", feeder, lease, status="Completed", events=[right | block(0, 9), left | {"cursor": 4}]
        )
        await self.pass_on("each", 3)
        await self.trigger("each", "again", cursor=4)
        await self.pass_on("slow", 1)
        await self.deploy(second)
        await self.pass_on("each", 4)
        await self.pass_on("after", 3)
        async with asyncio.timeout(PATIENCE):
            while True:
                await self.pass_on("each", 0)
                await self.pass_on("after", 0)
                if await self.state.fetchval(_ACTIVE, self.org) == 2:
                    return
                await asyncio.sleep(0.02)

    async def check(self) -> None:
        rows = await self.state.fetch(_TASKS, self.org)
        units = {("c:1", "", "-1"), ("p:0-9", "", None), ("c:4", "", "1")}
        wanted = Counter(("each", 0, *unit) for unit in units)
        wanted += Counter(("each", 0, *unit) for unit in units | {("c:4", "again", "1")})
        wanted += Counter(("after", 0, *unit) for unit in units for _ in range(2))
        wanted += Counter(("slow", 0, *unit) for unit in units)
        wanted += Counter([("feeder", 0, "c:3", "", "-1"), ("join", -1, "p:0-9", "", None)])
        wanted += Counter([("after", 0, "c:4", "again", "1")])
        wanted += Counter(("part", -1, key, revision, {"c:1": "0", "c:4": "3"}.get(key)) for key, revision, _ in units)
        assert Counter(tuple(row)[:5] for row in rows) == wanted
        assert {row["status"] for row in rows if row["job_name"] == "part"} == {"Canceled"}, "its version is gone"
        used = "SELECT used FROM limits l JOIN orgs o ON limit_key LIKE 'job:' || o.org_id || ':%' WHERE o.name = $1"
        ready = [row for row in rows if row["job_name"] == "slow" and row["status"] in ("Queued", "Running")]
        assert await self.state.fetchval(used, self.org) == min(1, len(ready))


async def run_once(driver: CrashDriver, state: State) -> None:
    scenario = Scenario(driver, state)
    await scenario.run()
    await scenario.check()


async def crash_everywhere(home: Path, state_dsn: str, queue_dsn: str, point: str, step: int) -> int:
    state = await asyncpg.connect(state_dsn)
    async with CrashDriver(home, state_dsn, queue_dsn) as driver:
        await driver.arm("never", 0)
        await run_once(driver, state)
        reached = driver.reached()[point]
        for number in range(1, reached + 1, step):
            await driver.arm(point, number)
            while not driver.crashes:
                await run_once(driver, state)
    await state.close()
    return reached


@pytest.fixture
def dsns(cluster: TestCluster) -> Iterator[tuple[str, str]]:
    made = cluster.fresh("state"), cluster.fresh("queue")
    yield made
    for dsn in made:
        asyncio.run(cluster.drop(dsn))


@pytest.mark.parametrize("point", ["before commit", "after commit"])
def test_a_crash_changes_no_task(dsns: tuple[str, str], tmp_path: Path, point: str) -> None:
    assert asyncio.run(crash_everywhere(tmp_path, *dsns, point, step=19)) >= 15


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("point", ["before commit", "after commit", "before reply", "after publish"])
def test_a_crash_anywhere_changes_no_task(dsns: tuple[str, str], tmp_path: Path, point: str) -> None:
    assert asyncio.run(crash_everywhere(tmp_path, *dsns, point, step=1)) >= 5

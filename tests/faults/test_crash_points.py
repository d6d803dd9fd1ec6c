"""The Dispatcher killed before and after every commit, before every reply, and between publish and outbox delete.

One compact scenario goes through every kind of call, and comes to each crash point many times. Each run crashes at one
of them, and callers repeat what was not answered. Whatever the moment: nothing lost, nothing twice. Every third time is
taken here, each with the kinds of call around it; the soak takes every time.
"""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.faults.crash_driver import CrashDriver
from tests.faults.crashing_dispatcher import POINTS
from tests.support.directory_store import DirectoryStore
from tests.support.postgres import TestCluster
from tracelake.model.ids import new_id
from tracelake.model.job import buffer_queue

QUEUE = "tasks.crash"
STEP = 3


async def scenario(driver: CrashDriver) -> dict[str, Any]:
    """Four tasks through create, wake-up, claim, heartbeat, events, publish, failure, retry and completion."""
    job = await driver.service(
        "/internal/jobs",
        {
            "org": "acme",
            "dag": "dag",
            "name": "job",
            "runtime": "crash",
            "operator": "noop",
            "outputs": [{"name": "said", "storage": "none"}, {"name": "sent", "storage": "buffered"}],
        },
    )
    said = {key: job["outputs"][0][key] for key in ("dataset_uuid", "dataset_version")}
    tasks = [str(new_id()) for _ in range(4)]
    one, two, three, four = tasks
    await driver.service("/internal/tasks", {"tasks": [{"job_id": job["job_id"], "task_id": one}]})
    many = [{"job_id": job["job_id"], "task_id": task_id} for task_id in tasks[1:]]
    await driver.service("/internal/tasks", {"tasks": many})
    await driver.until_woken(QUEUE, tasks)

    leases = {one: await driver.worker("/internal/task-claim", claim(one))}
    batch = await driver.worker("/internal/task-claim-batch", {"claims": [claim(task_id) for task_id in tasks[1:]]})
    leases |= {task_id: answer["body"] for task_id, answer in zip(tasks[1:], batch["answers"], strict=True)}
    for lease in leases.values():
        assert (lease["status"], lease["attempt"]) == ("Claimed", 1), lease

    def body(task_id: str, **fields: Any) -> Any:
        lease = leases[task_id]
        return {"task_id": task_id, "attempt": lease["attempt"], "lease_token": lease["lease_token"]} | fields

    def token(task_id: str) -> str:
        found: str = leases[task_id]["capability_token"]
        return found

    uri = f"s3://trace-scratch/buffers/{four}/1/batch.jsonl"
    await DirectoryStore(driver.home / "objects").put(uri, b"{}\n")
    await driver.task("heartbeat", token(one), body(one))
    _, _, published = await driver.batch(
        [
            ("heartbeat", token(two), body(two)),
            ("events", token(three), body(three, events=[said | {"cursor": 1}, said | {"cursor": 2}])),
            ("buffer-publish", token(four), body(four, batch_uri=uri, dedupe_scope="sent")),
        ]
    )
    done = await driver.task("complete", token(one), body(one, status="Completed", events=[said | {"cursor": 3}]))
    assert done["status"] == "Completed"
    answers = await driver.batch(
        [
            ("complete", token(two), body(two, status="Completed")),
            ("complete", token(three), body(three, status="Failed", error_message="once")),
            ("complete", token(four), body(four, status="Completed", events=[said | {"cursor": 4}])),
        ]
    )
    assert [answer["status"] for answer in answers] == ["Completed", "Failed", "Completed"]

    await retried(driver, three, leases)
    done = await driver.task("complete", token(three), body(three, status="Completed"))
    assert done["status"] == "Completed"
    sent = next(output for output in leases[four]["task"]["outputs"] if output["storage"]["kind"] == "buffered")
    await driver.until_woken(buffer_queue(UUID(sent["dataset_uuid"])), [published["publish_id"]])
    return {"tasks": tasks, "attempts": [1, 1, 2, 1], "events": [(one, 3), (three, 1), (three, 2), (four, 4)]}


def claim(task_id: str, claim_id: str = "first") -> dict[str, str]:
    return {"task_id": task_id, "worker_id": "w", "claim_id": claim_id}


async def retried(driver: CrashDriver, task_id: str, leases: dict[str, Any]) -> None:
    """Follow wake-ups, of which the first may come twice, until the retry can be claimed."""
    seen = driver.woken[task_id]
    async with asyncio.timeout(30):
        while True:
            await driver.until_woken(QUEUE, [task_id], seen + 1)
            lease = await driver.worker("/internal/task-claim", claim(task_id, "second"))
            if lease["status"] == "Claimed":
                assert lease["attempt"] == 2
                leases[task_id] = lease
                return
            assert lease["reason"] == "NotReady", lease
            seen = driver.woken[task_id]


async def check(driver: CrashDriver, state: "asyncpg.Connection[asyncpg.Record]", did: dict[str, Any]) -> None:
    rows = {str(row["task_id"]): row for row in await state.fetch("SELECT * FROM tasks")}
    assert [rows[task]["status"] for task in did["tasks"]] == ["Completed"] * 4
    assert [rows[task]["attempt"] for task in did["tasks"]] == did["attempts"], "an attempt was lost or doubled"
    events = await state.fetch("SELECT producer, cursor FROM events WHERE producer = ANY($1)", did["tasks"])
    assert sorted(map(tuple, events)) == sorted(did["events"])
    assert await state.fetchval("SELECT count(*) FROM buffer_publishes WHERE task_id = ANY($1)", did["tasks"]) == 1
    history = await state.fetch("SELECT attempt, outcome FROM task_attempts WHERE task_id = $1", did["tasks"][2])
    assert [tuple(row) for row in history] == [(1, "Failed")]
    async with asyncio.timeout(30):
        while await state.fetchval("SELECT count(*) FROM outbox"):
            await asyncio.sleep(0.02)


async def crash(driver: CrashDriver, state: "asyncpg.Connection[asyncpg.Record]", point: str, number: int) -> None:
    await driver.arm(point, number)
    # How rows share a relay round differs from run to run: go on until the point was reached that often.
    while not driver.crashes:
        await check(driver, state, await scenario(driver))


async def crash_everywhere(home: Path, state_dsn: str, queue_dsn: str, point: str, step: int = 1) -> int:
    """Once for each time, or every `step`-th time, that the scenario comes to the point."""
    state = await asyncpg.connect(state_dsn)
    async with CrashDriver(home, state_dsn, queue_dsn) as driver:
        await driver.arm("never", 0)
        await check(driver, state, await scenario(driver))
        reached = driver.reached()[point]
        for number in range(1, reached + 1, step):
            await crash(driver, state, point, number)
    await state.close()
    return reached


async def crash_at_random(home: Path, state_dsn: str, queue_dsn: str, rounds: int) -> None:
    state = await asyncpg.connect(state_dsn)
    async with CrashDriver(home, state_dsn, queue_dsn) as driver:
        for _ in range(rounds):
            await crash(driver, state, random.choice(POINTS), random.randint(1, 30))
    await state.close()


@pytest.fixture
def dsns(cluster: TestCluster) -> Iterator[tuple[str, str]]:
    """Both by their owner, since this Dispatcher checks their migrations itself."""
    made = cluster.fresh("state"), cluster.fresh("queue")
    yield made
    for dsn in made:
        asyncio.run(cluster.drop(dsn))


@pytest.mark.parametrize("point", POINTS)
def test_nothing_is_lost_or_doubled_by_a_crash(dsns: tuple[str, str], tmp_path: Path, point: str) -> None:
    assert asyncio.run(crash_everywhere(tmp_path, *dsns, point, STEP)) >= 3, "the scenario hardly comes to this point"


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_every_time(dsns: tuple[str, str], tmp_path: Path, point: str) -> None:
    asyncio.run(crash_everywhere(tmp_path, *dsns, point))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_hundreds_of_crashes(dsns: tuple[str, str], tmp_path: Path) -> None:
    asyncio.run(crash_at_random(tmp_path, *dsns, rounds=500))

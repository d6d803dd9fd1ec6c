"""Two Dispatchers on the same databases, and callers of both that do not wait for each other."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID, uuid4

from tests.http.support import user_token
from tests.routing.support import Flow
from tests.support import dags
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tests.support.postgres import TestCluster

T = TypeVar("T")
NO_RATES = dispatcher_config(user_rate_per_second=100_000, user_rate_burst=100_000)

READY = """
    SELECT t.task_id FROM tasks t JOIN jobs j USING (job_id) JOIN orgs o ON o.org_id = t.org_id
    WHERE o.name = $1 AND t.status = 'Queued' AND NOT t.held AND j.name = ANY($2) ORDER BY random() LIMIT 20"""


@contextmanager
def two_dispatchers(cluster: TestCluster, home: Path) -> Iterator[list[DispatcherHarness]]:
    dsns = cluster.fresh("state"), cluster.fresh("queue")
    both = [DispatcherHarness.start(*dsns, home, NO_RATES) for _ in range(2)]
    try:
        yield both
    finally:
        for harness in both:
            harness.stop()
        for dsn in dsns:
            asyncio.run(cluster.drop(dsn))


@dataclass
class Caller:
    """Calls one of the two over HTTP. A call that met another one's lock is repeated, as every client does."""

    harness: DispatcherHarness
    org: str
    statuses: Counter[int] = field(default_factory=Counter)
    token: str = ""

    async def call(self, listener: str, method: str, path: str, body: Any, head: dict[str, str]) -> Reply:
        while True:
            reply = await self.harness.call_async(listener, method, path, body, head)
            self.statuses[reply.status] += 1
            if reply.status != 503:
                return reply

    async def user(self, method: str, path: str, body: Any = None) -> Reply:
        return await self.call("public", method, f"/v1{path}", body, {"authorization": f"Bearer {self.token}"})

    async def claim(self, task_id: UUID) -> Any:
        body = {"task_id": str(task_id), "worker_id": "w", "claim_id": str(uuid4())}
        head = {"x-trace-worker-token": self.harness.worker_token}
        return (await self.call("internal", "POST", "/internal/task-claim", body, head)).body

    async def task(self, verb: str, task_id: UUID, lease: Any, **fields: Any) -> Reply:
        head = {"x-trace-task-capability": lease["capability_token"]}
        return await self.call("task", "POST", f"/v1/task/{verb}", fence(str(task_id), lease, **fields), head)

    async def pass_on(self, task_id: UUID) -> bool:
        """Run the task as `noop` does, if it can be had and nobody asks it to stop."""
        lease = await self.claim(task_id)
        if lease["status"] != "Claimed":
            return False
        unit = lease["task"]["inputs"][0]["unit"]
        said = {"cursor": unit["cursor"]["to"]} if "cursor" in unit else unit
        events = [
            {"dataset_uuid": out["dataset_uuid"], "dataset_version": out["dataset_version"]} | said
            for out in lease["task"]["outputs"]
        ]
        done = await self.task("complete", task_id, lease, status="Completed", events=events)
        if done.status == 422:
            assert done.code == "cancel_requested", done
            done = await self.task("complete", task_id, lease, status="Canceled")
        assert done.status in (200, 409), done
        return True

    async def work(self, jobs: list[str], until: Callable[[], bool]) -> int:
        """A worker: takes what is ready, until it is told that there will be no more and finds none."""
        done = 0
        while True:
            last = until()
            rows = await self.harness._sql(READY, self.org, jobs)
            results = await asyncio.gather(*(self.pass_on(row["task_id"]) for row in rows))
            done += sum(results)
            if last and not rows:
                return done


@dataclass
class Pair:
    both: list[DispatcherHarness]
    org: str

    def __post_init__(self) -> None:
        self.flow = Flow(self.both[0], self.org)
        self.callers = [Caller(harness, self.org) for harness in self.both]

    def deploy(self, text: str, **options: Any) -> Any:
        reply = dags.deploy(self.both[0], text, self.org, **options)
        for caller in self.callers:
            caller.token = caller.token or user_token(self.both[0], org=self.org)
        return reply

    def start(self, which: int, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self.both[which].background.loop)

    def together(self, *works: Coroutine[Any, Any, Any]) -> list[Any]:
        """The first on one Dispatcher's loop, the second on the other's, and so on."""
        futures = [self.start(number % 2, work) for number, work in enumerate(works)]
        return [future.result(60) for future in futures]

    def no_call_broke(self) -> None:
        statuses = self.callers[0].statuses + self.callers[1].statuses
        assert not {status for status in statuses if status >= 500 and status != 503}, statuses

    def settle(self, *jobs: str) -> None:
        """Everything comes to its end: builds, edges that are behind, tasks."""
        while True:
            dispatcher = self.both[0].dispatcher
            moved = self.both[0].run(dispatcher.builds.run_once()) + self.flow.drain()
            if not moved + self.both[0].run(self.callers[0].work(list(jobs), lambda: True)):
                return

"""Stores that go away and come back: Postgres state restarted under load, a queue database that refuses connections."""

import asyncio
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tests.support.postgres import TestCluster, make_cluster, run, scratch_directory, stop, wait_ready, wait_until
from tracelake.errors import StoreUnavailableError
from tracelake.model.ids import new_id
from tracelake.stack.postgres import STATE_DATABASES, EmbeddedPostgres
from tracelake.stack.provision import migrate_dsn, provision

QUICK = dispatcher_config(relay_poll_seconds=0.05, retry_seconds=0.05, reaper_seconds=0.1)


class OwnCluster:
    """A durable Postgres of the test's own, which it may stop and kill."""

    def __init__(self) -> None:
        self.root = scratch_directory()
        # Durable, since a killed server must keep what it said was committed.
        self.cluster: EmbeddedPostgres = replace(make_cluster(self.root, STATE_DATABASES), durable=True)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()
        run(provision(self.cluster))
        run(migrate_dsn(self.dsn("state"), "state"))
        run(migrate_dsn(self.dsn("queue"), "queue"))

    def dsn(self, database: str) -> str:
        return self.cluster.dsn("trace_state", database)

    def start(self) -> None:
        self.process = self.cluster.start()
        wait_ready(self.cluster, self.process)

    def stop(self) -> None:
        assert self.process is not None
        stop(self.process)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.root, ignore_errors=True)


@pytest.fixture
def own() -> Iterator[OwnCluster]:
    made = OwnCluster()
    try:
        yield made
    finally:
        made.close()


class Load:
    """Callers that take tasks from creation to completion for as long as they are let, repeating what is 503."""

    def __init__(self, harness: DispatcherHarness, job_id: str, callers: int) -> None:
        self.harness, self.job_id = harness, job_id
        self.statuses: Counter[int] = Counter()
        self.created: list[str] = []
        self.completed: Counter[str] = Counter()
        self._stopping = False
        self._running = [
            asyncio.run_coroutine_threadsafe(self._work(), harness.background.loop) for _ in range(callers)
        ]

    def finish(self) -> None:
        self._stopping = True
        for worker in self._running:
            worker.result(60)

    async def _work(self) -> None:
        service = {"x-trace-service-token": self.harness.service_token}
        worker = {"x-trace-worker-token": self.harness.worker_token}
        while not self._stopping:
            task_id = str(new_id())
            made = {"tasks": [{"job_id": self.job_id, "task_id": task_id}]}
            await self._call("internal", "/internal/tasks", made, service)
            self.created.append(task_id)
            claim = {"task_id": task_id, "worker_id": "w", "claim_id": "c"}
            lease = (await self._call("internal", "/internal/task-claim", claim, worker)).body
            capability = {"x-trace-task-capability": lease["capability_token"]}
            await self._call("task", "/v1/task/heartbeat", fence(task_id, lease), capability)
            done = await self._call("task", "/v1/task/complete", fence(task_id, lease, status="Completed"), capability)
            assert done.body["status"] == "Completed"
            self.completed[task_id] += 1

    async def _call(self, listener: str, path: str, body: Any, headers: dict[str, str]) -> Reply:
        async with asyncio.timeout(60):
            while True:
                reply = await self.harness.call_async(listener, "POST", path, body, headers)
                self.statuses[reply.status] += 1
                if reply.status == 200:
                    return reply
                assert reply.status == 503, reply
                assert reply.code == "store_unavailable"
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_postgres_restarts_under_load(own: OwnCluster, tmp_path: Path, how: str) -> None:
    harness = DispatcherHarness.start(own.dsn("state"), own.dsn("queue"), tmp_path, QUICK)
    try:
        harness.run(_start_loops(harness))
        load = Load(harness, harness.make_job()["job_id"], callers=8)
        wait_until(lambda: len(load.completed) >= 20, "the load to run")
        own.stop() if how == "stopped" else own.kill()
        before = load.statuses[503]
        wait_until(lambda: load.statuses[503] > before, "callers to see that the store is away")
        own.start()
        done = len(load.completed)
        wait_until(lambda: len(load.completed) >= done + 20, "the load to go on")
        load.finish()
        assert set(load.statuses) == {200, 503}
        rows = harness.sql("SELECT task_id, status, attempt FROM tasks")
        assert sorted(str(row["task_id"]) for row in rows) == sorted(load.created), "accepted work was lost"
        assert {(row["status"], row["attempt"]) for row in rows} == {("Completed", 1)}
        wait_until(lambda: not harness.sql("SELECT FROM outbox"), "the outbox to drain")
    finally:
        harness.stop()


async def _start_loops(harness: DispatcherHarness) -> None:
    harness.dispatcher.start_loops()


def test_a_queue_that_refuses_connections_loses_nothing_and_counts_nothing(
    cluster: TestCluster, state_dsn: str, fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> None:
    queue_dsn = fresh_queue_dsn()
    database = queue_dsn.split("@/", 1)[1].split("?", 1)[0]
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, QUICK)
    try:
        job = harness.make_job()
        first = harness.make_task(job["job_id"])
        assert harness.relay() == 1
        run(_refuse(cluster, database, True))
        tasks = [harness.make_task(job["job_id"]) for _ in range(3)]
        for _ in range(30):
            with pytest.raises(StoreUnavailableError):
                harness.relay()
        assert [tuple(row) for row in harness.sql("SELECT status, tries FROM outbox")] == [("Pending", 0)] * 3
        assert harness.claim(tasks[0]).body["status"] == "Claimed", "work goes on without wake-ups"
        run(_refuse(cluster, database, False))
        wait_until(lambda: _relayed(harness), "the relay to find its queue again")
        deliveries = harness.run(harness.dispatcher.ports.queue.receive("tasks.ecs_platform", 10, 30.0))
        assert sorted(delivery.key for delivery in deliveries) == sorted([first, *tasks])
    finally:
        run(_refuse(cluster, database, False))
        harness.stop()


def _relayed(harness: DispatcherHarness) -> bool:
    try:
        harness.relay()
    except StoreUnavailableError:
        return False
    return not harness.sql("SELECT FROM outbox")


async def _refuse(cluster: TestCluster, database: str, refuse: bool) -> None:
    connection = await asyncpg.connect(cluster.cluster.superuser_dsn())
    try:
        await connection.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS {not refuse}')
        if refuse:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database
            )
    finally:
        await connection.close()


def test_the_reaper_waits_one_lease_after_the_store_was_away(
    cluster: TestCluster, state_dsn: str, queue_dsn: str, tmp_path: Path
) -> None:
    """Workers that could not reach anybody get the time to say that they are alive."""
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    database = state_dsn.split("@/", 1)[1].split("?", 1)[0]
    try:
        harness.use_movable_clock()
        task_id = harness.make_task(harness.make_job()["job_id"])
        lease = harness.claim(task_id).body
        assert harness.reap() == 0
        run(_refuse(cluster, database, True))
        with pytest.raises(StoreUnavailableError):
            harness.reap()
        run(_refuse(cluster, database, False))
        harness.advance(500)
        assert harness.reap() == 0, "it judged at once after the outage"
        harness.advance(119)
        assert harness.reap() == 0
        harness.advance(2)
        assert harness.reap() == 1
        assert harness.task("heartbeat", lease["capability_token"], fence(task_id, lease)).status == 200
    finally:
        run(_refuse(cluster, database, False))
        harness.stop()

"""People who read do not hold up tasks."""

import asyncio

import asyncpg

from tests.api.support import World
from tests.http.support import user_token
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.http.user_endpoints import READS_OF_ONE_ORG

_BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def test_reads_that_take_long_leave_connections_to_the_tasks(harness: DispatcherHarness) -> None:
    world = World(harness)
    headers = world.user("admin").headers
    other = {"authorization": f"Bearer {user_token(harness, org='somebody_else', roles=['reader'])}"}
    task_id = harness.make_task(harness.make_job()["job_id"])
    claim = {"task_id": task_id, "worker_id": "w"}
    worker = {"x-trace-worker-token": harness.worker_token}

    async def check() -> None:
        locker, watcher = [await asyncpg.connect(harness.state_dsn) for _ in range(2)]
        try:
            async with locker.transaction():
                await locker.execute("LOCK TABLE audit_log IN ACCESS EXCLUSIVE MODE")
                reads = [
                    asyncio.create_task(harness.call_async("public", "GET", "/v1/audit", None, headers))
                    for _ in range(20)
                ]
                while await watcher.fetchval(_BLOCKED) < READS_OF_ONE_ORG:
                    await asyncio.sleep(0.01)
                whoever = await harness.call_async("public", "GET", "/v1/dags", None, other)
                assert whoever.status == 200, "another org's reader did not wait for them"
                claimed = await harness.call_async("internal", "POST", "/internal/task-claim", claim, worker)
                assert claimed.body["status"] == "Claimed"
                assert not any(read.done() for read in reads), "the claim did not wait for them"
            answers = {(await read).status for read in reads}
            assert answers <= {200, 503}
            assert 200 in answers
        finally:
            await locker.close()
            await watcher.close()

    harness.run(check())


def test_a_table_that_is_locked_is_a_503(harness: DispatcherHarness) -> None:
    world = World(harness)
    headers = world.user("admin").headers

    async def check() -> None:
        locker = await asyncpg.connect(harness.state_dsn)
        try:
            async with locker.transaction():
                await locker.execute("LOCK TABLE audit_log IN ACCESS EXCLUSIVE MODE")
                reply = await harness.call_async("public", "GET", "/v1/audit", None, headers)
                assert (reply.status, reply.code) == (503, "store_unavailable")
        finally:
            await locker.close()

    harness.run(check())

"""One org's routing lock is held: its own callers wait without a connection, and the other org does not notice."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.deploy.support import chain
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.db import transaction as transaction_module
from tracelake.db.routing_gate import RoutingBusyError
from tracelake.db.transaction import AWAY, StatementTimeoutError, Store
from tracelake.dispatcher.audit import Actor
from tracelake.errors import StoreUnavailableError
from tracelake.wire.jobs import TriggerRequest

WAITERS = 12
"""More than the pool has connections."""


@pytest.fixture(autouse=True)
def long_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives up before the test lets go, however slow the machine is."""
    monkeypatch.setattr(transaction_module, "_ROUTING_PATIENCE_SECONDS", 45.0)
    monkeypatch.setitem(transaction_module._PATIENCE, "lock_timeout", "45s")


def deployed(harness: DispatcherHarness, org: str) -> Actor:
    harness.run(
        harness.dispatcher.deployments.deploy(
            Actor("somebody", org, None), "d", str(chain()).encode(), dry_run=False, activate=True
        )
    )
    return Actor("somebody", org, harness.sql("SELECT org_id FROM orgs WHERE name = $1", org)[0]["org_id"])


@asynccontextmanager
async def held_lock(harness: DispatcherHarness, actor: Actor) -> AsyncIterator[None]:
    """What a deploy in another process does."""
    connection = await asyncpg.connect(harness.state_dsn)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(routing_lock_key($1))", actor.org_id)
            yield
    finally:
        await connection.close()


def trigger(harness: DispatcherHarness, actor: Actor, cursor: int) -> Coroutine[Any, Any, Any]:
    return harness.dispatcher.actions.trigger(actor, "d", "tick", TriggerRequest(cursor=cursor))


def redeploy(harness: DispatcherHarness, actor: Actor, number: int) -> Coroutine[Any, Any, Any]:
    text = str(chain(a=number)).encode()
    return harness.dispatcher.deployments.deploy(actor, "d", text, dry_run=False, activate=False)


def pause(harness: DispatcherHarness, actor: Actor, number: int) -> Coroutine[Any, Any, Any]:
    del number
    return harness.dispatcher.pauses.pause(actor, "d", "tick")


@pytest.mark.parametrize("wait", [trigger, redeploy, pause])
def test_a_held_routing_lock_stops_nobody_of_another_org(harness: DispatcherHarness, wait: Any) -> None:
    busy, other = deployed(harness, "busy"), deployed(harness, "other")
    tasks = [harness.make_task(harness.make_job(org="other")["job_id"]) for _ in range(2)]
    lease = harness.claim(tasks[0]).body
    worker = {"x-trace-worker-token": harness.worker_token}
    capability = {"x-trace-task-capability": lease["capability_token"]}

    async def scenario() -> tuple[Reply, Reply]:
        async with held_lock(harness, busy):
            # An org that has more documents waiting to be read than this is told to come back later.
            waiters = WAITERS // 2 if wait is redeploy else WAITERS
            waiting = [asyncio.ensure_future(wait(harness, busy, number)) for number in range(2, 2 + waiters)]
            beat = await harness.call_async("task", "POST", "/v1/task/heartbeat", fence(tasks[0], lease), capability)
            claim = await harness.call_async(
                "internal", "POST", "/internal/task-claim", {"task_id": tasks[1], "worker_id": "w"}, worker
            )
            # Outside the lifecycle too: who waits has given its connection back.
            await trigger(harness, other, 7)
            await harness.dispatcher.drain.run_once()
            assert (await harness.call_async("internal", "GET", "/readyz")).status == 200
            assert not any(future.done() for future in waiting), "the other org went first"
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        # Once the lock is free they go on; deploys in a row may have to be repeated.
        assert all(not isinstance(end, Exception) or isinstance(end, StoreUnavailableError) for end in ends)
        assert not isinstance(ends[0], Exception)
        return beat, claim

    beat, claim = harness.run(scenario(), timeout=120)
    assert beat.status == 200
    assert claim.body["status"] == "Claimed"


def test_who_waits_too_long_is_503(harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = deployed(harness, "busy")
    monkeypatch.setattr(transaction_module, "_ROUTING_PATIENCE_SECONDS", 0.05)

    async def scenario() -> list[Any]:
        async with held_lock(harness, busy):
            triggers = (trigger(harness, busy, number) for number in range(3))
            return await asyncio.gather(*triggers, return_exceptions=True)

    ends = harness.run(scenario())
    assert [(type(end), end.status) for end in ends] == [(StoreUnavailableError, 503)] * 3
    harness.run(trigger(harness, busy, 9))


def test_a_manual_retry_during_a_deploy_is_answered_when_it_is_over(harness: DispatcherHarness) -> None:
    busy = deployed(harness, "busy")
    task_id = harness.make_task(harness.make_job(org="busy")["job_id"])
    lease = harness.claim(task_id).body
    harness.task("complete", lease["capability_token"], fence(task_id, lease, status="Failed", retryable=False))

    async def scenario() -> Any:
        async with held_lock(harness, busy):
            retry = asyncio.ensure_future(harness.dispatcher.actions.retry(busy, UUID(task_id)))
            await parked(harness)
            assert not retry.done()
        return await retry

    reply = harness.run(scenario())
    assert (reply.status, reply.duplicate) == ("Queued", False)


async def parked(harness: DispatcherHarness) -> None:
    """Until the retry was tried and stepped aside."""
    async with asyncio.timeout(30):
        while not harness.dispatcher.group._parked:
            await asyncio.sleep(0.005)


async def write_for_too_long(store: Store) -> None:
    async with store.transaction() as connection:
        await connection.execute("CREATE TABLE kept (n int)")
        await connection.execute("SELECT pg_sleep(30)")


def test_a_statement_that_takes_too_long_is_rolled_back_and_says_so(state_dsn: str) -> None:
    async def scenario() -> None:
        store = Store(state_dsn, size=2, name="state", command_timeout=0.3)
        await store.open()
        try:
            with pytest.raises(StatementTimeoutError):
                await write_for_too_long(store)
            async with store.connection() as connection:
                assert await connection.fetchval("SELECT to_regclass('kept')") is None
        finally:
            await store.close()

    asyncio.run(scenario())


def test_a_commit_without_an_answer_is_never_taken_for_one_that_failed(state_dsn: str) -> None:
    class LostStore(Store):
        async def commit(self, connection: Any) -> None:
            await super().commit(connection)
            raise AWAY[1]("the answer was lost")

    async def scenario() -> None:
        store = LostStore(state_dsn, size=2, name="state")
        await store.open()
        try:
            with pytest.raises(StoreUnavailableError) as lost:
                async with store.transaction() as connection:
                    await connection.execute("SELECT 1")
            assert not isinstance(lost.value, StatementTimeoutError)
        finally:
            await store.close()

    asyncio.run(scenario())


def test_reserved_connections_are_left_to_those_who_ask_for_them(state_dsn: str) -> None:
    async def scenario() -> None:
        store = Store(state_dsn, size=3, name="state", reserved=1)
        await store.open()
        entered: list[int] = []
        release = asyncio.Event()

        async def hold(number: int) -> None:
            async with store.connection():
                entered.append(number)
                await release.wait()

        holders = [asyncio.create_task(hold(number)) for number in range(4)]
        try:
            async with store.transaction(reserved=True) as connection:
                assert await connection.fetchval("SELECT 1") == 1
            assert len(entered) <= 2
            release.set()
            await asyncio.gather(*holders)
            assert sorted(entered) == [0, 1, 2, 3]
        finally:
            await store.close()

    asyncio.run(scenario())


def test_moves_of_one_org_follow_each_other_and_wake_who_waits(state_dsn: str) -> None:
    async def scenario() -> None:
        store = Store(state_dsn, size=4, name="state")
        await store.open()
        org_id = uuid4()
        running: list[int] = []

        async def move(number: int) -> None:
            async with store.transaction(moving=org_id) as connection:
                running.append(number)
                assert len(running) == 1
                await connection.execute("SELECT 1")
                running.remove(number)

        async def route() -> None:
            async with store.transaction(routing=[org_id]):
                assert not running

        try:
            await asyncio.gather(*(move(number) for number in range(6)), *(route() for _ in range(6)))
            async with store.transaction(moving=org_id):
                with pytest.raises(RoutingBusyError):
                    async with store.transaction(routing=[org_id], wait=False):
                        raise AssertionError("unreachable")
            assert not store._gates._gates, "nothing is kept of an org that nobody waits for"
        finally:
            await store.close()

    asyncio.run(scenario())


def test_a_row_that_somebody_holds_delays_its_own_task_alone(harness: DispatcherHarness) -> None:
    job_id = harness.make_job()["job_id"]
    held, free, unknown = harness.make_task(job_id), harness.make_task(job_id), str(uuid4())
    lease = harness.claim(held).body
    worker = {"x-trace-worker-token": harness.worker_token}

    async def claim(task_id: str) -> Reply:
        body = {"task_id": task_id, "worker_id": "w"}
        return await harness.call_async("internal", "POST", "/internal/task-claim", body, worker)

    async def scenario() -> None:
        connection = await asyncpg.connect(harness.state_dsn)
        try:
            async with connection.transaction():
                await connection.execute("SELECT FROM tasks WHERE task_id = $1 FOR UPDATE", UUID(held))
                capability = {"x-trace-task-capability": lease["capability_token"]}
                beat = asyncio.ensure_future(
                    harness.call_async("task", "POST", "/v1/task/heartbeat", fence(held, lease), capability)
                )
                replies = await asyncio.gather(claim(free), claim(unknown))
                assert [reply.body.get("reason", "Claimed") for reply in replies] == ["Claimed", "NotFound"]
                assert not beat.done()
            assert (await beat).status == 200, "it waited in the slow lane"
        finally:
            await connection.close()

    harness.run(scenario())


def test_lifecycle_calls_go_on_while_everything_else_waits_for_a_connection(harness: DispatcherHarness) -> None:
    job_id = harness.make_job()["job_id"]
    tasks = [harness.make_task(job_id) for _ in range(2)]
    lease = harness.claim(tasks[0]).body
    worker = {"x-trace-worker-token": harness.worker_token}
    capability = {"x-trace-task-capability": lease["capability_token"]}
    store = harness.dispatcher.ports.store

    async def scenario() -> list[int]:
        release = asyncio.Event()

        async def hold() -> None:
            async with store.connection():
                await release.wait()

        holders = [asyncio.create_task(hold()) for _ in range(WAITERS)]
        try:
            async with asyncio.timeout(30):
                while not store._shared.locked():
                    await asyncio.sleep(0)
            claim = {"task_id": tasks[1], "worker_id": "w"}
            replies = [
                await harness.call_async("task", "POST", "/v1/task/heartbeat", fence(tasks[0], lease), capability),
                await harness.call_async("internal", "POST", "/internal/task-claim", claim, worker),
                await harness.call_async("internal", "GET", "/readyz"),
            ]
            return [reply.status for reply in replies]
        finally:
            release.set()
            await asyncio.gather(*holders)

    assert harness.run(scenario()) == [200] * 3

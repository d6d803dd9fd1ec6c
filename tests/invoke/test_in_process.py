"""Control operators in the Dispatcher: whatever they do, or the store does, the attempt gets its word or its lease."""

import asyncio
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.invoke.conftest import StartHarness
from tests.invoke.support import blocks, events_of, outcomes, own_task, rows_waiting
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tracelake.catalogue import CATALOGUE
from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.engine.calls.claim import ClaimCall, ClaimedAttempt
from tracelake.dispatcher.invoke import in_process
from tracelake.dispatcher.invoke.attempt import OwnAttempt
from tracelake.dispatcher.invoke.in_process import run_in_process
from tracelake.dispatcher.invoke.operators import CONTROL_OPERATORS, ControlOperator
from tracelake.dispatcher.invoke.operators.context import ControlContext
from tracelake.dispatcher.payload import build_payload
from tracelake.errors import TraceError
from tracelake.wire.claims import ClaimRequest
from tracelake.wire.units import EventIn


def test_every_control_operator_is_there() -> None:
    assert set(CONTROL_OPERATORS) == {name for name, spec in CATALOGUE.items() if spec.control}


def run(harness: DispatcherHarness, task_id: str, operator: ControlOperator) -> str:
    """Claim the task and run this operator for it."""
    dispatcher = harness.dispatcher

    async def work() -> str:
        claim = ClaimCall(ClaimRequest(task_id=UUID(task_id), worker_id="test"))
        claimed = await dispatcher.group.enqueue(claim)
        assert isinstance(claimed, ClaimedAttempt)
        attempt = OwnAttempt(claimed, dispatcher.group, dispatcher.metrics, asyncio.Event())
        payload = build_payload(
            claimed.task, claimed.job, claimed.inputs, dispatcher.service.config.layout, lambda _key: "name"
        )
        return await run_in_process(attempt, payload, dispatcher.ports.store, {"noop": operator})

    return harness.run(work())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("of no \0 use \ud800"), "ValueError: of no \ufffd use ?"),
        (KeyError(), "KeyError"),
        (RecursionError("x" * 5000), "RecursionError: " + "x" * 1984),
    ],
    ids=["strange text", "no text", "long text"],
)
def test_what_an_operator_raises_is_its_failure(harness: DispatcherHarness, error: Exception, text: str) -> None:
    async def fails(_context: ControlContext) -> Iterable[EventIn]:
        raise error

    task_id = own_task(harness)
    assert run(harness, task_id, fails) == "Failed"
    row = harness.row(task_id)
    assert (row["error"], row["next_retry_at"] is None) == (text, False)


def test_a_failing_statement_says_nothing_of_the_database(harness: DispatcherHarness) -> None:
    async def fails(context: ControlContext) -> Iterable[EventIn]:
        async with context.store.connection() as connection:
            await connection.execute("SELECT * FROM secret_table")
        return []

    task_id = own_task(harness)
    run(harness, task_id, fails)
    assert harness.row(task_id)["error"] == "UndefinedTableError"


def test_an_operator_that_breaks_in_the_middle_of_its_events(harness: DispatcherHarness) -> None:
    def events(context: ControlContext) -> Iterator[EventIn]:
        output = context.outputs[0]
        yield EventIn(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, cursor=1)
        raise ValueError("enough")

    async def breaks(context: ControlContext) -> Iterable[EventIn]:
        return events(context)

    task_id = own_task(harness)
    assert run(harness, task_id, breaks) == "Failed"
    assert events_of(harness, task_id) == []


def test_a_cancelled_attempt_ends_cancelled(harness: DispatcherHarness) -> None:
    task_id = own_task(harness)

    async def overtaken(_context: ControlContext) -> Iterable[EventIn]:
        await harness.dispatcher.service.cancel(UUID(task_id))
        return []

    assert run(harness, task_id, overtaken) == "Canceled"
    row = harness.row(task_id)
    assert (row["status"], row["outcome"], row["error"]) == ("Canceled", "Canceled", None)


def test_an_attempt_that_was_replaced_says_nothing_more(harness: DispatcherHarness) -> None:
    task_id = own_task(harness)

    async def replaced(_context: ControlContext) -> Iterable[EventIn]:
        async with harness.dispatcher.ports.store.connection() as connection:
            # Another attempt: no call can start one while this one holds its lease.
            await connection.execute("UPDATE tasks SET lease_token = gen_random_uuid()")
        return []

    with pytest.raises(TraceError) as refused:
        run(harness, task_id, replaced)
    assert refused.value.code == "fenced"
    assert harness.row(task_id)["status"] == "Running"


def test_a_long_attempt_keeps_its_lease_and_hears_of_cancellation(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_process, "MAX_EVENTS", 1)
    monkeypatch.setattr(in_process, "time", SimpleNamespace(monotonic=iter(range(0, 10**6, 50)).__next__))
    task_id = own_task(harness, limits={"timeout_seconds": 900, "heartbeat_timeout_seconds": 60})
    leases: list[Any] = []

    async def long(context: ControlContext) -> Iterable[EventIn]:
        output = context.outputs[0]
        return (
            EventIn(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, cursor=number)
            for number in range(4)
        )

    beat = OwnAttempt.beat

    async def watched(attempt: OwnAttempt) -> bool:
        async with harness.dispatcher.ports.store.connection() as connection:
            await connection.execute("UPDATE test_clock SET ahead = ahead + interval '10 seconds'")
            leases.append(await connection.fetchval("SELECT lease_expires_at FROM tasks"))
            if len(leases) == 2:
                # As a cancel request leaves it.
                await connection.execute("UPDATE tasks SET cancel_requested = true")
        return await beat(attempt)

    monkeypatch.setattr(OwnAttempt, "beat", watched)
    assert run(harness, task_id, long) == "Canceled"
    assert len(leases) == 2
    assert leases[0] < leases[1]


class Outage:
    """The next commits fail: before they happen, or after, when only their answer is lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failures = 0
        self.committed = True
        self.met = 0
        self.on_failure = asyncio.Event()
        commit = Store.commit

        async def failing(store: Store, connection: Connection) -> None:
            if not self.failures:
                return await commit(store, connection)
            self.failures -= 1
            self.met += 1
            if self.committed:
                await commit(store, connection)
            self.on_failure.set()
            raise ConnectionResetError

        monkeypatch.setattr(Store, "commit", failing)


@pytest.mark.parametrize("committed", [False, True])
def test_a_claim_whose_answer_was_lost_is_the_same_attempt(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    task_id = own_task(harness, unit=blocks(0, 9))
    outage = Outage(monkeypatch)
    outage.failures, outage.committed = 1, committed
    with pytest.raises(TraceError) as away:
        harness.invoke()
    assert away.value.code == "store_unavailable"
    assert harness.row(task_id)["status"] == ("Running" if committed else "Queued")
    harness.advance(11)
    assert harness.invoke() == 1
    row = harness.row(task_id)
    assert (row["status"], row["attempt"], len(events_of(harness, task_id))) == ("Completed", 1, 1)
    assert rows_waiting(harness) == 0


@pytest.mark.parametrize("committed", [False, True])
def test_what_an_attempt_has_to_say_is_repeated_until_it_is_heard(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch, committed: bool
) -> None:
    outage = Outage(monkeypatch)
    outage.committed = committed
    task_id = own_task(harness)

    async def then_away(context: ControlContext) -> Iterable[EventIn]:
        outage.failures = 2
        output = context.outputs[0]
        return [EventIn(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, cursor=1)]

    assert run(harness, task_id, then_away) == "Completed"
    assert (outage.met, len(events_of(harness, task_id))) == (2, 1)


def test_a_stop_while_the_store_is_away_leaves_the_attempt_to_its_lease(
    start: StartHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = start(config=dispatcher_config())
    task_id = own_task(harness, unit=blocks(0, 9))
    outage = Outage(monkeypatch)
    outage.committed = False

    async def stop_in_an_outage() -> None:
        await harness.dispatcher.invocations.run_once()
        outage.failures = 10**9
        await outage.on_failure.wait()
        await harness.dispatcher.invocations.close(patience=3600.0)  # it does not come to that

    harness.run(stop_in_an_outage())
    outage.failures = 0
    assert harness.row(task_id)["status"] == "Running"
    assert outcomes(harness, "dispatcher") == {"Left": 1}
    assert harness.invoke() == 0  # it takes no more

"""The invoke loop through real tables: who runs a task, how often, and what is left of its row."""

import asyncio
import threading
from collections import Counter
from uuid import UUID

import pytest

from tests.invoke.conftest import StartHarness
from tests.invoke.support import (
    ScriptedInvoker,
    blocks,
    duplicate_row,
    events_of,
    outcomes,
    own_task,
    rows_waiting,
)
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import wait_until
from tracelake.dispatcher.invoke.loop import HIDE_SECONDS
from tracelake.model.job import Storage
from tracelake.ports import InvokeError
from tracelake.wire.claims import Invocation

EVERY_STORAGE = tuple(storage.value for storage in Storage)


@pytest.mark.parametrize("runtime", ["dispatcher", "lambda"])
def test_noop_announces_the_unit_of_its_input(harness: DispatcherHarness, runtime: str) -> None:
    by_cursor = own_task(
        harness, unit={"cursor": {"after": 4, "to": 9}}, runtime=runtime, outputs=EVERY_STORAGE, name="by_cursor"
    )
    by_range = own_task(harness, unit=blocks(10, 19), runtime=runtime, name="by_range")
    by_key = own_task(harness, unit={"partition_key": "día"}, runtime=runtime, name="by_key")
    alone = own_task(harness, runtime=runtime, name="alone")
    assert harness.relay() == 0
    assert harness.invoke() == 4
    assert rows_waiting(harness) == 0
    for task_id in (by_cursor, by_range, by_key, alone):
        row = harness.row(task_id)
        assert (row["status"], row["attempt"], row["error"]) == ("Completed", 1, None)
        assert row["worker_id"].startswith("dispatcher:")
    announced = sorted(
        f"by_cursor_{index}" for index, storage in enumerate(EVERY_STORAGE) if storage in ("none", "postgres", "live")
    )
    assert events_of(harness, by_cursor) == [(name, 9, None, None, None, "") for name in announced]
    assert events_of(harness, by_range) == [("by_range_0", None, "10-19", 10, 19, "")]
    assert events_of(harness, by_key) == [("by_key_0", None, "día", None, None, "")]
    assert events_of(harness, alone) == []
    assert outcomes(harness, runtime) == {"Started" if runtime == "lambda" else "Completed": 4}


def test_an_invocation_says_everything(start: StartHarness) -> None:
    invoker = ScriptedInvoker()
    harness = start(invoker=invoker)
    task_id = own_task(harness, "udf", unit=blocks(0, 9), runtime="lambda", config={"depth": [1]}, outputs=["s3"])
    harness.invoke()
    row = harness.row(task_id)
    given = invoker.given[0]
    assert (given.task_id, given.attempt, given.operator, given.config) == (UUID(task_id), 1, "udf", {"depth": [1]})
    assert (given.lease_token, given.lease_expires_at) == (row["lease_token"], row["lease_expires_at"])
    assert given.lease_expires_at == row["deadline_at"]
    assert (given.inputs[0].name, given.inputs[0].unit.start, given.inputs[0].unit.end) == ("source", 0, 9)
    assert given.outputs[0].storage.write_prefix is not None
    assert given.job.name == "own"
    assert given.bundle_url is None
    # The token is the attempt's: with it, and with nothing else, the attempt speaks for itself.
    fence = {"task_id": task_id, "attempt": 1, "lease_token": str(given.lease_token)}
    assert harness.task("complete", given.capability_token, fence | {"status": "Completed"}).status == 200
    assert harness.row(task_id)["status"] == "Completed"


def test_a_repeated_row_starts_nothing(start: StartHarness) -> None:
    invoker = ScriptedInvoker()
    harness = start(invoker=invoker)
    task_id = own_task(harness, runtime="lambda")
    for _ in range(3):
        duplicate_row(harness, task_id, "lambda")
    assert harness.invoke() == 4
    duplicate_row(harness, task_id, "lambda")
    assert harness.invoke() == 1
    assert (len(invoker.given), rows_waiting(harness)) == (1, 0)
    assert harness.row(task_id)["status"] == "Running"


def test_rows_whose_task_needs_nobody_are_dropped(harness: DispatcherHarness) -> None:
    canceled = own_task(harness)
    assert harness.service("POST", f"/internal/tasks/{canceled}/cancel").status == 200
    duplicate_row(harness, "00000000-0000-7000-8000-000000000000")
    assert harness.invoke() == 2
    assert rows_waiting(harness) == 0
    assert outcomes(harness, "dispatcher") == {}


def test_a_taken_row_comes_back_when_its_taker_died(harness: DispatcherHarness) -> None:
    task_id = own_task(harness)
    # What a Dispatcher leaves behind that dies between taking the row and claiming.
    harness.sql("UPDATE outbox SET next_try_at = trace_now() + make_interval(secs => $1)", float(HIDE_SECONDS))
    assert harness.invoke() == 0
    harness.advance(HIDE_SECONDS + 1)
    assert harness.invoke() == 1
    assert harness.row(task_id)["status"] == "Completed"


def test_two_dispatchers_share_the_work(start: StartHarness) -> None:
    first, second = start(), start()
    tasks = [own_task(first, unit=blocks(0, 9)) for _ in range(60)]
    for task_id in tasks[::3]:
        duplicate_row(first, task_id)

    async def work(harness: DispatcherHarness) -> int:
        done = 0
        while taken := await harness.dispatcher.invocations.run_once():
            await harness.dispatcher.invocations.settle()
            done += taken
        return done

    both = [asyncio.run_coroutine_threadsafe(work(each), each.background.loop) for each in (first, second)]
    assert sum(each.result(60) for each in both) == 80
    for task_id in tasks:
        assert (first.row(task_id)["status"], first.row(task_id)["attempt"]) == ("Completed", 1)
        assert len(events_of(first, task_id)) == 1


def test_a_refused_attempt_fails_and_is_tried_again(start: StartHarness) -> None:
    invoker = ScriptedInvoker(InvokeError("no room; \0 come again"))
    harness = start(invoker=invoker)
    task_id = own_task(harness, runtime="lambda")
    harness.invoke()
    row = harness.row(task_id)
    assert (row["status"], row["error"]) == ("Failed", "no room; \ufffd come again")
    harness.advance(1000)
    assert harness.requeue_due() == 1
    harness.invoke()
    assert [given.attempt for given in invoker.given] == [1, 2]
    assert harness.row(task_id)["status"] == "Running"
    assert outcomes(harness, "lambda") == {"Refused": 1, "Started": 1}


def test_an_attempt_that_never_started_runs_into_its_lease(start: StartHarness) -> None:
    """As after a crash between claim and invoke: nobody knows whether it runs, so its lease decides."""
    invoker = ScriptedInvoker(RuntimeError("broke"))
    harness = start(invoker=invoker)
    task_id = own_task(harness, runtime="lambda", limits={"timeout_seconds": 30})
    harness.invoke()
    assert harness.row(task_id)["status"] == "Running"
    harness.reap()
    harness.advance(31)
    assert harness.reap() == 1
    harness.advance(1000)
    assert harness.requeue_due() == 1
    harness.invoke()
    assert [given.attempt for given in invoker.given] == [1, 2]
    assert outcomes(harness, "lambda") == {"Unknown": 1, "Started": 1}


def test_an_attempt_that_was_not_handed_over_is_handed_over_again(start: StartHarness) -> None:
    """As after a crash between claim and invoke, or before the reply: the row comes back, with the same attempt."""
    invoker = ScriptedInvoker(RuntimeError("broke"))
    harness = start(invoker=invoker)
    task_id = own_task(harness, runtime="lambda", limits={"timeout_seconds": 300})
    harness.invoke()
    lease = harness.row(task_id)["lease_token"]
    assert rows_waiting(harness) == 1
    successor = start(invoker=invoker)
    assert successor.invoke() == 0
    harness.advance(HIDE_SECONDS + 1)
    assert successor.invoke() == 1
    assert [(given.attempt, given.lease_token) for given in invoker.given] == [(1, lease)] * 2
    assert rows_waiting(harness) == 0


def test_a_runner_that_is_away_costs_no_attempt(start: StartHarness) -> None:
    rounds = 15
    invoker = ScriptedInvoker(*(InvokeError("busy", unavailable=True) for _ in range(rounds)), InvokeError("refused"))
    harness = start(invoker=invoker)
    task_id = own_task(harness, runtime="lambda", limits={"max_attempts": 2})
    for _ in range(rounds):
        harness.invoke()
        row = harness.row(task_id)
        assert (row["status"], row["error"]) == ("Failed", "busy")
        assert row["next_retry_at"] is not None
        harness.advance(60)  # it waits no longer each time
        assert harness.requeue_due() == 1
    harness.invoke()
    row = harness.row(task_id)
    assert row["error"] == "refused"
    assert row["max_attempts"] - row["attempt"] == 1, "this one was the first that counts"
    harness.advance(1000)
    assert harness.requeue_due() == 1
    harness.invoke()
    assert harness.row(task_id)["status"] == "Running"


def test_the_last_slots_are_for_orgs_that_have_none(start: StartHarness) -> None:
    gate, begun = asyncio.Event(), threading.Semaphore(0)

    class Gated(ScriptedInvoker):
        async def invoke(self, invocation: Invocation) -> None:
            self.given.append(invocation)
            begun.release()
            await gate.wait()

    invoker = Gated()
    harness = start(config=dispatcher_config(invoke_slots=8), invoker=invoker)
    job = harness.make_job("many", org="org_a", runtime="lambda", operator="noop")
    harness.service("POST", "/internal/tasks", {"tasks": [{"job_id": job["job_id"]}] * 20})
    take = harness.dispatcher.invocations.run_once
    assert [harness.run(take()), harness.run(take())] == [7, 0]
    other = harness.make_job("one", org="org_b", runtime="lambda", operator="noop")
    harness.service("POST", "/internal/tasks", {"tasks": [{"job_id": other["job_id"]}] * 2})
    assert [harness.run(take()), harness.run(take())] == [1, 0]
    assert all(begun.acquire(timeout=60) for _ in range(8)), "attempts begin after they were taken"
    orgs = Counter(given.org.name for given in invoker.given if given.org is not None)
    assert orgs == {"org_a": 7, "org_b": 1}
    harness.background.loop.call_soon_threadsafe(gate.set)
    harness.run(harness.dispatcher.invocations.settle())


def test_a_stack_without_a_runner_says_so(harness: DispatcherHarness) -> None:
    task_id = own_task(harness, "udf", runtime="lambda")
    harness.invoke()
    assert "this stack has no runner" in harness.row(task_id)["error"]


def test_rows_of_runtimes_that_are_not_known_stay(harness: DispatcherHarness) -> None:
    task_id = own_task(harness)
    # Of a runtime that another Dispatcher has.
    harness.sql("UPDATE outbox SET queue = 'elsewhere'")
    assert harness.invoke() == 0
    assert rows_waiting(harness) == 1
    assert harness.row(task_id)["status"] == "Queued"


def test_a_task_of_a_queue_is_not_started_here(harness: DispatcherHarness) -> None:
    task_id = own_task(harness, runtime="ecs_platform")
    duplicate_row(harness, task_id)
    harness.invoke()
    assert "does not start tasks of ecs_platform" in harness.row(task_id)["error"]


def test_a_row_that_cannot_be_claimed_holds_up_nobody(harness: DispatcherHarness) -> None:
    broken, fine = own_task(harness, name="broken"), own_task(harness, name="fine")
    # A corrupted row.
    harness.sql("UPDATE tasks SET inputs = '[1]' WHERE task_id = $1", broken)
    assert harness.invoke() == 2
    assert harness.row(fine)["status"] == "Completed"
    row = harness.sql("SELECT * FROM outbox WHERE key = $1", broken)[0]
    assert (row["status"], row["tries"], row["last_error"]) == ("Pending", 1, "the claim failed")
    # Before the last of its tries.
    harness.sql("UPDATE outbox SET tries = 19, next_try_at = trace_now()")
    harness.invoke()
    assert harness.sql("SELECT status FROM outbox")[0]["status"] == "Failed"
    assert harness.invoke() == 0


def test_work_goes_on_by_itself_however_few_slots_there_are(start: StartHarness) -> None:
    """No poll helps here: commits and freed slots wake the loop."""
    harness = start(config=dispatcher_config(invoke_slots=2, relay_poll_seconds=600.0))

    for _ in range(9):
        own_task(harness, unit=blocks(0, 9))

    async def loops() -> None:
        harness.dispatcher.start_loops()

    harness.run(loops())
    wait_until(lambda: rows_waiting(harness) == 0, "freed slots to take the rest")
    own_task(harness, unit=blocks(0, 9))
    wait_until(lambda: harness.sql("SELECT count(*) FROM tasks WHERE status = 'Completed'")[0][0] == 10, "all done")
    wait_until(lambda: rows_waiting(harness) == 0, "no rows left")


def test_slots_limit_what_is_taken_of_each_runtime(start: StartHarness) -> None:
    gate = asyncio.Event()

    class Gated(ScriptedInvoker):
        async def invoke(self, invocation: object) -> None:
            await gate.wait()

    harness = start(config=dispatcher_config(invoke_slots=2), invoker=Gated())
    for _ in range(3):
        own_task(harness, runtime="lambda")
    take = harness.dispatcher.invocations.run_once
    assert [harness.run(take()), harness.run(take())] == [2, 0]
    assert rows_waiting(harness) == 3, "rows stay until their attempts were taken over"
    # An invoker that hangs holds up its own runtime alone.
    control = own_task(harness, name="control")
    assert harness.run(take()) == 1
    wait_until(lambda: harness.row(control)["status"] == "Completed", "the control operator")
    harness.background.loop.call_soon_threadsafe(gate.set)
    harness.run(harness.dispatcher.invocations.settle())
    assert harness.run(take()) == 1

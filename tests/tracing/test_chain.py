"""One event, followed through everything it sets off: one trace, whatever happens on the way."""

from pathlib import Path
from typing import Any

import pytest

from tests.routing.support import block
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.state import set_edges
from tests.tracing.support import Collector, Traced
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.routing import router
from tracelake.errors import StoreUnavailableError

WHOLE = [
    "accept chain__src_0",
    "  route chain__src_0",
    "  task chain/first",
    "    attempt 1",
    "      complete",
    "      accept chain__first_0",
    "        route chain__first_0",
    "        task chain/second",
    "          attempt 1",
    "            complete",
    "            accept chain__second_0",
    "              route chain__second_0",
]


def tree(seen: Collector, flow: Traced) -> list[str]:
    flow.flush()
    return sorted(seen.tree())


def the_task(flow: Traced, job: str) -> Any:
    (task,) = flow.tasks(job)
    return task["task_id"]


def test_a_chain_is_one_trace(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    event = flow.harness.sql("SELECT event_id FROM events WHERE cursor = 5 AND producer LIKE 'manual:%'")[-1]
    assert flow.run_all("first", "second") == 2
    assert tree(seen, flow) == sorted(WHOLE)
    assert len(seen.trace_ids()) == 1
    root = seen.one("accept chain__src_0")
    assert root.parent == ""
    assert root.attributes["tracelake.event_id"] == event["event_id"]
    assert root.attributes["tracelake.unit"] == "c:5"
    assert seen.one("route chain__src_0").attributes["tracelake.tasks"] == 1
    assert seen.one("route chain__second_0").attributes["tracelake.edges"] == 0
    task = seen.one("task chain/first").attributes
    assert task["tracelake.task_id"] == str(the_task(flow, "first"))
    assert (task["tracelake.status"], task["tracelake.dag"], task["tracelake.job"]) == ("Completed", "chain", "first")
    assert not any(span.error for span in seen.spans)


def test_spans_lie_inside_each_other(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    flow.harness.advance(100)
    flow.run_all("first")
    flow.flush()
    task, attempt, complete = seen.one("task chain/first"), seen.one("attempt 1"), seen.one("complete")
    assert task.start <= attempt.start <= complete.start <= complete.end <= attempt.end <= task.end
    assert attempt.start - task.start >= 100 * 10**9
    accept, route = seen.one("accept chain__first_0"), seen.one("route chain__first_0")
    assert attempt.start <= accept.start <= route.start <= route.end <= accept.end <= attempt.end


def test_a_retry_is_a_second_attempt_of_the_same_task(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    task_id = the_task(flow, "first")
    flow.complete(task_id, flow.claim(task_id), status="Failed", error_message="a secret of the user", retryable=True)
    flow.harness.advance(3600)
    assert flow.harness.requeue_due() == 1
    flow.pass_on(task_id)
    assert tree(seen, flow) == sorted(
        [
            "accept chain__src_0",
            "  route chain__src_0",
            "  task chain/first",
            "    attempt 1 !Failed",
            "      complete",
            "    attempt 2",
            "      complete",
            "      accept chain__first_0",
            "        route chain__first_0",
        ]
    )
    assert "secret" not in repr(seen.spans)


def test_a_lease_that_ran_out_ends_its_attempt(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    task_id = the_task(flow, "first")
    flow.harness.reap()
    flow.claim(task_id)
    flow.harness.advance(3600)
    assert flow.harness.reap() == 1
    flow.harness.advance(3600)
    flow.harness.requeue_due()
    flow.pass_on(task_id)
    flow.flush()
    assert seen.one("attempt 1").error == "Timeout"
    assert seen.one("attempt 2").error == ""
    assert seen.one("complete").parent == seen.one("attempt 2").span_id
    assert seen.one("task chain/first").error == ""
    assert len(seen.trace_ids()) == 1


def test_a_late_word_corrects_the_same_span(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    task_id = the_task(flow, "first")
    flow.harness.reap()
    lease = flow.claim(task_id)
    flow.harness.advance(600)
    assert flow.harness.reap() == 1
    flow.complete(task_id, lease)
    flow.flush()
    timeout, completed = seen.all("attempt 1")
    assert (timeout.error, completed.error) == ("Timeout", "")
    assert timeout.span_id == completed.span_id


def test_cancelled_before_it_ran(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    flow.person("cancel", the_task(flow, "first"))
    assert tree(seen, flow) == sorted(["accept chain__src_0", "  route chain__src_0", "  task chain/first"])
    assert seen.one("task chain/first").attributes["tracelake.status"] == "Canceled"


def test_cancelled_while_it_runs(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    task_id = the_task(flow, "first")
    lease = flow.claim(task_id)
    flow.person("cancel", task_id)
    flow.complete(task_id, lease, status="Canceled")
    flow.flush()
    assert seen.one("attempt 1").attributes["tracelake.outcome"] == "Canceled"
    assert seen.one("attempt 1").parent == seen.one("task chain/first").span_id


def test_a_failed_task_is_an_error_and_a_new_try_the_same_task(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    task_id = the_task(flow, "first")
    flow.fail(task_id)
    flow.person("retry", task_id)
    flow.pass_on(task_id)
    flow.flush()
    failed, completed = seen.all("task chain/first")
    assert (failed.error, completed.error) == ("Failed", "")
    assert failed.span_id == completed.span_id


def test_the_trace_outlives_the_dispatcher(flow: Traced, seen: Collector) -> None:
    """A restart between each two steps; what was still to be sent is sent when it stops."""
    flow.trigger("chain", "src", cursor=5)
    for job in ("first", "second"):
        flow.harness.restart()
        task_id = the_task(flow, job)
        lease = flow.claim(task_id)
        flow.harness.restart()
        flow.complete(task_id, lease, events=[flow.event("chain", job, cursor=5)])
    flow.harness.restart()
    assert sorted(seen.tree()) == sorted(WHOLE)
    assert len(seen.trace_ids()) == 1


def test_a_lease_that_ran_out_unseen_by_whoever_gave_it(flow: Traced, seen: Collector) -> None:
    """The new process knows nothing of the job yet."""
    flow.trigger("chain", "src", cursor=5)
    flow.claim(the_task(flow, "first"))
    flow.harness.restart()
    flow.harness.reap()
    flow.harness.advance(3600)
    assert flow.harness.reap() == 1
    flow.flush()
    assert seen.one("attempt 1").attributes["tracelake.job"] == "first"


def test_two_dispatchers_make_one_trace(
    flow: Traced, seen: Collector, config: DispatcherConfig, state_dsn: str, queue_dsn: str, tmp_path: Path
) -> None:
    other = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, config)
    try:
        flow.trigger("chain", "src", cursor=5)
        second = Traced(other)
        task_id = the_task(flow, "first")
        lease = second.claim(task_id)
        flow.complete(task_id, lease, events=[flow.event("chain", "first", cursor=5)])
        second.pass_on(the_task(second, "second"))
        second.flush()
        assert tree(seen, flow) == sorted(WHOLE)
        assert len(seen.trace_ids()) == 1
    finally:
        other.stop()


def test_an_event_that_waited_is_drained_in_its_own_trace(flow: Traced, seen: Collector) -> None:
    pauses = flow.harness.dispatcher.pauses
    flow.harness.run(pauses.pause(flow.actor, "chain", "src"))
    for cursor in (5, 6):
        flow.trigger("chain", "src", cursor=cursor)
    flow.flush()
    assert flow.tasks("first") == []
    route = seen.all("route chain__src_0")[0]
    assert (route.attributes["tracelake.tasks"], route.attributes["tracelake.kept.stopped"]) == (0, 1)
    flow.harness.run(pauses.resume(flow.actor, "chain", "src"))
    flow.harness.advance(50)
    flow.drain()
    flow.run_all("first", "second")
    flow.flush()
    assert len(seen.trace_ids()) == 2
    assert len(seen.all("task chain/second")) == 2
    for accept in seen.all("accept chain__src_0"):
        (drain,) = [span for span in seen.all("drain chain__src_0") if span.trace_id == accept.trace_id]
        assert drain.parent == accept.span_id
        assert drain.attributes["tracelake.job"] == "first"
        assert drain.attributes["tracelake.tasks"] == 1
        assert drain.start - accept.end >= 49 * 10**9
        (task,) = [span for span in seen.all("task chain/first") if span.trace_id == accept.trace_id]
        assert task.parent == accept.span_id


def test_behind_a_failed_unit(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    flow.fail(the_task(flow, "first"))
    flow.trigger("chain", "src", cursor=6)
    flow.flush()
    _, waits = sorted(seen.all("route chain__src_0"), key=lambda span: span.start)
    assert waits.attributes["tracelake.kept.failed_unit"] == 1


def test_what_is_said_twice_is_one_span(flow: Traced, seen: Collector) -> None:
    key = {"idempotency_key": "again", "cursor": 5}
    assert not flow.trigger("chain", "src", **key).duplicate
    assert flow.trigger("chain", "src", **key).duplicate
    task_id = the_task(flow, "first")
    lease = flow.claim(task_id)
    event = flow.event("chain", "first", cursor=5)
    flow.say(task_id, lease, event, event)
    flow.say(task_id, lease, event)
    flow.complete(task_id, lease, events=[event])
    flow.complete(task_id, lease, events=[event])
    assert tree(seen, flow) == sorted(WHOLE[:7])


def test_a_refused_call_leaves_no_span(flow: Traced, seen: Collector) -> None:
    flow.trigger("chain", "src", cursor=5)
    task_id = the_task(flow, "first")
    lease = flow.claim(task_id)
    body = fence(str(task_id), lease | {"attempt": 9}, status="Completed")
    assert flow.harness.task("complete", lease["capability_token"], body).status != 200
    assert tree(seen, flow) == sorted(WHOLE[:2])


def test_a_unit_that_a_person_asks_a_job_for(flow: Traced, seen: Collector) -> None:
    set_edges(flow.harness, routed=5)  # its input is there, and nobody traced how it came
    flow.trigger("chain", "first", cursor=5)
    flow.run_all("first", "second")
    assert tree(seen, flow)[-1] == "trigger chain/first"
    assert len(seen.trace_ids()) == 1
    assert seen.one("task chain/first").parent == seen.one("trigger chain/first").span_id
    assert seen.one("task chain/second").trace_id == seen.one("trigger chain/first").trace_id


@pytest.mark.parametrize("cursors", [[5], [5, 6, 7]])
def test_the_payload_says_where_to_go_on(flow: Traced, seen: Collector, cursors: list[int]) -> None:
    for cursor in cursors:
        flow.trigger("chain", "src", cursor=cursor)
    given = set()
    for task in flow.tasks("first"):
        lease = flow.claim(task["task_id"])
        given.add(lease["task"]["traceparent"])
        flow.complete(task["task_id"], lease)
    flow.flush()
    assert given == {f"00-{span.trace_id}-{span.span_id}-01" for span in seen.all("attempt 1")}
    assert len(given) == len(cursors)


@pytest.mark.parametrize("at_once", [1_000, 1])
def test_what_is_declared_wrong_is_made_again_in_the_trace_that_says_so(
    flow: Traced, seen: Collector, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Also what is too much for one transaction, and is made page by page later."""
    monkeypatch.setattr(router, "AT_ONCE", at_once)
    for start in (0, 10, 20, 30):
        flow.trigger("chain", "src", range={"start": start, "end": start + 9})
    *others, last = flow.tasks("first")
    for task in others:
        flow.pass_on(task["task_id"])
    event = flow.event("chain", "first", **block(30, 39), invalidates={"start": 0, "end": 29, "reason": "reorg"})
    flow.complete(last["task_id"], flow.claim(last["task_id"]), events=[event])
    flow.drain()
    assert flow.run_all("second") == 7
    flow.flush()
    wrong = seen.one("accept chain__first_0", unit="p:30-39")
    again = [span for span in seen.all("task chain/second") if span.parent == wrong.span_id]
    assert sorted(span.attributes["tracelake.unit"] for span in again) == ["p:0-9", "p:10-19", "p:20-29", "p:30-39"]


def test_what_is_not_committed_was_not(flow: Traced, seen: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    flow.trigger("chain", "src", cursor=5)
    task_id = the_task(flow, "first")
    lease = flow.claim(task_id)
    store = flow.harness.dispatcher.ports.store

    async def lost(connection: Any) -> None:
        raise StoreUnavailableError("The state store is not available right now.")

    with monkeypatch.context() as broken:
        broken.setattr(store, "commit", lost)
        with pytest.raises(StoreUnavailableError):
            flow.trigger("chain", "src", cursor=6)
        body = fence(str(task_id), lease, status="Completed", events=[flow.event("chain", "first", cursor=5)])
        assert flow.harness.task("complete", lease["capability_token"], body).status == 503
    assert tree(seen, flow) == sorted(WHOLE[:2])
    flow.complete(task_id, lease, events=[flow.event("chain", "first", cursor=5)])
    assert tree(seen, flow) == sorted(WHOLE[:7])

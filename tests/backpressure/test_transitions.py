"""Every way in which a task becomes ready, or stops being so: the depth of its queue follows at once."""

from uuid import UUID

import pytest

from tests.backpressure.test_pressure import feed
from tests.routing.support import Flow
from tests.support import dags
from tests.support.state import hold_task, set_used_places
from tracelake.dispatcher.deploy import tasks

QUEUE = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: keep, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
"""
SLOW = "  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: src}}], max_queue_depth: 10%s}\n"
LEASE, LONGEST_WAIT = 121, 601


def queue(places: int | None = None) -> str:
    return QUEUE + SLOW % ("" if places is None else f", scaling: {{max_concurrency: {places}}}")


def depth(flow: Flow) -> int:
    """As it is kept; what is there must be the same."""
    kept: int = flow.harness.sql("SELECT depth FROM pressure")[0]["depth"]
    assert kept == len(flow.tasks("slow", "Queued"))
    return kept


def first(flow: Flow) -> UUID:
    found: UUID = next(task["task_id"] for task in flow.tasks("slow", "Queued") if not task["held"])
    return found


def test_workers_clocks_and_people(flow: Flow) -> None:
    flow.harness.reap()
    flow.deploy(queue())
    feed(flow, range(5))
    assert depth(flow) == 5
    task = first(flow)
    lease = flow.claim(task)
    assert depth(flow) == 4
    flow.complete(task, lease, status="Failed", error_message="no", retryable=True)
    assert depth(flow) == 4
    flow.harness.advance(LONGEST_WAIT)
    assert flow.harness.requeue_due() == 1
    assert depth(flow) == 5
    flow.claim(task)
    flow.harness.advance(LEASE)
    assert flow.harness.reap() == 1
    assert depth(flow) == 4
    flow.harness.advance(LONGEST_WAIT)
    flow.harness.requeue_due()
    assert depth(flow) == 5
    flow.person("cancel", first(flow))
    assert depth(flow) == 4
    flow.person("retry", flow.tasks("slow", "Canceled")[0]["task_id"])
    assert depth(flow) == 5
    flow.fail(first(flow))
    assert depth(flow) == 4
    flow.person("retry", flow.tasks("slow", "Failed")[0]["task_id"])
    assert depth(flow) == 5
    flow.run_all("slow")
    assert depth(flow) == 0


def test_versions_that_go_and_come_back(flow: Flow) -> None:
    flow.deploy(queue())
    feed(flow, range(4))
    task = first(flow)
    lease = flow.claim(task)
    assert depth(flow) == 3
    flow.deploy(QUEUE)
    assert depth(flow) == 0
    dags.activate(flow.harness, "d", 1)
    assert depth(flow) == 3
    flow.complete(task, lease, status="Canceled")
    assert depth(flow) == 3
    dags.run_builds(flow.harness)
    assert depth(flow) == 4, "the one that was told to stop is back, too"
    flow.run_all("slow")
    assert depth(flow) == 0


def test_places(flow: Flow) -> None:
    flow.deploy(queue(1))
    feed(flow, range(6))
    assert depth(flow) == 6, "those that wait for a place are counted"
    waiting = next(task["task_id"] for task in flow.tasks("slow", "Queued") if task["held"])
    for verb, left in (("cancel", 5), ("retry", 6)):
        flow.person(verb, waiting)
        assert depth(flow) == left, "also when they leave, and come back to wait"
    flow.deploy(queue(3))
    assert depth(flow) == 6
    flow.pass_on(first(flow))
    assert depth(flow) == 5
    set_used_places(flow.harness, 2)
    dispatcher = flow.harness.dispatcher
    hold_task(flow.harness, first(flow))
    flow.harness.run(dispatcher.routing_reconciler.run_once())
    assert depth(flow) == 5, "a place that nobody had handed out was none of it"
    flow.deploy(QUEUE)
    assert depth(flow) == 0
    dags.activate(flow.harness, "d", 2)
    assert depth(flow) == 5


def test_what_waits_when_a_threshold_comes(flow: Flow) -> None:
    flow.deploy(queue(2).replace(", max_queue_depth: 10", ""))
    feed(flow, range(4))
    flow.deploy(queue(2))
    assert depth(flow) == 4
    flow.run_all("slow")
    assert depth(flow) == 0


def test_a_queue_that_eases_wakes_the_drain(flow: Flow) -> None:
    flow.deploy(queue())
    feed(flow, range(12))
    woken = flow.harness.dispatcher._drain_loop._nudged
    woken.clear()
    for _ in range(5):
        flow.claim(first(flow))
    assert (depth(flow), woken.is_set()) == (5, False)
    flow.claim(first(flow))
    assert (depth(flow), woken.is_set()) == (4, True)


def test_a_queue_that_does_not_count_any_more_stops_nobody(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cutover cancels a batch of its tasks, and the loop the rest; until then the queue is as full as it was."""
    monkeypatch.setattr(tasks, "BATCH", 4)
    flow.deploy(queue())
    feed(flow, range(10))
    flow.deploy(QUEUE)
    row = flow.harness.sql("SELECT depth, level FROM pressure")[0]
    assert (row["depth"], row["level"]) == (6, 2)
    feed(flow, range(10, 11))
    assert len(flow.tasks("keep")) == 11

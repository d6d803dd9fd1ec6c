"""A full queue stops what feeds it, up to the source, and nothing else; what came meanwhile is worked off after."""

import pytest

from tests.backpressure.pipe import PIPE
from tests.routing.support import Flow
from tests.support import dags


def level(flow: Flow) -> tuple[int, int]:
    row = flow.harness.sql("SELECT depth, level FROM pressure")[0]
    return row["depth"], row["level"]


def feed(flow: Flow, cursors: range) -> None:
    for cursor in cursors:
        flow.trigger("d", "src", cursor=cursor)


def ready(flow: Flow, job: str) -> int:
    return sum(task["status"] == "Queued" and not task["held"] for task in flow.tasks(job))


def work(flow: Flow, job: str, number: int) -> None:
    tasks = sorted(flow.tasks(job, "Queued"), key=lambda task: task["unit"]["cursor"]["to"])
    for task in tasks[:number]:
        flow.pass_on(task["task_id"])


def test_depth_is_counted_and_trips_at_100_percent(flow: Flow) -> None:
    flow.deploy(PIPE)
    feed(flow, range(12))
    work(flow, "make", 12)
    work(flow, "step", 10)
    assert level(flow) == (10, 2)
    row = flow.harness.sql("SELECT since, because FROM pressure")[0]
    assert row["because"] == "10 of 10 queued tasks"
    assert row["since"] is not None
    feed(flow, range(12, 20))
    assert len(flow.tasks("make")) == 12, "the source is stopped: its events wait"
    flow.trigger("d", "other", cursor=1)
    assert len(flow.tasks("free")) == 1, "another branch does not notice"
    work(flow, "step", 2)
    assert level(flow) == (10, 2), "what was in flight is kept, and waits before the full queue"
    assert flow.drain() == 0
    work(flow, "slow", 5)
    assert level(flow) == (5, 2), "50 % is not below 50 %"
    assert flow.drain() == 0
    work(flow, "slow", 1)
    assert level(flow) == (4, 0)
    flow.drain()
    assert len(flow.tasks("make")) == 20, "nothing was lost"
    assert level(flow) == (6, 0), "nor the two that came late"
    assert flow.harness.sql("SELECT since, because FROM pressure")[0]["since"] is None


def test_80_percent_stops_bulk_producers_alone(flow: Flow) -> None:
    text = PIPE.replace("{name: step, activation: reactive,", "{name: step, priority: bulk, activation: reactive,")
    flow.deploy(text)
    feed(flow, range(8))
    work(flow, "make", 8)
    work(flow, "step", 8)
    assert level(flow) == (8, 1)
    feed(flow, range(8, 9))
    assert len(flow.tasks("make")) == 8, "make and step are bulk, so make gets nothing more"
    flow.deploy(PIPE)  # step is normal now; make is bulk all the same
    feed(flow, range(9, 10))
    flow.drain()
    assert len(flow.tasks("make")) == 8
    assert level(flow) == (8, 1)
    work(flow, "slow", 5)
    flow.drain()
    assert (len(flow.tasks("make")), level(flow)) == (10, (3, 0))


def test_age_trips_too_and_eases_when_nothing_waits(flow: Flow) -> None:
    flow.deploy(PIPE.replace("max_queue_depth: 10", "max_queue_age: 60s"))
    feed(flow, range(1))
    work(flow, "make", 1)
    work(flow, "step", 1)
    watch = flow.harness.dispatcher.pressure
    flow.harness.advance(50)
    flow.harness.run(watch.run_once())
    assert level(flow) == (1, 1)
    flow.harness.advance(11)
    flow.harness.run(watch.run_once())
    assert level(flow) == (1, 2)
    feed(flow, range(1, 2))
    assert len(flow.tasks("make")) == 1
    work(flow, "slow", 1)
    assert level(flow) == (0, 0)
    flow.drain()
    assert len(flow.tasks("make")) == 2


def test_tasks_that_a_limit_holds_count(flow: Flow) -> None:
    """Otherwise a limit below the threshold would keep the queue from ever being full."""
    flow.deploy(PIPE.replace("max_queue_depth: 10", "max_queue_depth: 10, scaling: {max_concurrency: 2}"))
    feed(flow, range(10))
    work(flow, "make", 10)
    work(flow, "step", 10)
    assert level(flow) == (10, 2)
    feed(flow, range(10, 11))
    assert len(flow.tasks("make")) == 10
    first = next(task for task in flow.tasks("slow") if not task["held"])
    flow.pass_on(first["task_id"])
    assert level(flow) == (9, 2), "the place went to the next one, which was counted already"


def test_the_age_of_tasks_that_a_limit_holds_counts(flow: Flow) -> None:
    flow.deploy(PIPE.replace("max_queue_depth: 10", "max_queue_age: 60s, scaling: {max_concurrency: 1}"))
    feed(flow, range(2))
    work(flow, "make", 2)
    work(flow, "step", 2)
    flow.claim(next(task["task_id"] for task in flow.tasks("slow") if not task["held"]))
    flow.harness.advance(61)
    flow.harness.run(flow.harness.dispatcher.pressure.run_once())
    assert level(flow) == (1, 2)


@pytest.mark.parametrize("restart", [False, True])
def test_thresholds_change_with_a_deploy(flow: Flow, restart: bool) -> None:
    free = PIPE.replace(", max_queue_depth: 10", "")
    flow.deploy(free)
    feed(flow, range(6))
    work(flow, "make", 6)
    work(flow, "step", 6)
    assert flow.harness.sql("SELECT FROM pressure") == []
    flow.deploy(PIPE.replace("max_queue_depth: 10", "max_queue_depth: 5"))
    if restart:
        flow.harness.restart()
    assert level(flow) == (6, 2), "what waits already is counted"
    feed(flow, range(6, 7))
    assert len(flow.tasks("make")) == 6
    flow.deploy(free)
    assert level(flow) == (6, 0)
    flow.drain()
    assert len(flow.tasks("make")) == 7
    flow.run_all("make", "step", "slow")
    assert {task["status"] for task in flow.tasks("slow")} == {"Completed"}


def test_a_cutover_counts_anew(flow: Flow) -> None:
    flow.deploy(PIPE)
    feed(flow, range(10))
    work(flow, "make", 10)
    work(flow, "step", 10)
    assert level(flow) == (10, 2)
    flow.deploy(
        PIPE.replace(
            "operator: noop, inputs: [{from: {job: step}}]",
            "operator: sleep, config: {seconds: 0}, inputs: [{from: {job: step}}]",
        )
    )
    dags.activate(flow.harness, "d", 2, now=True)
    rows = flow.harness.sql("SELECT depth, level, node_id FROM pressure ORDER BY depth")
    assert (rows[0]["depth"], rows[0]["level"]) == (0, 0), "the old version's tasks were cancelled"


def test_a_drain_does_not_flood_the_queue_it_feeds(flow: Flow) -> None:
    flow.deploy(
        """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: src}}], max_queue_depth: 10}
"""
    )
    feed(flow, range(100))
    assert level(flow) == (10, 2)
    seen = 0
    while ready(flow, "slow"):
        assert level(flow)[0] <= 10
        work(flow, "slow", 3)
        flow.drain()
        seen += 1
        assert seen < 100
    assert len(flow.tasks("slow")) == 100


@pytest.mark.parametrize("threshold", ["max_queue_depth: 10", "max_queue_age: 60s"])
def test_what_is_being_built_stops_nobody_who_counts(flow: Flow, threshold: str) -> None:
    active = f"""
name: d
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: src, activation: source, source: {{kind: manual}}}}
  - {{name: slow, activation: reactive, operator: noop, inputs: [{{from: {{job: src}}}}], {threshold}}}
  - {{name: beside, activation: reactive, operator: noop, inputs: [{{from: {{job: src}}}}]}}
"""
    flow.deploy(active)
    for cursor in range(30):
        flow.trigger("d", "src", cursor=cursor)
        flow.run_all("slow", "beside")
    another = "name: slow, activation: reactive, operator: sleep, config: {seconds: 1}"
    built = flow.deploy(active.replace("name: slow, activation: reactive, operator: noop", another))
    assert built.state == "Building"
    flow.drain()
    flow.harness.advance(61)
    flow.harness.run(flow.harness.dispatcher.pressure.run_once())
    levels = flow.harness.sql("SELECT depth, level FROM pressure ORDER BY depth")
    assert (levels[0]["depth"], levels[0]["level"]) == (0, 0)
    assert levels[1]["level"] == 2, "the queue that is being filled is full"
    assert levels[1]["depth"] == (10 if "depth" in threshold else 30), "and gets no more than it has room for"
    reply = flow.trigger("d", "src", cursor=100)
    assert reply.kept is None
    assert len(flow.tasks("beside")) == 31
    assert [task["status"] for task in flow.tasks("slow") if task["unit"]["cursor"]["to"] == 100] == ["Queued"]

"""The view of backpressure: every queue with a threshold, every edge it stops, and in words why."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from tests.api.support import User
from tests.backpressure.pipe import PIPE
from tests.why.support import Situation, said
from tracelake.dispatcher.engine.pressure.levels import Level, Thresholds
from tracelake.dispatcher.engine.pressure.upstream import ProducerEdge, Stops, build
from tracelake.dispatcher.views.pressure import Pressure, QueueLoad


def fill(flow: Situation, first: int, number: int, text: str = PIPE) -> None:
    flow.deploy(text)
    for cursor in range(first, first + number):
        flow.trigger("d", "src", cursor=cursor)
    flow.run_all("make")
    flow.run_all("step")


def edges(reply: Any) -> dict[str, Any]:
    return {row["job"]: row for row in reply["edges"]}


def states(reply: Any) -> dict[str, str]:
    return {job: row["state"] for job, row in edges(reply).items()}


def test_nothing_is_limited(flow: Situation) -> None:
    flow.deploy(PIPE.replace(", max_queue_depth: 10", ""))
    assert flow.pressure() == {"queues": [], "edges": []}


def test_open_with_room(flow: Situation) -> None:
    fill(flow, 0, 3)
    reply = flow.pressure()
    assert reply["queues"] == [{"dag": "d", "job": "slow", "state": "open", "depth": 3, "max_depth": 10,
                                "age_seconds": reply["queues"][0]["age_seconds"]}]  # fmt: skip
    assert states(reply) == {"make": "open", "step": "open", "slow": "open"}, "free feeds no queue"
    make = edges(reply)["make"]
    assert (make["dataset"], make["queue"], make["queues"]) == ("d__src_0", "d/slow", ["d/slow"])
    assert (make["depth"], make["max_depth"], make["bulk"]) == (3, 10, True)
    assert "because" not in make


def test_full_in_words_with_what_waits(flow: Situation) -> None:
    fill(flow, 0, 10)
    flow.harness.advance(185)
    for cursor in range(10, 15):
        flow.trigger("d", "src", cursor=cursor)
    reply = flow.pressure()
    (queue,) = reply["queues"]
    assert queue["state"] == "stopped"
    assert queue["because"] == "d/slow is full for 3m (10 of 10 queued; goes on below 50 %)"
    assert 185 <= queue["age_seconds"] < 300
    assert states(reply) == dict.fromkeys(("make", "step", "slow"), "stopped")
    make = edges(reply)["make"]
    assert (make["because"], make["backlog"]) == ("d/slow is full for 3m (10 of 10 queued; goes on below 50 %)", 5)
    assert make["since"] == queue["since"]
    flow.run_all("slow")
    reply = flow.pressure()
    assert states(reply) == {"make": "open", "step": "open", "slow": "open"}
    assert edges(reply)["make"]["backlog"] == 5
    flow.drain()
    assert edges(flow.pressure())["make"]["backlog"] == 0


def test_bulk_is_stopped_first(flow: Situation) -> None:
    both = PIPE.replace("{name: step, activation: reactive,", "{name: step, priority: bulk, activation: reactive,")
    fill(flow, 0, 8, both)
    reply = flow.pressure()
    assert reply["queues"][0]["state"] == "bulk_stopped"
    assert reply["queues"][0]["because"].startswith("d/slow is filling for ")
    assert reply["queues"][0]["because"].endswith(" (8 of 10 queued; bulk work goes on below 50 %)")
    assert states(reply) == dict.fromkeys(("make", "step", "slow"), "bulk_stopped")
    flow.deploy(PIPE)
    found = {"make": "bulk_stopped", "step": "bulk_stopped", "slow": "open"}
    assert states(flow.pressure()) == found, "step is not bulk any more, but what it reads is made by a bulk job"


def test_age_in_words(flow: Situation) -> None:
    fill(flow, 0, 1, PIPE.replace("max_queue_depth: 10", "max_queue_age: 60s"))
    flow.harness.advance(120)
    flow.harness.run(flow.harness.dispatcher.pressure.run_once())
    (queue,) = flow.pressure()["queues"]
    assert queue["because"] == "d/slow is full for 0s (the oldest has waited 2m of 1m; goes on below 50 %)"
    assert (queue["max_age_seconds"], queue["state"]) == (60, "stopped")


def test_a_queue_without_room_stops_its_own_edge_while_that_is_behind(flow: Situation) -> None:
    flow.deploy(
        """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: src}}], max_queue_depth: 2}
"""
    )
    for cursor in range(5):
        flow.trigger("d", "src", cursor=cursor)
    row = edges(flow.pressure())["slow"]
    assert (row["state"], row["backlog"]) == ("stopped", 3)
    assert row["because"].startswith("d/slow is full for 0s (2 of 2 queued;")


def test_a_reader_that_is_behind_waits_for_room_in_its_own_queue(flow: Situation) -> None:
    normal = PIPE.replace(", priority: bulk", "")
    fill(flow, 0, 9, normal)
    failed = min(flow.tasks("slow"), key=lambda task: task["unit"]["cursor"]["to"])["task_id"]
    flow.fail(failed)
    flow.trigger("d", "src", cursor=9)
    flow.run_all("make")
    flow.run_all("step")
    flow.person("skip", failed)
    flow.deploy(normal.replace("max_queue_depth: 10", "max_queue_depth: 5"))
    assert flow.drain() == 0
    row = edges(flow.pressure())["slow"]
    assert (row["state"], row["backlog"], row["queue"]) == ("stopped", 1, "d/slow")
    assert "1 event waits" in said(flow.why_job("slow"), "own_queue_full")["text"]


def test_paused_by_a_person(flow: Situation) -> None:
    fill(flow, 0, 1)
    flow.harness.run(flow.harness.dispatcher.pauses.pause(flow.actor, "d", "src"))
    flow.trigger("d", "src", cursor=5)
    row = edges(flow.pressure())["make"]
    assert (row["state"], row["backlog"]) == ("paused", 1)
    assert row["because"] == "d/src was paused by tester 0s ago"
    flow.harness.run(flow.harness.dispatcher.pauses.pause(flow.actor, "d", "other"))
    assert edges(flow.pressure())["free"]["state"] == "paused", "also where no queue could stop it"


def test_a_version_that_is_built_is_shown_beside_the_active_one(flow: Situation) -> None:
    fill(flow, 0, 3)
    flow.run_all("slow")
    changed = PIPE.replace("name: slow, activation: reactive, operator: noop,",
                           "name: slow, activation: reactive, operator: sleep, config: {seconds: 0},")  # fmt: skip
    assert flow.deploy(changed).state == "Building"
    reply = flow.pressure()
    assert [row.get("building", False) for row in reply["edges"] if row["job"] == "slow"] == [False, True]


def test_another_org_sees_nothing_of_it(flow: Situation) -> None:
    fill(flow, 0, 10)
    assert User(flow.harness, f"{flow.org}_x").get("/v1/pressure") == {"queues": [], "edges": []}


def test_tasks_that_a_limit_holds_are_shown_and_fill_the_queue(flow: Situation) -> None:
    fill(flow, 0, 12, PIPE.replace("max_queue_depth: 10", "max_queue_depth: 10, scaling: {max_concurrency: 2}"))
    (queue,) = flow.pressure()["queues"]
    assert (queue["depth"], queue["held"], queue["state"]) == (10, 8, "stopped")


def test_a_dataset_that_somebody_goes_on_writing_is_stopped_by_no_other_writers_queue() -> None:
    """left -> full; left and right make what beside reads."""
    left, right, full, beside, source = (UUID(int=number) for number in range(1, 6))
    made = (left, left)
    edges = [
        ProducerEdge(producer, consumer, generation, bulk=False, source=producer == source)
        for producer, consumer, generation in (
            (left, full, made),
            (left, beside, made),
            (right, beside, made),
            (source, right, (source, source)),
        )
    ]
    now = datetime.now(UTC)
    queue = QueueLoad(full, "d/full", False, 0, Thresholds(1, None), 0.0, Level.NONE, None, now)

    def behind(*more: ProducerEdge, paused: frozenset[UUID] = frozenset()) -> list[str]:
        upstream = build([*edges, *more], [full])
        return [item.name for item in Pressure(upstream, Stops({}, paused), {full: queue}, {}).behind(beside, made)]

    assert behind() == []
    assert behind(ProducerEdge(right, full, (right, right), bulk=False, source=False)) == ["d/full"]
    assert behind(paused=frozenset({right})) == ["d/full"], "only the other is left"

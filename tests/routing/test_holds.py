"""No silent gaps: what failed for good holds its edge, and what was declared wrong is made again."""

from tests.routing.support import Flow, block
from tests.routing.test_routing import Feeder
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.state import allow_one_attempt


def person(flow: Flow, verb: str, task_id: object) -> object:
    actions = flow.harness.dispatcher.actions
    return flow.harness.run(getattr(actions, verb)(dags.actor(flow.harness), task_id))


def test_a_failed_cursor_unit_holds_its_edge_until_it_is_tried_again(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 1})
    failed = flow.tasks("each")[0]["task_id"]
    flow.fail(failed)
    feeder.say({"cursor": 2}, {"cursor": 3})
    assert flow.units("each") == [("c:1", "")]
    assert flow.drain() == 0
    feeder.say(block(0, 9))
    assert flow.units("part") == [("c:1", ""), ("c:2", ""), ("c:3", ""), ("p:0-9", "")], "another edge goes on"
    person(flow, "retry", failed)
    flow.drain()
    assert flow.units("each") == [("c:1", ""), ("c:2", ""), ("c:3", ""), ("p:0-9", "")]
    assert dags.edge(flow.harness, "d", "each")["position"] is None
    feeder.say({"cursor": 4})
    assert ("c:4", "") in flow.units("each")


def test_a_skipped_unit_lets_the_edge_go_on(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 1}, {"cursor": 2})
    first, second = (task["task_id"] for task in flow.tasks("each"))
    flow.fail(first)
    flow.fail(second)
    feeder.say({"cursor": 3})
    person(flow, "skip", first)
    assert flow.drain() == 0, "one more unit has failed"
    person(flow, "skip", second)
    person(flow, "skip", second)
    flow.drain()
    assert flow.units("each") == [("c:1", ""), ("c:2", ""), ("c:3", "")]
    actions = [row["action"] for row in flow.harness.sql("SELECT action FROM audit_log ORDER BY audit_id")]
    assert actions == ["dag.deploy", "job.trigger", "task.skip", "task.skip"]


def test_a_lease_that_ran_out_for_the_last_time_holds_the_edge_and_a_late_word_frees_it(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 1})
    task_id = flow.tasks("each")[0]["task_id"]
    allow_one_attempt(flow.harness, task_id)
    lease = flow.claim(task_id)
    flow.harness.reap()
    flow.harness.advance(2000)
    assert flow.harness.reap() > 0
    assert dags.edge(flow.harness, "d", "each")["failed_units"] == 1
    flow.complete(task_id, lease)
    assert dags.edge(flow.harness, "d", "each")["failed_units"] == 0


def test_a_late_failure_does_not_undo_a_skip(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 1})
    task_id = flow.tasks("each")[0]["task_id"]
    allow_one_attempt(flow.harness, task_id)
    lease = flow.claim(task_id)
    flow.harness.reap()
    flow.harness.advance(130)
    assert flow.harness.reap() > 0
    person(flow, "skip", task_id)
    beat = fence(str(task_id), lease)
    assert flow.harness.task("heartbeat", lease["capability_token"], beat).status == 200
    assert dags.edge(flow.harness, "d", "each")["failed_units"] == 0
    flow.complete(task_id, lease, status="Failed", error_message="no", retryable=False)
    assert dags.edge(flow.harness, "d", "each")["failed_units"] == 0
    (task,) = flow.tasks("each")
    assert (task["status"], task["skipped_at"] is None) == ("Failed", False)
    feeder.say({"cursor": 2})
    flow.drain()
    assert ("c:2", "") in flow.units("each")


def test_a_cancel_that_nobody_requested_holds_the_edge_until_it_is_tried_again(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 1})
    task_id = flow.tasks("each")[0]["task_id"]
    lease = flow.claim(task_id)
    for _ in range(2):
        assert flow.complete(task_id, lease, status="Canceled")["status"] == "Failed"
    assert flow.tasks("each")[0]["status"] == "Failed"
    assert dags.edge(flow.harness, "d", "each")["failed_units"] == 1
    feeder.say({"cursor": 2})
    assert flow.units("each") == [("c:1", "")]
    person(flow, "retry", task_id)
    flow.pass_on(task_id)
    flow.drain()
    assert flow.units("each") == [("c:1", ""), ("c:2", "")]


def test_a_failed_partition_holds_nothing(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say(block(0, 9))
    flow.fail(flow.tasks("each")[0]["task_id"])
    feeder.say(block(10, 19))
    assert flow.units("each") == [("p:0-9", ""), ("p:10-19", "")]


def test_an_invalidation_makes_the_units_it_touches_again_and_goes_on(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say(block(0, 9), block(10, 19), block(20, 29))
    feeder.say(block(10, 19), index=1)
    flow.run_all("each", "after", "part", "join")
    wrong = {"start": 12, "end": 20, "reason": "reorg"}
    feeder.say(block(30, 39) | {"invalidates": wrong})
    flow.run_all("each", "after", "part", "join")
    (row,) = flow.harness.sql("SELECT * FROM invalidations")
    again = row["invalidation_id"]
    assert (row["range_start"], row["range_end"], row["reason"]) == (12, 20, "reorg")
    made_again = [("p:10-19", again), ("p:20-29", again)]
    for job in ("each", "after", "part"):
        assert [unit for unit in flow.units(job) if unit[1]] == made_again, job
        assert ("p:30-39", "") in flow.units(job)
    assert flow.units("join") == [("p:10-19", ""), ("p:10-19", f"{again}|")]


def test_an_invalidation_of_cursors_makes_their_units_again_as_they_were(flow: Flow) -> None:
    feeder = Feeder(flow)
    for cursor in (5, 10, 15, 20):
        feeder.say({"cursor": cursor})
    feeder.say({"cursor": 12, "revision": "0xfork", "invalidates": {"start": 8, "end": 12, "reason": "fork"}})
    again = flow.harness.sql("SELECT invalidation_id FROM invalidations")[0]["invalidation_id"]
    rerun = [task for task in flow.tasks("each") if task["revision"] == again]
    assert sorted((task["unit"]["cursor"]["after"], task["unit"]["cursor"]["to"]) for task in rerun) == [
        (5, 10),
        (10, 15),
    ]
    assert ("c:12", "0xfork") in flow.units("each")
    flow.run_all("each", "after")
    assert {unit for unit in flow.units("after") if unit[1] == again} == {("c:10", again), ("c:15", again)}


LIMITED = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: src}}], scaling: {max_concurrency: 2}}
"""


def test_limited_work_waits_and_is_woken_by_what_frees_its_place(flow: Flow) -> None:
    flow.deploy(LIMITED)
    for cursor in range(5):
        flow.trigger("d", "src", cursor=cursor)
    ready = [task["task_id"] for task in flow.tasks("slow") if not task["held"]]
    assert len(ready) == 2
    held = [task["task_id"] for task in flow.tasks("slow") if task["held"]]
    assert flow.harness.claim(str(held[0])).body["reason"] == "NotReady"
    assert wakeups(flow.harness) == set(ready)
    flow.pass_on(ready[0])
    assert wakeups(flow.harness) == {*ready, held[0]}, "the one that waited longest, by the freeing transaction"
    flow.run_all("slow")
    assert {task["status"] for task in flow.tasks("slow")} == {"Completed"}
    assert [tuple(row) for row in flow.harness.sql("SELECT max_running, used FROM limits")] == [(2, 0)]


def test_a_retry_waits_for_a_place_too(flow: Flow) -> None:
    flow.deploy(LIMITED)
    for cursor in range(3):
        flow.trigger("d", "src", cursor=cursor)
    first, second, _ = (task["task_id"] for task in flow.tasks("slow"))
    lease = flow.claim(first)
    flow.complete(first, lease, status="Failed", error_message="x")
    assert [task["held"] for task in flow.tasks("slow")] == [False, False, False]
    flow.harness.advance(3600)
    flow.harness.requeue_due()
    assert flow.harness.row(str(first))["held"]
    flow.pass_on(second)
    assert not flow.harness.row(str(first))["held"]
    flow.run_all("slow")
    assert flow.harness.sql("SELECT used FROM limits")[0]["used"] == 0


def wakeups(harness: DispatcherHarness) -> set[object]:
    return {row["key"] for row in harness.sql("SELECT key FROM outbox")}


def test_what_a_person_asked_for_is_beside_what_the_edge_has_come_through(flow: Flow) -> None:
    feeder = Feeder(flow)
    feeder.say({"cursor": 100})
    tried = flow.trigger("d", "each", cursor=50)
    assert tried.task_id is not None
    feeder.say({"cursor": 101, "invalidates": {"start": 40, "end": 60, "reason": "wrong"}})
    assert "c:50" not in {unit for unit, revision in flow.units("each") if revision != tried.idempotency_key}
    assert dags.edge(flow.harness, "d", "each")["routed"] == 101
    flow.fail(tried.task_id)
    assert dags.edge(flow.harness, "d", "each")["failed_units"] == 0
    feeder.say({"cursor": 200})
    assert ("c:200", "") in flow.units("each")

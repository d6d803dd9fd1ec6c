"""Sinks get all batches of a task with its completion, or none. A task without an end publishes at once."""

from typing import Any

from tests.sink.flow import BufferFlow
from tests.support.dispatcher import fence
from tracelake.dispatcher.loops import uncommitted_files

WEEK = 7 * 24 * 3600

ENDLESS = """
name: endless
jobs:
  - name: feed
    activation: source
    runtime: ecs_platform
    operator: noop
    source: { kind: always_on }
publish:
  ticks:
    from: { job: feed }
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{ name: key, type: int64, nullable: false }]
      unique: [key]
"""


def publish(flow: BufferFlow, task_id: str, lease: Any, *keys: int) -> list[str]:
    """A batch for each key."""
    ids = []
    prefix = lease["task"]["outputs"][0]["storage"]["buffer_prefix"]
    for key in keys:
        uri = f"{prefix}{key}.jsonl"
        flow.harness.run(flow.harness.objects.put(uri, b'{"key": %d}\n' % key))
        reply = flow.try_publish(task_id, lease, None, batch_uri=uri, dedupe_scope="large", record_count=1)
        assert reply.status == 200, reply
        ids.append(reply.body["publish_id"])
    return ids


def test_batches_become_visible_with_the_completion_of_their_task(flow: BufferFlow) -> None:
    task_id, lease = flow.attempt("left")
    first, _ = publish(flow, task_id, lease, 1, 2)
    assert flow.sink() == 0
    assert flow.open_batches() == 0, "no backlog of the sinks"
    again = flow.try_publish(task_id, lease, None, batch_uri=first_uri(lease), dedupe_scope="large")
    assert (again.body["publish_id"], again.body["duplicate"]) == (first, True)
    flow.flow.complete(task_id, lease)
    assert flow.open_batches() == 2
    assert flow.flow.complete(task_id, lease)["duplicate"] is True
    assert flow.sink() == 2
    assert flow.rows("key") == [(1,), (2,)]


def first_uri(lease: Any) -> str:
    return f"{lease['task']['outputs'][0]['storage']['buffer_prefix']}1.jsonl"


def test_a_cancelled_task_leaves_nothing_visible(flow: BufferFlow) -> None:
    task_id, lease = flow.attempt("left")
    publish(flow, task_id, lease, 1)
    assert flow.harness.service("POST", f"/internal/tasks/{task_id}/cancel", {}).status == 200
    publish(flow, task_id, lease, 2)
    late = flow.harness.task("complete", lease["capability_token"], fence(task_id, lease, status="Completed"))
    assert late.code == "cancel_requested"
    flow.flow.complete(task_id, lease, status="Canceled")
    assert flow.sink() == 0
    assert flow.rows("key") == []
    assert flow.open_batches() == 0


def test_only_the_attempt_that_completes_becomes_visible(lone_flow: BufferFlow) -> None:
    flow = lone_flow
    flow.harness.use_movable_clock()
    task_id, lease = flow.attempt("left")
    publish(flow, task_id, lease, 1, 2)
    flow.flow.complete(task_id, lease, status="Failed", error_message="no")
    flow.harness.advance(3600)
    flow.harness.requeue_due()
    second = flow.flow.claim(task_id)
    publish(flow, task_id, second, 3)
    flow.harness.reap()
    flow.harness.advance(600)
    flow.harness.reap()
    assert flow.harness.row(task_id)["status"] == "Failed", "judged by the clock alone"
    flow.harness.run(flow.harness.dispatcher.reconciler.run_once())
    assert flow.sink() == 0
    flow.flow.complete(task_id, second)
    assert flow.sink() == 1
    assert flow.rows("key") == [(3,)]


def test_a_task_without_an_end_publishes_at_once(lone_flow: BufferFlow) -> None:
    flow = lone_flow.flow
    flow.deploy(ENDLESS)
    lone_flow.harness.run(lone_flow.harness.dispatcher.monitor.run_once())
    (task,) = flow.tasks("feed")
    lease = flow.claim(task["task_id"])
    reply = lone_flow.try_publish(str(task["task_id"]), lease, [{"key": 1}], dedupe_scope="ticks")
    assert reply.status == 200, reply
    assert [str(row["key"]) for row in lone_flow.harness.sql("SELECT key FROM outbox WHERE kind = 'buffer_batch'")] == [
        reply.body["publish_id"]
    ]


def test_the_metrics_know_batches_that_wait_for_their_task(lone_flow: BufferFlow) -> None:
    flow = lone_flow
    task_id, lease = flow.attempt("left")
    publish(flow, task_id, lease, 1, 2)
    assert awaiting(flow) == 2
    flow.flow.complete(task_id, lease, status="Failed", error_message="no", retryable=False)
    assert awaiting(flow) == 0


def awaiting(flow: BufferFlow) -> float:
    flow.harness.run(flow.harness.dispatcher.gauges.run_once())
    return float(flow.harness.dispatcher.metrics.buffer_pinned._value.get())


def test_artifacts_of_attempts_that_never_completed_are_collected(lone_flow: BufferFlow) -> None:
    flow = lone_flow
    flow.harness.use_movable_clock()
    lost_task, lost = flow.attempt("left")
    publish(flow, lost_task, lost, 1)
    flow.flow.complete(lost_task, lost, status="Failed", error_message="no", retryable=False)
    kept_task, kept = flow.attempt("left")
    publish(flow, kept_task, kept, 2)
    flow.flow.complete(kept_task, kept)
    flow.harness.advance(WEEK + 60)
    while flow.harness.run(flow.harness.dispatcher.collector.run_once()) >= uncommitted_files.PAGE:
        pass
    prefixes = [lease["task"]["outputs"][0]["storage"]["buffer_prefix"] for lease in (lost, kept)]
    assert [len(flow.harness.run(flow.harness.objects.list(prefix))) for prefix in prefixes] == [0, 1]
    rows = flow.harness.sql("SELECT task_id FROM buffer_publishes WHERE collected_at IS NOT NULL")
    assert [str(row["task_id"]) for row in rows] == [lost_task]

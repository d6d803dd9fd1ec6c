"""Workers that stop cost a task nothing, but not without end."""

from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.dispatcher.lifecycle.calls import FREE_STOPS

DAG = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: work, activation: reactive, operator: noop, inputs: [{from: {job: src}}], max_attempts: 2}
"""


def test_a_task_that_is_stopped_for_ever_fails_in_the_end(harness: DispatcherHarness) -> None:
    flow = Flow(harness)
    flow.deploy(DAG)
    flow.trigger("d", "src", cursor=1)
    (task,) = flow.tasks("work")
    attempts = 0
    while True:
        lease = flow.claim(task["task_id"])
        attempts += 1
        assert attempts < 50
        body = fence(str(task["task_id"]), lease, status="Failed", error_code="worker_stopping", error_message="x")
        reply = flow.harness.task("complete", lease["capability_token"], body)
        assert reply.status == 200
        if reply.body.get("next_retry_at") is None:
            break
        flow.harness.advance(3600)
        flow.harness.run(flow.harness.dispatcher.retries.run_once())
    assert attempts == 2 + FREE_STOPS
    assert flow.tasks("work")[0]["status"] == "Failed"

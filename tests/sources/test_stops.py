"""Workers that stop cost a task nothing, but not without end."""

from typing import Any

from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.engine.calls.completion import FREE_STOPS

DAG = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: work, activation: reactive, operator: noop, inputs: [{from: {job: src}}], max_attempts: 2}
"""


def end(flow: Flow, **fields: Any) -> Any:
    """One attempt of the only task, to its end; then everything that is due."""
    (task,) = flow.tasks("work")
    lease = flow.claim(task["task_id"])
    reply = flow.complete(task["task_id"], lease, status="Failed", error_message="x", **fields)
    flow.harness.advance(3600)
    flow.harness.run(flow.harness.dispatcher.retries.run_once())
    return reply


def test_a_task_that_is_stopped_for_ever_fails_in_the_end(harness: DispatcherHarness) -> None:
    flow = Flow(harness)
    flow.deploy(DAG)
    flow.trigger("d", "src", cursor=1)
    attempts = 1
    while end(flow, error_code="worker_stopping").get("next_retry_at") is not None:
        attempts += 1
        assert attempts < 50
    assert attempts == 2 + FREE_STOPS
    (task,) = flow.tasks("work")
    assert task["status"] == "Failed"
    flow.person("retry", task["task_id"])
    assert "next_retry_at" in end(flow, error_code="worker_stopping"), "two more attempts, and no more free stops"
    assert "next_retry_at" not in end(flow, error_code="worker_stopping")


def test_a_stop_leaves_every_attempt_of_the_job(harness: DispatcherHarness) -> None:
    flow = Flow(harness)
    flow.deploy(DAG)
    flow.trigger("d", "src", cursor=1)
    end(flow, error_code="worker_stopping")
    assert "next_retry_at" in end(flow)
    end(flow, error_code="worker_stopping")
    assert "next_retry_at" not in end(flow), "the second failure is the last"

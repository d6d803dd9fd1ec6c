"""An attempt that is no longer current loses credentials at once, and queries within the five seconds that inputs are
kept for."""

import pytest

from tests.http.support import fresh
from tests.query.support import ServiceHarness, blocks_table, commit_blocks, parquet
from tests.routing.support import Flow
from tests.support.dispatcher import DispatcherHarness, Reply, fence
from tracelake.query.control import INPUTS_SECONDS, ControlPlane

DAG = """
name: files
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: write, activation: reactive, operator: decode_logs, inputs: [{from: {job: src}}]}
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {job: write}}]}
publish:
  blocks: {from: {job: write}, storage: s3}
"""


class OldAttempt:
    """An attempt of a function that reads `blocks`, and may have credentials."""

    def __init__(self, service: ServiceHarness, flow: Flow) -> None:
        self.service, self.harness = service, flow.harness
        self.task = str(flow.tasks("read", "Queued")[0]["task_id"])
        # As a job of users' code, which is all that the routes look at.
        self.harness.sql(
            "UPDATE jobs SET operator = 'udf' WHERE job_id = (SELECT job_id FROM tasks WHERE task_id = $1)", self.task
        )
        self.harness.dispatcher.invocations.definitions._jobs.clear()
        self.lease = flow.claim(self.task)

    def query(self) -> Reply:
        return self.service.query_as_task(self.task, self.lease, "SELECT count(*) FROM blocks")

    def mint(self) -> Reply:
        return self.harness.task("credentials", self.lease["capability_token"], fence(self.task, self.lease))


@pytest.fixture
def attempt(service: ServiceHarness, harness: DispatcherHarness) -> OldAttempt:
    flow = Flow(harness, fresh("fenced"))
    flow.deploy(DAG)
    commit_blocks(flow, 0, 9, parquet(blocks_table(0, 9)))
    return OldAttempt(service, flow)


def claim_again(attempt: OldAttempt) -> None:
    attempt.harness.sql(
        "UPDATE tasks SET attempt = attempt + 1, lease_token = gen_random_uuid() WHERE task_id = $1", attempt.task
    )


def cancel(attempt: OldAttempt) -> None:
    assert attempt.harness.service("POST", f"/internal/tasks/{attempt.task}/cancel").status == 200
    body = fence(attempt.task, attempt.lease, status="Canceled")
    assert attempt.harness.task("complete", attempt.lease["capability_token"], body).status == 200


@pytest.mark.parametrize("end", [claim_again, cancel])
def test_a_stale_attempt_loses_queries_and_credentials(
    attempt: OldAttempt, end: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert callable(end)
    control: ControlPlane = attempt.service.application.control
    now = 1000.0
    monkeypatch.setattr(control, "_monotonic", lambda: now)
    assert attempt.query().status == 200
    assert attempt.mint().status == 200, attempt.mint()
    end(attempt)
    assert attempt.mint().code == "fenced", "at once"
    assert INPUTS_SECONDS <= 5
    now += INPUTS_SECONDS
    assert (attempt.query().status, attempt.query().code) == (409, "fenced")
    now -= INPUTS_SECONDS
    assert attempt.query().code == "fenced", "a refusal takes what was kept along"

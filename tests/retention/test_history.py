"""History goes by age, in batches; what somebody may still need stays."""

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.routing.support import Flow
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.retention import loop

DAY = 24 * 3600
DAG = """
name: d
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: step, activation: reactive, runtime: ecs_platform, operator: noop, inputs: [{from: {job: src}}]}
"""


def start(state_dsn: str, queue_dsn: str, home: Path, config: DispatcherConfig) -> DispatcherHarness:
    harness = DispatcherHarness.start(state_dsn, queue_dsn, home, config)
    harness.use_movable_clock()
    return harness


@pytest.fixture
def flow(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Flow]:
    config = dispatcher_config(trigger_retention_days=30, attempt_retention_days=30, task_retention_days=90)
    flow = Flow(start(state_dsn, queue_dsn, tmp_path, config))
    yield flow
    flow.harness.stop()


def count(flow: Flow, table: str) -> int:
    number: int = flow.harness.sql(f"SELECT count(*) AS n FROM {table}")[0]["n"]
    return number


def collect(flow: Flow) -> dict[str, int]:
    """Round after round; answers what went."""
    removed: dict[str, int] = {}
    while True:
        reply = flow.harness.service("POST", "/internal/gc")
        assert reply.status == 200, reply
        for kind, number in reply.body["removed"].items():
            removed[kind] = removed.get(kind, 0) + number
        if not reply.body["more"]:
            return removed


def fill(flow: Flow) -> None:
    """A trigger, a routed task that was tried twice, and two tasks that no DAG made: one done, one failed."""
    flow.deploy(DAG)
    flow.trigger("d", "src", cursor=1)
    (task,) = flow.tasks("step")
    lease = flow.claim(task["task_id"])
    flow.complete(task["task_id"], lease, status="Failed", error_message="no")
    flow.harness.advance(3600)
    flow.harness.requeue_due()
    flow.pass_on(task["task_id"])
    job = flow.harness.make_job(limits={"max_attempts": 1})["job_id"]
    done, failed = flow.harness.make_task(job), flow.harness.make_task(job)
    flow.complete(done, flow.claim(done))
    flow.complete(failed, flow.claim(failed), status="Failed", error_message="no")
    flow.harness.sql(
        "INSERT INTO spark_metrics (task_id, attempt, figures) VALUES ($1, 1, '{}'), ($2, 1, '{}')",
        task["task_id"],
        done,
    )
    flow.harness.run(flow.harness.dispatcher.collector.run_once())


def test_nothing_goes_before_its_time_and_the_plan_says_what_will(flow: Flow) -> None:
    fill(flow)
    flow.harness.advance(29 * DAY)
    assert collect(flow) == {}
    flow.harness.advance(2 * DAY)
    plan = flow.harness.service("GET", "/internal/gc").body
    assert {row["kind"]: row["rows"] for row in plan["rows"]} == {
        "triggers": 1, "task_attempts": 1, "spark_metrics": 2, "query_audit": 0, "tasks": 0, "run_logs": 0,
        "check_results": 0, "batch_queries": 0, "webhook_deliveries": 0, "batch_files": 0,
    }  # fmt: skip
    assert collect(flow) == {"triggers": 1, "task_attempts": 1, "spark_metrics": 2}
    assert collect(flow) == {}, "the same again changes nothing"


def test_only_tasks_that_no_dag_made_go_and_none_that_waits_for_a_person(flow: Flow) -> None:
    fill(flow)
    flow.harness.advance(91 * DAY)
    flow.harness.run(flow.harness.dispatcher.collector.run_once())
    assert collect(flow)["tasks"] == 1
    rows = flow.harness.sql("SELECT node_id IS NULL AS bare, status FROM tasks ORDER BY 1")
    assert [(row["bare"], row["status"]) for row in rows] == [(False, "Completed"), (True, "Failed")]
    flow.trigger("d", "src", cursor=1)
    assert len(flow.tasks("step")) == 1, "the unit was made, long ago as it is"


def test_batches_are_bounded_and_a_locked_row_keeps_nobody_waiting(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    flow.deploy(DAG)
    monkeypatch.setattr(loop, "BATCH", 10)
    flow.harness.sql(
        """INSERT INTO triggers (org_id, idempotency_key, request_hash, reply)
           SELECT org_id, 'k' || n, '', '{}' FROM orgs, generate_series(1, 25) n"""
    )
    flow.harness.advance(31 * DAY)

    async def hold_one() -> int:
        async with flow.harness.dispatcher.ports.store.transaction() as other:
            await other.execute("SELECT FROM triggers WHERE idempotency_key = 'k7' FOR UPDATE")
            return (await flow.harness.dispatcher.retention.run_round()).removed["triggers"]

    assert flow.harness.run(hold_one()) == 24
    assert collect(flow) == {"triggers": 1}


def test_zero_keeps_everything(state_dsn: str, queue_dsn: str, tmp_path: Path) -> None:
    config = dispatcher_config(
        trigger_retention_days=0,
        attempt_retention_days=0,
        task_retention_days=0,
        check_retention_days=0,
        query_audit_retention_days=0,
        log_retention_days=0,
        kept_versions=0,
    )
    flow = Flow(start(state_dsn, queue_dsn, tmp_path, config))
    try:
        fill(flow)
        flow.harness.advance(10_000 * DAY)
        assert collect(flow) == {}
        rows = flow.harness.service("GET", "/internal/gc").body["rows"]
        assert {row["kind"] for row in rows} == {"batch_queries", "webhook_deliveries", "batch_files"}, "always bounded"
    finally:
        flow.harness.stop()


def test_a_trigger_may_be_repeated_for_as_long_as_it_is_remembered(flow: Flow) -> None:
    flow.deploy(DAG)
    key = str(uuid4())
    flow.trigger("d", "src", cursor=1, idempotency_key=key)
    flow.harness.advance(29 * DAY)
    collect(flow)
    assert flow.trigger("d", "src", cursor=1, idempotency_key=key).duplicate
    assert count(flow, "events") == 1


def test_the_audit_log_has_a_retention_if_it_is_set(state_dsn: str, queue_dsn: str, tmp_path: Path) -> None:
    flow = Flow(start(state_dsn, queue_dsn, tmp_path, dispatcher_config(audit_retention_days=10)))
    try:
        flow.deploy(DAG)
        flow.harness.advance(9 * DAY)
        flow.deploy(DAG.replace("noop", "sleep, config: {seconds: 1}"))
        assert collect(flow).get("audit_log") is None
        flow.harness.advance(2 * DAY)
        plan = flow.harness.service("GET", "/internal/gc").body
        assert {row["kind"]: row["rows"] for row in plan["rows"]}["audit_log"] == 1
        assert collect(flow)["audit_log"] == 1
        assert count(flow, "audit_log") == 1
    finally:
        flow.harness.stop()

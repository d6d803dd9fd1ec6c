"""Logs of tasks on a whole stack with Spark: one that succeeds, one that fails in an executor, and the parts' own."""

import json
from collections.abc import Iterator
from uuid import uuid4

import pytest

from tests.stack.test_buffered import BufferStack

pytestmark = pytest.mark.system

DAG = """\
name: transfers
defaults: { runtime: by_hand }
jobs:
  - { name: head, activation: source, source: { kind: manual } }
  - name: left
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{ from: { job: head } }]
publish:
  large:
    from: [{ job: left }]
    storage: postgres
    write_mode: buffered
    schema:
      columns: [{ name: key, type: int64, nullable: false }]
      unique: [key]
"""
READERS = """\
name: totals
defaults: { runtime: ecs_platform }
jobs:
  - name: good
    activation: reactive
    operator: spark_sql
    inputs: [{ from: { dataset: large } }]
    config: { query: "SELECT key FROM large" }
  - name: bad
    activation: reactive
    operator: spark_sql
    inputs: [{ from: { dataset: large } }]
    config: { query: "SELECT key / (key - key) AS ratio FROM large" }
publish:
  good: { from: { job: good }, storage: s3 }
  bad: { from: { job: bad }, storage: s3 }
"""


@pytest.fixture
def stack() -> Iterator[BufferStack]:
    stack = BufferStack()
    with stack.running():
        yield stack


def test_logs_of_tasks_jobs_and_parts(stack: BufferStack) -> None:
    stack.deploy("transfers", DAG)
    stack.deploy("totals", READERS)
    stack.shell("trace trigger transfers/head --range 0-0")
    stack.wait_until(lambda: bool(stack.tasks("transfers", "left", "queued")), "the task of the writer")
    stack.publish("left", [{"key": 1}, {"key": 2}])
    (good,) = stack.await_tasks("totals", "good", "completed", 1)
    (bad,) = stack.await_tasks("totals", "bad", "failed", 1)
    for task in (good, bad):
        stack.wait_until(
            lambda task=task: bool(stack.sql("SELECT FROM run_logs WHERE task_id = $1::uuid AND ended", task)),  # type: ignore[misc]
            "the log",
        )

    log = stack.trace(f"logs {good}")
    texts = [line["text"] for line in log["lines"]["lines"]]
    assert (log["state"], log["ending"], log["operator"]) == ("ended", "completed", "spark_sql")
    assert "claimed by worker" in texts[0]
    assert "input large: a table" in texts
    assert any(text.startswith("output good: wrote 2 rows in 1 file") for text in texts)
    assert texts[-1] == "completed"

    printed = stack.shell(f"trace logs {bad}")
    assert "DIVIDE_BY_ZERO" in printed
    assert str(stack.home.root) not in printed
    last = stack.trace(f"logs {bad}")
    by_source = {line["source"] for line in last["lines"]["lines"]}
    assert by_source == {"worker", "operator", "spark"}, printed
    executor = [line["text"] for line in last["lines"]["lines"] if line["source"] == "spark"]
    assert any("Exception in task" in text for text in executor), "of the executor"
    assert any("TaskSetManager: Lost task" in text for text in executor), "of the scheduler, by its stage"
    assert "Traceback" not in printed, "an error of the query is told in one line"
    assert "no further attempt is planned" in last["lines"]["lines"][-1]["text"]
    assert last["attempts"] == [1]
    assert all(good not in line["text"] for line in last["lines"]["lines"])

    failed = stack.shell("trace logs totals/bad --failed")
    assert failed.count("claimed by worker") == 1
    assert json.loads(stack.shell("trace logs totals/good --json"))["runs"][0]["task_id"] == good
    assert f"trace logs {bad}" in stack.shell(f"trace why {bad}")
    assert f"trace logs {bad}" in stack.shell(f"trace tasks {bad}")
    assert "task_not_found" in stack.shell(f"trace logs {uuid4()}", fine=(1,))

    assert "worker ready" in stack.shell("trace logs worker --lines 10000")
    assert stack.shell("trace logs state --lines 1").count("\n") == 1
    assert "Did you mean `scheduler`?" in stack.shell("trace logs schedular", fine=(2,))

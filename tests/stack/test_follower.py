"""A follower of a chain on a real stack: its worker is killed, its tables have no gap, and Spark reads them."""

from typing import Any

import pytest

from tests.support.chain import RECORDING
from tests.support.real_stack import SHORT_TIMES, RealStack

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

FIRST, LAST = 3_400, 3_999
DAG = f"""
name: live
defaults: {{runtime: ecs_platform}}
jobs:
  - name: head
    activation: source
    source: {{kind: always_on}}
    operator: block_follower
    outputs: 3
    config: {{chain_id: 1337001, start: {FIRST}, batch_blocks: 20, poll_max_seconds: 1}}
  - name: copy
    activation: reactive
    operator: spark_sql
    execution_strategy: PerUpdate
    config: {{query: "SELECT block_number, hex(block_hash) AS hash FROM live_blocks"}}
    inputs: [{{from: {{job: head}}}}]
publish:
  live_blocks: {{from: {{job: head}}, storage: postgres}}
  live_transactions: {{from: {{job: head, output_index: 1}}, storage: postgres}}
  live_logs: {{from: {{job: head, output_index: 2}}, storage: postgres}}
  copies: {{from: {{job: copy}}, storage: s3}}
"""
OPEN = """
    SELECT count(*) AS n FROM tasks t JOIN jobs j USING (job_id)
    WHERE j.name = 'copy' AND t.status <> 'Completed'"""


def ask(stack: RealStack, sql: str) -> list[list[Any]]:
    rows: list[list[Any]] = stack.trace(f'query "{sql}"')["rows"]
    return rows


def progress(stack: RealStack) -> dict[str, Any]:
    """What `trace sources` says of the follower."""
    (source,) = stack.trace("sources")["sources"]
    told: dict[str, Any] = source.get("progress", {})
    return told


def test_a_follower_whose_worker_is_killed_leaves_no_gap_and_no_duplicate() -> None:
    settings = SHORT_TIMES | {
        "recorded_chain": str(RECORDING),
        "query_service": "true",
        "spark_master": "local[2]",
        "max_attempts": "100",
    }
    stack = RealStack(settings=settings)
    with stack.running():
        stack.deploy("live", DAG)
        stack.wait_until(lambda: bool(stack.tasks("live", "copy")), "the first blocks", timeout=120)
        stack.kill_part("worker")
        events = f"""SELECT count(*) AS n FROM events v JOIN datasets d USING (dataset_uuid)
                     WHERE d.name = 'live_blocks' AND v.cursor = {LAST}"""
        stack.wait_until(lambda: stack.sql(events)[0]["n"] > 0, "the head", timeout=240)
        stack.wait_until(lambda: stack.sql(OPEN)[0]["n"] == 0, "the readers", timeout=240)
        blocks = "SELECT count(*), count(DISTINCT block_number), min(block_number), max(block_number) FROM {}"
        whole = [[LAST - FIRST + 1, LAST - FIRST + 1, FIRST, LAST]]
        assert ask(stack, blocks.format("live_blocks")) == whole
        assert ask(stack, blocks.format("copies")) == whole, "each block is in one unit of the reader"
        broken = "SELECT count(*) FROM live_blocks b JOIN live_blocks p ON p.block_number = b.block_number - 1"
        assert ask(stack, f"{broken} WHERE p.block_hash <> b.parent_hash") == [[0]]
        orphans = "SELECT count(*) FROM live_logs l ANTI JOIN live_transactions t USING (transaction_hash)"
        assert ask(stack, orphans) == [[0]]
        assert ask(stack, "SELECT count(*) > 0 FROM live_logs") == [[True]]
        (task_id,) = stack.tasks("live", "head")
        ((attempt,),) = stack.sql("SELECT attempt FROM tasks WHERE task_id::text = $1", task_id)
        assert attempt >= 2, "another attempt went on"
        stack.wait_until(lambda: progress(stack).get("stored") == LAST, "a heartbeat that says so")
        assert {name: progress(stack).get(name) for name in ("state", "head", "lag_blocks")} == {
            "state": "at_head",
            "head": LAST,
            "lag_blocks": 0,
        }
        assert f"at head: block {LAST}" in " ".join(stack.shell("trace sources").split())
        assert "live_blocks" in stack.shell("trace datasets")
        assert stack.trace("why live_blocks")["state"] in ("fine", "working")

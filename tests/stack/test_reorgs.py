"""A reorganisation on a real stack: from the tables of a follower through decoding, windows, running state and a check
to a buffered table. In the end everything is what a second DAG computes from scratch, row by row."""

from typing import Any

import pytest

from tests.support.chain import serve_chain
from tests.support.real_stack import SHORT_TIMES, RealStack

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

FIRST, FORK, BEFORE, LAST = 100, 113, 119, 129
"""First block, first block that is replaced, and the last blocks before and after the reorganisation."""
DAG = """
name: {name}
defaults: {{runtime: ecs_platform}}
jobs:
  - name: head
    activation: source
    source: {{kind: always_on}}
    operator: block_follower
    outputs: 3
    config: {{chain_id: 1337001, start: {first}, batch_blocks: 10, poll_max_seconds: 1}}
  - {{name: decode, activation: reactive, operator: decode_logs, execution_strategy: PerUpdate,
      inputs: [{{from: {{job: head, output_index: 2}}}}]}}
  - name: moves
    activation: reactive
    operator: spark_sql
    execution_strategy: PerUpdate
    inputs: [{{from: {{job: decode}}}}]
    config:
      inputs: {{t: 0}}
      query: |
        SELECT t.block_number, t.log_index, t.batch_index, hex(t.transaction_hash) AS hash, t.amount_string AS amount
        FROM t
  - name: tens
    activation: reactive
    operator: spark_sql
    units: {{by: blocks, size: 10}}
    inputs: [{{from: {{job: head}}}}, {{from: {{job: head, output_index: 1}}}}]
    config:
      inputs: {{b: 0, t: 1}}
      query: |
        SELECT b.block_number, hex(b.block_hash) AS hash, count(t.transaction_hash) AS transactions
        FROM b LEFT JOIN t ON t.block_number = b.block_number GROUP BY b.block_number, b.block_hash
  - name: totals
    activation: reactive
    operator: spark_sql
    units: {{by: blocks, size: 10}}
    inputs: [{{from: {{job: tens}}}}, {{self: previous, columns: {{last_block: bigint, transactions: bigint}}}}]
    config:
      inputs: {{now: 0, before: 1}}
      query: |
        SELECT max(last_block) AS last_block, sum(transactions) AS transactions
        FROM (SELECT now.block_number AS last_block, now.transactions FROM now
              UNION ALL SELECT before.last_block, before.transactions FROM before)
  - {{name: hold_together, activation: reactive, operator: integrity_check, units: {{by: blocks, size: 10}},
      inputs: [{{from: {{job: head}}}}, {{from: {{job: head, output_index: 1}}}},
               {{from: {{job: head, output_index: 2}}}}]}}
publish:
  {name}_blocks: {{from: {{job: head}}, storage: postgres}}
  {name}_transactions: {{from: {{job: head, output_index: 1}}, storage: postgres}}
  {name}_logs: {{from: {{job: head, output_index: 2}}, storage: postgres}}
  {name}_decoded: {{from: {{job: decode}}, storage: s3}}
  {name}_tens: {{from: {{job: tens}}, storage: s3}}
  {name}_totals: {{from: {{job: totals}}, storage: s3}}
  {name}_findings: {{from: {{job: hold_together}}, storage: s3}}
  {name}_moves:
    from: {{job: moves}}
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {{name: block_number, type: int64, nullable: false}}
        - {{name: log_index, type: int64, nullable: false}}
        - {{name: batch_index, type: int32, nullable: false}}
        - {{name: hash, type: text}}
        - {{name: amount, type: text}}
      unique: [block_number, log_index, batch_index]
"""
UNSETTLED = """
    SELECT EXISTS (SELECT FROM tasks WHERE finished_at IS NULL AND unit_end IS NOT NULL)
        OR EXISTS (SELECT FROM pending_units WHERE due OR waits_for IS NOT NULL)
        OR NOT EXISTS (SELECT FROM events v JOIN datasets d USING (dataset_uuid)
                       WHERE d.name = $1 AND v.cursor = $2) AS unsettled"""
COUNTS = """
    SELECT t.unit_key, count(*) AS n FROM tasks t JOIN jobs j USING (job_id)
    WHERE j.dag_name = 'live' AND j.name = $1 GROUP BY 1"""


class ReorgStack(RealStack):
    def ask(self, sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = self.trace(f'query "{sql}"')["rows"]
        return rows

    def settle(self, dag: str, cursor: int) -> None:
        self.wait_until(
            lambda: not self.sql(UNSETTLED, f"{dag}_logs", cursor)[0]["unsettled"], f"{dag} at {cursor}", timeout=240
        )

    def count_tasks(self, job: str) -> dict[str, int]:
        return {row["unit_key"]: row["n"] for row in self.sql(COUNTS, job)}

    def differing(self, dataset: str) -> list[list[Any]]:
        one, other = f"(SELECT * FROM live_{dataset})", f"(SELECT * FROM again_{dataset})"
        return self.ask(f"({one} EXCEPT ALL {other}) UNION ALL ({other} EXCEPT ALL {one})")


def test_a_reorganisation_goes_through_all_dependants() -> None:
    with serve_chain(LAST + 1, head=BEFORE + 1) as chain:
        settings = SHORT_TIMES | {"query_service": "true", "spark_master": "local[2]", "lease_seconds": "30"}
        stack = ReorgStack(settings=settings, variables={"TRACE_RPC_DEFAULT": chain.url})
        with stack.running():
            stack.deploy("live", DAG.format(name="live", first=FIRST))
            stack.settle("live", BEFORE)
            assert stack.ask("SELECT count(*), max(block_number) FROM live_tens") == [[20, BEFORE]]
            chain.reorganise(FORK)
            chain.show(LAST + 1)
            stack.settle("live", LAST)
            windows = {"p:100-109": 1, "p:110-119": 2, "p:120-129": 1}
            for job in ("tens", "totals", "hold_together"):
                assert stack.count_tasks(job) == windows, job
            stack.deploy("again", DAG.format(name="again", first=FIRST))
            stack.settle("again", LAST)
            for dataset in ("blocks", "logs", "decoded", "tens", "totals", "findings"):
                assert stack.differing(dataset) == [], dataset
            stack.wait_until(lambda: stack.differing("moves") == [], "the buffered table", timeout=60)
            assert stack.ask("SELECT count(*) FROM live_findings") == [[0]], "the chain holds together"
            ((moves, last),) = stack.ask("SELECT count(*), max(block_number) FROM live_moves")
            assert moves > 0
            assert last > FORK

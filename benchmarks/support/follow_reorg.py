"""A reorganisation on a real stack: a live chain, and six jobs that depend on it in five ways."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.real_stack import RealStack

from benchmarks.support.follow_source import CHAIN_ID, SECONDS, MovedChain

DEPTH = 64
UNIT = 100
DAG = """
name: live
defaults: {{runtime: ecs_platform}}
chains:
  - {{name: eth, chain_id: {chain_id}, start: {start}, unit_blocks: {unit}, poll_max_seconds: 1}}
jobs:
  - name: decode
    activation: reactive
    operator: decode_logs
    units: {{by: blocks, size: {unit}, when: updated}}
    inputs: [{{from: {{dataset: logs}}}}]
  - name: per_block
    activation: reactive
    operator: spark_sql
    units: {{by: blocks, size: {unit}, when: updated}}
    inputs: [{{from: {{dataset: blocks}}}}, {{from: {{dataset: transactions}}}}]
    config:
      inputs: {{b: 0, t: 1}}
      query: |
        SELECT b.block_number, lower(hex(b.block_hash)) AS hash, count(t.transaction_hash) AS transactions
        FROM b LEFT JOIN t ON t.block_number = b.block_number GROUP BY b.block_number, b.block_hash
  - name: daily
    activation: reactive
    operator: spark_sql
    units: {{by: time, grain: day, when: updated}}
    inputs: [{{from: {{dataset: blocks}}, by: timestamp}}]
    config:
      inputs: {{b: 0}}
      query: SELECT count(*) AS blocks, max(b.block_number) AS last_block FROM b
  - name: totals
    activation: reactive
    operator: spark_sql
    units: {{by: blocks, size: {unit}, when: updated}}
    inputs: [{{from: {{job: per_block}}}}, {{self: previous, columns: {{last_block: bigint, transactions: bigint}}}}]
    config:
      inputs: {{now: 0, before: 1}}
      query: |
        SELECT max(last_block) AS last_block, sum(transactions) AS transactions
        FROM (SELECT now.block_number AS last_block, now.transactions FROM now
              UNION ALL SELECT before.last_block, before.transactions FROM before)
  - name: keep
    activation: reactive
    operator: spark_sql
    units: {{by: blocks, size: {unit}, when: updated}}
    inputs: [{{from: {{dataset: blocks}}}}]
    config:
      inputs: {{b: 0}}
      query: SELECT b.block_number, lower(hex(b.block_hash)) AS hash FROM b
  - name: hold_together
    activation: reactive
    operator: integrity_check
    units: {{by: blocks, size: {unit}}}
    inputs: [{{from: {{dataset: blocks}}}}, {{from: {{dataset: transactions}}}}, {{from: {{dataset: logs}}}}]
publish:
  decoded: {{from: {{job: decode}}, storage: s3}}
  per_block: {{from: {{job: per_block}}, storage: s3}}
  daily: {{from: {{job: daily}}, storage: s3}}
  totals: {{from: {{job: totals}}, storage: s3}}
  findings: {{from: {{job: hold_together}}, storage: s3}}
  kept:
    from: {{job: keep}}
    storage: postgres
    write_mode: buffered
    schema:
      columns:
        - {{name: block_number, type: int64, nullable: false}}
        - {{name: hash, type: text}}
      unique: [block_number]
"""
UNSETTLED = """
    SELECT EXISTS (SELECT FROM tasks WHERE finished_at IS NULL AND unit_end IS NOT NULL)
        OR EXISTS (SELECT FROM pending_units WHERE due OR waits_for IS NOT NULL)
        OR EXISTS (SELECT FROM edges WHERE position IS NOT NULL AND phase <> 'Parked')
        OR (SELECT count(*) FROM tasks t JOIN jobs j USING (job_id)
            WHERE j.name = 'hold_together' AND t.status = 'Completed') = 0
        OR (SELECT count(DISTINCT v.revision) FROM events v JOIN datasets d USING (dataset_uuid)
            WHERE d.name = 'blocks' AND v.invalidates IS NOT NULL) < $1 AS unsettled"""
FAILED = """
    SELECT j.name, t.unit_key, t.error FROM tasks t JOIN jobs j USING (job_id) WHERE t.status = 'Failed'"""


@dataclass
class ReorganisedStack:
    """Between `first` and `head` there are blocks; reorganisations replace the newest of them again and again."""

    stack: RealStack
    chain: MovedChain
    first: int
    head: int
    rounds: int = 0

    @classmethod
    def make(cls, chain: MovedChain, first: int, head: int) -> "ReorganisedStack":
        settings = {"query_service": "true", "spark_master": "local[2]"}
        return cls(RealStack(settings=settings, variables={"TRACE_RPC_DEFAULT": chain.url}), chain, first, head)

    def begin(self) -> None:
        self.chain.show(self.head)
        self.stack.deploy("live", DAG.format(chain_id=CHAIN_ID, start=self.first, unit=UNIT))
        self._settle()
        self._wait_kept()
        self._check()

    def reorganise(self) -> float:
        """Seconds until everything is that of the new chain. Checks it afterwards."""
        self.rounds += 1
        began = time.perf_counter()
        self.chain.reorganise(DEPTH)
        self._settle()
        self._wait_kept()
        seconds = time.perf_counter() - began
        self._check()
        return seconds

    def _settle(self) -> None:
        self.stack.wait_until(
            lambda: not self.stack.sql(UNSETTLED, self.rounds)[0]["unsettled"], "the dependants", timeout=SECONDS
        )

    def _wait_kept(self) -> None:
        """The buffered table is written after its task has ended."""
        hashes = {self._block(number)["hash"][2:] for number in self._changed}
        self.stack.wait_until(lambda: hashes == self._kept(), "the buffered table", timeout=SECONDS)

    @property
    def _changed(self) -> range:
        return range(self.head - DEPTH + 1, self.head + 1)

    def _kept(self) -> set[str]:
        (table,) = self.stack.sql("SELECT dataset_uuid FROM datasets WHERE name = 'kept'")
        statement = f'SELECT DISTINCT hash FROM "dataset_{table["dataset_uuid"]}" WHERE block_number >= $1'
        rows = self.stack.sql(statement, self._changed[0], dsn_file=self.stack.home.data_dsn_file)
        return {row["hash"] for row in rows}

    def _block(self, number: int) -> Mapping[str, Any]:
        block: Mapping[str, Any] = self.chain.call("eth_getBlockByNumber", hex(number), False)
        return block

    def _check(self) -> None:
        """Against the served chain."""
        blocks = [self._block(number) for number in range(self.first, self.head + 1)]
        transactions = sum(len(block["transactions"]) for block in blocks)
        last = self.head
        wanted: dict[str, list[Any]] = {
            "SELECT count(*), max(block_number) FROM blocks": [len(blocks), last],
            "SELECT count(*) FROM transactions": [transactions],
            "SELECT count(*), sum(transactions), max(block_number) FROM per_block": [len(blocks), transactions, last],
            "SELECT sum(blocks), max(last_block) FROM daily": [len(blocks), last],
            f"SELECT transactions FROM totals WHERE last_block = {last}": [transactions],
            "SELECT count(*) FROM kept": [len(blocks)],
            "SELECT count(*) FROM findings": [0],
            "SELECT count(*) FROM decoded d LEFT JOIN logs l USING (transaction_hash, log_index)"
            " WHERE l.block_number IS NULL": [0],
        }
        for sql, row in wanted.items():
            found = self.stack.trace(f'query "{sql}"')["rows"]
            assert [[int(value) for value in found[0]]] == [row], f"{sql}: {found}, and not {row}"
        hashes = self.stack.trace(f'query "SELECT hash FROM per_block WHERE block_number >= {self._changed[0]}"')[
            "rows"
        ]
        assert {name for (name,) in hashes} == {self._block(number)["hash"][2:] for number in self._changed}
        failed = self.stack.sql(FAILED)
        assert not failed, failed

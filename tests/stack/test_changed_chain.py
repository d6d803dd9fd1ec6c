"""A live chain whose document changes: blocks that are there stay, and new ones are read as the document says now."""

from typing import Any

import pytest

from tests.support.chain import serve_chain
from tests.support.real_stack import SHORT_TIMES, RealStack

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

FIRST, BEFORE, LAST = 100, 199, 259
HUSD, GRN = "0x5fbdb2315678afecb367f032d93f642f64180aa3", "0xe7f1725e7734ce288f8367e1bb143e90bb3f0512"
CHAIN = f"""
name: some
chains:
  - name: chain
    chain_id: 1337001
    start: {FIRST}
    unit_blocks: 20
    finality_depth_blocks: 10
    poll_max_seconds: 1
    filter: {{addresses: ["{HUSD}"]}}
    publish: {{blocks: some_blocks, logs: some_logs}}
jobs:
  - name: counts
    activation: reactive
    runtime: ecs_platform
    operator: spark_sql
    units: {{by: blocks, size: 20, when: updated}}
    inputs: [{{from: {{dataset: some_logs}}}}]
    config:
      query: |
        SELECT block_number, lower(hex(address)) AS address, count(*) AS logs
        FROM some_logs GROUP BY block_number, address
publish:
  some_counts: {{from: {{job: counts}}, storage: s3}}
"""
CHANGED = CHAIN.replace(f'"{HUSD}"]', f'"{HUSD}", "{GRN}"]').replace(
    "    filter:", "    columns: {logs: [block_hash]}\n    filter:"
)
UNITS = "SELECT count(*) AS n FROM dataset_units JOIN datasets USING (dataset_uuid) WHERE name = $1"
LOGS = """
    SELECT block_number > {} AS new, lower(hex(address)) AS address, count(*) AS logs, count({}) AS hashes
    FROM some_logs GROUP BY ALL ORDER BY 1, 2"""


class ChangedChain(RealStack):
    def __init__(self, url: str) -> None:
        settings = {"query_service": "true", "spark_master": "local[2]"}
        super().__init__(settings=SHORT_TIMES | settings, variables={"TRACE_RPC_DEFAULT": url})

    def ask(self, sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = self.trace(f'query "{" ".join(sql.split())}"')["rows"]
        return rows

    def count_units(self, dataset: str) -> int:
        number: int = self.sql(UNITS, dataset)[0]["n"]
        return number

    def settle(self, last: int) -> None:
        """Until all blocks are there, and what a job makes of them."""
        whole = [[FIRST, last, last - FIRST + 1]]
        counted = "SELECT CAST(sum(logs) AS BIGINT) FROM some_counts"
        self.wait_until(
            lambda: (
                self.ask("SELECT min(block_number), max(block_number), count(*) FROM some_blocks") == whole
                and self.count_units("some_counts") > 0
                and self.ask(counted) == self.ask("SELECT count(*) FROM some_logs")
            ),
            f"block {last}",
            timeout=300,
        )


def test_blocks_stay_as_they_were_read() -> None:
    with serve_chain(LAST + 1, head=BEFORE + 1) as node:
        stack = ChangedChain(node.url)
        with stack.running():
            stack.deploy("some", CHAIN)
            stack.settle(BEFORE)
            before = stack.ask(LOGS.format(BEFORE, "*"))
            assert [row[1] for row in before] == [HUSD[2:]]
            stack.deploy("some", CHANGED)
            node.show(LAST + 1)
            stack.settle(LAST)
            after = stack.ask(LOGS.format(BEFORE, "block_hash"))
            assert [row[:2] for row in after] == [[False, HUSD[2:]], [True, HUSD[2:]], [True, GRN[2:]]]
            assert after[0][2:] == [before[0][2], 0], "as they were read"
            assert all(logs == hashes for _, _, logs, hashes in after[1:])
            assert stack.count_units("some_logs") > 0, "some of them are in files"

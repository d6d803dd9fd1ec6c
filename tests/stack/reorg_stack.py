"""A real stack with the DAGs of `tests.stack.reorg_dag`: when nothing is left to do, and in what two DAGs differ."""

from collections import Counter
from typing import Any

import pyarrow.parquet as pq

from tests.spark.evm.support import expected
from tests.stack.reorg_dag import SOURCES
from tests.support.chain import ServedChain
from tests.support.real_stack import SHORT_TIMES, RealStack

UNSETTLED = """
    SELECT EXISTS (SELECT FROM tasks WHERE finished_at IS NULL AND unit_end IS NOT NULL)
        OR EXISTS (SELECT FROM pending_units WHERE due OR waits_for IS NOT NULL)
        OR NOT EXISTS (SELECT FROM events v JOIN datasets d USING (dataset_uuid)
                       WHERE d.name = $1 AND coalesce(v.cursor, v.range_end) = $2
                         AND ($3 OR v.invalidates IS NOT NULL)) AS unsettled"""
COUNTS = """
    SELECT j.name, t.unit_key, count(*) AS n FROM tasks t JOIN jobs j USING (job_id)
    WHERE j.dag_name = $1 AND t.unit_end IS NOT NULL GROUP BY 1, 2"""
BOUNDARIES = """
    SELECT d.name, b.boundary FROM live_boundaries b JOIN datasets d USING (dataset_uuid) ORDER BY 1"""

_KEYS = {
    "blocks": ("block_number",),
    "transactions": ("block_number", "transaction_index"),
    "logs": ("block_number", "log_index"),
}


class ReorgStack(RealStack):
    def __init__(self, url: str, **changed: str) -> None:
        """`url`: of the chain; `changed`: settings."""
        settings = {"query_service": "true", "spark_master": "local[2]", "lease_seconds": "30"}
        super().__init__(settings=SHORT_TIMES | settings | changed, variables={"TRACE_RPC_DEFAULT": url})

    def ask(self, sql: str) -> list[list[Any]]:
        rows: list[list[Any]] = self.trace(f'query "{sql}"')["rows"]
        return rows

    def settle(self, *dags: str, at: int, reorganised: bool = False) -> None:
        """Until nothing is left to do, with an event that ends at this block (`reorganised`: of a replaced range)."""
        for dag in dags:
            self.wait_until(
                lambda dag=dag: not self.sql(UNSETTLED, f"{dag}_logs", at, not reorganised)[0]["unsettled"],  # type: ignore[misc]
                f"{dag} at {at}",
                timeout=300,
            )

    def await_boundary(self, boundary: int) -> None:
        """Until the files of all live datasets end there."""
        boundaries = sorted((f"live_{name}", boundary) for name in SOURCES)
        self.wait_until(lambda: [tuple(row) for row in self.sql(BOUNDARIES)] == boundaries, f"files up to {boundary}")

    def count_tasks(self, dag: str) -> Counter[tuple[str, str]]:
        return Counter({(row["name"], row["unit_key"]): row["n"] for row in self.sql(COUNTS, dag)})

    def findings(self, dag: str) -> list[int]:
        """Blocks that are older than their parents."""
        query = f"SELECT block_number FROM {dag}_findings WHERE detail LIKE '%older%' ORDER BY 1"
        return [number for (number,) in self.ask(query)]

    def differing(self, dag: str, dataset: str) -> list[list[Any]]:
        """Rows that one DAG has and the rebuild has not, or the other way round."""
        one, other = f"(SELECT * FROM {dag}_{dataset})", f"(SELECT * FROM again_{dataset})"
        return self.ask(f"({one} EXCEPT ALL {other}) UNION ALL ({other} EXCEPT ALL {one})")

    def read_rows(self, table: str) -> list[dict[str, Any]]:
        """All rows of a live dataset, as `trace read` writes them."""
        path = self.files / f"{table}.parquet"
        self.shell(f"trace read live_{table} --output {path.name} --force")
        return sorted(pq.read_table(path).to_pylist(), key=lambda row: [row[name] for name in _KEYS[table]])

    def await_chain(self, chain: ServedChain, first: int, last: int) -> None:
        """Until the live datasets are the blocks that the node has now, and nothing is left to do."""
        rows = expected([chain.block(number) for number in range(first, last + 1)])
        self.wait_until(lambda: self.read_rows("blocks") == rows["blocks"], f"the blocks to {last}", timeout=240)
        self.settle("live", at=last)
        for table in SOURCES:
            assert rows[table]
            assert self.read_rows(table) == rows[table], table

"""Windows on a whole stack with Spark: recipes over the recorded chain, compared with independent DuckDB queries."""

import io
import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.chain import RECORDING
from tests.support.postgres import run
from tests.support.real_stack import RealStack
from tracelake.adapters.s3.access import read_access
from tracelake.adapters.s3.object_store import S3ObjectStore

pytestmark = pytest.mark.system

DAG = """
name: recipes
defaults: {runtime: ecs_platform}
jobs:
  - {name: ranges, activation: source, source: {kind: manual}}
  - {name: split, activation: reactive, operator: range_splitter, runtime: dispatcher, config: {size: 700},
     inputs: [{from: {job: ranges}}]}
  - {name: ingest, activation: reactive, operator: evm_ingest, execution_strategy: PerPartition,
     config: {chain_id: 1337001}, inputs: [{from: {job: split}}], outputs: 3}
  - {name: decode, activation: reactive, operator: decode_logs, execution_strategy: PerPartition,
     inputs: [{from: {job: ingest, output_index: 2}}]}
  - name: flows
    activation: reactive
    operator: spark_sql
    units: {by: time, grain: day, time_zone: Europe/Berlin}
    inputs: [{from: {job: decode}}, {from: {job: ingest}, by: timestamp}]
    config:
      query: |
        SELECT lower(hex(t.token)) AS token, count(*) AS transfers, count(DISTINCT t.from_address) AS senders
        FROM transfers t JOIN blocks b USING (block_number) GROUP BY t.token
  - name: newcomers
    activation: reactive
    operator: spark_sql
    units: {by: blocks, size: 1000}
    inputs: [{from: {job: decode}, read: history, by: block_number}]
    config:
      query: |
        SELECT lower(hex(from_address)) AS address, min(block_number) AS first_block FROM transfers
        GROUP BY from_address HAVING min(block_number) BETWEEN ${start} AND ${end}
  - name: counts
    activation: reactive
    operator: spark_sql
    units: {by: blocks, size: 1000}
    inputs:
      - {from: {job: decode}}
      - {self: previous, columns: {token: string, total: bigint}}
    config:
      inputs: {transfers: 0, before: 1}
      query: |
        SELECT token, sum(n) AS total FROM (
          SELECT lower(hex(token)) AS token, count(*) AS n FROM transfers GROUP BY token
          UNION ALL SELECT token, total AS n FROM before) GROUP BY token
  - name: averages
    activation: reactive
    operator: spark_sql
    units: {by: blocks, size: 500}
    inputs: [{from: {job: decode}, read: window, lookback: 2}]
    config: {query: "SELECT count(*) / 3 AS per_window FROM transfers"}
publish:
  blocks: {from: {job: ingest, output_index: 0}, storage: s3}
  transfers: {from: {job: decode}, storage: s3}
  daily_flows: {from: {job: flows}, storage: s3}
  newcomers: {from: {job: newcomers}, storage: s3}
  running_counts: {from: {job: counts}, storage: s3}
  averages: {from: {job: averages}, storage: s3}
"""
LAST = 3_999
UNITS = """
    SELECT u.range_start, u.range_end, m.objects
    FROM datasets d JOIN dataset_units u ON u.dataset_uuid = d.dataset_uuid AND u.dataset_version = d.current_version
    JOIN manifests m USING (manifest_id) WHERE d.name = $1 ORDER BY 1"""
# Nothing is open: no task, no edge behind its events, no unit that the drain looks at now or when a task has ended.
UNSETTLED = """
    SELECT EXISTS (SELECT FROM tasks WHERE finished_at IS NULL)
        OR EXISTS (SELECT FROM edges WHERE position IS NOT NULL AND phase <> 'Parked')
        OR EXISTS (SELECT FROM pending_units WHERE due OR waits_for IS NOT NULL) AS unsettled"""


class RecipeStack(RealStack):
    def tables(self, dataset: str) -> dict[tuple[int, int], pa.Table]:
        """The rows of each unit of a dataset."""
        store = S3ObjectStore(read_access(self.home.object_store_file))

        async def read(objects: str) -> pa.Table:
            parts = []
            for file in json.loads(objects):
                body = await store.get(file["uri"], if_match=file["etag"])
                assert body is not None
                parts.append(pq.read_table(io.BytesIO(body)))
            return pa.concat_tables(parts)

        return {(row["range_start"], row["range_end"]): run(read(row["objects"])) for row in self.sql(UNITS, dataset)}

    def settle(self) -> None:
        self.wait_until(lambda: not self.sql(UNSETTLED)[0]["unsettled"], "all windows")


@pytest.fixture(scope="module")
def stack() -> Iterator[RecipeStack]:
    stack = RecipeStack(settings={"recorded_chain": str(RECORDING), "spark_master": "local[2]", "max_attempts": "2"})
    with stack.running():
        (stack.files / "dag.yaml").write_text(DAG)
        stack.shell("trace deploy dag.yaml")
        stack.shell(f"trace trigger recipes/ranges --range 0-{LAST}")
        stack.settle()
        yield stack


@pytest.fixture(scope="module")
def chain(stack: RecipeStack) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for name in ("blocks", "transfers"):
        connection.register(name, pa.concat_tables(stack.tables(name).values()))
    return connection


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def test_days_of_a_zone(stack: RecipeStack, chain: duckdb.DuckDBPyConnection) -> None:
    ((last,),) = chain.sql("SELECT max(timestamp) FROM blocks").fetchall()
    days = stack.tables("daily_flows")
    assert len(days) >= 2
    for (start, end), table in days.items():
        assert end < last, "only days that are over"
        expected = chain.sql(f"""
            SELECT lower(hex(t.token)), count(*), count(DISTINCT t.from_address)
            FROM transfers t JOIN blocks b USING (block_number)
            WHERE b.timestamp BETWEEN {start} AND {end} GROUP BY t.token""").fetchall()
        assert rows(table) == sorted(expected)
    assert [start for start, _ in days][1:] == [end + 1 for _, end in days][:-1], stack.shell("trace why daily_flows")


def test_history(stack: RecipeStack, chain: duckdb.DuckDBPyConnection) -> None:
    for (start, end), table in stack.tables("newcomers").items():
        expected = chain.sql(f"""
            SELECT lower(hex(from_address)), min(block_number) FROM transfers
            GROUP BY from_address HAVING min(block_number) BETWEEN {start} AND {end}""").fetchall()
        assert rows(table) == sorted(expected)


def test_running_state(stack: RecipeStack, chain: duckdb.DuckDBPyConnection) -> None:
    units = stack.tables("running_counts")
    assert list(units) == [(start, start + 999) for start in range(0, LAST, 1000)]
    for (_, end), table in units.items():
        expected = chain.sql(f"""
            SELECT lower(hex(token)), count(*) FROM transfers WHERE block_number <= {end} GROUP BY token""").fetchall()
        assert rows(table) == sorted(expected)


def test_lookback(stack: RecipeStack, chain: duckdb.DuckDBPyConnection) -> None:
    for (start, end), table in stack.tables("averages").items():
        query = f"SELECT count(*) FROM transfers WHERE block_number BETWEEN {start - 1000} AND {end}"
        ((count,),) = chain.sql(query).fetchall()
        assert table.to_pylist() == [{"per_window": count / 3}]


def test_a_rewrite_makes_each_unit_once(stack: RecipeStack) -> None:
    """One unit of the chain is read again: every unit that is made from it is computed again, and none twice."""
    before = {row["name"]: row["n"] for row in stack.sql(COUNTS)}
    stack.shell("trace trigger recipes/ingest --range 700-1399")
    stack.settle()
    after = {row["name"]: row["n"] for row in stack.sql(COUNTS)}
    made = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert made.pop("flows") >= 1, "the days that the unit is in"
    assert made == {"ingest": 1, "decode": 1, "newcomers": 4, "counts": 4, "averages": 4}
    lineage = json.loads(stack.shell("trace lineage running_counts --json"))
    read = [part for unit in lineage["units"] for part in unit["read"] if part["dataset"] == "transfers"]
    assert {part["revision"] for part in read} == {1, 2}


COUNTS = "SELECT j.name, count(*) AS n FROM tasks t JOIN jobs j USING (job_id) GROUP BY j.name"

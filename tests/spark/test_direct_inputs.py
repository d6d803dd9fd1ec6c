"""Operators that read tables which a follower writes: what they make is what they make of files with the same rows."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.direct.support import direct_table, new_writer
from tests.spark.chain_tables import chain_tables
from tests.spark.support import Bench
from tests.support.postgres import TestCluster
from tracelake.catalogue.context import NonRetryableError, TableInput
from tracelake.catalogue.direct_schemas import table_schema
from tracelake.catalogue.evm_columns import EVM_COLUMNS, EVM_KEYS, EVM_TABLES, EvmTable
from tracelake.model.dag import ReadMode
from tracelake.ports.direct_tables import WHOLE_TABLE, RangeReplacement
from tracelake.spark.operators import decode_logs, integrity_check
from tracelake.spark.reader import TableReader
from tracelake.spark.work import SparkOperator
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.wire.direct import DirectTable
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import CursorRange, ReadScope, Unit

AFTER, TO = 99, 199
CURSOR = Unit(cursor=CursorRange(after=AFTER, to=TO))
BLOCKS = 230
Tables = dict[EvmTable, pa.Table]


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture(scope="module")
def chain() -> Tables:
    tables = chain_tables(BLOCKS)
    return {name: tables[name] for name in EVM_TABLES}


class DirectBench:
    """Runs an operator on direct tables, and on files with the same rows."""

    def __init__(self, bench: Bench, dsn: str) -> None:
        self.bench, self.dsn = bench, dsn
        self.tables: dict[EvmTable, DirectTable] = {}

    def store(self, chain: Mapping[EvmTable, pa.Table]) -> None:
        """As a follower does: all tables in one write."""
        self.tables = {name: direct_table(table_schema(EVM_COLUMNS[name], EVM_KEYS[name]), name) for name in chain}
        rows = {self.tables[name].dataset_uuid: _known(name, chain[name]).to_batches() for name in chain}
        tables = list(self.tables.values())
        with closing(PostgresDirectTables(lambda: self.dsn).open(tables, WHOLE_TABLE, new_writer())) as writer:
            writer.replace(RangeReplacement(0, BLOCKS, rows))

    def run(
        self, name: str, run: SparkOperator, config: Mapping[str, Any], unit: Unit, scope: ReadScope | None = None
    ) -> list[dict[str, Any]]:
        """The rows of the first output, from the tables that were stored."""
        self.bench.inputs[:] = [(table, [], None) for table in self.tables]
        self.bench.outputs[:] = ["made"]
        self.bench.attempts += 1
        work = self.bench.work(name, config, unit, self.bench.attempts, {})
        tables = list(self.tables.values())
        inputs = [
            msgspec.structs.replace(item, dataset_uuid=table.dataset_uuid, scope=scope)
            for item, table in zip(work.context.inputs, tables, strict=True)
        ]
        declared = {
            table.dataset_uuid: TableInput(
                tuple(msgspec.convert(column, TableColumn, from_attributes=True) for column in table.schema.columns),
                by_position=True,
            )
            for table in tables
        }
        with closing(TableReader(self.bench.session, lambda: self.dsn)) as reader:
            work.context = replace(work.context, inputs=inputs, files=lambda item: declared[item.dataset_uuid])
            work.read_table = reader.read
            self.bench.last = work
            run(work)
        rows: list[dict[str, Any]] = self.bench.table().to_pylist()
        return rows

    def run_on_files(
        self, chain: Mapping[EvmTable, pa.Table], name: str, run: SparkOperator, config: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        self.bench.inputs.clear()
        self.bench.outputs[:] = ["made"]
        for table, rows in chain.items():
            self.bench.add_input(table, rows)
        self.bench.run(name, run, config, cursor=(AFTER, TO))
        rows_made: list[dict[str, Any]] = self.bench.table().to_pylist()
        return rows_made


@pytest.fixture
def direct(bench: Bench, dsn: str) -> DirectBench:
    return DirectBench(bench, dsn)


def _known(name: EvmTable, table: pa.Table) -> pa.Table:
    """The columns that the direct table has."""
    return table.select([column.name for column in EVM_COLUMNS[name] if column.name in table.column_names])


def _broken(chain: Tables) -> Tables:
    """With something wrong in each table, and at both ends of the unit."""
    number = pc.field("block_number")
    blocks = chain["blocks"].to_pylist()
    blocks[AFTER]["block_hash"] = b"\1" * 32  # the block below the unit
    blocks[TO + 1]["parent_hash"] = b"\2" * 32
    blocks[150]["gas_used"] += 1
    kept = pa.Table.from_pylist([row for row in blocks if row["block_number"] != 120], chain["blocks"].schema)
    with_logs = chain["logs"].filter((number > AFTER) & (number <= TO))
    stray = with_logs["block_number"][0].as_py()
    return {
        "blocks": kept,
        "transactions": chain["transactions"].filter(~((number == stray) & (pc.field("transaction_index") == 0))),
        "logs": chain["logs"],
    }


def _comparable(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("size", ["small", "large"])
def test_integrity_check_finds_in_tables_what_it_finds_in_files(
    direct: DirectBench, chain: Tables, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(integrity_check, "is_small", lambda _size: size == "small")
    run, never = integrity_check.run, {"fail_on": "never"}
    direct.store(chain)
    assert direct.run("integrity_check", run, {}, CURSOR) == []
    broken = _broken(chain)
    direct.store(broken)
    files = {name: _known(name, table) for name, table in broken.items()}
    expected = direct.run_on_files(files, "integrity_check", run, never)
    assert {row["check"] for row in expected} >= {"gap", "parent_hash", "gas_used", "log_transaction"}
    assert {row["block_number"] for row in expected if row["check"] == "parent_hash"} == {AFTER + 1, TO}
    assert _comparable(direct.run("integrity_check", run, never, CURSOR)) == _comparable(expected)
    with pytest.raises(NonRetryableError, match="blocks 100 to 199 do not hold together"):
        direct.run("integrity_check", run, {}, CURSOR)


def test_the_first_window_of_a_chain_begins_with_the_chain(direct: DirectBench, chain: Tables) -> None:
    number = pc.field("block_number")
    direct.store({name: table.filter(number >= 103) for name, table in chain.items()})
    unit = Unit(partition_key="100-119", start=100, end=119)
    scope = ReadScope(mode=ReadMode.WINDOW, start=103, end=119)
    assert direct.run("integrity_check", integrity_check.run, {}, unit, scope) == []
    (name,) = (name for name in direct.bench.names() if name.endswith(".parquet"))
    assert "100" in name, "the file is that of the whole unit"
    rows = direct.run("integrity_check", integrity_check.run, {"fail_on": "never"}, unit)
    assert [row["check"] for row in rows] == ["gap"]


def test_logs_of_a_table_are_decoded_as_those_of_files(direct: DirectBench, chain: Tables) -> None:
    logs: Tables = {"logs": _known("logs", chain["logs"])}
    direct.store(logs)
    rows = direct.run("decode_logs", decode_logs.run, {}, CURSOR)
    assert rows
    assert {row["block_number"] for row in rows} <= set(range(AFTER + 1, TO + 1))
    assert _comparable(rows) == _comparable(direct.run_on_files(logs, "decode_logs", decode_logs.run, {}))


def test_a_table_that_is_read_by_commits_is_refused(direct: DirectBench, chain: Tables) -> None:
    direct.store({"blocks": chain["blocks"]})
    work = direct.bench.work("integrity_check", {}, CURSOR, 1, {})
    work.context = replace(work.context, files=lambda _item: TableInput(()))
    with pytest.raises(NonRetryableError, match="read by commits"):
        integrity_check.run(work)

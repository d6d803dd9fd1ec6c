"""Readers of tables that tasks write directly: by positions, in one snapshot, with the columns they ask for."""

from collections.abc import Mapping
from contextlib import closing
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest

from tests.direct.support import (
    BALANCES,
    BLOCKS,
    ask,
    balance_rows,
    block_rows,
    direct_table,
    new_writer,
    stored_rows,
)
from tests.support.postgres import TestCluster
from tracelake.model.dag import Column, ColumnType, ReadMode, Schema
from tracelake.ports.direct_tables import WHOLE_TABLE, RangeReplacement, RowsRefusedError
from tracelake.query.pruning import table_condition
from tracelake.stack.dataset_rows import read_table
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.storage.snapshots import Snapshot
from tracelake.wire.direct import DirectTable
from tracelake.wire.query import InputSelection
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import CursorRange, PayloadInput, ReadScope, Unit

NUMBER, HASH = (
    TableColumn(name="block_number", type=ColumnType.INT64),
    TableColumn(name="block_hash", type=ColumnType.BYTES),
)


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


def write(dsn: str, table: DirectTable, first: int, last: int, fork: str = "a") -> None:
    rows = {table.dataset_uuid: block_rows(range(first, last + 1), fork)}
    with closing(PostgresDirectTables(lambda: dsn).open([table], WHOLE_TABLE, new_writer())) as writer:
        writer.replace(RangeReplacement(first, last, rows))


def read_input(table: DirectTable, unit: Unit, scope: ReadScope | None = None) -> PayloadInput:
    return PayloadInput(
        input_index=0,
        dataset_uuid=table.dataset_uuid,
        dataset_version=UUID(int=1),
        name="blocks",
        unit=unit,
        revision="",
        where=None,
        scope=scope,
    )


RANGE = Unit(partition_key="3-7", start=3, end=7)


@pytest.mark.parametrize(
    ("unit", "scope", "numbers"),
    [
        (RANGE, None, range(3, 8)),
        (Unit(cursor=CursorRange(after=2, to=4)), None, range(3, 5)),
        (Unit(partition_key="15-20", start=15, end=20), None, range(0)),
        (RANGE, ReadScope(mode=ReadMode.HISTORY, start=0, end=7), range(8)),
        (RANGE, ReadScope(mode=ReadMode.ALL), range(10)),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_an_input_is_a_range_of_positions_in_parts(
    dsn: str, unit: Unit, scope: ReadScope | None, numbers: range, size: int
) -> None:
    table = direct_table(BLOCKS)
    write(dsn, table, 0, 9)
    item = read_input(table, unit, scope)
    with closing(Snapshot(dsn, [table.dataset_uuid])) as snapshot:
        stored = snapshot.table(table.dataset_uuid, [NUMBER])
        parts, count = snapshot.split_input(stored, item, size)
        rows = [
            [row["block_number"] for batch in snapshot.rows(stored, part.condition) for row in batch.to_pylist()]
            for part in parts
        ]
    assert sorted(number for part in rows for number in part) == list(numbers)
    assert count == len(numbers)
    assert len(parts) == max(1, -(-len(numbers) // size))


def test_a_snapshot_stays_as_it_was_while_ranges_are_replaced(dsn: str) -> None:
    table = direct_table(BLOCKS)
    write(dsn, table, 0, 5)

    def hashes(snapshot: Snapshot) -> set[bytes]:
        stored = snapshot.table(table.dataset_uuid, [HASH])
        return {row["block_hash"][:1] for batch in snapshot.rows(stored, "") for row in batch.to_pylist()}

    with closing(Snapshot(dsn, [table.dataset_uuid])) as before:
        write(dsn, table, 0, 5, "b")
        with closing(Snapshot(dsn, joined=before.name)) as joined:
            assert hashes(before) == hashes(joined) == {b"a"}
    with closing(Snapshot(dsn, [table.dataset_uuid])) as after:
        assert hashes(after) == {b"b"}


def test_the_highest_positions_are_read_first(dsn: str) -> None:
    table = direct_table(BLOCKS)
    write(dsn, table, 0, 9)
    rows: list[Any] = []
    for part in read_table(dsn, table.dataset_uuid, [NUMBER], 3):
        rows += part.to_pylist()
    assert rows == [{"block_number": number} for number in (9, 8, 7)]


def test_people_see_the_newest_row_of_a_key_and_tasks_the_rows_of_their_positions(dsn: str) -> None:
    table = direct_table(BALANCES, "balances")
    rows = [(1, "ann", 10), (2, "bob", 20), (3, "ann", 11)]
    with closing(PostgresDirectTables(lambda: dsn).open([table], WHOLE_TABLE, new_writer())) as writer:
        writer.replace(RangeReplacement(1, 3, {table.dataset_uuid: balance_rows(rows)}))
    columns = [TableColumn(name=name, type=ColumnType.INT64) for name in ("block_number", "balance")]
    shown = [row for part in read_table(dsn, table.dataset_uuid, columns, 9) for row in part.to_pylist()]
    assert shown == [{"block_number": 3, "balance": 11}, {"block_number": 2, "balance": 20}]
    assert sorted(ask(dsn, f"SELECT balance FROM org_acme.{table.name}")) == [(11,), (20,)]
    item = read_input(table, Unit(cursor=CursorRange(after=0, to=3)))
    with closing(Snapshot(dsn, [table.dataset_uuid])) as snapshot:
        stored = snapshot.table(table.dataset_uuid, columns)
        (part,), count = snapshot.split_input(stored, item, 100)
        assert count == sum(batch.num_rows for batch in snapshot.rows(stored, part.condition)) == 3


def test_queries_of_tasks_read_the_positions_of_their_units() -> None:
    selections = [InputSelection(unit=RANGE, where=None), InputSelection(unit=Unit(partition_key="x"), where=None)]
    condition = table_condition({"block_number": NUMBER}, [], selections, "block_number")
    assert condition == 'WHERE (("block_number" BETWEEN 3 AND 7) OR (true))'


def test_a_table_grows_and_earlier_writers_go_on(dsn: str) -> None:
    table = direct_table(BLOCKS)
    write(dsn, table, 0, 1)
    extra = Column(name="author", type=ColumnType.TEXT)
    grown = msgspec.structs.replace(
        table, schema=Schema(columns=(*BLOCKS.columns, extra), unique=BLOCKS.unique), revision=1
    )
    write(dsn, grown, 2, 2)
    write(dsn, table, 3, 3)  # of the version before
    assert [row[1] for row in stored_rows(dsn, grown, "block_number", "author")] == [None] * 4
    narrower = msgspec.structs.replace(
        table, schema=Schema(columns=BLOCKS.columns[:2], unique=BLOCKS.unique), revision=2
    )
    with pytest.raises(RowsRefusedError, match="gas_used"):
        write(dsn, narrower, 4, 4)


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        (ColumnType.INT16, ColumnType.INT32),
        (ColumnType.INT16, ColumnType.INT64),
        (ColumnType.INT32, ColumnType.INT64),
        (ColumnType.INT32, ColumnType.INT256),
        (ColumnType.INT64, ColumnType.INT256),
    ],
)
def test_writers_of_an_earlier_version_go_on_when_a_column_is_widened(
    dsn: str, narrow: ColumnType, wide: ColumnType
) -> None:
    """One that had opened the table before, and one that opens it then; the same values, exactly."""
    table = direct_table(_counts(narrow))
    wider = msgspec.structs.replace(table, schema=_counts(wide), revision=1)
    tables = PostgresDirectTables(lambda: dsn)
    with closing(tables.open([table], "running", new_writer())) as running:
        running.replace(RangeReplacement(0, 0, {table.dataset_uuid: _count_rows({0: -3})}))
        with closing(tables.open([wider], "newer", new_writer())) as newer:
            newer.replace(RangeReplacement(1, 1, {table.dataset_uuid: _count_rows({1: 5})}))
        running.replace(RangeReplacement(2, 2, {table.dataset_uuid: _count_rows({2: -7})}))
        running.replace(RangeReplacement(3, 3, {table.dataset_uuid: _count_rows({3: 32_767})}))
        with closing(tables.open([table], "later", new_writer())) as later:
            later.replace(RangeReplacement(4, 4, {table.dataset_uuid: _count_rows({4: None})}))
            assert later.read_newest(table.dataset_uuid, ["block_number", "count"], 9).num_rows == 1
        newest = running.read_newest(table.dataset_uuid, ["block_number", "count"], 9)
    assert newest.to_pylist() == [
        {"block_number": 3, "count": 32_767},
        {"block_number": 2, "count": -7},
        {"block_number": 0, "count": -3},
    ]
    stored = [(number, None if count is None else int(count)) for number, count in stored_rows(dsn, wider, *_COUNTED)]
    assert stored == [(0, -3), (1, 5), (2, -7), (3, 32_767), (4, None)]


_COUNTED = ("block_number", "count")


def _counts(kind: ColumnType) -> Schema:
    number = Column(name="block_number", type=ColumnType.INT64, nullable=False)
    return Schema(columns=(number, Column(name="count", type=kind)), unique=("block_number",))


def _count_rows(counts: Mapping[int, int | None]) -> list[pa.RecordBatch]:
    columns = [pa.array(list(values), pa.int64()) for values in (counts, counts.values())]
    return [pa.RecordBatch.from_arrays(columns, names=list(_COUNTED))]


def test_rows_have_the_org_of_the_declaration_and_views_are_of_orgs(dsn: str) -> None:
    tables = [direct_table(BLOCKS, org="acme"), direct_table(BLOCKS, org="rival")]
    for table in tables:
        write(dsn, table, 0, 0)
        assert stored_rows(dsn, table, "block_number", "org_id")[0][1] == table.org_id
    names = {
        (row[0], row[1])
        for row in ask(dsn, "SELECT table_schema::text, table_name::text FROM information_schema.views")
    }
    assert {("org_acme", tables[0].name), ("org_rival", tables[1].name)} <= names
    columns = ask(dsn, f"SELECT * FROM org_acme.{tables[0].name}")
    assert len(columns[0]) == len(BLOCKS.columns)  # internal columns are hidden

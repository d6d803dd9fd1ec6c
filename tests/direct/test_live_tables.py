"""The table of a live dataset in a snapshot: rows above a boundary, and rows that left it meanwhile."""

from collections.abc import Iterator
from contextlib import closing
from uuid import UUID, uuid4

import pytest

from tests.direct.support import BLOCKS, block_rows, direct_table, new_writer
from tests.direct.test_reading import NUMBER, read_input
from tests.support.postgres import TestCluster
from tracelake.catalogue.context import LiveInput, TableInput
from tracelake.errors import BoundaryMovedError
from tracelake.model.dag import ReadMode
from tracelake.ports import ObjectMeta
from tracelake.ports.direct_tables import WHOLE_TABLE, DirectTableWriter, RangeReplacement
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.storage.live_tables import cut_table, in_files, in_table
from tracelake.storage.snapshots import Snapshot
from tracelake.wire.direct import DirectTable
from tracelake.wire.units import PayloadInput, ReadScope, Unit

FILE = ObjectMeta("s3://bucket/file", 1, "e", "0" * 64)
ALL = ReadScope(mode=ReadMode.ALL)


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture
def tables(dsn: str) -> PostgresDirectTables:
    return PostgresDirectTables(lambda: dsn, rows_per_removal=2)


@pytest.fixture
def table() -> DirectTable:
    return direct_table(BLOCKS)


@pytest.fixture
def writer(tables: PostgresDirectTables, table: DirectTable) -> Iterator[DirectTableWriter]:
    """Blocks 100 to 119 are written, and those up to 110 sealed."""
    with closing(tables.open([table], WHOLE_TABLE, new_writer())) as writer:
        writer.replace(RangeReplacement(100, 119, {table.dataset_uuid: block_rows(range(100, 120))}, seal=110))
        yield writer


def live(boundary: int | None, *, files: bool = True) -> LiveInput:
    return LiveInput([FILE] if files else [], TableInput((NUMBER,), by_position=True), boundary)


def unit(start: int, end: int) -> Unit:
    return Unit(partition_key=f"{start}-{end}", start=start, end=end)


def numbers(dsn: str, item: PayloadInput, source: LiveInput, size: int = 4) -> list[int]:
    with closing(Snapshot(dsn, [item.dataset_uuid], skip_missing=True)) as snapshot:
        return numbers_in(snapshot, item, source, size)


def numbers_in(snapshot: Snapshot, item: PayloadInput, source: LiveInput, size: int = 4) -> list[int]:
    stored, parts, count = cut_table(snapshot, item, source, size)
    rows = [
        row["block_number"]
        for part in parts
        for batch in snapshot.rows(stored, part.condition)
        for row in batch.to_pylist()
    ]
    assert count == len(rows)
    return sorted(rows)


@pytest.mark.usefixtures("writer")
@pytest.mark.parametrize(
    ("start", "end", "boundary", "expected"),
    [
        (105, 114, None, range(105, 115)),
        (90, 104, None, range(100, 105)),
        (105, 114, 109, range(110, 115)),
        (105, 114, 104, range(105, 115)),
        (105, 114, 113, range(114, 115)),
        (105, 114, 114, range(0)),
        (105, 114, 200, range(0)),
        (115, 130, 109, range(115, 120)),
    ],
)
def test_rows_above_the_boundary_are_those_of_the_table(
    dsn: str, table: DirectTable, start: int, end: int, boundary: int | None, expected: range
) -> None:
    item = read_input(table, unit(start, end))
    assert numbers(dsn, item, live(boundary)) == list(expected)
    assert in_files(item, live(boundary)) == (boundary is not None and end <= boundary)
    assert in_table(item, live(boundary)) == (boundary is not None and start > boundary)
    assert in_table(item, live(boundary, files=False))


@pytest.mark.usefixtures("writer")
def test_all_of_a_dataset_is_cut_at_the_boundary_too(dsn: str, table: DirectTable) -> None:
    item = read_input(table, unit(105, 114), ALL)
    assert numbers(dsn, item, live(109)) == list(range(110, 120))
    assert numbers(dsn, item, live(None)) == list(range(100, 120))
    assert not in_files(item, live(10**9))
    assert not in_table(item, live(109))


@pytest.mark.usefixtures("writer")
def test_rows_that_left_the_table_are_asked_for_again(
    dsn: str, tables: PostgresDirectTables, table: DirectTable
) -> None:
    item, key = read_input(table, unit(100, 119)), table.dataset_uuid
    with closing(Snapshot(dsn, [key])) as before:
        tables.remove_rows([key], 104)
        # In a snapshot from before, all rows are there, and nothing says that some are not.
        assert numbers_in(before, item, live(None)) == list(range(100, 120))
        assert numbers_in(before, item, live(102)) == list(range(103, 120))
    for boundary in (None, 99, 103):
        with pytest.raises(BoundaryMovedError) as raised:
            numbers(dsn, item, live(boundary))
        assert raised.value.code == "boundary_moved"
        assert raised.value.retryable
    assert numbers(dsn, item, live(104)) == list(range(105, 120))
    assert numbers(dsn, item, live(109)) == list(range(110, 120))
    # Whoever reads nothing of the table need not know what is in it.
    assert numbers(dsn, read_input(table, unit(100, 103)), live(103)) == []


def test_a_table_that_is_not_there_yet_has_no_rows(dsn: str, tables: PostgresDirectTables) -> None:
    missing, other = direct_table(BLOCKS), direct_table(BLOCKS)
    item = read_input(missing, unit(0, 9))
    assert numbers(dsn, item, live(None)) == []
    tables.open([other], WHOLE_TABLE, new_writer()).close()
    with closing(Snapshot(dsn, [other.dataset_uuid])) as snapshot:
        assert numbers_in(snapshot, item, live(None)) == []
        assert not snapshot.has_table(UUID(str(uuid4())))


def test_never_a_row_twice_and_never_one_missing(dsn: str, tables: PostgresDirectTables, table: DirectTable) -> None:
    """A writer, commits of files, removals and readers in every order that the design allows: files up to the boundary
    and the table above it are always the chain, or the reader is told to ask again."""
    key, item = table.dataset_uuid, read_input(table, unit(0, 10**6))
    boundaries = [None, 9, 19, 29]
    with closing(tables.open([table], WHOLE_TABLE, new_writer())) as writer:
        for step, boundary in enumerate(boundaries):
            start = step * 10
            rows = {key: block_rows(range(start, start + 15))}
            seal = start - 1 if start else None
            writer.replace(RangeReplacement(start, start + 14, rows, above=True, live=True, seal=seal))
            # The files of this unit are committed, and the next one removes its rows.
            if boundary is not None:
                tables.remove_rows([key], boundary)
            for each in boundaries[: step + 1]:
                above = -1 if each is None else each
                try:
                    seen = numbers(dsn, item, live(each))
                except BoundaryMovedError:
                    assert boundary is not None
                    assert above < boundary
                else:
                    assert [*range(above + 1), *seen] == list(range(start + 15))
                    assert above == (-1 if boundary is None else boundary)

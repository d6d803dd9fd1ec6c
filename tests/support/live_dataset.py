"""A live dataset for tests of its readers: its table in real Postgres data, its files in a directory, and what a
Dispatcher answers about it. Every step is one that a follower, a compaction or an ingest of history takes."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
import pyarrow.parquet as pq

from tests.direct.support import BLOCKS, block_rows, direct_table, new_writer
from tests.support.directory_store import DirectoryStore
from tracelake.model.buffered import quoted, table_name
from tracelake.model.dag import Schema
from tracelake.ports.direct_tables import WHOLE_TABLE, DirectTableWriter, RangeReplacement
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.wire.direct import DirectTable
from tracelake.wire.platform import DatasetFilesReply, DatasetFilesRequest, FilesPage
from tracelake.wire.query import ReadableRelation
from tracelake.wire.task_calls import DataFile, FileUnit, TableColumn

EXTENTS = """
    CREATE TABLE IF NOT EXISTS table_extents (
        dataset_uuid uuid PRIMARY KEY REFERENCES buffer_tables,
        table_start  bigint NOT NULL CHECK (table_start >= 0),
        sealed_to    bigint CHECK (sealed_to >= table_start),
        removed_to   bigint,
        CHECK (removed_to IS NULL OR (sealed_to IS NOT NULL AND removed_to <= sealed_to)))"""
_BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
VERSION = UUID(int=1)


def execute(dsn: str, *statements: str) -> None:
    """In one transaction."""
    with adbc.connect(dsn) as connection:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()


def columns_of(schema: Schema) -> list[TableColumn]:
    return [
        TableColumn(name=column.name, type=column.type, precision=column.precision, scale=column.scale)
        for column in schema.columns
    ]


@dataclass
class LiveDataset:
    dsn: str
    objects: Path
    table_start: int = 7
    unit: int = 5
    page: int = 100
    """Units of one answer."""
    table: DirectTable = field(default_factory=lambda: direct_table(BLOCKS))
    between: Callable[[], None] = lambda: None
    """Called after every answer, before its reader goes on."""

    def __post_init__(self) -> None:
        self.blocks: dict[int, str] = {}
        """The fork of every block that the table has had."""
        self.history: set[int] = set()
        """Blocks of committed files that were never in the table."""
        self.units: dict[tuple[int, int], FileUnit] = {}
        self.boundary: int | None = None
        self.sealed_to: int | None = None
        self.removed_to: int | None = None
        self.lists = 0
        self.listed_history: frozenset[int] = frozenset()
        """At the newest answer to a first page."""
        self._writer: DirectTableWriter | None = None
        self._kept: dict[datetime, dict[tuple[int, int], FileUnit]] = {}
        execute(self.dsn, EXTENTS)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    # Steps of writers

    def append(self, count: int = 1) -> None:
        first = self._head + 1
        self._write(first, first + count - 1, "a")

    def reorganise(self) -> None:
        """Everything that is not final yet is of another fork."""
        first = self.table_start if self.sealed_to is None else self.sealed_to + 1
        if first <= self._head:
            self._write(first, self._head, "b" if self.blocks[self._head] == "a" else "a")

    def seal(self) -> None:
        """The next unit is final, if the table has all of it."""
        end = self._next_end
        if end <= self._head:
            self.sealed_to = end
            execute(
                self.dsn,
                f"""INSERT INTO table_extents (dataset_uuid, table_start, sealed_to)
                    VALUES ('{self.table.dataset_uuid}', {self.table_start}, {end})
                    ON CONFLICT (dataset_uuid) DO UPDATE SET sealed_to = excluded.sealed_to""",
            )

    @property
    def compactable(self) -> list[tuple[int, int]]:
        """Final units that no files have yet."""
        units = []
        first = self.table_start
        while self.sealed_to is not None and first <= self.sealed_to:
            end = first - first % self.unit + self.unit - 1
            if (first, end) not in self.units:
                units.append((first, end))
            first = end + 1
        return units

    def compact(self, unit: tuple[int, int]) -> None:
        """The commit of a compaction: files, and the boundary moves as far as there is no gap."""
        self._commit(*unit, {number: self.blocks[number] for number in range(unit[0], unit[1] + 1)})
        boundary = self.table_start - 1
        while following := [end for start, end in self.units if start == boundary + 1]:
            boundary = following[0]
        self.boundary = boundary

    def remove(self, boundary: int | None = None) -> None:
        """Rows go of which a task knows that files have them: up to a boundary that was pinned before, or now."""
        upto = self.boundary if boundary is None else boundary
        if upto is None or upto < self.table_start:
            return
        self.removed_to = max(upto, self.removed_to or 0)
        name = quoted(table_name(self.table.dataset_uuid))
        execute(
            self.dsn,
            f"DELETE FROM {name} WHERE block_number <= {upto}",
            f"""UPDATE table_extents SET removed_to = {self.removed_to}
                WHERE dataset_uuid = '{self.table.dataset_uuid}'""",
        )

    def ingest(self, start: int, end: int) -> None:
        """Files of history, from before the table."""
        assert end < self.table_start
        self._commit(start, end, dict.fromkeys(range(start, end + 1), "h"))
        self.history |= set(range(start, end + 1))

    # What a Dispatcher answers

    @property
    def relation(self) -> ReadableRelation:
        return ReadableRelation(
            name="blocks",
            dataset_uuid=self.table.dataset_uuid,
            dataset_version=VERSION,
            storage="live",
            columns=columns_of(self.table.schema),
        )

    def list_files(self, request: DatasetFilesRequest) -> DatasetFilesReply:
        assert request.dataset_uuid == self.table.dataset_uuid or request.name == "blocks"
        first, last = request.start or 0, 2**63 - 1 if request.end is None else request.end
        if request.page is None:
            self.lists += 1
            self.listed_history = frozenset(self.history)
            as_of, after, boundary = _BEGINNING + timedelta(seconds=self.lists), -1, self.boundary
            self._kept[as_of] = dict(self.units)
        else:
            as_of, after, boundary = request.page.as_of, request.page.after, request.page.boundary
        end_of_files = self.table_start - 1 if boundary is None else boundary
        units = [
            unit
            for (start, end), unit in sorted(self._kept[as_of].items())
            if start > after and end <= end_of_files and end >= first and start <= last
        ]
        more = None
        if len(units) > self.page:
            after = units[self.page - 1].start or 0
            more = FilesPage(dataset_version=VERSION, after=after, as_of=as_of, boundary=boundary)
        reply = DatasetFilesReply(
            dataset_uuid=self.table.dataset_uuid,
            dataset_version=VERSION,
            units=units[: self.page],
            next=more,
            columns=columns_of(self.table.schema),
            live=True,
            boundary=boundary,
        )
        self.between()
        return reply

    # What readers should see

    @property
    def expected(self) -> list[tuple[int, bytes]]:
        """All rows as they are now, with the history of the newest list."""
        rows = dict.fromkeys(self.listed_history, "h") | self.blocks
        return [(number, f"{fork}{number}".encode()) for number, fork in sorted(rows.items())]

    @property
    def _head(self) -> int:
        return max(self.blocks, default=self.table_start - 1)

    @property
    def _next_end(self) -> int:
        first = self.table_start if self.sealed_to is None else self.sealed_to + 1
        return first - first % self.unit + self.unit - 1

    def _write(self, first: int, last: int, fork: str) -> None:
        rows = {self.table.dataset_uuid: block_rows(range(first, last + 1), fork)}
        if self._writer is None:
            self._writer = PostgresDirectTables(lambda: self.dsn).open([self.table], WHOLE_TABLE, new_writer())
        self._writer.replace(RangeReplacement(first, last, rows))
        self.blocks |= dict.fromkeys(range(first, last + 1), fork)

    def _commit(self, start: int, end: int, rows: dict[int, str]) -> None:
        sink = io.BytesIO()
        pq.write_table(file_rows(rows), sink)
        uri = f"s3://data/{self.table.dataset_uuid}/{start}-{end}.parquet"
        store = DirectoryStore(self.objects)
        meta = store._put(uri, sink.getvalue())
        file = DataFile(uri=uri, size=meta.size, etag=meta.etag)
        self.units[start, end] = FileUnit(start=start, end=end, revision=1, files=[file])


def file_rows(rows: dict[int, str]) -> pa.Table:
    """As operators write them: integers without a sign."""
    return pa.table(
        {
            "block_number": pa.array(list(rows), pa.uint32()),
            "block_hash": pa.array([f"{fork}{number}".encode() for number, fork in rows.items()], pa.binary()),
            "gas_used": pa.array(list(rows), pa.uint64()),
        }
    )


def plain_rows(tables: Sequence[pa.Table]) -> list[tuple[int, bytes]]:
    """Rows as `LiveDataset.expected` has them, of any types; a number that was not kept exactly is an error."""
    rows: list[tuple[int, bytes]] = []
    for table in tables:
        for row in table.to_pylist():
            assert row["gas_used"] == Decimal(row["block_number"])
            rows.append((row["block_number"], row["block_hash"]))
    return sorted(rows)


Step = Callable[[LiveDataset], Any]

"""Parquet files of live datasets: attempts of `parquet_compact` as a worker runs them, and what was committed of them.

The operator's own code runs: it removes rows, holds a snapshot, and its Spark tasks copy rows to files. Only Spark is
replaced: its tasks run one after another in this process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tests.follower.stored_tables import StoredTables
from tracelake.catalogue.context import LiveOutput, OperatorContext, OperatorResult
from tracelake.catalogue.evm_columns import EVM_KEYS, EVM_TABLES
from tracelake.errors import StoreUnavailableError
from tracelake.ports import ObjectMeta
from tracelake.spark.directory_transfer import DirectoryTransfer
from tracelake.spark.evm.compaction import CompactionChunks
from tracelake.spark.evm.tables import schema_of
from tracelake.spark.operators.parquet_compact import run as run_compaction
from tracelake.spark.reader import TableReader
from tracelake.spark.testing import BUCKET, make_context, make_unit
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import SUCCESS, PartWriter, Target
from tracelake.storage.snapshots import PositionPart, Snapshot, SnapshotTable
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import TaskOutput

Unit = tuple[int, int]
Row = tuple[Any, ...]
Files = dict[str, list[ObjectMeta]]
"""By table."""
AWAY = "postgresql://nobody@127.0.0.1:1/data"
"""A database that does not answer."""


class TaskRow(dict[str, Any]):
    """A row as `DataFrame.collect` returns it."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


class InlineFrame:
    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = batches

    def mapInArrow(self, function: CompactionChunks, _schema: str) -> "InlineFrame":
        # Last first: Spark promises no order.
        return InlineFrame([row for batch in reversed(self._batches) for row in function(iter([batch]))])

    def collect(self) -> list[TaskRow]:
        return [TaskRow(row) for batch in self._batches for row in batch.to_pylist()]


class InlineSession:
    """What `parquet_compact` needs of a session, without Java: a partition is a batch."""

    def range(self, start: int, end: int, _step: int, _parts: int) -> InlineFrame:
        return InlineFrame([pa.RecordBatch.from_pydict({"id": [number]}) for number in range(start, end)])


@dataclass(frozen=True)
class InterruptedTransfer:
    """The FileTransfer port, which tells before and after each upload what is uploaded."""

    objects: DirectoryTransfer
    told: Callable[[str], None]

    def download(self, meta: ObjectMeta, path: Path) -> None:
        self.objects.download(meta, path)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        self.told(f"before {uri}")
        meta = self.objects.upload(path, uri)
        self.told(f"after {uri}")
        return meta


def _nothing(_event: str) -> None:
    pass


@dataclass
class CompactionAttempt:
    """One attempt, which knows what was committed when it was claimed."""

    tables: StoredTables
    objects: DirectoryTransfer
    unit: Unit
    boundary: int | None
    chunk_blocks: int = 8

    def run(self, told: Callable[[str], None] = _nothing, dsn: str | None = None) -> OperatorResult:
        """`told`: of uploads, and of removals. `dsn`: None for that of the tables."""
        address = self.tables.dsn if dsn is None else dsn
        session: Any = InlineSession()
        with closing(TableReader(session, lambda: address)) as reader:
            work = SparkWork(
                self._context(told, dsn),
                session,
                InterruptedTransfer(self.objects, told),
                lambda *_: _refuse(),
                hold_tables=reader.hold,
            )
            return run_compaction(work)

    def _context(self, told: Callable[[str], None], dsn: str | None) -> OperatorContext:
        attempt = uuid4().hex
        prefixes: dict[str, str] = {name: f"{BUCKET}{name}/{attempt}/" for name in EVM_TABLES}
        made = make_context("parquet_compact", {"chunk_blocks": self.chunk_blocks}, make_unit(self.unit), [], prefixes)
        outputs = [
            TaskOutput(
                output_index=output.output_index,
                dataset_uuid=self.tables.declared[EVM_TABLES[output.output_index]].dataset_uuid,
                dataset_version=output.dataset_version,
                name=output.name,
                storage=output.storage,
            )
            for output in made.outputs
        ]

        def live_output(output: TaskOutput) -> LiveOutput:
            return LiveOutput(self.tables.declared[EVM_TABLES[output.output_index]], self.boundary)

        def remove_rows(output: LiveOutput, to: int) -> int:
            assert self.boundary is not None
            assert to <= self.boundary
            store = self.tables.store if dsn is None else replace(self.tables.store, dsn=lambda: dsn)
            removed = store.remove_rows([output.table.dataset_uuid], to)
            told(f"removed {output.table.name}")
            return removed

        return replace(made, outputs=outputs, live_output=live_output, remove_rows=remove_rows)


def _refuse() -> Any:
    raise AssertionError("a compaction reads no files")


class ReusedSnapshot(Snapshot):
    """Moment after moment on one connection: a new one for each would cost more than what is read."""

    @contextmanager
    def moment(self) -> Iterator[Snapshot]:
        self._ask("ROLLBACK")
        self._ask("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield self
        self._ask("ROLLBACK")


@dataclass
class LiveFiles:
    """What a Dispatcher would know of the files of three live datasets, and what readers see of files and tables."""

    tables: StoredTables
    objects: DirectoryTransfer
    committed: dict[Unit, Files] = field(default_factory=dict)
    table_start: int | None = None
    boundary: int | None = None
    """Up to it, rows are read from files."""
    _rows: dict[str, dict[str, list[Row]]] = field(default_factory=dict)
    _snapshot: ReusedSnapshot | None = None

    def claim(self, unit: Unit, chunk_blocks: int = 8) -> CompactionAttempt:
        return CompactionAttempt(self.tables, self.objects, unit, self.boundary, chunk_blocks)

    def complete(self, result: OperatorResult) -> None:
        """Commits the files of all datasets at once, and moves the boundary over units side by side."""
        assert result.events == []
        files: Files = {}
        units = set()
        for item in result.datasets_published:
            assert item.range_start is not None
            assert item.range_end is not None
            assert item.table_start is not None
            units.add((item.range_start, item.range_end))
            self.table_start = item.table_start
            prefix = f"s3://{item.storage_ref.bucket}/{item.storage_ref.prefix}"
            files[self.name_of(item.dataset_uuid)] = self._read_success(prefix)
        ((start, end),) = units
        assert set(files) == set(EVM_TABLES)
        self.committed[start, end] = files
        boundary = self.boundary
        assert self.table_start is not None
        boundary = self.table_start - 1 if boundary is None else boundary
        for first, last in sorted(self.committed):
            boundary = last if first == boundary + 1 else boundary
        self.boundary = boundary

    def ingest(self, unit: Unit, rows: dict[str, pa.Table]) -> None:
        """Files that are made from the nodes."""
        files: Files = {}
        for name in EVM_TABLES:
            target = Target(f"{BUCKET}{name}/{uuid4().hex}/", name, self.objects)
            writer = PartWriter(target, schema_of(name))
            try:
                writer.write(rows[name])
                files[name] = [writer.upload(*unit).meta]
            finally:
                writer.discard()
        self.committed[unit] = files

    def name_of(self, dataset_uuid: UUID) -> str:
        return next(name for name, table in self.tables.declared.items() if table.dataset_uuid == dataset_uuid)

    def read(self) -> dict[str, list[Row]]:
        """All rows of one moment, of each table: files up to the boundary, then the table above it."""
        boundary = self.boundary
        units = [unit for unit in sorted(self.committed) if self.is_read(unit)]
        content: dict[str, list[Row]] = {}
        with self._moment() as seen:
            for name in EVM_TABLES:
                seen.check_boundary(self.tables.declared[name].dataset_uuid, boundary)
                content[name] = [row for unit in units for row in self.read_unit(unit)[name]]
                above = PositionPart("block_number", None if boundary is None else boundary + 1, None)
                stored = self._columns(seen, name)
                order = ", ".join(f"{stored.name}.{column}" for column in EVM_KEYS[name])
                batches = list(seen.rows(stored, f"{above.condition} ORDER BY {order}"))
                content[name] += rows_of(pa.Table.from_batches(batches, stored.schema))
        return content

    def close(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None

    @contextmanager
    def _moment(self) -> Iterator[Snapshot]:
        keys = [table.dataset_uuid for table in self.tables.declared.values()]
        with ExitStack() as stack:
            try:
                self._snapshot = self._snapshot or ReusedSnapshot(self.tables.dsn, keys)
                seen = stack.enter_context(self._snapshot.moment())
            except StoreUnavailableError:  # its connection was ended with all others
                self.close()
                self._snapshot = ReusedSnapshot(self.tables.dsn, keys)
                seen = stack.enter_context(self._snapshot.moment())
            yield seen

    def is_read(self, unit: Unit) -> bool:
        """Whether readers take these files; rows of others are in the table still."""
        if self.boundary is not None:
            return unit[1] <= self.boundary
        return True

    def read_unit(self, unit: Unit) -> dict[str, list[Row]]:
        """The rows of its files. Files never change, so each is read once."""
        files = self.committed[unit]
        key = files["blocks"][0].uri
        if key not in self._rows:
            self._rows[key] = {name: self._read_files(name, files[name]) for name in EVM_TABLES}
        return self._rows[key]

    def _read_files(self, name: str, files: Sequence[ObjectMeta]) -> list[Row]:
        tables = [pq.read_table(self.objects.path(file.uri)) for file in files]
        assert all(table.schema == schema_of(name) for table in tables)
        return [row for rows in sorted(map(rows_of, tables), key=_first_block(name)) for row in rows]

    def _columns(self, snapshot: Snapshot, name: str) -> SnapshotTable:
        table = self.tables.declared[EVM_TABLES[EVM_TABLES.index(name)]]
        declared = {column.name: column for column in table.schema.columns}
        schema = schema_of(name)
        columns = msgspec.convert([declared[part] for part in schema.names], list[TableColumn], from_attributes=True)
        return replace(snapshot.table(table.dataset_uuid, columns), types=schema)

    def _read_success(self, prefix: str) -> list[ObjectMeta]:
        marker = msgspec.json.decode(self.objects.path(prefix + SUCCESS).read_bytes())
        files = [ObjectMeta(prefix + item["name"], item["size"], "", item["sha256"]) for item in marker["files"]]
        for file in files:
            assert self.objects.path(file.uri).stat().st_size == file.size
        return files


def rows_of(table: pa.Table) -> list[Row]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _first_block(name: str) -> Callable[[list[Row]], int]:
    place = schema_of(name).get_field_index("block_number")
    return lambda rows: rows[0][place] if rows else -1


def units_of(start: int, end: int, size: int) -> Iterator[Unit]:
    """A range by whole units of a grid; the first and the last may be cut."""
    while start <= end:
        last = min(end, start - start % size + size - 1)
        yield start, last
        start = last + 1

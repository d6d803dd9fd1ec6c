"""Rows of tables for a query: read by the service, under a role that only reads, and given to the engine as
an Arrow file. The engine has no database driver and no network.

All tables of a query are of one moment (one REPEATABLE READ transaction). Only columns whose values matter are read;
the others are there and null. A table that no batch has been merged into yet is empty.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.errors import TraceError
from tracelake.query.files import make_readable
from tracelake.query.pruning import SimpleFilter, table_condition
from tracelake.storage.snapshots import Snapshot, SnapshotTable
from tracelake.wire.query import InputSelection
from tracelake.wire.task_calls import TableColumn

_BATCH_BYTES = 2**20
_THREADS = 32
_END_SECONDS = 0.8
"""How long the end of a query waits for its thread: all that it holds is to be free within a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """What a query needs of one table."""

    dataset_uuid: UUID
    columns: tuple[TableColumn, ...]
    """All of the relation's columns."""
    needed: frozenset[str]
    filters: tuple[SimpleFilter, ...] = ()
    selections: tuple[InputSelection, ...] = ()
    is_live: bool = False
    """Older rows are in files."""
    boundary: int | None = None
    """Of a live dataset: where the files end that are read with it. Only rows above it are read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class TableBroker:
    dsn: Callable[[], str]
    """Of the role that reads tables of buffered datasets and can do nothing else."""
    threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_THREADS, "broker"))
    """Of its own: a database that does not answer keeps nobody else's work waiting."""

    async def read(
        self, tables: Mapping[str, TableRead], directory: Path, *, max_bytes: int, seconds: float
    ) -> dict[str, TableFile]:
        """One Arrow file per relation, below `directory`. Raises `query_too_large` beyond `max_bytes` in all, and
        `boundary_moved`, before anything is written, if the table of a live dataset lacks rows that newer files have.
        """
        if not tables:
            return {}
        stop = _Stop()
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self.threads, self._read_all, tables, directory, max_bytes, seconds, stop)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await self._end(work, stop)
            raise

    async def _end(self, work: "asyncio.Future[dict[str, TableFile]]", stop: "_Stop") -> None:
        """Waits a moment for the thread. One whose connection hangs ends later, and has written nothing then."""
        stop.requested = True
        work.add_done_callback(_forget)
        deadline = time.monotonic() + _END_SECONDS
        while not work.done() and time.monotonic() < deadline:
            # Again and again: it may have been between two statements.
            cancel = asyncio.get_running_loop().run_in_executor(self.threads, stop.cancel)
            await asyncio.wait({cancel}, timeout=0.1)
            await asyncio.wait({work}, timeout=0.05)

    def _read_all(
        self, tables: Mapping[str, TableRead], directory: Path, max_bytes: int, seconds: float, stop: "_Stop"
    ) -> dict[str, TableFile]:
        stop.check()
        dsn = self.dsn()
        left = max_bytes
        files: dict[str, TableFile] = {}
        uuids = sorted({table.dataset_uuid for table in tables.values()})
        snapshot = Snapshot(dsn, uuids, statement_seconds=seconds, connected=stop.attach, skip_missing=True)
        with closing(snapshot):
            stop.check()
            for table in tables.values():
                if table.is_live:
                    snapshot.check_boundary(table.dataset_uuid, table.boundary)
            directory.mkdir(exist_ok=True)  # below that of the query: if it has ended, there is none
            for name, table in tables.items():
                path = directory / f"{len(files)}.arrow"
                own = snapshot if table.dataset_uuid in snapshot.tables else None
                size = _write(own, table, path, left, stop)
                make_readable(path)
                files[name] = TableFile(path=path, size=size)
                left -= size
        return files


class _Stop:
    """Tells the thread to end: between two steps, or in the middle of a statement."""

    def __init__(self) -> None:
        self.requested = False
        self._snapshot: Snapshot | None = None

    def check(self) -> None:
        if self.requested:
            raise TraceError("query_canceled")

    def attach(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.check()

    def cancel(self) -> None:
        """Blocks while it asks the database."""
        if self._snapshot is not None:
            self._snapshot.cancel()


def _forget(work: "asyncio.Future[dict[str, TableFile]]") -> None:
    if not work.cancelled():
        work.exception()


def _write(snapshot: Snapshot | None, table: TableRead, path: Path, left: int, stop: _Stop) -> int:
    """Bytes of the rows as they were read."""
    needed = [column for column in table.columns if column.name in table.needed]
    size = 0
    with path.open("wb") as file:
        schema = arrow_schema(table.columns)
        with pa.ipc.new_file(file, schema) as writer:
            if snapshot is None:
                return 0
            whole = snapshot.table(table.dataset_uuid, table.columns)
            stored = {
                column.name: column for column, definition in zip(whole.columns, whole.kept, strict=True) if definition
            }
            condition = table_condition(stored, table.filters, table.selections, whole.position, table.boundary)
            # A query of no column (`count(*)`) still needs the number of rows.
            newest_only = not table.selections  # a task reads the rows of its units
            selected = snapshot.table(table.dataset_uuid, needed or table.columns[:1], newest_only=newest_only)
            try:
                for batch in snapshot.rows(selected, condition, batch_bytes=_BATCH_BYTES):
                    stop.check()
                    size += batch.nbytes
                    if size > left:
                        raise TraceError("query_too_large")
                    writer.write_batch(_widen(batch, schema))
            except NonRetryableError as error:
                raise TraceError("query_failed", str(error)) from error
    return size


def arrow_schema(columns: Sequence[TableColumn]) -> pa.Schema:
    return SnapshotTable(UUID(int=0), tuple(columns), (None,) * len(columns)).schema


def _widen(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = [
        batch.column(field.name) if field.name in batch.schema.names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)

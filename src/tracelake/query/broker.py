"""Rows of buffered datasets for a query: read by the service, under a role that only reads, and given to the engine as
an Arrow file. The engine has no database driver and no network.

All tables of a query are of one moment (one REPEATABLE READ transaction). Only columns whose values matter are read;
the others are there and null. A table that no batch has been merged into yet is empty.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.errors import TraceError
from tracelake.query.files import make_readable
from tracelake.query.pruning import SimpleFilter, table_condition
from tracelake.storage.snapshots import Snapshot, SnapshotTable, existing_tables
from tracelake.wire.query import InputSelection
from tracelake.wire.task_calls import TableColumn

_BATCH_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRead:
    """What a query needs of one table."""

    dataset_uuid: UUID
    columns: tuple[TableColumn, ...]
    """All of the relation's columns."""
    needed: frozenset[str]
    filters: tuple[SimpleFilter, ...] = ()
    selections: tuple[InputSelection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    path: Path
    size: int


@dataclass(frozen=True, slots=True)
class TableBroker:
    dsn: Callable[[], str]
    """Of the role that reads tables of buffered datasets and can do nothing else."""

    async def read(
        self, tables: Mapping[str, TableRead], directory: Path, *, max_bytes: int, seconds: float
    ) -> dict[str, TableFile]:
        """One Arrow file per relation, below `directory`. Raises `query_too_large` beyond `max_bytes` in all."""
        if not tables:
            return {}
        stop = _Stop()
        work = asyncio.create_task(asyncio.to_thread(self._read_all, tables, directory, max_bytes, seconds, stop))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            stop.request()
            with suppress(BaseException):
                await work
            raise

    def _read_all(
        self, tables: Mapping[str, TableRead], directory: Path, max_bytes: int, seconds: float, stop: "_Stop"
    ) -> dict[str, TableFile]:
        directory.mkdir(parents=True, exist_ok=True)
        dsn = self.dsn()
        present = existing_tables(dsn, [table.dataset_uuid for table in tables.values()])
        left = max_bytes
        files: dict[str, TableFile] = {}
        with closing(Snapshot(dsn, sorted(present), statement_seconds=seconds)) as snapshot:
            stop.snapshot = snapshot
            for name, table in tables.items():
                path = directory / f"{len(files)}.arrow"
                own = snapshot if table.dataset_uuid in present else None
                size = _write(own, table, path, left, stop)
                make_readable(path)
                files[name] = TableFile(path=path, size=size)
                left -= size
        return files


class _Stop:
    """Tells the thread to end: with its next batch, or in the middle of a statement."""

    def __init__(self) -> None:
        self.requested = False
        self.snapshot: Snapshot | None = None

    def request(self) -> None:
        self.requested = True
        if self.snapshot is not None:
            self.snapshot.cancel()


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
            condition = table_condition(stored, table.filters, table.selections)
            # A query of no column (`count(*)`) still needs the number of rows.
            selected = snapshot.table(table.dataset_uuid, needed or table.columns[:1])
            try:
                for batch in snapshot.rows(selected, condition, batch_bytes=_BATCH_BYTES):
                    if stop.requested:
                        return size
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

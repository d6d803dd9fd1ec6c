"""The sink's connection to Postgres data: it keeps tables in line with their schemas and commits batches.

Every method blocks, and a store is used by one thread at a time. A commit is one transaction of the rows, the record of
their batches and the number of the commit, so a batch that is committed again is found in the table.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

import pyarrow as pa

from tracelake.model.buffered import quoted
from tracelake.sink import merge, stage
from tracelake.sink.changes import find_unannounced, mark_announced
from tracelake.sink.outcomes import Commit, Loaded
from tracelake.sink.table_sizes import measure_tables
from tracelake.sink.writers import switch_writers
from tracelake.storage import table_ddl
from tracelake.storage.data_connection import (
    CHANGE_SECONDS,
    LOCK_SECONDS,
    DataConnection,
    RefusedRowsError,
    Run,
    StoreAwayError,
)
from tracelake.storage.table_removal import drop_table, forget_removed
from tracelake.wire.buffers import MAX_TABLES, BufferBatch, BufferedDataset, TableSize


class TableStore:
    """One connection to Postgres data, opened on demand and reopened after a failure."""

    def __init__(self, dsn: str, lock_seconds: float = LOCK_SECONDS) -> None:
        self._connection = DataConnection(dsn, lock_seconds)
        self._declarations: dict[UUID, BufferedDataset] = {}
        self._staged: dict[UUID, str] = {}

    def close(self) -> None:
        self._connection.close()
        self._staged.clear()

    def follow(self, dataset: BufferedDataset) -> bool:
        """Create or migrate the table to the schema; returns whether anything changed."""
        if self._declarations.get(dataset.dataset_uuid) == dataset:
            return False
        lock_seconds = min(self._connection.lock_seconds, CHANGE_SECONDS)
        try:
            with self._transaction() as run:
                changed = table_ddl.apply_schema(run, dataset, lock_seconds)
            with self._transaction() as run:
                table_ddl.build_indexes(run, dataset, lock_seconds)
            with self._transaction() as run:
                changed = self._switch(run, dataset) or changed
        except table_ddl.TableRefusedError as error:
            raise StoreAwayError(str(error), lasting=True) from error
        self._declarations[dataset.dataset_uuid] = dataset
        return changed

    def _switch(self, run: Run, dataset: BufferedDataset) -> bool:
        return switch_writers(run, dataset)

    def drop(self, dataset_uuid: UUID) -> None:
        """Drop the table of a dataset that was purged, with all records of it."""
        self._declarations.pop(dataset_uuid, None)
        drop_table(self._transaction, dataset_uuid, min(self._connection.lock_seconds, CHANGE_SECONDS))

    def find_unannounced(self, dataset_uuid: UUID) -> list[Commit]:
        """Commits that changed the visible writers, and of which the Dispatcher may not know."""
        with self._transaction() as run:
            changes = find_unannounced(run, dataset_uuid)
        return [Commit(number, (), hidden=change.hidden, gone=change.gone) for number, change in changes.items()]

    def mark_announced(self, dataset_uuid: UUID, commits: Sequence[Commit]) -> None:
        with self._transaction() as run:
            mark_announced(run, dataset_uuid, [commit.commit_seq for commit in commits])

    # -- the direct way: staged and merged in one transaction

    def commit_direct(
        self, dataset: BufferedDataset, loaded: Sequence[Loaded], rows: Iterable[pa.RecordBatch], *, sure: bool = False
    ) -> list[Commit]:
        """Commit rows that this process has parsed. `sure` allows a schema older than the table's: a replaced row keeps
        its values in newer columns, so the caller must know that no newer schema is declared."""
        with self._transaction() as run:
            staging = self._temporary(run, dataset)
            filled = [batch for batch in rows if batch.num_rows]
            if filled:
                self._ingest(staging, filled, temporary=True)
            return self._merge(run, dataset, quoted(staging), loaded, sure)

    def _temporary(self, run: Run, dataset: BufferedDataset) -> str:
        definition = table_ddl.definition(dataset)
        if self._staged.get(dataset.dataset_uuid) != definition:
            stage.create_temporary(run, dataset)
            self._staged[dataset.dataset_uuid] = definition
        return stage.temporary_name(dataset)

    # -- the way of large batches: staged by many, merged by one

    def open_staging(self, dataset: BufferedDataset) -> str:
        with self._transaction() as run:
            return stage.create_shared(run, dataset)

    def load(self, staging: str, rows: Sequence[pa.RecordBatch]) -> None:
        """Load rows into a shared staging table; may run in any process."""
        with self._transaction():
            self._ingest(staging, rows, temporary=False)

    def commit_staged(
        self, dataset: BufferedDataset, staging: str, loaded: Sequence[Loaded], *, sure: bool = False
    ) -> list[Commit]:
        with self._transaction() as run:
            stage.check_shared(run, staging)
            return self._merge(run, dataset, stage.shared_name(staging), loaded, sure)

    def drop_staging(self, name: str) -> None:
        with self._transaction() as run:
            stage.drop_shared(run, name)

    # -- what both share

    def _merge(
        self, run: Run, dataset: BufferedDataset, staging: str, loaded: Sequence[Loaded], sure: bool
    ) -> list[Commit]:
        return merge.merge(run, dataset, staging, loaded, sure=sure)

    def find(self, dataset: BufferedDataset, batches: Sequence[BufferBatch]) -> list[Commit]:
        with self._transaction() as run:
            return merge.find(run, dataset, batches)

    def forget(self) -> bool:
        with self._transaction() as run:
            forget_removed(run)
            return merge.forget(run)

    def measure(self) -> list[TableSize]:
        """How many rows each table has, those of direct writes included."""
        with self._transaction() as run:
            return measure_tables(run, MAX_TABLES)

    def _ingest(self, table: str, rows: Sequence[pa.RecordBatch], *, temporary: bool) -> None:
        self._connection.ingest(table, rows, schema=None if temporary else "staging", temporary=temporary)

    @contextmanager
    def _transaction(self) -> Iterator[Run]:
        try:
            with self._connection.transaction() as run:
                yield run
        except BaseException as error:
            # Temporary tables of the transaction are gone.
            self._staged.clear()
            if isinstance(error, StoreAwayError | RefusedRowsError):
                self._declarations.clear()  # check all tables again before the next attempt
            raise

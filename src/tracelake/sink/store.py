"""The sink's connection to Postgres data: it keeps tables in line with their schemas and commits batches.

Every method blocks, and a store is used by one thread at a time. A commit is one transaction of the rows, the record of
their batches and the number of the commit, so a batch that is committed again is found in the table.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

import adbc_driver_manager
import pyarrow as pa

from tracelake.model.buffered import patient, quoted
from tracelake.sink import ddl, merge, stage
from tracelake.sink.outcomes import Commit, Loaded, RefusedRowsError, Run, StoreAwayError
from tracelake.wire.buffers import BufferBatch, BufferedDataset

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

_LOCK_SECONDS = 30.0
_CHANGE_SECONDS = 2.0
_ROWS = ("21", "22", "23", "54")
"""Classes of SQLSTATE that blame the rows."""
_TEMPORARY = ("", "08", "25", "40", "53", "55", "57", "58")
"""Transient classes: connections, locks, conflicts, a full disk, a server that starts."""


class TableStore:
    """One connection to Postgres data, opened on demand and reopened after a failure."""

    def __init__(self, dsn: str, lock_seconds: float = _LOCK_SECONDS) -> None:
        self._dsn = dsn
        self._lock_seconds = lock_seconds
        self._connection: Connection | None = None
        self._definitions: dict[UUID, str] = {}
        self._staged: dict[UUID, str] = {}

    def close(self) -> None:
        if self._connection is not None:
            with suppress(adbc_driver_manager.Error):
                self._connection.close()
        self._connection = None
        self._staged.clear()

    def follow(self, dataset: BufferedDataset) -> bool:
        """Create or migrate the table to the schema; returns whether anything changed."""
        definition = ddl.definition(dataset)
        if self._definitions.get(dataset.dataset_uuid) == definition:
            return False
        lock_seconds = min(self._lock_seconds, _CHANGE_SECONDS)
        try:
            with self._transaction() as run:
                changed = ddl.apply_schema(run, dataset, lock_seconds)
            with self._transaction() as run:
                ddl.build_indexes(run, dataset, lock_seconds)
        except ddl.TableRefusedError as error:
            raise StoreAwayError(str(error), lasting=True) from error
        self._definitions[dataset.dataset_uuid] = definition
        return changed

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
        definition = ddl.definition(dataset)
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
            return merge.forget(run)

    def _ingest(self, table: str, rows: Sequence[pa.RecordBatch], *, temporary: bool) -> None:
        assert self._connection is not None
        reader = pa.RecordBatchReader.from_batches(rows[0].schema, rows)
        options: dict[str, Any] = {"temporary": True} if temporary else {"db_schema_name": "staging"}
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(table, reader, mode="append", **options)

    @contextmanager
    def _transaction(self) -> Iterator[Run]:
        try:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            yield lambda statement, *parameters: _run(connection, statement, parameters)
            connection.commit()
        except adbc_driver_manager.Error as error:
            self._give_up()
            self._definitions.clear()  # check all tables again before the next attempt
            raise _explained(error) from error
        except BaseException:
            self._give_up()
            raise

    def _connect(self) -> "Connection":
        import adbc_driver_postgresql.dbapi  # it imports polars, which workers without a sink do not need

        connection: Connection = adbc_driver_postgresql.dbapi.connect(patient(self._dsn))
        # A wait for a lock occupies one of few connections, so it ends soon and is retried.
        _run(connection, f"SET lock_timeout = {int(self._lock_seconds * 1000)}", ())
        connection.commit()
        return connection

    def _give_up(self) -> None:
        """Roll back; a connection that cannot is closed."""
        try:
            if self._connection is not None:
                self._connection.rollback()
                # Temporary tables of the transaction are gone.
                self._staged.clear()
        except adbc_driver_manager.Error:
            self.close()


def _run(connection: "Connection", statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def _explained(error: adbc_driver_manager.Error) -> Exception:
    """RefusedRowsError if the rows are to blame; else StoreAwayError, which is retried."""
    state = error.sqlstate or ""
    if state.startswith(_ROWS):
        return RefusedRowsError(_message_of(error) or "they do not fit")
    text = f"Postgres data does not take it now (SQLSTATE {state or 'none'})"
    if state[:2] in _TEMPORARY:
        return StoreAwayError(text)
    return StoreAwayError(f"{text}: {_message_of(error)}", lasting=True)


def _message_of(error: adbc_driver_manager.Error) -> str:
    """The primary message of Postgres, which contains no statement."""
    details: list[tuple[Any, bytes]] = list(error.details or ())
    message = next((text for name, text in details if bytes(name) == b"PG_DIAG_MESSAGE_PRIMARY"), b"")
    return message.decode(errors="replace")

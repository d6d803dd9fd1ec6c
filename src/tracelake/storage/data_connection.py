"""A connection to Postgres data for those who write tables there: sinks, and operators that write directly.

It is opened on demand and reopened after a failure. Every method blocks, and one thread at a time uses it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import adbc_driver_manager
import pyarrow as pa

from tracelake.model.buffered import patient

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

LOCK_SECONDS = 30.0
CHANGE_SECONDS = 2.0
"""How long a change of columns waits for a lock: everybody else queues behind it."""
_ROWS = ("21", "22", "23", "54")
"""Classes of SQLSTATE that blame the rows."""
_TEMPORARY = ("", "08", "25", "40", "53", "55", "57", "58")
"""Transient classes: connections, locks, conflicts, a full disk, a server that starts."""

Run: TypeAlias = Callable[..., list[tuple[Any, ...]]]
"""Runs a statement with its parameters in the open transaction; returns its rows."""


class StoreAwayError(Exception):
    """Postgres data cannot do it now; retry later. `lasting` if an operator has to intervene first."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class RefusedRowsError(Exception):
    """Postgres refuses rows that passed the checks before; the text is that of Postgres and contains no statement."""


class DataConnection:
    """One connection, and one transaction at a time on it."""

    def __init__(self, dsn: str, lock_seconds: float = LOCK_SECONDS) -> None:
        self._dsn = dsn
        self.lock_seconds = lock_seconds
        self._connection: Connection | None = None

    def close(self) -> None:
        if self._connection is not None:
            with suppress(adbc_driver_manager.Error):
                self._connection.close()
        self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[Run]:
        """Commits at the end, rolls back if anything is raised. A connection that cannot roll back is closed. Raises
        StoreAwayError or RefusedRowsError for errors of the database."""
        try:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            yield lambda statement, *parameters: _run(connection, statement, parameters)
            connection.commit()
        except adbc_driver_manager.Error as error:
            self._give_up()
            raise _explained(error) from error
        except BaseException:
            self._give_up()
            raise

    def ingest(
        self, table: str, rows: Sequence[pa.RecordBatch], *, schema: str | None = None, temporary: bool = False
    ) -> None:
        """Load rows into a table of a schema (None: the first of the search path), or a temporary table, in the open
        transaction."""
        assert self._connection is not None
        reader = pa.RecordBatchReader.from_batches(rows[0].schema, rows)
        options: dict[str, Any] = {"temporary": True} if temporary else {"db_schema_name": schema}
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(table, reader, mode="append", **options)

    def fetch(self, statement: str) -> pa.Table:
        """The rows of a statement as Arrow, in the open transaction."""
        assert self._connection is not None
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetch_arrow_table()

    def _connect(self) -> "Connection":
        import adbc_driver_postgresql.dbapi  # it imports polars, which processes that write no table do not need

        connection: Connection = adbc_driver_postgresql.dbapi.connect(patient(self._dsn))
        # A wait for a lock occupies one of few connections, so it ends soon and is retried.
        _run(connection, f"SET lock_timeout = {int(self.lock_seconds * 1000)}", ())
        connection.commit()
        return connection

    def _give_up(self) -> None:
        try:
            if self._connection is not None:
                self._connection.rollback()
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

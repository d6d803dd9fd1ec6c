"""The sink's side of Postgres data: tables that follow their schema, and commits of batches.

Everything here blocks and belongs to one thread at a time. A commit is one transaction: rows, the list of the batches
that are now in the table, and the number of the commit; so whoever repeats a batch finds that it is there.
"""

import logging
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import pyarrow as pa
from adbc_driver_manager.dbapi import Connection

from tracelake.model.buffered import patient
from tracelake.sink import keeping, tables
from tracelake.sink.keeping import Run
from tracelake.wire.buffers import BufferBatch, BufferedDataset

logger = logging.getLogger(__name__)

_STAGING_HOURS = 24
COMMITS_DAYS = 30
"""So long a batch is known to be in its table: far longer than its message lives, or its artifact once it is there."""
FORGOTTEN_AT_ONCE = 1000
_LOCK_SECONDS = 30.0
_CHANGE_SECONDS = 2.0
_ROWS = ("21", "22", "23", "54")
"""Classes of SQLSTATE that are about the rows."""
_TEMPORARY = ("", "08", "25", "40", "53", "55", "57", "58")
"""Those that can be otherwise in a moment: connections, locks, conflicts, a full disk, a server that starts."""

_LOCK = """
    SELECT next_commit, coalesce((definition->>'revision')::bigint, 0) FROM buffer_tables
    WHERE dataset_uuid = $1::text::uuid FOR UPDATE"""
_DONE = """
    SELECT publish_id::text, commit_seq FROM buffer_commits WHERE publish_id = ANY ($1::text[]::uuid[])"""
_SAME_COMMITS = """
    SELECT commit_seq, publish_id::text FROM buffer_commits
    WHERE dataset_uuid = $1::text::uuid AND commit_seq = ANY ($2::bigint[]) ORDER BY commit_seq, publish_id"""
_NEXT = "UPDATE buffer_tables SET next_commit = next_commit + 1 WHERE dataset_uuid = $1::text::uuid"
_RECORD = """
    INSERT INTO buffer_commits (publish_id, dataset_uuid, publish_seq, commit_seq, row_count)
    SELECT p.publish_id, $1::text::uuid, p.publish_seq, $2::bigint, p.row_count
    FROM unnest($3::text[]::uuid[], $4::bigint[], $5::bigint[]) AS p(publish_id, publish_seq, row_count)"""

# Several sinks may be at it: what one of them has is none of the others' business.
_FORGET = """
    DELETE FROM buffer_commits WHERE publish_id IN (
        SELECT publish_id FROM buffer_commits WHERE committed_at < trace_now() - make_interval(days => $1::int)
        ORDER BY committed_at LIMIT $2::int FOR UPDATE SKIP LOCKED)
    RETURNING 1"""


class StoreAwayError(Exception):
    """Postgres data does not take it now: the same again later. `lasting` if a person has to do something first."""

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class StagingLostError(Exception):
    """What was staged is not there any more: Postgres empties such tables when it comes up after a crash."""


class OutdatedError(Exception):
    """The table has followed a newer schema than the one that is at hand."""


class RefusedRowsError(Exception):
    """Postgres refuses what passed the reader; the text is its own and names no statement."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A batch whose rows are in a staging table."""

    batch: BufferBatch
    rows: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Batches that became visible together."""

    commit_seq: int
    publish_ids: tuple[UUID, ...]


class TableStore:
    """One connection to Postgres data, made when it is needed and again after it broke."""

    def __init__(self, dsn: str, lock_seconds: float = _LOCK_SECONDS) -> None:
        self._dsn = dsn
        self._lock_seconds = lock_seconds
        self._connection: Connection | None = None
        self._known: dict[UUID, str] = {}
        self._staged: dict[UUID, str] = {}

    def close(self) -> None:
        if self._connection is not None:
            with suppress(adbc_driver_manager.Error):
                self._connection.close()
        self._connection = None
        self._staged.clear()

    def follow(self, dataset: BufferedDataset) -> bool:
        """Make the table what the schema says; whether something was changed."""
        wanted = tables.definition(dataset)
        if self._known.get(dataset.dataset_uuid) == wanted:
            return False
        patience = min(self._lock_seconds, _CHANGE_SECONDS)
        try:
            with self._transaction() as run:
                changed = keeping.keep(run, dataset, patience)
            with self._transaction() as run:
                keeping.index(run, dataset, patience)
        except tables.TableRefusedError as error:
            raise StoreAwayError(str(error), lasting=True) from error
        self._known[dataset.dataset_uuid] = wanted
        return changed

    # -- the direct way: staged and merged in one transaction

    def commit_direct(
        self, dataset: BufferedDataset, loaded: Sequence[Loaded], rows: Iterable[pa.RecordBatch], *, sure: bool = False
    ) -> list[Commit]:
        """Rows of batches that this process has read. By a schema that is not the table's newest only who is sure that
        there is no other: a row that it replaces would keep what it had in newer columns."""
        with self._transaction() as run:
            staging = self._temporary(run, dataset)
            found = [batch for batch in rows if batch.num_rows]
            if found:
                self._ingest(staging, found, temporary=True)
            return self._merge(run, dataset, tables.quoted(staging), loaded, sure)

    def _temporary(self, run: Run, dataset: BufferedDataset) -> str:
        """A staging table of this connection, for this very schema."""
        name = f"stage_{dataset.dataset_uuid.hex}"
        definition = tables.definition(dataset)
        if self._staged.get(dataset.dataset_uuid) != definition:
            run(f"DROP TABLE IF EXISTS pg_temp.{tables.quoted(name)}")
            run(tables.stage(name, dataset.schema, temporary=True))
            self._staged[dataset.dataset_uuid] = definition
        return name

    # -- the way of large batches: staged by many, merged by one

    def open_staging(self, dataset: BufferedDataset) -> str:
        """A staging table that every connection sees; what a killed sink left behind is dropped on the way."""
        name = f"stage_{dataset.dataset_uuid.hex[:12]}_{secrets.token_hex(8)}"
        with self._transaction() as run:
            old = run(
                "DELETE FROM buffer_staging WHERE created_at < trace_now() - make_interval(hours => $1::int) "
                "RETURNING name",
                _STAGING_HOURS,
            )
            for (left,) in old:
                run(f"DROP TABLE IF EXISTS staging.{tables.quoted(left)}")
            run("INSERT INTO buffer_staging (name) VALUES ($1)", name)
            run(tables.stage(name, dataset.schema, temporary=False))
            run(f"INSERT INTO staging.{tables.quoted(name)} (_publish_seq) VALUES ({_MARK})")  # noqa: S608 - quoted
        return name

    def commit_staged(
        self, dataset: BufferedDataset, staging: str, loaded: Sequence[Loaded], *, sure: bool = False
    ) -> list[Commit]:
        with self._transaction() as run:
            _check_staging(run, staging)
            return self._merge(run, dataset, f"staging.{tables.quoted(staging)}", loaded, sure)

    def drop_staging(self, name: str) -> None:
        with self._transaction() as run:
            run(f"DROP TABLE IF EXISTS staging.{tables.quoted(name)}")
            run("DELETE FROM buffer_staging WHERE name = $1", name)

    def load(self, staging: str, rows: Sequence[pa.RecordBatch]) -> None:
        """Into a shared staging table; from any process."""
        with self._transaction():
            self._ingest(staging, rows, temporary=False)

    # -- what both share

    def find(self, dataset: BufferedDataset, batches: Sequence[BufferBatch]) -> list[Commit]:
        """The commits by which some of them are in the table already, with all of their batches."""
        with self._transaction() as run:
            done = _done(run, batches)
            return _same_commits(run, dataset.dataset_uuid, done.values()) if done else []

    def forget(self) -> bool:
        """Some of the batches that came long ago; whether there may be more. Should one come again after all, its merge
        changes nothing: its rows are there by the same numbers, or by such as win over them."""
        with self._transaction() as run:
            return len(run(_FORGET, COMMITS_DAYS, FORGOTTEN_AT_ONCE)) == FORGOTTEN_AT_ONCE

    def _merge(
        self, run: Run, dataset: BufferedDataset, staging: str, loaded: Sequence[Loaded], sure: bool
    ) -> list[Commit]:
        key = str(dataset.dataset_uuid)
        ((commit_seq, revision),) = run(_LOCK, key)
        if revision > dataset.revision and not sure:
            raise OutdatedError(dataset.name)
        done = _done(run, [item.batch for item in loaded])
        fresh = [item for item in loaded if item.batch.publish_id not in done]
        if fresh:
            batches = [item.batch for item in fresh]
            sequences = [batch.publish_seq for batch in batches]
            run(
                tables.merge(dataset, staging),
                commit_seq,
                sequences,
                [str(batch.org_id) for batch in batches],
                [str(batch.producer.task_id) for batch in batches],
            )
            ids = [str(batch.publish_id) for batch in batches]
            run(_RECORD, key, commit_seq, ids, sequences, [item.rows for item in fresh])
            run(_NEXT, key)
        commits = [Commit(commit_seq, tuple(item.batch.publish_id for item in fresh))] if fresh else []
        return commits + (_same_commits(run, dataset.dataset_uuid, done.values()) if done else [])

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
            self._known.clear()  # whatever it was: the tables are looked at again before the next try
            raise _explained(error) from error
        except BaseException:
            self._give_up()
            raise

    def _connect(self) -> Connection:
        connection: Connection = adbc_driver_postgresql.dbapi.connect(patient(self._dsn))
        # Who waits for a lock has one of few connections: it gives way, and tries again.
        _run(connection, f"SET lock_timeout = {int(self._lock_seconds * 1000)}", ())
        connection.commit()
        return connection

    def _give_up(self) -> None:
        """Back to a state that is known. A connection that cannot roll back is none."""
        try:
            if self._connection is not None:
                self._connection.rollback()
                # A temporary table made in this transaction is gone with it.
                self._staged.clear()
        except adbc_driver_manager.Error:
            self.close()


_MARK = 0
"""The `_publish_seq` of a row that every shared staging table has from its beginning; no batch has this number."""


def _check_staging(run: Run, staging: str) -> None:
    table = f"staging.{tables.quoted(staging)}"
    ((there,),) = run("SELECT to_regclass($1) IS NOT NULL", table)
    if not there or not run(f"SELECT 1 FROM {table} WHERE _publish_seq = {_MARK} LIMIT 1"):  # noqa: S608 - quoted
        raise StagingLostError(staging)


def _run(connection: Connection, statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def _done(run: Run, batches: Sequence[BufferBatch]) -> dict[UUID, int]:
    rows = run(_DONE, [str(batch.publish_id) for batch in batches])
    return {UUID(publish_id): commit_seq for publish_id, commit_seq in rows}


def _same_commits(run: Run, dataset_uuid: UUID, numbers: Iterable[int]) -> list[Commit]:
    found: dict[int, list[UUID]] = {}
    for number, publish_id in run(_SAME_COMMITS, str(dataset_uuid), sorted(set(numbers))):
        found.setdefault(number, []).append(UUID(publish_id))
    return [Commit(number, tuple(ids)) for number, ids in found.items()]


def _explained(error: adbc_driver_manager.Error) -> Exception:
    """About the rows, or about Postgres: that is waited for, though some of it needs a person."""
    state = error.sqlstate or ""
    if state.startswith(_ROWS):
        return RefusedRowsError(_said(error) or "they do not fit")
    text = f"Postgres data does not take it now (SQLSTATE {state or 'none'})"
    if state[:2] in _TEMPORARY:
        return StoreAwayError(text)
    return StoreAwayError(f"{text}: {_said(error)}", lasting=True)


def _said(error: adbc_driver_manager.Error) -> str:
    """The words of Postgres, which name no statement."""
    words: list[tuple[Any, bytes]] = list(error.details or ())
    said = next((text for name, text in words if bytes(name) == b"PG_DIAG_MESSAGE_PRIMARY"), b"")
    return said.decode(errors="replace")

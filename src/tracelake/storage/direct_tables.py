"""Direct writes to tables in Postgres data: the adapter of `ports/direct_tables.py`.

Locks are taken in one order by everybody: the fences of a write by dataset, then the tables by dataset. The lock of a
table gives its commits their numbers, which become visible in their order. Rows are copied into the table if it has
the types of its declaration in Arrow; others are staged in a temporary table and cast there, as a sink does.

Only a writer that holds the lock of a table raises its seal, so that what it reads there is valid until it commits. Who
removes rows locks the extent alone, for one part of the rows after another.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from uuid import UUID

import msgspec
import pyarrow as pa

from tracelake.catalogue.direct_schemas import has_position
from tracelake.errors import StoreUnavailableError
from tracelake.model.buffered import quoted, shown_rows, table_name
from tracelake.ports.direct_tables import (
    MAX_SCOPE_BYTES,
    WHOLE_TABLE,
    DirectTableWriter,
    PendingEvent,
    RangeReplacement,
    RangeSealedError,
    RowsRefusedError,
    TableExtent,
    TableWriter,
    WriteFencedError,
)
from tracelake.rows.values import kind_of
from tracelake.storage import table_ddl
from tracelake.storage.data_connection import (
    CHANGE_SECONDS,
    LOCK_SECONDS,
    DataConnection,
    RefusedRowsError,
    Run,
    StoreAwayError,
)
from tracelake.storage.direct_rows import OwnValues, fit_rows
from tracelake.storage.event_positions import find_clock, locate_events
from tracelake.storage.snapshots import SnapshotTable
from tracelake.storage.table_marks import read_marks, store_marks
from tracelake.storage.table_removal import is_removed
from tracelake.wire.direct import DirectTable
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import EventIn

# A writer that is not older takes the fence; the same one has it already. Nobody takes that of a dropped table.
_RAISE = """
    INSERT INTO direct_fences AS f (dataset_uuid, scope, task_id, attempt)
    SELECT $1::text::uuid, $2::text, $3::text::uuid, $4::int
    WHERE NOT EXISTS (SELECT FROM removed_tables r WHERE r.dataset_uuid = $1::text::uuid)
    ON CONFLICT (dataset_uuid, scope) DO UPDATE
        SET task_id = excluded.task_id, attempt = excluded.attempt,
            raised_at = CASE WHEN (f.task_id, f.attempt) = (excluded.task_id, excluded.attempt)
                             THEN f.raised_at ELSE trace_now() END
        WHERE (f.task_id, f.attempt) <= (excluded.task_id, excluded.attempt)
    RETURNING scope_id"""
_HOLDER = """
    SELECT task_id::text, attempt FROM direct_fences WHERE dataset_uuid = $1::text::uuid AND scope = $2::text"""
_PENDING = """
    SELECT event_id, event::text FROM direct_events
    WHERE dataset_uuid = ANY ($1::text[]::uuid[]) AND scope = $2::text ORDER BY event_id"""
_NUMBER = """
    UPDATE buffer_tables SET next_commit = next_commit + 1 WHERE dataset_uuid = $1::text::uuid
    RETURNING next_commit - 1, definition::text"""
_ANNOUNCE = """
    INSERT INTO direct_events (dataset_uuid, scope, task_id, attempt, event)
    SELECT u.dataset_uuid, $2::text, $3::text::uuid, $4::int, u.event::json
    FROM unnest($1::text[]::uuid[], $5::text[]) WITH ORDINALITY AS u(dataset_uuid, event, place) ORDER BY u.place
    RETURNING event_id"""
_EXTENT = """
    SELECT table_start, sealed_to, removed_to, permit_id FROM table_extents WHERE dataset_uuid = $1::text::uuid"""
# The first write of a live dataset to a table that has rows already begins where these do.
_BEGIN = """
    INSERT INTO table_extents (dataset_uuid, table_start)
    SELECT $1::text::uuid, least($2::bigint, (SELECT min({position}) FROM {table}))
    ON CONFLICT (dataset_uuid) DO NOTHING"""
_SEAL = """
    UPDATE table_extents SET sealed_to = $2::bigint
    WHERE dataset_uuid = $1::text::uuid AND greatest(table_start, sealed_to + 1) <= $2::bigint"""
_PERMITTED = "UPDATE table_extents SET permit_id = $2::bigint WHERE dataset_uuid = $1::text::uuid"
_POSITION = """
    SELECT definition::json -> 'schema' -> 'unique' ->> 0 FROM buffer_tables WHERE dataset_uuid = $1::text::uuid"""
# The end of a part: the position of the row that is so far from the first.
_PART = "SELECT {position}::bigint FROM {table} WHERE {position} <= {to} ORDER BY {position} OFFSET {rows} LIMIT 1"
_REMOVED = """
    UPDATE table_extents SET removed_to = greatest(removed_to, $2::bigint) WHERE dataset_uuid = $1::text::uuid"""
_FORGET = "DELETE FROM direct_events WHERE event_id = ANY ($1::bigint[])"

_ROWS_PER_REMOVAL = 50_000
"""Rows that one transaction removes, about: a position goes as a whole."""


@dataclass(frozen=True, slots=True)
class PostgresDirectTables:
    """Opens tables by a role that may create and alter them, like that of sinks."""

    dsn: Callable[[], str]
    lock_seconds: float = LOCK_SECONDS
    rows_per_removal: int = _ROWS_PER_REMOVAL

    def open(self, tables: Sequence[DirectTable], scope: str, writer: TableWriter) -> DirectTableWriter:
        for table in tables:
            _check_table(table)
        if not 0 < len(scope.encode()) <= MAX_SCOPE_BYTES:
            raise RowsRefusedError(f"A scope has 1 to {MAX_SCOPE_BYTES} bytes.")
        connection = DataConnection(self.dsn(), self.lock_seconds)
        opened = PostgresTableWriter(connection, tables, scope, writer)
        try:
            opened.start()
        except BaseException:
            opened.close()
            raise
        return opened

    def remove_rows(self, tables: Sequence[UUID], to: int) -> int:
        with closing(DataConnection(self.dsn(), self.lock_seconds)) as connection:
            return sum(self._remove(connection, key, to) for key in sorted(tables))

    def _remove(self, connection: DataConnection, dataset_uuid: UUID, to: int) -> int:
        removed, is_done = 0, False
        while not is_done:
            with _transaction(connection) as run:
                rows, is_done = self._remove_part(run, dataset_uuid, to)
            removed += rows
        return removed

    def _remove_part(self, run: Run, dataset_uuid: UUID, to: int) -> tuple[int, bool]:
        """The lowest rows, and the extent that says so. Returns how many these were, and whether they were the last."""
        extent = _read_extent(run, dataset_uuid, lock=True)
        if extent.sealed_to is None or extent.sealed_to < to:
            raise RowsRefusedError(
                f"Rows up to position {to} were to be removed, but the table is sealed up to {extent.sealed_to}."
            )
        if to < max(extent.table_start or 0, -1 if extent.removed_to is None else extent.removed_to + 1):
            return 0, True
        ((position,),) = run(_POSITION, str(dataset_uuid))
        names = {"table": quoted(table_name(dataset_uuid)), "position": quoted(position)}
        part = run(_PART.format(**names, to=int(to), rows=self.rows_per_removal))
        end = int(part[0][0]) if part else to
        statement = "WITH gone AS (DELETE FROM {table} WHERE {position} <= {end} RETURNING 1) SELECT count(*) FROM gone"
        ((rows,),) = run(statement.format(**names, end=end))
        run(_REMOVED, str(dataset_uuid), end)
        return rows, end == to


class PostgresTableWriter:
    """The tables of one attempt, on a connection of their own."""

    def __init__(
        self, connection: DataConnection, tables: Sequence[DirectTable], scope: str, writer: TableWriter
    ) -> None:
        self._connection = connection
        self._tables = {table.dataset_uuid: table for table in sorted(tables, key=lambda table: table.dataset_uuid)}
        self._scope = scope
        self._writer = writer
        self._pending: tuple[PendingEvent, ...] = ()

    @property
    def pending(self) -> Sequence[PendingEvent]:
        return self._pending

    def start(self) -> None:
        """Brings the tables in line with their schemas, and raises the fences."""
        for table in self._tables.values():
            self._follow(table)
        with self._transaction() as run:
            self._raise_fences(run)
            rows = run(_PENDING, [str(key) for key in self._tables], self._scope)
        self._pending = tuple(PendingEvent(number, _read_event(text)) for number, text in rows)

    def read_newest(self, dataset_uuid: UUID, columns: Sequence[str], limit: int) -> pa.Table:
        table = self._table(dataset_uuid)
        declared = [table.schema.column(name) for name in columns]
        stored = tuple(column for column in declared if column is not None)
        if len(stored) < len(columns):
            raise RowsRefusedError(f"The table {table.name} lacks one of the columns {', '.join(columns)}.")
        read_columns = msgspec.convert(stored, tuple[TableColumn, ...], from_attributes=True)
        with self._transaction() as run:
            own_rows = f"_scope = {self._raise_fences(run)[dataset_uuid]}"
            source = shown_rows(quoted(table_name(dataset_uuid)), table.schema, own_rows)
            selected = SnapshotTable(dataset_uuid, read_columns, stored, source=source)
            rows = self._connection.fetch(
                selected.select(f"WHERE {own_rows} ORDER BY {quoted(table.position)} DESC LIMIT {int(limit)}")
            )
        return pa.Table.from_batches([selected.fit(batch) for batch in rows.to_batches()], schema=selected.schema)

    def replace(self, change: RangeReplacement) -> list[PendingEvent]:
        rows = {key: fit_rows(self._table(key), batches, change) for key, batches in change.rows.items()}
        for event in change.events:
            if event.dataset_uuid in self._tables and event.dataset_uuid not in rows:
                raise RowsRefusedError("An event announces a table that the write does not name.")
        if change.seal is not None and change.seal > change.end:
            raise RowsRefusedError(f"The seal {change.seal} is above the range, which ends at {change.end}.")
        with self._transaction() as run:
            scopes = self._raise_fences(run)
            events = self._locate(run, change, rows, scopes)
            for key in sorted(rows):
                table = self._tables[key]
                # From here on nobody else writes the table, changes its columns or raises its seal.
                ((commit_seq, definition),) = run(_NUMBER, str(key))
                extent = self._check_extent(run, table, change)
                stored = msgspec.json.decode(definition, type=DirectTable)
                self._replace_rows(run, table, stored, rows[key], change, scopes[key], commit_seq)
                self._extend(run, table, change, extent)
            numbers = self._store_events(run, events)
        return [PendingEvent(number, event) for number, event in zip(numbers, events, strict=True)]

    def read_extent(self, dataset_uuid: UUID) -> TableExtent:
        self._table(dataset_uuid)
        with self._transaction() as run:
            self._raise_fences(run)
            return _read_extent(run, dataset_uuid)

    def read_marks(self, dataset_uuid: UUID) -> dict[int, bytes]:
        self._table(dataset_uuid)
        with self._transaction() as run:
            self._raise_fences(run)
            return read_marks(run, dataset_uuid)

    def acknowledge(self, events: Sequence[PendingEvent]) -> None:
        if not events:
            return
        with self._transaction() as run:
            run(_FORGET, [event.event_id for event in events])
        announced = {event.event_id for event in events}
        self._pending = tuple(event for event in self._pending if event.event_id not in announced)

    def close(self) -> None:
        self._connection.close()

    # --- steps of a transaction

    def _raise_fences(self, run: Run) -> dict[UUID, int]:
        """Takes the fence of every table, in their order, until the transaction ends; returns the ids of the scope."""
        scopes: dict[UUID, int] = {}
        task_id, attempt = str(self._writer.task_id), self._writer.attempt
        for key in self._tables:
            raised = run(_RAISE, str(key), self._scope, task_id, attempt)
            if not raised:
                raise self._fenced(run, key)
            scopes[key] = raised[0][0]
        return scopes

    def _fenced(self, run: Run, dataset_uuid: UUID) -> WriteFencedError:
        if is_removed(run, dataset_uuid):
            return WriteFencedError("The dataset was removed with its DAG.")
        ((task_id, attempt),) = run(_HOLDER, str(dataset_uuid), self._scope)
        if task_id == str(self._writer.task_id):
            return WriteFencedError(f"Attempt {attempt} of this task writes the table; this is {self._writer.attempt}.")
        return WriteFencedError(f"The newer task {task_id} writes the table.")

    def _check_extent(self, run: Run, table: DirectTable, change: RangeReplacement) -> TableExtent:
        extent = _read_extent(run, table.dataset_uuid)
        if extent.sealed_to is not None and change.start <= extent.sealed_to:
            raise RangeSealedError(
                f"Rows of {table.name} up to position {extent.sealed_to} are final, but the write begins at"
                f" {change.start}."
            )
        if extent.table_start is not None and change.start < extent.table_start:
            raise RowsRefusedError(
                f"The table {table.name} begins at position {extent.table_start}, but the write begins at"
                f" {change.start}: rows before the table are in files."
            )
        return extent

    def _extend(self, run: Run, table: DirectTable, change: RangeReplacement, extent: TableExtent) -> None:
        key = str(table.dataset_uuid)
        if extent.table_start is None and (change.live or change.seal is not None):
            names = {"table": quoted(table_name(table.dataset_uuid)), "position": quoted(table.position)}
            run(_BEGIN.format(**names), key, change.start)
        if change.seal is not None:
            run(_SEAL, key, change.seal)
        if change.permit_id is not None:
            run(_PERMITTED, key, change.permit_id)
        store_marks(run, table.dataset_uuid, change.marks.get(table.dataset_uuid, {}))

    def _replace_rows(
        self,
        run: Run,
        table: DirectTable,
        stored: DirectTable,
        rows: Sequence[pa.RecordBatch],
        change: RangeReplacement,
        scope_id: int,
        commit_seq: int,
    ) -> None:
        name, position = quoted(table_name(table.dataset_uuid)), quoted(table.position)
        range_end = "" if change.above else f" AND {position} <= {int(change.end)}"
        run(f"DELETE FROM {name} WHERE {position} >= {int(change.start)}{range_end} AND _scope = {scope_id}")  # noqa: S608
        if not rows:
            return
        kinds = [kind_of(column) for column in table.schema.columns]
        # A newer declaration may have widened columns: the binary form of COPY is that of one type alone.
        types = {column.name: kind_of(column).kept for column in stored.schema.columns}
        if all(kind.staged == types.get(kind.column.name) for kind in kinds):
            own = OwnValues(table.org_id, self._writer.task_id, scope_id, commit_seq)
            self._connection.ingest(table_name(table.dataset_uuid), [own.join(batch) for batch in rows])
            return
        staging = f"stage_{table.dataset_uuid.hex}"
        staged = ", ".join(f"{quoted(kind.column.name)} {kind.staged}" for kind in kinds)
        # Kept for the next write on this connection.
        run(f"CREATE TEMPORARY TABLE IF NOT EXISTS {quoted(staging)} ({staged}) ON COMMIT DELETE ROWS")
        self._connection.ingest(staging, rows, temporary=True)
        columns = ", ".join(quoted(kind.column.name) for kind in kinds)
        values = ", ".join(f"s.{quoted(kind.column.name)}{kind.cast}" for kind in kinds)
        run(
            f"""
            INSERT INTO {name} (org_id, _task_id, _scope, _commit_seq, {columns})
            SELECT $1::text::uuid, $2::text::uuid, {scope_id}, {commit_seq}, {values}
            FROM pg_temp.{quoted(staging)} s""",  # noqa: S608 - quoted
            str(table.org_id),
            str(self._writer.task_id),
        )

    def _locate(
        self,
        run: Run,
        change: RangeReplacement,
        rows: Mapping[UUID, Sequence[pa.RecordBatch]],
        scopes: Mapping[UUID, int],
    ) -> Sequence[EventIn]:
        """Scopes of one table have the same positions, so only a writer of all of it says which ones it has written."""
        if self._scope != WHOLE_TABLE:
            return change.events
        clock = find_clock(self._tables[key] for key in rows)
        return locate_events(run, clock, change, rows, None if clock is None else scopes[clock.dataset_uuid])

    def _store_events(self, run: Run, events: Sequence[EventIn]) -> list[int]:
        if not events:
            return []
        # Events of a dataset without a table have no fence of their own: they wait with those of the first table.
        first = next(iter(self._tables))
        datasets = [str(event.dataset_uuid if event.dataset_uuid in self._tables else first) for event in events]
        texts = [msgspec.json.encode(event).decode() for event in events]
        writer = self._writer
        numbers = run(_ANNOUNCE, datasets, self._scope, str(writer.task_id), writer.attempt, texts)
        return sorted(number for (number,) in numbers)

    # --- the connection

    def _follow(self, table: DirectTable) -> None:
        lock_seconds = min(self._connection.lock_seconds, CHANGE_SECONDS)
        try:
            with self._transaction() as run:
                if table_ddl.is_current(run, table):
                    return
            with self._transaction() as run:
                table_ddl.apply_schema(run, table, lock_seconds)
            with self._transaction() as run:
                table_ddl.build_indexes(run, table, lock_seconds)
        except table_ddl.TableRefusedError as error:
            raise RowsRefusedError(str(error)) from error

    def _table(self, dataset_uuid: UUID) -> DirectTable:
        table = self._tables.get(dataset_uuid)
        if table is None:
            raise RowsRefusedError("The table is not among those that were opened.")
        return table

    @contextmanager
    def _transaction(self) -> Iterator[Run]:
        with _transaction(self._connection) as run:
            yield run


@contextmanager
def _transaction(connection: DataConnection) -> Iterator[Run]:
    try:
        with connection.transaction() as run:
            yield run
    except StoreAwayError as error:
        raise StoreUnavailableError(f"{error}.") from error
    except RefusedRowsError as error:
        raise RowsRefusedError(f"Postgres refuses the rows: {error}.") from error


def _read_extent(run: Run, dataset_uuid: UUID, *, lock: bool = False) -> TableExtent:
    rows = run(f"{_EXTENT} FOR UPDATE" if lock else _EXTENT, str(dataset_uuid))
    if not rows:
        return TableExtent()
    start, sealed, removed, permit_id = rows[0]
    return TableExtent(start, sealed, removed, permit_id=permit_id)


def _check_table(table: DirectTable) -> None:
    if not has_position(table.schema):
        raise RowsRefusedError(f"The table {table.name} has no position: `unique` must begin with a whole number.")
    if table.schema.newest_wins and len(table.schema.unique) < 2:
        raise RowsRefusedError(f"The table {table.name} has no key besides the position, so no newest row of a key.")


def _read_event(text: str) -> EventIn:
    return msgspec.json.decode(text, type=EventIn)

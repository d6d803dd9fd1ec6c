"""Rows of tables in Postgres data, all of one moment.

Whoever reads holds a `Snapshot`, a transaction that changes nothing. Others may join it by its name for as long as it
is held: Spark tasks in other processes, tried once or several times, see the same rows, whatever is committed
meanwhile. Rows come by ADBC, straight to who wants them.

A table that a sink rewrites for a wider type is empty for every snapshot from before. So a table is locked before it is
read, against changes of its columns alone, and until the snapshot is given up.

Columns are of the types that the reader asks for, whether the table has them so, has wider ones by now, or has none of
that name yet: a column that is added is null in every row that is there.

Of a live dataset a reader reads files up to a boundary and the table above it. Rows leave the table after their files
were committed, and in the snapshot it shows whether some went that the reader's files do not have.

Values are exact. 256-bit integers have more digits than any decimal of Arrow or Spark, so they are text, in decimal
digits; so is JSON, except for columns of lists and structs, which Postgres has as JSON (`nested_values`).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import adbc_driver_manager
import msgspec
import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.errors import BoundaryMovedError, StoreUnavailableError
from tracelake.model.buffered import patient, quoted, shown_rows, table_name
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.ports.direct_tables import TableExtent
from tracelake.storage.nested_values import decode_nested, nested_arrow_type
from tracelake.storage.table_marks import read_mark
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import CursorRange, PayloadInput

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection

ROWS_PER_PART = 200_000
_LAST = 2**63 - 1
_BATCH_BYTES = "adbc.postgresql.batch_size_hint_bytes"
_LOCK_SECONDS = 30.0
_NOT_YET = "The table does not exist yet: a sink creates it with the first batch."
_BY_STATE = {
    "42P01": _NOT_YET,
    "55P03": "The table is being changed, and a task does not wait that long for it.",
}

_EXTENT = "SELECT table_start, sealed_to, removed_to FROM table_extents WHERE dataset_uuid = $1::text::uuid"
_DEFINITION = "SELECT definition::text FROM buffer_tables WHERE dataset_uuid = $1::text::uuid"

# Batches whose rows are counted in their order: the last one, and those at which the count passes a multiple of a size.
_CUTS = """
    WITH batches AS (
        SELECT _commit_seq AS commit, _publish_seq AS batch, count(*) AS rows FROM {table}
        WHERE _commit_seq > {after} AND _commit_seq <= {to} GROUP BY 1, 2),
    counted AS (
        SELECT commit, batch, rows, sum(rows) OVER (ORDER BY commit, batch) AS upto, sum(rows) OVER () AS total
        FROM batches)
    SELECT commit, batch, upto::bigint FROM counted
    WHERE upto = total OR div(upto, {size}) > div(upto - rows, {size}) ORDER BY upto"""

# The same of a table that tasks write directly: positions instead of batches.
_POSITION_CUTS = """
    WITH positions AS (SELECT {position} AS position, count(*) AS rows FROM {table} {condition} GROUP BY 1),
    counted AS (
        SELECT position, rows, sum(rows) OVER (ORDER BY position) AS upto, sum(rows) OVER () AS total FROM positions)
    SELECT position::bigint, upto::bigint FROM counted
    WHERE upto = total OR div(upto, {size}) > div(upto - rows, {size}) ORDER BY upto"""

_ARROW = {
    ColumnType.BOOL: pa.bool_(),
    ColumnType.INT16: pa.int16(),
    ColumnType.INT32: pa.int32(),
    ColumnType.INT64: pa.int64(),
    ColumnType.INT256: pa.string(),
    ColumnType.UINT256: pa.string(),
    ColumnType.FLOAT64: pa.float64(),
    ColumnType.TEXT: pa.string(),
    ColumnType.BYTES: pa.binary(),
    ColumnType.TIMESTAMP: pa.timestamp("us", "UTC"),
    ColumnType.DATE: pa.date32(),
    ColumnType.JSON: pa.string(),
}
_SENT_AS_TEXT = frozenset({ColumnType.INT256, ColumnType.UINT256, ColumnType.DECIMAL, ColumnType.JSON})


def commits_of(item: PayloadInput) -> CursorRange:
    """The commits of a table that a task reads."""
    if item.unit.cursor is None:
        raise NonRetryableError(
            f"the input {item.name} is a table, which is read by commits, but the unit {item.unit.partition_key} is a"
            " partition: give the job `execution_strategy: PerUpdate`"
        )
    return item.unit.cursor


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """Columns of a dataset's table, of the types that are asked for."""

    dataset_uuid: UUID
    columns: tuple[TableColumn, ...]
    kept: tuple[Column | None, ...]
    """Each of them as the table has it; None where it has none."""
    position: str | None = None
    """The column by which units are read, of a table that tasks write directly; None: units are commits."""
    source: str | None = None
    """What rows are read from, if that is not the table itself."""
    types: pa.Schema | None = None
    """Of the same columns, if rows are to have other types than those of `columns`; exactly, or not at all."""

    @property
    def newest_first(self) -> str:
        """The order of rows."""
        if self.position is not None:
            return f"ORDER BY {quoted(self.position)} DESC"
        return "ORDER BY _commit_seq DESC, _publish_seq DESC, _line DESC"

    @property
    def schema(self) -> pa.Schema:
        return arrow_columns(self.columns) if self.types is None else self.types

    @property
    def name(self) -> str:
        return quoted(table_name(self.dataset_uuid))

    def select(self, rest: str) -> str:
        """`rest` is of our own making: what follows FROM."""
        columns = ", ".join(map(_expression, self.columns, self.kept))
        return f"SELECT {columns} FROM {self.source or self.name} {rest}"  # noqa: S608 - a uuid and quoted names

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """What Postgres sent, as it is asked for; exactly, or not at all."""
        schema = self.schema
        parts = zip(schema, self.columns, self.kept, batch.columns, strict=True)
        return pa.RecordBatch.from_arrays([_fit(*part) for part in parts], schema=schema)


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows of some batches, from the first to the last, each given as commit and batch."""

    first: tuple[int, int]
    last: tuple[int, int]

    @property
    def condition(self) -> str:
        """Of both sides the index on `_commit_seq` takes what it can."""
        return f"WHERE (_commit_seq, _publish_seq) >= {self.first} AND (_commit_seq, _publish_seq) <= {self.last}"


@dataclass(frozen=True, slots=True)
class PositionPart:
    """Rows of some positions of a table that tasks write directly, from the first to the last; None: without an end."""

    position: str
    first: int | None
    last: int | None

    @property
    def condition(self) -> str:
        name = quoted(self.position)
        ends = [f"{name} >= {self.first:d}"] if self.first is not None else []
        ends += [f"{name} <= {self.last:d}"] if self.last is not None else []
        return f"WHERE {' AND '.join(ends)}" if ends else ""


class _Definition(msgspec.Struct):
    """What readers need of the recorded definition of a table."""

    schema: Schema
    kind: str = "buffered"


class Snapshot:
    """One moment of Postgres data, on a connection of its own. Raises StoreUnavailableError whenever that is away."""

    def __init__(
        self,
        dsn: str,
        tables: Sequence[UUID] = (),
        *,
        joined: str | None = None,
        lock_seconds: float = _LOCK_SECONDS,
        statement_seconds: float | None = None,
        connected: Callable[["Snapshot"], None] | None = None,
        skip_missing: bool = False,
    ) -> None:
        """A new one for these tables, or one that somebody else holds, by its name, with the tables that he reads.
        `skip_missing`: of these tables only those that are there; a sink makes a table with the first batch.
        `connected` is called before the first statement: from then on another thread may call `cancel`."""
        self._dsn = dsn
        self._locked: set[UUID] = set()
        self._closing = threading.Lock()
        self._closed = False
        with _retryable():
            self._connection = _connect(dsn)
        try:
            if connected is not None:
                connected(self)
            if skip_missing:
                tables = sorted(self._existing() & set(tables))
            self._ask("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if joined is not None:
                self._ask(f"SET TRANSACTION SNAPSHOT '{joined}'")
            self._ask(f"SET LOCAL lock_timeout = {int(lock_seconds * 1000)}")
            if statement_seconds is not None:
                self._ask(f"SET LOCAL statement_timeout = {int(statement_seconds * 1000)}")
            # None of this sees anything yet: the moment is that of the first query, when they are locked.
            for dataset_uuid in tables:
                self._lock(dataset_uuid)
            self.name: str = joined or self._ask("SELECT pg_export_snapshot()")[0][0]
        except BaseException:
            self.close()
            raise

    @property
    def tables(self) -> frozenset[UUID]:
        return frozenset(self._locked)

    def _existing(self) -> set[UUID]:
        return {UUID(text) for (text,) in self._ask("SELECT dataset_uuid::text FROM buffer_tables")}

    def cancel(self) -> None:
        """Ends the statement that another thread waits for: it raises. Nothing happens between two statements. Asks
        the database over a connection of its own, and waits for it."""
        with self._closing, suppress(adbc_driver_manager.Error):
            if not self._closed:
                self._connection.adbc_cancel()

    def close(self) -> None:
        with (
            self._closing,
            suppress(adbc_driver_manager.Error),
        ):  # the driver's memory goes with it: never amid `cancel`
            self._closed = True
            self._connection.close()

    def table(self, dataset_uuid: UUID, columns: Sequence[TableColumn], *, newest_only: bool = False) -> SnapshotTable:
        """These columns, as the table has them: a sink changes it at a time of its own after a deploy. `newest_only`:
        rows that people see, of each key the newest (`Schema.newest_wins`); tasks read the rows of their positions."""
        late = dataset_uuid not in self._locked
        if late:
            self._lock(dataset_uuid)
        definition = self._ask(_DEFINITION, str(dataset_uuid))
        if late and definition != self._defined_now(dataset_uuid):
            raise StoreUnavailableError(
                "The table was changed after the task began to read it; the next attempt reads the new table."
            )
        if not definition:
            raise StoreUnavailableError(_NOT_YET)
        stored = msgspec.json.decode(definition[0][0], type=_Definition)
        stored_columns = tuple(stored.schema.column(column.name) for column in columns)
        position = stored.schema.unique[0] if stored.kind == "direct" else None
        source = shown_rows(quoted(table_name(dataset_uuid)), stored.schema) if newest_only else None
        return SnapshotTable(dataset_uuid, tuple(columns), stored_columns, position, source)

    def has_table(self, dataset_uuid: UUID) -> bool:
        """Whether it existed at the moment of the snapshot."""
        return bool(self._ask(_DEFINITION, str(dataset_uuid)))

    def read_extent(self, dataset_uuid: UUID) -> TableExtent:
        """Of the table of a live dataset."""
        extents = self._ask(_EXTENT, str(dataset_uuid))
        return TableExtent(*extents[0]) if extents else TableExtent()

    def read_mark(self, dataset_uuid: UUID, position: int) -> bytes | None:
        """What the table of a live dataset keeps of a position, such as the hash of a block; None if nothing."""
        return read_mark(self._ask, dataset_uuid, position)

    def check_boundary(self, dataset_uuid: UUID, boundary: int | None) -> None:
        """Raises BoundaryMovedError if the table of a live dataset lacks rows above this boundary, which are in files
        that a reader with this boundary does not know."""
        removed_to = self.removed_to(dataset_uuid)
        if removed_to is not None and (boundary is None or removed_to > boundary):
            files = "none" if boundary is None else f"those up to {boundary}"
            raise BoundaryMovedError(
                f"Rows up to position {removed_to} are in files by now, and of these the task knows {files}: the next"
                " attempt reads the newer files."
            )

    def removed_to(self, dataset_uuid: UUID) -> int | None:
        """The position up to which rows of a live dataset were removed from its table, after files had them; None if
        none were."""
        return self.read_extent(dataset_uuid).removed_to

    def _lock(self, dataset_uuid: UUID) -> None:
        self._ask(f"LOCK TABLE {quoted(table_name(dataset_uuid))} IN ACCESS SHARE MODE")
        self._locked.add(dataset_uuid)

    def _defined_now(self, dataset_uuid: UUID) -> list[tuple[Any, ...]]:
        """Not at the moment of the snapshot. While the table is locked, it stays so."""
        with _retryable(), closing(_connect(self._dsn)) as connection:
            return _ask(connection, _DEFINITION, str(dataset_uuid))

    def split_input(
        self, table: SnapshotTable, item: PayloadInput, size: int, above: int | None = None
    ) -> tuple[Sequence[TablePart | PositionPart], int]:
        """Together every row that the input is, each in one part, with about so many in each; and how many there are.
        Of a table that tasks write directly, a unit is a range of positions, of which only those `above` one may be
        asked for; of others, commits."""
        if table.position is None:
            return self.split(table, commits_of(item), size)
        first, last = item.blocks
        if above is not None:
            first = above + 1 if first is None else max(first, above + 1)
        part = PositionPart(table.position, first, last)
        name = quoted(table.position)
        rows = self._ask(_POSITION_CUTS.format(table=table.name, position=name, condition=part.condition, size=size))
        cuts = [position for position, _ in rows[:-1]]
        firsts = [first, *(position + 1 for position in cuts)]
        parts = [PositionPart(table.position, *ends) for ends in zip(firsts, [*cuts, last], strict=True)]
        return parts, rows[-1][1] if rows else 0

    def split(self, table: SnapshotTable, commits: CursorRange, size: int) -> tuple[list[TablePart], int]:
        """Together every row of these commits, each in one part, with about so many in each; and how many there are."""
        rows = self._ask(_CUTS.format(table=table.name, after=commits.after, to=commits.to, size=size))
        cuts = [(commit, batch) for commit, batch, _ in rows[:-1]]
        firsts = [(commits.after + 1, 0), *((commit, batch + 1) for commit, batch in cuts)]
        parts = [TablePart(first, last) for first, last in zip(firsts, [*cuts, (commits.to, _LAST)], strict=True)]
        return parts, rows[-1][2] if rows else 0

    def count(self, table: SnapshotTable, condition: str) -> int:
        """`condition` is of our own making."""
        ((rows,),) = self._ask(f"SELECT count(*) FROM {table.name} {condition}")  # noqa: S608 - a uuid
        return int(rows)

    def count_up_to(self, table: SnapshotTable, most: int) -> int:
        """The number of rows that people see, or `most` if there are more: it costs no more than reading so many."""
        source = f"SELECT FROM {table.source or table.name} LIMIT {most:d}"
        ((rows,),) = self._ask(f"SELECT count(*) FROM ({source}) shown")  # noqa: S608
        return int(rows)

    def rows(self, table: SnapshotTable, rest: str, *, batch_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
        """By and by: however many there are, no more than some megabytes are in memory."""
        # Without parameters: then the driver streams what it reads.
        with _retryable(), self._connection.cursor() as cursor:
            if batch_bytes is not None:
                cursor.adbc_statement.set_options(**{_BATCH_BYTES: str(batch_bytes)})
            cursor.execute(table.select(rest))
            for batch in cursor.fetch_record_batch():
                yield table.fit(batch)

    def _ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with _retryable():
            return _ask(self._connection, statement, *parameters)


def _connect(dsn: str) -> "Connection":
    import adbc_driver_postgresql.dbapi  # it imports polars: a quarter of a second for processes that read no table

    connection: Connection = adbc_driver_postgresql.dbapi.connect(patient(dsn), autocommit=True)
    return connection


def _ask(connection: "Connection", statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def arrow_columns(columns: Sequence[TableColumn]) -> pa.Schema:
    """Rows of a table with these columns, as readers get them."""
    return pa.schema([(column.name, _arrow(column)) for column in columns])


def _arrow(column: TableColumn) -> pa.DataType:
    if column.type is ColumnType.DECIMAL:
        return pa.decimal128(column.precision or 38, column.scale or 0)
    return _ARROW[column.type] if column.nested is None else nested_arrow_type(column.nested)


def _expression(column: TableColumn, stored: Column | None) -> str:
    name = quoted(column.name)
    if stored is None:
        return f"NULL::text AS {name}"
    return f"{name}::text AS {name}" if stored.type in _SENT_AS_TEXT else name


def _fit(field: pa.Field, column: TableColumn, stored: Column | None, values: pa.Array) -> pa.Array:
    if stored is None:
        return pa.nulls(len(values), field.type)
    try:
        if column.nested is not None and stored.nested == column.nested:
            return decode_nested(values, column.nested, field.type)
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise NonRetryableError(
            f"a value of the column {column.name} no longer fits {_words(column)}, as which this version of the job "
            f"reads it: the table has {_words(stored)}. Activate or deploy a version that declares it so"
        ) from None


def _words(column: TableColumn | Column) -> str:
    if column.type is ColumnType.DECIMAL:
        return f"decimal({column.precision},{column.scale or 0})"
    return column.nested or str(column.type)


@contextmanager
def _retryable() -> Iterator[None]:
    """Statements are ours and right: whatever is wrong may be otherwise in a moment."""
    try:
        yield
    except (adbc_driver_manager.Error, OSError) as error:  # the second is a stream that breaks
        state = getattr(error, "sqlstate", None)
        state_text = f" (SQLSTATE {state})" if state else ""
        raise StoreUnavailableError(
            _BY_STATE.get(state or "", f"Postgres data does not answer{state_text}.")
        ) from error

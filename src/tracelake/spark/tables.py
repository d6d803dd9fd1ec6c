"""Rows of tables in Postgres data, all of one moment.

Whoever reads holds a `Snapshot`, a transaction that changes nothing. Others may join it by its name for as long as it
is held: Spark tasks in other processes, tried once or several times, see the same rows, whatever is committed
meanwhile. Rows come by ADBC, straight to who wants them.

Values are exact. 256-bit integers have more digits than any decimal of Arrow or Spark, so they are text, in decimal
digits; so is JSON.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import msgspec
import pyarrow as pa

from tracelake.errors import StoreUnavailableError
from tracelake.model.dag import Column, ColumnType
from tracelake.wire.buffers import BufferedDataset
from tracelake.wire.units import CursorRange

ROWS_PER_PART = 200_000
_LAST = 2**63 - 1

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


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of a dataset's table, of the types that the table has."""

    dataset_uuid: UUID
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(column.name, _arrow(column)) for column in self.columns])

    @property
    def name(self) -> str:
        return f'"dataset_{self.dataset_uuid}"'

    def select(self, rest: str) -> str:
        """`rest` is of our own making: what follows FROM."""
        columns = ", ".join(map(_expression, self.columns))
        return f"SELECT {columns} FROM {self.name} {rest}"  # noqa: S608 - a uuid and quoted names


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of some batches, from the first to the last, each given as commit and batch."""

    first: tuple[int, int]
    last: tuple[int, int]

    @property
    def condition(self) -> str:
        """Of both sides the index on `_commit_seq` takes what it can."""
        return f"WHERE (_commit_seq, _publish_seq) >= {self.first} AND (_commit_seq, _publish_seq) <= {self.last}"


class Snapshot:
    """One moment of Postgres data, on a connection of its own. Raises StoreUnavailableError whenever that is away."""

    def __init__(self, dsn: str, joined: str | None = None) -> None:
        """A new one, or one that somebody else holds, by its name."""
        with _retryable():
            self._connection = adbc_driver_postgresql.dbapi.connect(dsn, autocommit=True)
        try:
            self._ask("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            if joined is not None:
                self._ask(f"SET TRANSACTION SNAPSHOT '{joined}'")
            self.name: str = joined or self._ask("SELECT pg_export_snapshot()")[0][0]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        with suppress(adbc_driver_manager.Error):
            self._connection.close()

    def table(self, dataset_uuid: UUID, columns: Sequence[str]) -> Table:
        """What the table itself says of these columns: a sink changes it at a time of its own after a deploy."""
        found = self._ask(_DEFINITION, str(dataset_uuid))
        if not found:
            raise StoreUnavailableError("The table is not there yet: a sink makes it with the first batch.")
        schema = msgspec.json.decode(found[0][0], type=BufferedDataset).schema
        there = {column.name: column for column in schema.columns}
        if missing := [name for name in columns if name not in there]:
            raise StoreUnavailableError(
                f"The table has no column {missing[0]} yet: a sink adds it with the next batch."
            )
        return Table(dataset_uuid, tuple(there[name] for name in columns))

    def split(self, table: Table, commits: CursorRange, size: int) -> tuple[list[Part], int]:
        """Together every row of these commits, each in one part, with about so many in each; and how many there are."""
        found = self._ask(_CUTS.format(table=table.name, after=commits.after, to=commits.to, size=size))
        cuts = [(commit, batch) for commit, batch, _ in found[:-1]]
        firsts = [(commits.after + 1, 0), *((commit, batch + 1) for commit, batch in cuts)]
        parts = [Part(first, last) for first, last in zip(firsts, [*cuts, (commits.to, _LAST)], strict=True)]
        return parts, found[-1][2] if found else 0

    def rows(self, table: Table, rest: str) -> Iterator[pa.RecordBatch]:
        """By and by: however many there are, no more than some megabytes are in memory."""
        schema = table.schema
        # Without parameters: then the driver streams what it reads.
        with _retryable(), self._connection.cursor() as cursor:
            cursor.execute(table.select(rest))
            for batch in cursor.fetch_record_batch():
                yield batch.cast(schema)

    def _ask(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with _retryable(), self._connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []


def _arrow(column: Column) -> pa.DataType:
    if column.type is ColumnType.DECIMAL:
        return pa.decimal128(column.precision or 38, column.scale or 0)
    return _ARROW[column.type]


def _expression(column: Column) -> str:
    name = '"' + column.name.replace('"', '""') + '"'
    return f"{name}::text AS {name}" if column.type in _SENT_AS_TEXT else name


@contextmanager
def _retryable() -> Iterator[None]:
    """Statements are ours and right: whatever is wrong may be otherwise in a moment."""
    try:
        yield
    except (adbc_driver_manager.Error, OSError) as error:  # the second is a stream that breaks
        state = getattr(error, "sqlstate", None)
        said = f" (SQLSTATE {state})" if state else ""
        raise StoreUnavailableError(f"Postgres data does not answer{said}.") from error

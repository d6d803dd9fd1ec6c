"""From a dataset to a frame: exactly the given files, of the given range, or rows of its table, of the given commits;
with `where` applied.

On one machine the files are fetched once, linked, and read by Spark's own Parquet reader, which skips what range and
filters leave out. Elsewhere each executor fetches its files and reads the range of them; `where` is applied after.

All files of one read have the same columns of the same types. Where they differ, since what writes them was changed,
the read is refused: filling in nulls or widening types would be a guess. Files of a live dataset are read with the
columns of its table instead, which may have got some since a file was written: they are null in its rows.

Tables are read by the executors, in parts, all of one snapshot that the driver holds.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from tracelake.catalogue.context import LiveInput, NonRetryableError, TableInput
from tracelake.catalogue.sql.columns.types import POSITIONS, TIMES
from tracelake.model.dag import ColumnType
from tracelake.model.windows import dates_between
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark.input_files import BLOCK, InputFiles, check_columns, downloaded, fill_columns, to_literal
from tracelake.spark.integer_types import signed
from tracelake.spark.live_columns import LiveColumns
from tracelake.spark.signed import lend_files
from tracelake.storage.file_cache import FileCache
from tracelake.storage.live_tables import cut_table
from tracelake.storage.snapshots import (
    ROWS_PER_PART,
    PositionPart,
    Snapshot,
    SnapshotTable,
    TablePart,
)
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import PayloadInput, ReadScope, Scalar

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_ROWS_PER_BATCH = 20_000
BYTES_PER_VALUE = 16
"""Of a table, about."""
Where: TypeAlias = Mapping[str, Scalar | list[Scalar]]


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of the files are wanted."""

    start: int | None = None
    end: int | None = None
    where: Where | None = None
    column: str | None = None
    first: int = 0
    last: int = 0
    """Rows in which `column`, a number or a time, is `first` to `last`; times count seconds since 1970."""
    empty: bool = False
    """No row at all: the files only tell the columns."""
    time_zone: str = "UTC"
    """Whose days dates in `column` are."""

    @classmethod
    def of(cls, item: PayloadInput) -> "Selection":
        scope = item.scope
        if scope is None:
            return cls(*item.unit.blocks, item.where)
        start, end = item.blocks
        return _selection(start, end, item.where, scope)


@dataclass(frozen=True, slots=True)
class Reader:
    session: "SparkSession"
    cache: FileCache
    scratch: Path
    """The task's own: links to what it reads. The caller removes it."""
    local: bool

    def read(
        self, name: str, files: Sequence[ObjectMeta], selection: Selection, live: LiveColumns | None = None
    ) -> "DataFrame":
        """`live`: the columns of the table, if these are files of a live dataset."""
        if self.local:
            paths, first = self._link(name, files, live)
            schema = _spark_schema(first) if live is None else live.spark_schema()
            reader = self.session.read if schema is None else self.session.read.schema(schema)
            frame = reader.parquet(*(str(path) for path in paths))
        else:
            frame = self._read_by_executors(name, files, selection, live)
        return select(frame, name, selection)

    def open(
        self, name: str, files: Sequence[ObjectMeta], selection: Selection, live: LiveColumns | None = None
    ) -> InputFiles:
        """The files for Spark tasks that read them by themselves."""
        if self.local:
            paths, schema = self._link(name, files, live)
        else:
            paths, schema = None, self._schema(name, files, live)
        where = dict(selection.where or {})
        if missing := [field for field in where if field not in schema.names]:
            raise NonRetryableError(f"`where` names {missing[0]!r}, which {name} does not have")
        if selection.start is None or selection.end is None:
            raise NonRetryableError(f"the input {name} is read by blocks, but its unit is not a range of blocks")
        lent = self.cache.transfer if self.local else lend_files(self.cache.transfer, files)
        start, end = (1, 0) if selection.empty else (selection.start, selection.end)
        return InputFiles(name, schema, tuple(files), paths, lent, start, end, where, live)

    def _link(
        self, name: str, files: Sequence[ObjectMeta], live: LiveColumns | None
    ) -> tuple[tuple[Path, ...], pa.Schema]:
        """Local links to the files, and the columns of their rows."""
        _check_present(name, files)
        paths = self.cache.link(files, self.scratch / name)
        first = pq.read_schema(paths[0])
        for path, file in zip(paths, files, strict=True):
            check_columns(name, (files[0], first), (file, pq.read_schema(path)), live)
        return tuple(paths), first if live is None else live.schema

    def _schema(self, name: str, files: Sequence[ObjectMeta], live: LiveColumns | None) -> pa.Schema:
        """The columns of the first file; of a live dataset those of its table."""
        _check_present(name, files)
        if live is not None:
            return live.schema
        self.scratch.mkdir(parents=True, exist_ok=True)
        with downloaded(self.cache.transfer, files[0], self.scratch) as first:
            return pq.read_schema(first)

    def _read_by_executors(
        self, name: str, files: Sequence[ObjectMeta], selection: Selection, live: LiveColumns | None
    ) -> "DataFrame":
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = self._schema(name, files, live)
        rows = [(file.uri, file.size, file.etag, file.sha256) for file in files]
        frame = self.session.createDataFrame(rows, "uri string, size long, etag string, sha256 string")
        placed = frame.repartition(min(len(files), 200))
        lent = lend_files(self.cache.transfer, files)
        fetch = _fetch_function(lent, name, (files[0], schema), selection, live)
        return placed.mapInArrow(fetch, from_arrow_schema(signed(schema)))


def _check_present(name: str, files: Sequence[ObjectMeta]) -> None:
    if not files:
        raise NonRetryableError(f"the input {name} has no files for this unit")


@dataclass(slots=True)
class TableReader:
    """For one attempt. All tables that it reads are of one moment, which is held until `close`."""

    session: "SparkSession"
    dsn: Callable[[], str]
    rows_per_part: int = ROWS_PER_PART
    snapshot: Snapshot | None = None

    def read(self, item: PayloadInput, declared: TableInput | LiveInput) -> "tuple[DataFrame, int]":
        """The rows, and about how many bytes they are. Of a live dataset: those above its boundary."""
        from pyspark.sql.pandas.types import from_arrow_schema

        dsn = self.dsn()
        if self.snapshot is None:
            self.snapshot = Snapshot(dsn, [item.dataset_uuid], skip_missing=isinstance(declared, LiveInput))
        table, parts, rows = cut_table(self.snapshot, item, declared, self.rows_per_part)
        # A range has one number in each of its partitions.
        frame = self.session.range(0, len(parts), 1, max(1, len(parts))).mapInArrow(
            _part_function(dsn, self.snapshot.name, table, parts), from_arrow_schema(table.schema)
        )
        selection = select_of_table(item, declared)
        return select(frame, item.name, selection), rows * len(table.columns) * BYTES_PER_VALUE

    def hold(self, tables: Sequence[UUID]) -> tuple[str, Snapshot]:
        """For operators whose Spark tasks read these tables by themselves: the address of the database, and the
        snapshot that they join."""
        dsn = self.dsn()
        if self.snapshot is None:
            self.snapshot = Snapshot(dsn, tables)
        return dsn, self.snapshot

    def close(self) -> None:
        if self.snapshot is not None:
            self.snapshot.close()


def _part_function(
    dsn: str, snapshot: str, table: SnapshotTable, parts: Sequence[TablePart | PositionPart]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with closing(Snapshot(dsn, joined=snapshot)) as joined:
                    yield from joined.rows(table, parts[number].condition)

    return fetch


def select_of_table(item: PayloadInput, source: TableInput | LiveInput) -> Selection:
    """What a task reads of the rows of its unit: `where`, and of a window the values that lie in it."""
    declared = source.table if isinstance(source, LiveInput) else source
    values = kept_values(declared.columns, item.where)
    if not declared.by_position or item.scope is None:
        return Selection(where=values)
    scope = item.scope
    return _selection(None, None, values, scope)


def _selection(start: int | None, end: int | None, where: Where | None, scope: ReadScope) -> Selection:
    rows = (scope.column, scope.first or 0, scope.last or 0, scope.empty)
    return Selection(start, end, where, *rows, time_zone=scope.time_zone or "UTC")


def kept_values(columns: Sequence[TableColumn], where: Where | None) -> dict[str, Any]:
    """Numbers that Spark would compare as something less exact, as the frame has them."""
    exact: dict[ColumnType, Callable[[Any], Any]] = {
        ColumnType.INT256: lambda value: str(int(value)),
        ColumnType.UINT256: lambda value: str(int(value)),
        ColumnType.DECIMAL: lambda value: Decimal(str(value)),
    }
    kinds = {column.name: column.type for column in columns}
    by_column: dict[str, Any] = {}
    for field, value in (where or {}).items():
        convert = exact.get(kinds[field]) if field in kinds else None
        values = value if isinstance(value, list) else [value]
        by_column[field] = [item if item is None or convert is None else convert(item) for item in values]
    return by_column


def _spark_schema(schema: pa.Schema) -> "StructType | None":
    """What Spark's reader would make of these columns: told, it needs no job to find out. None where we do not know."""
    from pyspark.sql.pandas.types import from_arrow_schema

    plain = (
        types.is_integer,
        types.is_float32,
        types.is_float64,
        types.is_boolean,
        types.is_string,
        types.is_binary,
        types.is_decimal128,
        types.is_date32,
    )
    if not all(any(is_one(field.type) for is_one in plain) for field in schema):
        return None
    return from_arrow_schema(signed(schema))


def _fetch_function(
    transfer: FileTransfer,
    name: str,
    first: tuple[ObjectMeta, pa.Schema],
    selection: Selection,
    live: LiveColumns | None,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    schema = signed(first[1])

    def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.dataset as ds  # it imports pandas, which workers do not need

        for batch in batches:
            for row in batch.to_pylist():
                meta = ObjectMeta(row["uri"], row["size"], row["etag"], row["sha256"])
                with downloaded(transfer, meta) as path:
                    present = pq.read_schema(path)
                    check_columns(name, first, (meta, present), live)
                    names = [column for column in schema.names if column in present.names]
                    # By and by: however large the file is, no more than some batches of it are in memory.
                    row_filter = _arrow_filter(schema, selection)
                    file_batches = ds.dataset(path, format="parquet").to_batches(names, row_filter, _ROWS_PER_BATCH)
                    yield from (fill_columns(part, schema) for part in file_batches if part.num_rows)

    return fetch


def _arrow_filter(schema: pa.Schema, selection: Selection) -> "pa.compute.Expression | None":
    import pyarrow.compute as pc

    if selection.start is None or selection.end is None or BLOCK not in schema.names:
        return None
    return (pc.field(BLOCK) >= selection.start) & (pc.field(BLOCK) <= selection.end)


def select(frame: "DataFrame", name: str, selection: Selection) -> "DataFrame":
    if selection.start is not None and selection.end is not None and BLOCK in frame.columns:
        # As text: each part of an expression is a round trip to Java.
        frame = frame.filter(f"{BLOCK} BETWEEN {selection.start:d} AND {selection.end:d}")
    if selection.empty:
        frame = frame.filter("false")
    if selection.column is not None:
        frame = frame.filter(_between(frame, name, selection.column, selection))
    for field, value in (selection.where or {}).items():
        if field not in frame.columns:
            raise NonRetryableError(f"`where` names {field!r}, which {name} does not have")
        frame = frame.filter(_matches(frame, field, value))
    return frame


def _between(frame: "DataFrame", name: str, column: str, selection: Selection) -> str:
    """The rows of a window. A date is in the window if its first moment, by the clock of the zone, is."""
    first, last = selection.first, selection.last
    if column not in frame.columns:
        raise NonRetryableError(f"`by` names {column!r}, which {name} does not have")
    kind = frame.schema[column].dataType.simpleString().partition("(")[0]
    if kind == "date":
        first_date, last_date = dates_between(selection.time_zone, first, last)
        return f"`{column}` BETWEEN DATE'{first_date}' AND DATE'{last_date}'"
    if kind in TIMES:
        return f"`{column}` >= timestamp_seconds({first:d}L) AND `{column}` < timestamp_seconds({last + 1:d}L)"
    if kind not in POSITIONS:
        raise NonRetryableError(
            f"`by` names {column!r} of {name}, which is {kind}: expected a time, a date or a whole number"
        )
    return f"`{column}` BETWEEN {first:d} AND {last:d}"


def _matches(frame: "DataFrame", field: str, value: Scalar | list[Scalar]) -> "Column":
    import pyspark.sql.functions as F  # noqa: N812

    column = F.col(f"`{field}`")
    binary = frame.schema[field].dataType.typeName() == "binary"
    literals = [to_literal(item, binary=binary) for item in (value if isinstance(value, list) else [value])]
    some = [item for item in literals if item is not None]
    condition = column.isin(some) if len(some) != 1 else column == F.lit(some[0])
    return condition if len(some) == len(literals) else condition | column.isNull()

"""The one writer of Parquet files: partitioned and sorted by block, written with pyarrow inside Spark's tasks, uploaded
to the attempt's own prefix. What comes back to the driver are reports of parts, never the data.

A file appears whole or not at all, and never replaces another: its name has a part that no other writer has, and it is
created, not overwritten. Spark may run a part twice (a retry, a speculative copy, a straggler that nobody waits for):
each run leaves a file of its own, and the driver knows which run Spark took. `_SUCCESS` is written last, by the driver,
and names the files that are the content; whatever else lies below the prefix is none of it.
"""

import contextlib
import secrets
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.catalogue.context import NonRetryableError
from tracelake.model.locations import MARKER_FORMAT
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark.part_sinks import InPlaceSink, SplitSink, decode_report
from tracelake.spark.parts import arrow_schema, write_parts
from tracelake.spark.signed import LendingTransfer, upload_first

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

SUCCESS = "_SUCCESS"
ROWS_PER_GROUP = 128 * 1024
GROUP_BYTES = 32 * 1024 * 1024
Split: TypeAlias = Callable[[pa.RecordBatch], Iterable[tuple[int, pa.RecordBatch]]]
"""From rows to rows of outputs, by their number."""
_NAMES_PER_FILE = 8
"""More than Spark tries a task."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where an output of one attempt goes, and what its files are called."""

    prefix: str
    dataset: str
    transfer: FileTransfer
    block_column: str | None = "block_number"
    """By which rows are sorted and files named; None for data that knows no blocks."""
    names: Mapping[tuple[int, int], Sequence[str]] = field(default_factory=dict)
    """Of new files, where they were chosen before."""

    def uri(self, start: int, end: int) -> str:
        """A new one for each call: no two writers share a name."""
        return f"{self.prefix}{self.dataset}_{start}_{end}.{secrets.token_hex(8)}.parquet"

    def lend(self, ranges: Sequence[tuple[int, int]]) -> "Target":
        """For Spark's Python processes, which write files of these."""
        if not isinstance(self.transfer, LendingTransfer):
            return self
        names = {blocks: [self.uri(*blocks) for _ in range(_NAMES_PER_FILE)] for blocks in ranges}
        transfer = self.transfer.lend(names=[name for some in names.values() for name in some])
        return replace(self, transfer=transfer, names=names)

    def upload(self, path: Path, start: int, end: int) -> ObjectMeta:
        names = self.names.get((start, end))
        return upload_first(self.transfer, path, [self.uri(start, end)] if names is None else names)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    meta: ObjectMeta
    rows: int


@dataclass(frozen=True, slots=True)
class Written:
    """What an output holds now."""

    files: list[WrittenFile] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        return sum(file.meta.size for file in self.files)


class PartWriter:
    """One file. Batches are written as row groups fill up, so that memory does not grow with the file.

    `order`: the columns by which rows come sorted, ascending with nulls first, as Spark sorts; the file says so.
    Without it rows come in the order of blocks."""

    def __init__(
        self, target: Target, schema: pa.Schema, *, order: Sequence[str] | None = None, codec: str = "zstd"
    ) -> None:
        self._target = target
        self._schema = schema
        # Without a name in any directory: whoever is killed leaves nothing behind.
        self._file = tempfile.TemporaryFile(prefix="trace-part-")  # noqa: SIM115
        self.path = Path(f"/proc/self/fd/{self._file.fileno()}")
        if order is None:
            order = () if target.block_column is None else (target.block_column,)
        self._writer = pq.ParquetWriter(
            self.path,
            schema,
            compression=codec,
            compression_level=1,
            write_page_index=True,
            sorting_columns=_sorting(schema, order) or None,
            store_schema=False,
        )
        self.rows = 0
        self._waiting: list[pa.Table] = []
        self._waiting_rows = self._waiting_bytes = 0

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        if not batch.num_rows:
            return  # a row group has at least one
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if table.schema != self._schema:
            table = table.cast(self._schema)
        self.rows += table.num_rows
        self._waiting.append(table)
        self._waiting_rows += table.num_rows
        self._waiting_bytes += table.nbytes
        if self._waiting_rows >= ROWS_PER_GROUP or self._waiting_bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting)
            size = table.num_rows if table.num_rows < 2 * ROWS_PER_GROUP else ROWS_PER_GROUP
            self._writer.write_table(table, row_group_size=size)
            self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def upload(self, start: int, end: int) -> WrittenFile:
        self._flush()
        self._writer.close()
        return WrittenFile(self._target.upload(self.path, start, end), self.rows)

    def discard(self) -> None:
        """Also after an upload: the local file goes in any case."""
        with contextlib.suppress(OSError):  # a full disk was heard of before
            self._writer.close()
        self._writer.is_open = False
        self._file.close()


@dataclass(frozen=True, slots=True)
class Spread:
    """How rows are laid out in files."""

    files: int = 1
    """At most so many. Of several, each has blocks of its own."""
    small: bool = False
    """The rows are made from so little that one Spark task makes all of them."""
    exact: bool = False
    """Somebody asked for so many files. Otherwise rows that know no blocks are one file: nothing could name others."""
    in_place: tuple[tuple[int, int], ...] = ()
    """Blocks of the files that are read, none in two of them, if rows probably come as they are there."""


@dataclass(frozen=True, slots=True)
class SplitOutput:
    target: Target
    schema: pa.Schema

    def open(self, order: Sequence[str]) -> PartWriter:
        """A file of it."""
        return PartWriter(self.target, self.schema, order=order)


def write_frame(
    frame: "DataFrame",
    target: Target,
    start: int,
    end: int,
    *,
    order: Sequence[str] = (),
    spread: Spread = Spread(),  # noqa: B008 - it cannot be changed
    unique: Sequence[str] = (),
) -> Written:
    """All rows of the frame, in one file that is named after the unit, or in several, named after their blocks."""
    output = SplitOutput(target, arrow_schema(frame))
    by = target.block_column
    if spread.in_place and by in frame.columns and pa.types.is_integer(output.schema.field(by).type):
        columns = list(order) or [by]
        if columns[0] == by and (files := _write_in_place(frame, output, (start, end), columns, spread, unique)):
            return Written(files)
    result = write_split(frame, {0: output}, _everything, start, end, order=order, spread=spread, unique=unique)
    return result.written[0]


def _everything(batch: pa.RecordBatch) -> "list[tuple[int, pa.RecordBatch]]":
    return [(0, batch)]


def _write_in_place(
    frame: "DataFrame",
    output: SplitOutput,
    unit: tuple[int, int],
    order: Sequence[str],
    spread: Spread,
    unique: Sequence[str],
) -> list[WrittenFile]:
    """A file for each that is read, without an exchange, and without a sort where blocks come in order: what the query
    makes of rows rarely moves them. Each file looks whether that is so; if it is not, nothing is returned, and what was
    written is no content of anything."""
    ranges = spread.in_place
    # Files have an order already. Where others come in it, each partition still has them in that of their blocks.
    placed = frame if len(order) == 1 else frame.sortWithinPartitions(*order)
    lent = replace(output, target=output.target.lend(ranges))
    reports = write_parts(placed, partial(InPlaceSink, lent, unit, ranges, order), unique=unique, single=False)
    if reports is None:
        return []
    files = [file for report in reports for file in decode_report(report).files]
    if len({file.output for file in files}) < len(files):
        return []  # two partitions had rows of one range
    content = [WrittenFile(file.meta, file.rows) for file in files]
    content = content or [write_empty(output.target, output.schema, *unit)]
    return sorted(content, key=lambda file: file.meta.uri)


@dataclass(frozen=True, slots=True)
class SplitWritten:
    written: dict[int, Written]
    """By output."""
    received: int
    """Rows of the frame."""
    dropped: int = 0
    """Rows that `split` made for an output that is not there."""


def write_split(
    frame: "DataFrame",
    outputs: Mapping[int, SplitOutput],
    split: Split,
    start: int,
    end: int,
    *,
    order: Sequence[str] = (),
    spread: Spread = Spread(),  # noqa: B008
    unique: Sequence[str] = (),
) -> SplitWritten:
    """What `split` makes of the rows of the frame, each output in files of its own, in one pass.

    `split` sees batches in the order of the rows, and gives rows in that order."""
    from pyspark.sql.types import NumericType

    by = next(iter(outputs.values())).target.block_column
    by = by if by in frame.columns else None
    if by is not None and not isinstance(frame.schema[by].dataType, NumericType):
        raise NonRetryableError(f"the column {by} is {frame.schema[by].dataType.simpleString()}, and not a number")
    files = spread.files if by is not None or spread.exact else 1
    files = files if by is None else max(1, min(files, end - start + 1))
    placed = _placed(frame, by, start, end, files, small=spread.small)
    columns = list(order) or ([by] if by else [])
    if columns:
        placed = placed.sortWithinPartitions(*columns)
    ranges = _ranges((start, end), by, files)
    lent = {number: replace(output, target=output.target.lend(ranges)) for number, output in outputs.items()}
    make = partial(SplitSink, lent, split, by, (start, end), ranges, columns)
    reports = [decode_report(report) for report in write_parts(placed, make, unique=unique, single=files == 1) or ()]
    files_by_output: dict[int, list[WrittenFile]] = {number: [] for number in outputs}
    for file in (file for report in reports for file in report.files):
        files_by_output[file.output].append(WrittenFile(file.meta, file.rows))
    for number, output in outputs.items():
        if not files_by_output[number]:
            files_by_output[number] = [write_empty(output.target, output.schema, start, end)]
    return SplitWritten(
        {number: Written(sorted(files, key=lambda file: file.meta.uri)) for number, files in files_by_output.items()},
        sum(report.received for report in reports),
        sum(report.dropped for report in reports),
    )


def _placed(frame: "DataFrame", by: str | None, start: int, end: int, files: int, *, small: bool) -> "DataFrame":
    """The rows, with a partition for each file. However they are made, they are made once, and side by side."""
    if files == 1:
        # An exchange lets everything before it run in parallel; where there is little to do, it would be all the work.
        return frame.coalesce(1) if small else frame.repartition(1)
    if by is None:
        return frame.repartition(files)
    # Not repartitionByRange: it makes all rows twice, once to look for ends of ranges. These are known here.
    return frame.repartitionById(files, _place_of(frame, by, start, end, files))


def _place_of(frame: "DataFrame", by: str, start: int, end: int, files: int) -> "Column":
    """In which of the equal parts of the range a block is. Blocks before and after it are in the first and the last."""
    import pyspark.sql.functions as F  # noqa: N812 - as everybody calls it

    width = _width(start, end, files)
    block = F.least(F.greatest(frame[by], F.lit(start)), F.lit(end)).cast("bigint")
    return F.call_function("div", block - F.lit(start), F.lit(width)).cast("int")


def write_empty(target: Target, schema: pa.Schema, start: int, end: int) -> WrittenFile:
    """A unit without rows is there all the same, with its columns."""
    part = PartWriter(target, schema)
    try:
        return part.upload(start, end)
    finally:
        part.discard()


def _sorting(schema: pa.Schema, order: Sequence[str]) -> list[pq.SortingColumn]:
    """What a file may claim of its order: the first columns of it whose order Parquet defines as Spark does. Nested
    columns have none, and numbers that may be NaN are ordered by each in its own way."""
    claims: list[pq.SortingColumn] = []
    for name in order:
        index = schema.get_field_index(name)
        if index < 0 or pa.types.is_nested(schema.types[index]) or pa.types.is_floating(schema.types[index]):
            break
        leaf = sum(_count_leaves(kind) for kind in schema.types[:index])
        claims.append(pq.SortingColumn(leaf, nulls_first=True))
    return claims


def _count_leaves(kind: pa.DataType) -> int:
    """Columns of a file that a column of a table becomes."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_count_leaves(kind.field(number).type) for number in range(kind.num_fields))


def mark_success(target: Target, files: Sequence[WrittenFile]) -> None:
    """These files, with these bytes, and no others below the prefix, are the output's content."""
    if any(file.meta.sha256 is None for file in files):
        raise ValueError("a file was uploaded without its hash")
    entries = [
        {"name": file.meta.uri.removeprefix(target.prefix), "size": file.meta.size, "sha256": file.meta.sha256}
        for file in files
    ]
    with tempfile.TemporaryFile(prefix="trace-success-") as marker:
        marker.write(MARKER_FORMAT + msgspec.json.encode(entries) + b"}")
        marker.flush()
        target.transfer.upload(Path(f"/proc/self/fd/{marker.fileno()}"), target.prefix + SUCCESS)


def _ranges(unit: tuple[int, int], by: str | None, files: int) -> list[tuple[int, int]]:
    """What files are named after: the unit, equal parts of it, or numbers."""
    if files == 1:
        return [unit]
    if by is None:
        return [(number, number) for number in range(files)]
    start, end = unit
    width = _width(start, end, files)
    return [(first, min(end, first + width - 1)) for first in range(start, end + 1, width)]


def _width(start: int, end: int, files: int) -> int:
    return -(-(end - start + 1) // files)

"""The one writer of Parquet files: partitioned and sorted by block, written with pyarrow inside Spark's tasks, uploaded
to the attempt's own prefix. What comes back to the driver are rows of the manifest, never the data.

A file appears whole or not at all, and its name follows from what it holds: a part that Spark runs twice writes the
same file again. `_SUCCESS` is written last, by the driver, when every part is there.
"""

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.ports import FileTransfer, ObjectMeta

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SUCCESS = "_SUCCESS"
ROWS_PER_GROUP = 128 * 1024
PartFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
_MANIFEST = "uri string, size long, etag string, rows long"


@dataclass(frozen=True, slots=True)
class Target:
    """Where an output of one attempt goes, and what its files are called."""

    prefix: str
    dataset: str
    transfer: FileTransfer
    block_column: str | None = "block_number"
    """By which rows are sorted and files named; None for data that knows no blocks."""

    def uri(self, start: int, end: int) -> str:
        return f"{self.prefix}{self.dataset}_{start}_{end}.parquet"


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
    """One file. Batches are written as they come, so that memory does not grow with them."""

    def __init__(self, target: Target, schema: pa.Schema, *, codec: str = "zstd") -> None:
        self._target = target
        self._schema = schema
        # Without a name in any directory: whoever is killed leaves nothing behind.
        self._file = tempfile.TemporaryFile(prefix="trace-part-")  # noqa: SIM115
        self.path = Path(f"/proc/self/fd/{self._file.fileno()}")
        sorting = []
        if target.block_column is not None and target.block_column in schema.names:
            sorting = [pq.SortingColumn(schema.get_field_index(target.block_column))]
        self._writer = pq.ParquetWriter(
            self.path,
            schema,
            compression=codec,
            compression_level=3,
            write_page_index=True,
            sorting_columns=sorting or None,
            store_schema=False,
        )
        self.rows = 0

    def write(self, batch: pa.RecordBatch | pa.Table) -> None:
        table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
        if table.schema != self._schema:
            table = table.cast(self._schema)
        self._writer.write_table(table, row_group_size=ROWS_PER_GROUP)
        self.rows += table.num_rows

    def upload(self, start: int, end: int) -> WrittenFile:
        self._writer.close()
        return WrittenFile(self._target.transfer.upload(self.path, self._target.uri(start, end)), self.rows)

    def discard(self) -> None:
        """Also after an upload: the local file goes in any case."""
        with contextlib.suppress(OSError):  # a full disk was heard of before
            self._writer.close()
        self._writer.is_open = False
        self._file.close()


def write_frame(
    frame: "DataFrame", target: Target, start: int, end: int, *, order: Sequence[str] = (), files: int = 1
) -> Written:
    """All rows of the frame, as `files` files at most, named after the unit or, if several, their own blocks."""
    import pyspark.sql.functions as F  # noqa: N812 - as everybody calls it

    by = target.block_column if target.block_column in frame.columns else None
    columns = list(order) or ([by] if by else [])
    if files == 1 or by is None:
        placed = frame.coalesce(1) if files == 1 else frame.repartition(files)
    else:
        placed = frame.repartitionByRange(files, F.col(by))
    if columns:
        placed = placed.sortWithinPartitions(*columns)
    schema = _arrow_schema(frame)
    rows = placed.mapInArrow(_part_function(target, schema, by, (start, end), files), _MANIFEST).collect()
    written = [WrittenFile(ObjectMeta(row.uri, row.size, row.etag), row.rows) for row in rows]
    if not written:
        written = [write_empty(target, schema, start, end)]
    return Written(sorted(written, key=lambda file: file.meta.uri))


def write_empty(target: Target, schema: pa.Schema, start: int, end: int) -> WrittenFile:
    """A unit without rows is there all the same, with its columns."""
    part = PartWriter(target, schema)
    try:
        return part.upload(start, end)
    finally:
        part.discard()


def mark_success(target: Target) -> None:
    with tempfile.NamedTemporaryFile(prefix="trace-success-") as empty:
        target.transfer.upload(Path(empty.name), target.prefix + SUCCESS)


def manifest_batch(files: Sequence[WrittenFile]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "uri": [file.meta.uri for file in files],
            "size": pa.array([file.meta.size for file in files], pa.int64()),
            "etag": [file.meta.etag for file in files],
            "rows": pa.array([file.rows for file in files], pa.int64()),
        }
    )


def _part_function(
    target: Target, schema: pa.Schema, by: str | None, unit: tuple[int, int], files: int
) -> PartFunction:
    def write_part(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        part = None
        blocks: list[int] = []
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if part is None:
                    part = PartWriter(target, schema)
                if by is not None and files > 1:
                    column = batch.column(by)
                    blocks = [column[0].as_py() if not blocks else blocks[0], column[batch.num_rows - 1].as_py()]
                part.write(batch)
            if part is not None:
                yield manifest_batch([part.upload(*_named(unit, blocks, files))])
        finally:
            if part is not None:
                part.discard()

    return write_part


def _named(unit: tuple[int, int], blocks: Sequence[int], files: int) -> tuple[int, int]:
    if files == 1:
        return unit
    if blocks:
        return blocks[0], blocks[1]
    from pyspark import TaskContext

    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    return number, number


def _arrow_schema(frame: "DataFrame") -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    schema: pa.Schema = to_arrow_schema(frame.schema, timezone="UTC")
    return schema

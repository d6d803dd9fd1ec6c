"""What a process of a feed writes: a Parquet file, or batches of JSON lines, into an open file of the worker."""

import os
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.catalogue.context import NonRetryableError
from tracelake.feeds.errors import BadRowError, FeedError
from tracelake.feeds.mapping import arrow_schema
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.rows.encoder import encode
from tracelake.rows.reader import BadBatchError, BatchReader
from tracelake.spark.batches import MAX_BYTES, make_judge

_ROWS_PER_GROUP = 128 * 1024
_ROWS_AT_ONCE = 500


class FilePiece(msgspec.Struct, frozen=True, array_like=True):
    """A part of the file that is an object of its own."""

    size: int
    rows: int


class ParquetOutput:
    """All rows as one file; sorted by `order`, or as they come."""

    def __init__(self, file: BinaryIO, columns: tuple[Column, ...], order: str | None = None) -> None:
        self._file, self._order = file, order
        self._schema = arrow_schema(columns)
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._rows += batch.num_rows

    def finish(self) -> list[FilePiece]:
        table = pa.Table.from_batches(self._batches, self._schema)
        if self._order is not None:
            table = table.sort_by(self._order)
        with pq.ParquetWriter(
            self._file, self._schema, compression="zstd", compression_level=1, write_page_index=True, store_schema=False
        ) as writer:
            if self._rows:
                writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
        self._file.flush()
        return [FilePiece(os.fstat(self._file.fileno()).st_size, self._rows)]


class LinesOutput:
    """Batches for a sink, one behind the other. Each row is judged by the declared schema, as the sink will."""

    def __init__(self, file: BinaryIO, columns: tuple[Column, ...], schema: Schema | None, dataset: str) -> None:
        self._file = file
        self._judge = None if schema is None else make_judge(schema, dataset, _advise)
        self._json = _json_names(columns)
        self._pieces: list[FilePiece] = []
        self._size = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            part = batch.slice(start, _ROWS_AT_ONCE)
            lines = _encode_lines(part, self._json)
            if self._judge is not None:
                try:
                    self._judge(b"".join(lines))
                except NonRetryableError as error:
                    raise FeedError(str(error), final=True) from None
            for line in lines:
                if self._size + len(line) > MAX_BYTES:
                    self._end_piece()
                self._file.write(line)
                self._size += len(line)
                self._rows += 1

    def _end_piece(self) -> None:
        if self._rows:
            self._pieces.append(FilePiece(self._size, self._rows))
            self._size = self._rows = 0

    def finish(self) -> list[FilePiece]:
        self._end_piece()
        self._file.flush()
        return self._pieces


class SchemaFilter:
    """Finds the rows that do not fit the declared schema of a buffered dataset, as its sink will judge them."""

    def __init__(self, columns: tuple[Column, ...], schema: Schema) -> None:
        self._reader = BatchReader(schema)
        self._json = _json_names(columns)
        self._names = {column.name for column in schema.columns}
        names = {column.name for column in columns}
        needed = {column.name for column in schema.columns if not column.nullable}
        self._is_for_rows = needed <= names <= {*self._names, "org_id"}
        """Otherwise no row at all would fit, which is an error of the config and not of the rows."""

    def find_misfits(self, batch: pa.RecordBatch) -> dict[int, BadRowError]:
        """What is wrong with which rows, by their index in the batch."""
        misfits: dict[int, BadRowError] = {}
        if not self._is_for_rows:
            return misfits
        lines = _encode_lines(batch, self._json)
        first, at_once = 0, _ROWS_AT_ONCE
        while first < len(lines):
            last = min(first + at_once, len(lines))
            try:
                self._reader.read(b"".join(lines[first:last]), publish_seq=0, org_id=None, record_count=None)
                first, at_once = last, min(2 * at_once, _ROWS_AT_ONCE)
            except BadBatchError as error:  # it is about the first row that does not fit: those before it do
                bad = first + (error.line or 1) - 1
                misfits[bad] = self._blame(error.reason)
                first, at_once = bad + 1, 1  # many such rows in a row must not be read over and over
        return misfits

    def _blame(self, reason: str) -> BadRowError:
        name, _, rest = reason.partition(": ")
        return BadRowError(rest, name) if name in self._names else BadRowError(reason)


def _json_names(columns: tuple[Column, ...]) -> list[str]:
    return [column.name for column in columns if column.type is ColumnType.JSON]


def _encode_lines(batch: pa.RecordBatch, json_names: list[str]) -> list[bytes]:
    """Objects of JSON stay as they were written."""
    plain = batch.drop_columns(json_names) if json_names else batch
    lines = encode(plain).split(b"\n")[:-1]
    for name in json_names:
        key = b"," + msgspec.json.encode(name) + b":"
        values = batch.column(name).to_pylist()
        lines = [
            line[:-1] + key + (b"null" if value is None else value.encode()) + b"}"
            for line, value in zip(lines, values, strict=True)
        ]
    return [line + b"\n" for line in lines]


def _advise(_reason: str) -> str:
    return (
        "Correct what is sent or the declared schema, or set `outputs: 2` to keep such rows apart; then retry the task."
    )

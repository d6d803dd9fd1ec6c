"""What a process of a feed writes: a Parquet file, or batches of JSON lines, into an open file of the worker."""

import os
from typing import BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.catalogue.context import NonRetryableError
from tracelake.feeds.errors import FeedError
from tracelake.feeds.mapping import arrow_schema
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.rows.encoder import encode
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
        self._judge = None if schema is None else make_judge(schema, dataset)
        self._json = [column.name for column in columns if column.type is ColumnType.JSON]
        self._pieces: list[FilePiece] = []
        self._size = self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            part = batch.slice(start, _ROWS_AT_ONCE)
            lines = self._lines(part)
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

    def _lines(self, batch: pa.RecordBatch) -> list[bytes]:
        """Objects of JSON stay as they were written."""
        plain = batch.drop_columns(self._json) if self._json else batch
        lines = encode(plain).split(b"\n")[:-1]
        for name in self._json:
            key = b"," + msgspec.json.encode(name) + b":"
            values = batch.column(name).to_pylist()
            lines = [
                line[:-1] + key + (b"null" if value is None else value.encode()) + b"}"
                for line, value in zip(lines, values, strict=True)
            ]
        return [line + b"\n" for line in lines]

    def _end_piece(self) -> None:
        if self._rows:
            self._pieces.append(FilePiece(self._size, self._rows))
            self._size = self._rows = 0

    def finish(self) -> list[FilePiece]:
        self._end_piece()
        self._file.flush()
        return self._pieces

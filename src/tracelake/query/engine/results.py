"""The rows of a result: as an Arrow stream up to the limits, and all of them as a Parquet file if that is asked for.

Types that Arrow or Parquet have no exact or no common form of become text: integers of more than 128 bits (`BIGNUM`),
unsigned ones of 128 bits, `BIT`, times with a zone, intervals, enumerations and unions. `HUGEINT`, which sums of
integers are, is a decimal of 38 digits; a larger one is an error. Each field has its DuckDB type in its metadata, and a
name that no other field has: readers of Arrow and Parquet need that.
"""

import errno
import os
from collections.abc import Iterator, Sequence

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from duckdb.sqltypes import DuckDBPyType

from tracelake.query.engine.database import quote_name
from tracelake.query.engine.failures import QueryFailureError
from tracelake.query.engine.requests import ChildOutcome, EngineLimits

TYPE_KEY = b"tracelake.type"
_BATCH_ROWS = 8192
_GROUP_BATCHES, _GROUP_BYTES = 16, 32 * 1024 * 1024
"""A row group of the exported file has about so many batches or bytes."""
_AS_TEXT = frozenset(
    {"bignum", "uhugeint", "bit", "time with time zone", "time_tz", "interval", "enum", "union", "variant"}
)


def write_result(
    result: duckdb.DuckDBPyRelation, limits: EngineLimits, output: int, export: int | None
) -> ChildOutcome:
    """Writes to descriptors. A reader that went away ends the query."""
    types = [str(kind) for kind in result.types]
    reader = _exact(result).to_arrow_reader(_BATCH_ROWS)
    schema = _describe(reader.schema, types)
    rows = 0
    truncated = False
    with os.fdopen(output, "wb") as sink, pa.ipc.new_stream(sink, schema) as stream, _Export(export, schema) as file:
        bytes_left = limits.result_bytes
        for batch in _batches(reader, schema):
            if not truncated:
                inline = _cut(batch, limits.result_rows - rows, bytes_left)
                truncated = inline.num_rows < batch.num_rows
                if inline.num_rows:
                    stream.write_batch(inline)
                rows += inline.num_rows
                bytes_left -= inline.get_total_buffer_size() if inline.num_rows == batch.num_rows else bytes_left
            if truncated and export is None:
                break
            file.add(batch, needed=truncated)
    return ChildOutcome(rows=rows, truncated=truncated, exported_rows=file.rows)


class _Export:
    """The exported file. It is written once rows do not fit into the stream; until then they are kept."""

    def __init__(self, descriptor: int | None, schema: pa.Schema) -> None:
        self._file = os.fdopen(descriptor, "wb") if descriptor is not None else None
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self._batches: list[pa.RecordBatch] = []
        self._size = 0
        self.rows = 0

    def add(self, batch: pa.RecordBatch, *, needed: bool) -> None:
        if self._file is None:
            return
        self._batches.append(batch)
        self._size += batch.get_total_buffer_size()
        if not needed:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        if len(self._batches) >= _GROUP_BATCHES or self._size >= _GROUP_BYTES:
            self._write(self._writer)

    def _write(self, writer: pq.ParquetWriter) -> None:
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self._size = [], 0
        with _SizeLimit():
            writer.write_table(table)
        self.rows += table.num_rows

    def __enter__(self) -> "_Export":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._file is None:
            return
        if self._writer is not None and error is None:
            self._write(self._writer)
            with _SizeLimit():
                self._writer.close()
        with _SizeLimit():
            self._file.close()


class _SizeLimit:
    """The kernel limits the size of files."""

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            raise QueryFailureError("query_export_too_large") from error


def _batches(reader: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _cut(batch: pa.RecordBatch, rows: int, size: int) -> pa.RecordBatch:
    """As many of the first rows as fit."""
    fitting = min(batch.num_rows, max(rows, 0))
    total = batch.nbytes
    if total > size:
        fitting = min(fitting, max(size, 0) * batch.num_rows // total)
    part = batch.slice(0, fitting)
    while part.num_rows and part.nbytes > size:
        part = part.slice(0, part.num_rows // 2)
    return part


def _describe(schema: pa.Schema, types: list[str]) -> pa.Schema:
    return pa.schema(
        [
            field.with_name(name).with_metadata({TYPE_KEY: text.encode()})
            for field, name, text in zip(schema, unique_names(schema.names), types, strict=True)
        ]
    )


def unique_names(names: Sequence[str]) -> list[str]:
    """Names that occur again get a number, whatever the case of their letters: as DuckDB names the columns of a
    subquery, so that a limit on the result changes no name."""
    repetitions: dict[str, int] = {}
    unique = []
    for name in names:
        candidate = name
        while candidate.lower() in repetitions:
            repetitions[name.lower()] += 1
            candidate = f"{name}_{repetitions[name.lower()]}"
        repetitions[candidate.lower()] = 0
        unique.append(candidate)
    return unique


def _exact(result: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    targets = [_target(kind) for kind in result.types]
    if all(target == str(kind) for target, kind in zip(targets, result.types, strict=True)):
        return result
    columns = [
        f"{f'#{number}' if target == str(kind) else f'CAST(#{number} AS {target})'} AS {quote_name(name)}"
        for number, (name, kind, target) in enumerate(zip(result.columns, result.types, targets, strict=True), 1)
    ]
    return result.project(", ".join(columns))


def _target(kind: DuckDBPyType) -> str:
    """The type that Arrow gets."""
    if kind.id in _AS_TEXT:
        return "VARCHAR"
    if kind.id == "hugeint":
        return "DECIMAL(38,0)"  # otherwise Arrow gets more digits than the type has
    if kind.id not in ("list", "array", "map", "struct"):
        return str(kind)
    children = [(name, child) for name, child in kind.children if isinstance(child, DuckDBPyType)]
    targets = [_target(child) for _, child in children]
    if targets == [str(child) for _, child in children]:
        return str(kind)
    if kind.id == "map":
        return f"MAP({', '.join(targets)})"
    if kind.id == "struct":
        fields = [f"{quote_name(name)} {target}" for (name, _), target in zip(children, targets, strict=True)]
        return f"STRUCT({', '.join(fields)})"
    return f"{targets[0]}[]"

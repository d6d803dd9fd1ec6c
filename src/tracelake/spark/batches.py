"""Rows for a buffered dataset: Spark tasks write them as JSON lines below the attempt's buffer prefix.

What a type becomes is what the sink's reader takes: bytes as hexadecimal text, decimals as text, times with a zone.
Batches stay well below the largest that is taken.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.catalogue.context import NonRetryableError
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark.writer import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_BYTES = 8 * 2**20
_ROWS_AT_ONCE = 2_000
_RESULT = "uri string, size long, etag string, row_count long"


def write_batches(frame: "DataFrame", prefix: str, transfer: FileTransfer) -> list[WrittenFile]:
    """All rows of the frame."""
    rows = frame.mapInArrow(_writing(prefix, transfer), _RESULT).collect()
    return [WrittenFile(ObjectMeta(row["uri"], row["size"], row["etag"]), row["row_count"]) for row in rows]


def _writing(prefix: str, transfer: FileTransfer) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[bytes] = []
        size = count = 0
        for batch in batches:
            slices = (batch.slice(start, _ROWS_AT_ONCE) for start in range(0, batch.num_rows, _ROWS_AT_ONCE))
            for rows, data in (piece for part in slices for piece in _pieces(part)):
                if held and size + len(data) > MAX_BYTES:
                    yield _upload(prefix, transfer, held, count)
                    held, size, count = [], 0, 0
                held.append(data)
                size += len(data)
                count += rows
        if held:
            yield _upload(prefix, transfer, held, count)

    return write


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Rows and their text, cut in halves until it fits; only a single row may be larger than that."""
    data = encode(batch)
    if len(data) <= MAX_BYTES or batch.num_rows == 1:
        yield batch.num_rows, data
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _upload(prefix: str, transfer: FileTransfer, parts: list[bytes], count: int) -> pa.RecordBatch:
    # A Spark task that is tried again writes under another name: only what is returned is published.
    uri = f"{prefix}{uuid4().hex}.jsonl"
    with tempfile.TemporaryFile(prefix="trace-batch-") as file:
        for part in parts:
            file.write(part)
        file.flush()
        meta = transfer.upload(Path(f"/proc/self/fd/{file.fileno()}"), uri)
    return pa.RecordBatch.from_pydict(
        {
            "uri": [meta.uri],
            "size": pa.array([meta.size], pa.int64()),
            "etag": [meta.etag],
            "row_count": pa.array([count], pa.int64()),
        }
    )


def encode(batch: pa.RecordBatch) -> bytes:
    """Rows as JSON lines, exactly."""
    columns = [_values(name, batch.column(index)) for index, name in enumerate(batch.schema.names)]
    names = batch.schema.names
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return msgspec.json.Encoder(decimal_format="string").encode_lines(rows)


def _values(name: str, column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(column), skip_nulls=True, min_count=0).as_py():
        raise NonRetryableError(f"the column `{name}` holds a number that is not finite, which JSON does not have")
    values: list[Any] = column.to_pylist()
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return [None if value is None else "0x" + value.hex() for value in values]
    if pa.types.is_timestamp(kind) and kind.tz is None:
        raise NonRetryableError(f"the column `{name}` is a time without a zone; cast it to TIMESTAMP")
    if pa.types.is_map(kind):
        return [None if value is None else dict(value) for value in values]
    return values

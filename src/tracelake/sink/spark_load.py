"""Loads large batches by Spark: each executor fetches, parses and stages some of them; rows never reach the driver.

The reader is the same as in the direct way. A Spark task that is retried stages its rows again: the merge takes each
row once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tracelake.model.dag import Schema
from tracelake.ports import FileTransfer
from tracelake.rows.reader import BadBatchError, BatchReader
from tracelake.sink.fetch import download_batch
from tracelake.sink.outcomes import Loaded, Refusal
from tracelake.sink.parse import parse_batch
from tracelake.sink.store import TableStore
from tracelake.wire.buffers import BufferBatch, BufferedDataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARTS = 8
_RESULT = "index long, row_count long, code string, reason string, line long, excerpt string"
_ARROW = pa.schema(
    [
        ("index", pa.int64()),
        ("row_count", pa.int64()),
        ("code", pa.string()),
        ("reason", pa.string()),
        ("line", pa.int64()),
        ("excerpt", pa.string()),
    ]
)
"""`_RESULT` for Arrow."""


class SparkLoader:
    """Implements `LargeBatches`. `session` starts Spark on first use, and keeps it while its block runs."""

    def __init__(
        self,
        session: "Callable[[], AbstractContextManager[SparkSession]]",
        transfer: FileTransfer,
        dsn: Callable[[], str],
    ) -> None:
        self._session = session
        self._transfer = transfer
        self._dsn = dsn

    def load(self, dataset: BufferedDataset, staging: str, batches: Sequence[BufferBatch]) -> list[Loaded | Refusal]:
        work = _loading(dataset, staging, batches, self._transfer, self._dsn())
        with self._session() as session:
            # Only the indexes of the batches are distributed, without a shuffle.
            numbers = session.range(len(batches)).coalesce(_PARTS)
            rows = numbers.mapInArrow(work, _RESULT).collect()
        outcomes: list[Loaded | Refusal] = []
        for row in sorted(rows, key=lambda row: row["index"]):
            batch = batches[row["index"]]
            if row["code"] is None:
                outcomes.append(Loaded(batch, row["row_count"]))
            else:
                error = BadBatchError(row["code"], row["reason"], row["line"], row["excerpt"] or "")
                outcomes.append(Refusal(batch, error))
        return outcomes


def _loading(
    dataset: BufferedDataset, staging: str, batches: Sequence[BufferBatch], transfer: FileTransfer, dsn: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    # As JSON, which an executor with other versions of the libraries can read.
    schema, pointers = msgspec.json.encode(dataset.schema), [msgspec.json.encode(batch) for batch in batches]

    def load(frames: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = BatchReader(msgspec.json.decode(schema, type=Schema))
        store = TableStore(dsn)
        try:
            for frame in frames:
                rows = []
                for index in frame.column("id").to_pylist():
                    batch = msgspec.json.decode(pointers[index], type=BufferBatch)
                    outcome = (index, *_load_one(reader, store, staging, transfer, batch))
                    rows.append(dict(zip(_ARROW.names, outcome, strict=True)))
                yield pa.RecordBatch.from_pylist(rows, schema=_ARROW)
        finally:
            store.close()

    return load


def _load_one(
    reader: BatchReader, store: TableStore, staging: str, transfer: FileTransfer, batch: BufferBatch
) -> tuple[int, str | None, str | None, int | None, str | None]:
    try:
        rows = parse_batch(reader, batch, download_batch(transfer, batch))
    except BadBatchError as error:
        return 0, error.code, error.reason, error.line, error.excerpt
    if rows.num_rows:
        store.load(staging, [rows])
    return rows.num_rows, None, None, None, None

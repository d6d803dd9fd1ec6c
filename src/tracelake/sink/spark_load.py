"""Large batches by Spark: every executor fetches, judges and loads some of them; rows never come to the driver.

Batches are judged by the same reader as everywhere. A Spark task that is tried again loads its rows again: the merge
takes each once.
"""

from collections.abc import Callable, Iterator, Sequence
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


class SparkLoader:
    """Implements `LargeBatches`. The session is made elsewhere, when it is first wanted."""

    def __init__(self, session: "Callable[[], SparkSession]", transfer: FileTransfer, dsn: Callable[[], str]) -> None:
        self._session = session
        self._transfer = transfer
        self._dsn = dsn

    def load(self, dataset: BufferedDataset, staging: str, batches: Sequence[BufferBatch]) -> list[Loaded | Refusal]:
        session = self._session()
        work = _loading(dataset, staging, batches, self._transfer, self._dsn())
        # The numbers of the batches are what is spread; nothing has to be shuffled for that.
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
    # As JSON, which whatever version of a library an executor has can read.
    schema, pointers = msgspec.json.encode(dataset.schema), [msgspec.json.encode(batch) for batch in batches]

    def load(frames: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = BatchReader(msgspec.json.decode(schema, type=Schema))
        store = TableStore(dsn)
        try:
            for frame in frames:
                mine = [
                    msgspec.json.decode(pointers[number], type=BufferBatch) for number in frame.column("id").to_pylist()
                ]
                results = [_load_one(reader, store, staging, transfer, batch) for batch in mine]
                columns: list[list[object]] = [list(column) for column in zip(*results, strict=True)]
                yield pa.RecordBatch.from_arrays(
                    [
                        frame.column("id"),
                        pa.array(columns[0], pa.int64()),
                        pa.array(columns[1], pa.string()),
                        pa.array(columns[2], pa.string()),
                        pa.array(columns[3], pa.int64()),
                        pa.array(columns[4], pa.string()),
                    ],
                    names=["index", "row_count", "code", "reason", "line", "excerpt"],
                )
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

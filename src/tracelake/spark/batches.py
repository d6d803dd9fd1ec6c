"""Rows for a buffered dataset: Spark tasks write them as JSON lines below the attempt's buffer prefix.

Each row is judged by the sink's own reader and the declared schema before anything is published: a row that does not
fit fails the task, which a person can correct, and does not become a dead letter, which nobody can. Batches stay well
below the largest that is taken.
"""

import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias
from uuid import uuid4

import msgspec
import pyarrow as pa

from tracelake.catalogue.context import NonRetryableError
from tracelake.model.dag import Schema
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.rows.encoder import UnwritableError, encode
from tracelake.rows.reader import BadBatchError, BatchReader
from tracelake.spark.signed import LendingTransfer, upload_first
from tracelake.spark.writer import WrittenFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MAX_BYTES = 8 * 2**20
_ROWS_AT_ONCE = 2_000
_LENT_NAMES = 4096
"""So many batches can an attempt make on a cluster: about 32 GB of rows."""
_KEY_LENGTH = 80
"""Characters of a value that an error shows."""
_RESULT = "uri string, size long, etag string, sha256 string, row_count long"


Judge: TypeAlias = Callable[[bytes], None]
"""Of rows as JSON lines; raises NonRetryableError for the first that does not fit."""


def write_batches(
    frame: "DataFrame", prefix: str, transfer: FileTransfer, schema: Schema | None = None, dataset: str = ""
) -> list[WrittenFile]:
    """All rows of the frame; judged by the schema, if there is one."""
    names: list[str] = []
    if isinstance(transfer, LendingTransfer):
        names = [_new_name(prefix) for _ in range(_LENT_NAMES)]
        transfer = transfer.lend(names=names)
    rows = frame.mapInArrow(_writing(prefix, transfer, schema, dataset, names), _RESULT).collect()
    return [
        WrittenFile(ObjectMeta(row["uri"], row["size"], row["etag"], row["sha256"]), row["row_count"]) for row in rows
    ]


def _writing(
    prefix: str, transfer: FileTransfer, schema: Schema | None = None, dataset: str = "", names: Sequence[str] = ()
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        judge = None if schema is None else make_judge(schema, dataset)
        lines: list[bytes] = []
        size = count = 0
        for batch in batches:
            slices = (batch.slice(start, _ROWS_AT_ONCE) for start in range(0, batch.num_rows, _ROWS_AT_ONCE))
            for rows, data in (piece for part in slices for piece in _pieces(part)):
                if judge is not None:
                    judge(data)
                if lines and size + len(data) > MAX_BYTES:
                    yield _upload(transfer, _candidates(prefix, names), lines, count)
                    lines, size, count = [], 0, 0
                lines.append(data)
                size += len(data)
                count += rows
        if lines:
            yield _upload(transfer, _candidates(prefix, names), lines, count)

    return write


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    """Rows and their text, cut in halves until it fits; only a single row may be larger than that."""
    try:
        data = encode(batch)
    except UnwritableError as error:
        raise NonRetryableError(str(error)) from None
    if len(data) <= MAX_BYTES or batch.num_rows == 1:
        yield batch.num_rows, data
        return
    half = batch.num_rows // 2
    yield from _pieces(batch.slice(0, half))
    yield from _pieces(batch.slice(half))


def _candidates(prefix: str, names: Sequence[str]) -> Sequence[str]:
    """A Spark task that is tried again writes under another name: only what is returned is published."""
    if not names:
        return [_new_name(prefix)]
    first = secrets.randbelow(len(names))  # others use these names too
    return [*names[first:], *names[:first]]


def _new_name(prefix: str) -> str:
    return f"{prefix}{uuid4().hex}.jsonl"


def _upload(transfer: FileTransfer, names: Sequence[str], parts: list[bytes], count: int) -> pa.RecordBatch:
    with tempfile.TemporaryFile(prefix="trace-batch-") as file:
        for part in parts:
            file.write(part)
        file.flush()
        meta = upload_first(transfer, Path(f"/proc/self/fd/{file.fileno()}"), names)
    return pa.RecordBatch.from_pydict(
        {
            "uri": [meta.uri],
            "size": pa.array([meta.size], pa.int64()),
            "etag": [meta.etag],
            "sha256": pa.array([meta.sha256], pa.string()),
            "row_count": pa.array([count], pa.int64()),
        }
    )


def make_judge(schema: Schema, dataset: str) -> Judge:
    """The reader of the sinks, asked before anything is published."""
    reader = BatchReader(schema)

    def judge(data: bytes) -> None:
        try:
            reader.read(data, publish_seq=0, org_id=None, record_count=None)
        except BadBatchError as error:
            # What is wrong with a batch as a whole, and with no line of it, cannot be here.
            row = data.split(b"\n")[(error.line or 1) - 1]
            raise NonRetryableError(_explain(error, schema, dataset, row)) from None

    return judge


def _explain(error: BadBatchError, schema: Schema, dataset: str, row: bytes) -> str:
    """What is wrong with which row, and what to write in the query."""
    values = msgspec.json.decode(row)
    keys = ", ".join(f"{name} = {_shorten(values.get(name))}" for name in schema.unique[:4])
    where = f" (the row with {keys})" if keys else ""
    return f"a row does not fit the schema of {dataset}: {error.reason}{where}. {_advise(error.reason)}"


def _shorten(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _KEY_LENGTH else f"{text[:_KEY_LENGTH]}..."


def _advise(reason: str) -> str:
    column = reason.partition(":")[0]
    if "zero character" in reason:
        return f"Clean it in the query: replace({column}, chr(0), '')."
    if "no index holds" in reason:
        return f"Write a hash of it, like sha2({column.partition(',')[0]}, 256), or leave such rows out with WHERE."
    if "is longer than" in reason:
        return f"Cut it in the query, like left({column}, 100), or declare a larger max_length."
    return "Correct the query or the declared schema, deploy, and retry the task."

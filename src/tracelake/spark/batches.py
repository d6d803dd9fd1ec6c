"""Rows for a buffered dataset: Spark tasks write them as JSON lines below the attempt's buffer prefix.

Each row is judged by the sink's own reader and the declared schema before anything is published: a row that does not
fit fails the task, which a person can correct, and does not become a dead letter, which nobody can. Batches stay well
below the largest that is taken.
"""

import re
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
from tracelake.spark.parts import write_parts
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
_REPORT = msgspec.json.Decoder(list[WrittenFile])


_LONGER = re.compile(r"is longer than (\d+)")
Judge: TypeAlias = Callable[[bytes], None]
"""Of rows as JSON lines; raises NonRetryableError for the first that does not fit."""


def write_batches(
    frame: "DataFrame",
    prefix: str,
    transfer: FileTransfer,
    schema: Schema | None = None,
    dataset: str = "",
    *,
    unique: Sequence[str] = (),
) -> list[WrittenFile]:
    """All rows of the frame; judged by the schema, if there is one."""
    names: list[str] = []
    if isinstance(transfer, LendingTransfer):
        names = [_new_name(prefix) for _ in range(_LENT_NAMES)]
        transfer = transfer.lend(names=names)
    make = partial(BatchSink, prefix, transfer, schema, dataset, names)
    reports = write_parts(frame, make, unique=unique, single=False) or ()
    return [file for report in reports for file in _REPORT.decode(report)]


class BatchSink:
    """Batches of one Spark task."""

    def __init__(
        self,
        prefix: str,
        transfer: FileTransfer,
        schema: Schema | None = None,
        dataset: str = "",
        names: Sequence[str] = (),
        _number: int = 0,
    ) -> None:
        self._prefix, self._transfer, self._names = prefix, transfer, names
        self._judge = None if schema is None else make_judge(schema, dataset)
        self._lines: list[bytes] = []
        self._size = self._count = 0
        self.files: list[WrittenFile] = []

    def write(self, batch: pa.RecordBatch) -> None:
        slices = (batch.slice(start, _ROWS_AT_ONCE) for start in range(0, batch.num_rows, _ROWS_AT_ONCE))
        for rows, data in (piece for part in slices for piece in _pieces(part)):
            if self._judge is not None:
                self._judge(data)
            if self._size + len(data) > MAX_BYTES:
                self._flush()
            self._lines.append(data)
            self._size += len(data)
            self._count += rows

    def finish(self) -> str:
        self._flush()
        return msgspec.json.encode(self.files).decode()

    def discard(self) -> None:
        """Nothing is left: each batch is uploaded at once."""

    def _flush(self) -> None:
        if self._lines:
            meta = _upload(self._transfer, _candidates(self._prefix, self._names), self._lines)
            self.files.append(WrittenFile(meta, self._count))
            self._lines, self._size, self._count = [], 0, 0


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


def _upload(transfer: FileTransfer, names: Sequence[str], parts: list[bytes]) -> ObjectMeta:
    with tempfile.TemporaryFile(prefix="trace-batch-") as file:
        for part in parts:
            file.write(part)
        file.flush()
        return upload_first(transfer, Path(f"/proc/self/fd/{file.fileno()}"), names)


def advise(reason: str) -> str:
    """What whoever wrote the query of a row can do."""
    column = reason.partition(":")[0]
    if "zero character" in reason:
        return f"Clean it in the query: replace({column}, chr(0), '')."
    if "no index holds" in reason:
        return f"Write a hash of it, like sha2({column.partition(',')[0]}, 256), or leave such rows out with WHERE."
    if match := _LONGER.search(reason):
        return f"Cut it in the query, like left({column}, {match[1]}), or declare a larger max_length."
    return "Correct the query or the declared schema, deploy, and retry the task."


def make_judge(schema: Schema, dataset: str, advise: Callable[[str], str] = advise) -> Judge:
    """The reader of the sinks, asked before anything is published. `advise` says what to do about a reason."""
    reader = BatchReader(schema)

    def judge(data: bytes) -> None:
        try:
            reader.read(data, publish_seq=0, org_id=None, record_count=None)
        except BadBatchError as error:
            # What is wrong with a batch as a whole, and with no line of it, cannot be here.
            row = data.split(b"\n")[(error.line or 1) - 1]
            raise NonRetryableError(_explain(error, schema, dataset, row, advise)) from None

    return judge


def _explain(error: BadBatchError, schema: Schema, dataset: str, row: bytes, advise: Callable[[str], str]) -> str:
    """What is wrong with which row, and what to do about it."""
    values = msgspec.json.decode(row)
    keys = ", ".join(f"{name} = {_shorten(values.get(name))}" for name in schema.unique[:4])
    where = f" (the row with {keys})" if keys else ""
    return f"a row does not fit the schema of {dataset}: {error.reason}{where}. {advise(error.reason)}"


def _shorten(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _KEY_LENGTH else f"{text[:_KEY_LENGTH]}..."

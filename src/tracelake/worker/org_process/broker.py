"""What the worker does for an attempt that runs in the process of its org: everything that needs a credential.

Requests come from a process that runs what users wrote, so each is checked against the grants of the attempt:

- reading: exactly the files that the Dispatcher named for an input of the attempt, by address and ETag, and what the
  attempt wrote itself;
- writing: new objects directly below the prefixes of the attempt's outputs;
- tables: the input's own, in its own range of commits, with the columns that the job declares.

Executors of a cluster reach the object store by themselves, with signed addresses, which are given by the same checks
and open one object each. Rows of a table are written for them to files below the attempt's scratch prefix.

Files come as open descriptors, never as paths. A descriptor must be of a regular file in the process' own file
system, and must have been opened for what it is used for: one that only names a file (`O_PATH`) would let the worker
open for the process what the process may not open itself.
"""

import fcntl
import io
import os
import select
import shutil
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tracelake.catalogue.context import Batch, LiveInput, NonRetryableError, OperatorContext, TableInput
from tracelake.errors import TraceError
from tracelake.model.prefixes import lies_under
from tracelake.ports import FileTransfer, ObjectMeta, UrlSigner
from tracelake.spark.child.messages import (
    Accepted,
    AnswerBody,
    AskBody,
    AskDownload,
    AskEmit,
    AskExport,
    AskFiles,
    AskPublish,
    AskRows,
    AskSchema,
    AskTable,
    AskUpload,
    AskUrls,
    FailureAnswer,
    FilesAnswer,
    LiveAnswer,
    ObjectAnswer,
    SchemaAnswer,
    TableAnswer,
    TableParts,
    UrlsAnswer,
)
from tracelake.storage.live_tables import cut_table
from tracelake.storage.snapshots import ROWS_PER_PART, PositionPart, Snapshot, SnapshotTable, TablePart
from tracelake.wire.units import PayloadInput, TaskOutput, Unit

_COPY_BYTES = 16 * 2**20
_POLL_MILLISECONDS = 500
URL_SECONDS = 24 * 3600
"""How long signed addresses are good. An attempt on a cluster that takes longer fails."""
_MOST_NAMES = 50_000
"""Of new objects, for one attempt."""


class RequestRefusedError(NonRetryableError):
    """The process of an org asked for what its attempt was not granted."""


class AttemptBroker:
    """The grants of one attempt, and what is done by them. From any thread."""

    def __init__(
        self,
        context: OperatorContext,
        transfer: FileTransfer,
        data_dsn: Callable[[], str],
        scratch: Path,
        device: int,
        scratch_prefix: str | None = None,
    ) -> None:
        """`scratch`: of the worker, out of the process' reach. `device`: the file system of the process' directory.
        `scratch_prefix`: of the attempt in the object store, if its executors are those of a cluster."""
        self._context = context
        self._transfer = transfer
        self._data_dsn = data_dsn
        self._scratch = scratch
        self._device = device
        self._scratch_prefix = scratch_prefix
        self._lock = threading.Lock()
        self._readable: dict[tuple[str, str], ObjectMeta] = {}
        self._uploads: dict[str, ObjectMeta] = {}
        self._lent: set[str] = set()
        """Names that executors may create objects of; what they put there the worker has not seen."""
        self._exports: dict[tuple[int, int], ObjectMeta] = {}
        self._exporting = threading.Lock()
        self._tables: dict[int, TableInput | LiveInput] = {}
        self._cuts: dict[int, tuple[SnapshotTable, Sequence[TablePart | PositionPart]]] = {}
        self._snapshot: Snapshot | None = None
        self._closed = False

    def answer(self, body: AskBody, descriptor: int | None) -> AnswerBody:
        """What went wrong is an answer too."""
        try:
            return self._answer(body, descriptor)
        except TraceError as error:
            return FailureAnswer(type(error).__name__, error.message)
        except Exception as error:
            kind = NonRetryableError if isinstance(error, NonRetryableError) else type(error)
            return FailureAnswer(kind.__name__, str(error))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            snapshot, self._snapshot = self._snapshot, None
        if snapshot is not None:
            snapshot.close()

    def _answer(self, body: AskBody, descriptor: int | None) -> AnswerBody:
        match body:
            case AskFiles():
                return self._files(self._input(body.input_index), body)
            case AskDownload():
                self._download(body, descriptor)
                return Accepted()
            case AskUpload():
                return ObjectAnswer(self._upload(body.uri, descriptor))
            case AskUrls():
                return self._sign(body)
            case AskExport():
                return ObjectAnswer(self._export(body))
            case AskTable():
                return self._cut(self._input(body.input_index), body.unit)
            case AskRows():
                self._stream(body, descriptor)
                return Accepted()
            case AskSchema():
                return SchemaAnswer(self._context.schema(self._output(body.output_index)))
            case AskPublish():
                self._publish(body)
                return Accepted()
            case AskEmit():
                self._context.emit(body.events)
                return Accepted()

    # --- files

    def _files(self, item: PayloadInput, body: AskFiles) -> AnswerBody:
        files = self._context.files(msgspec.structs.replace(item, unit=body.unit))
        if isinstance(files, (TableInput, LiveInput)):
            self._tables[item.input_index] = files
        if isinstance(files, TableInput):
            return TableAnswer(list(files.columns), files.by_position)
        objects = files.files if isinstance(files, LiveInput) else files
        for meta in objects:
            self._readable[meta.uri, meta.etag] = meta
        if isinstance(files, LiveInput):
            table = TableAnswer(list(files.table.columns), files.table.by_position)
            return LiveAnswer(objects, table, files.boundary)
        return FilesAnswer(objects)

    def _download(self, body: AskDownload, descriptor: int | None) -> None:
        meta = self._readable.get((body.uri, body.etag)) or self._uploads.get(body.uri)
        if meta is None or meta.etag != body.etag:
            raise RequestRefusedError("a file was asked for that is not an input of the task")
        target = self._checked(descriptor, writing=True)
        self._scratch.mkdir(parents=True, exist_ok=True)
        path = self._scratch / f"{uuid4().hex}.parquet"
        try:
            self._transfer.download(meta, path)
            with path.open("rb") as source:
                _copy(source.fileno(), target, meta.size)
        finally:
            path.unlink(missing_ok=True)

    def _upload(self, uri: str, descriptor: int | None) -> ObjectMeta:
        self._check_new(uri)
        source = self._checked(descriptor, writing=False)
        meta = self._transfer.upload(Path(f"/proc/self/fd/{source}"), uri)
        self._uploads[meta.uri] = meta
        return meta

    def _sign(self, body: AskUrls) -> UrlsAnswer:
        signer = self._transfer
        if self._scratch_prefix is None or not isinstance(signer, UrlSigner):
            raise RequestRefusedError("signed addresses were asked for, and the task does not run on a cluster")
        for uri, etag in body.reading:
            if (uri, etag) not in self._readable and uri not in self._uploads and uri not in self._lent:
                raise RequestRefusedError("a file was asked for that is not an input of the task")
        for uri in body.creating:
            self._check_new(uri)
        with self._lock:
            if self._closed:
                raise RequestRefusedError("the attempt has ended")
            self._lent.update(body.creating)
            if len(self._lent) > _MOST_NAMES:
                raise RequestRefusedError(f"the task asks for more than {_MOST_NAMES:,} names of new files")
        reading = signer.sign([uri for uri, _ in body.reading], create=False, seconds=URL_SECONDS)
        return UrlsAnswer(reading, signer.sign(body.creating, create=True, seconds=URL_SECONDS))

    def _check_new(self, uri: str) -> None:
        storages = [output.storage for output in self._context.outputs]
        prefixes = [
            prefix for storage in storages for prefix in (storage.write_prefix, storage.buffer_prefix) if prefix
        ]
        if not any(lies_under(uri, prefix) and "/" not in uri[len(prefix) :] for prefix in prefixes):
            raise RequestRefusedError("a file was to be written to a place that is not an output of the task")

    def _checked(self, descriptor: int | None, *, writing: bool) -> int:
        if descriptor is None:
            raise RequestRefusedError("a request came without its file")
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        modes = (os.O_WRONLY, os.O_RDWR) if writing else (os.O_RDONLY, os.O_RDWR)
        status = os.fstat(descriptor)
        if flags & os.O_PATH or flags & os.O_ACCMODE not in modes or not stat.S_ISREG(status.st_mode):
            raise RequestRefusedError("a request came with something that is not an open file")
        if status.st_dev != self._device:
            raise RequestRefusedError("a request came with a file from outside of the process' directory")
        return descriptor

    # --- tables

    def _cut(self, item: PayloadInput, unit: Unit | None) -> TableParts:
        declared = self._tables.get(item.input_index)
        if declared is None:
            raise RequestRefusedError("a table was asked for that is not an input of the task")
        by_position = isinstance(declared, LiveInput) or declared.by_position
        if unit not in (None, item.unit) and by_position:  # blocks around the unit, say
            item = msgspec.structs.replace(item, unit=unit, scope=None)
        dsn = self._data_dsn()
        with self._lock:
            if self._closed:
                raise RequestRefusedError("the attempt has ended")
            if self._snapshot is None:
                self._snapshot = Snapshot(dsn, [item.dataset_uuid], skip_missing=isinstance(declared, LiveInput))
            table, parts, rows = cut_table(self._snapshot, item, declared, ROWS_PER_PART)
        self._cuts[item.input_index] = (table, parts)
        return TableParts(table.schema.serialize().to_pybytes(), len(parts), rows)

    def _stream(self, body: AskRows, descriptor: int | None) -> None:
        snapshot, cuts = self._snapshot, self._cuts.get(body.input_index)
        if descriptor is None or snapshot is None or cuts is None or not 0 <= body.part < len(cuts[1]):
            raise RequestRefusedError("rows were asked for that are not part of an input of the task")
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode) or flags & os.O_PATH:
            raise RequestRefusedError("rows were asked for without a pipe to write them to")
        table, parts = cuts
        with (
            _Pipe(descriptor, lambda: self._closed) as pipe,
            closing(Snapshot(self._data_dsn(), joined=snapshot.name)) as joined,
            pa.ipc.new_stream(pipe, table.schema) as writer,
        ):
            for batch in joined.rows(table, parts[body.part].condition):
                writer.write_batch(batch)

    def _export(self, body: AskExport) -> ObjectMeta:
        snapshot, cuts = self._snapshot, self._cuts.get(body.input_index)
        if self._scratch_prefix is None or snapshot is None or cuts is None or not 0 <= body.part < len(cuts[1]):
            raise RequestRefusedError("rows were asked for that are not part of an input of the task")
        table, parts = cuts
        place = body.input_index, body.part
        with self._exporting:  # one at a time: the worker has other attempts
            if place not in self._exports:
                meta = self._export_rows(snapshot, table, parts[body.part])
                self._readable[meta.uri, meta.etag] = meta
                self._exports[place] = meta
            return self._exports[place]

    def _export_rows(self, snapshot: Snapshot, table: SnapshotTable, part: TablePart | PositionPart) -> ObjectMeta:
        self._scratch.mkdir(parents=True, exist_ok=True)
        path = self._scratch / f"{uuid4().hex}.parquet"
        try:
            with (
                closing(Snapshot(self._data_dsn(), joined=snapshot.name)) as joined,
                pq.ParquetWriter(path, table.schema, compression="zstd") as writer,
            ):
                for batch in joined.rows(table, part.condition):
                    if self._closed:
                        raise RequestRefusedError("the attempt has ended")
                    writer.write_batch(batch)
            return self._transfer.upload(path, f"{self._scratch_prefix}{path.name}")
        finally:
            path.unlink(missing_ok=True)

    # --- the Dispatcher

    def _publish(self, body: AskPublish) -> None:
        output = self._output(body.output_index)
        meta = self._uploads.get(body.uri)
        if meta is None and body.uri not in self._lent:
            raise RequestRefusedError("a batch was to be published that the task has not written")
        self._context.publish(Batch(output, body.uri, body.records, body.sha256 if meta is None else meta.sha256))

    def _input(self, index: int) -> PayloadInput:
        for item in (*self._context.inputs, *self._context.references):
            if item.input_index == index:
                return item
        raise RequestRefusedError(f"the task has no input {index}")

    def _output(self, index: int) -> TaskOutput:
        for item in self._context.outputs:
            if item.output_index == index:
                return item
        raise RequestRefusedError(f"the task has no output {index}")


class _Pipe(io.RawIOBase):
    """The writing end of a pipe whose reader may never read: given up when the attempt has ended."""

    def __init__(self, descriptor: int, is_over: Callable[[], bool]) -> None:
        self._descriptor = descriptor
        self._is_over = is_over
        os.set_blocking(descriptor, False)
        self._room = select.poll()
        self._room.register(descriptor, select.POLLOUT)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        size = len(view)
        while view:
            if self._is_over():
                raise RequestRefusedError("the attempt has ended")
            if self._room.poll(_POLL_MILLISECONDS):
                view = view[os.write(self._descriptor, view) :]
        return size


def _copy(source: int, target: int, size: int) -> None:
    """By the kernel, which shares blocks where the file system can."""
    place = 0
    try:
        while place < size and (count := os.copy_file_range(source, target, min(_COPY_BYTES, size - place))):
            place += count
    except OSError:
        if place:
            raise
        with os.fdopen(os.dup(source), "rb") as reader, os.fdopen(os.dup(target), "wb") as writer:
            shutil.copyfileobj(reader, writer, _COPY_BYTES)

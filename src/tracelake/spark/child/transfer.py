"""Files and rows for Spark's Python processes of one org, by way of the worker, which holds the keys.

On one machine the org's process listens on a socket in its own directory (`Relay`). Whoever needs an object connects,
sends the request with the descriptor of an open file, and waits for the answer; the bytes never pass through the relay.

Executors of a cluster have no way to that socket. They get signed addresses of the objects that their work needs
(`ClusterTransfer`), and tables as files, which the worker has written for the attempt (`ExportedTables`).
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tracelake.catalogue.context import AttemptLostError, CanceledError, LiveInput, NonRetryableError, TableInput
from tracelake.errors import BoundaryMovedError, StoreUnavailableError
from tracelake.ports import ContentMismatchError, ObjectChangedError, ObjectExistsError, ObjectMeta
from tracelake.spark.child.messages import (
    AnswerBody,
    Ask,
    AskBody,
    AskDownload,
    AskExport,
    AskRows,
    AskTable,
    AskUpload,
    AskUrls,
    BrokerAnswer,
    Channel,
    ChannelError,
    FailureAnswer,
    ObjectAnswer,
    TableParts,
    UrlsAnswer,
    executor_channel,
    relay_channel,
)
from tracelake.spark.reader import BYTES_PER_VALUE, Reader, select, select_of_table
from tracelake.spark.signed import SignedTransfer
from tracelake.wire.units import PayloadInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

AskWorker = Callable[[str, AskBody, int | None], AnswerBody]
"""Blocks for the answer to a request of an attempt, which may hand over a descriptor."""
_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        NonRetryableError,
        ContentMismatchError,
        ObjectChangedError,
        ObjectExistsError,
        CanceledError,
        AttemptLostError,
    )
}


class BrokerFailedError(Exception):
    """The worker could not do what it was asked for; another attempt may succeed."""


def check(answer: AnswerBody) -> AnswerBody:
    """Raises what the answer says went wrong."""
    if not isinstance(answer, FailureAnswer):
        return answer
    if answer.kind == StoreUnavailableError.__name__:
        raise StoreUnavailableError(answer.text)
    if answer.kind == BoundaryMovedError.__name__:
        raise BoundaryMovedError(answer.text)
    raise _KINDS.get(answer.kind, BrokerFailedError)(answer.text)


@dataclass(frozen=True, slots=True)
class BrokerTransfer:
    """The FileTransfer port of one attempt; it can be pickled."""

    directory: Path
    """Of the relay."""
    key: str

    def download(self, meta: ObjectMeta, path: Path) -> None:
        aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with aside.open("xb") as file:
                self._ask(AskDownload(meta.uri, meta.etag), file.fileno())
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        with path.open("rb") as file:
            answer = self._ask(AskUpload(uri), file.fileno())
        assert isinstance(answer, ObjectAnswer)
        return answer.meta

    def rows(self, input_index: int, part: int) -> Iterator[pa.RecordBatch]:
        """A part of a table, batch by batch."""
        with _connected(self.directory) as channel:
            reading, writing = os.pipe()
            with os.fdopen(reading, "rb") as pipe:
                try:
                    channel.send(Ask(0, self.key, AskRows(input_index, part)), writing)
                finally:
                    os.close(writing)
                try:
                    yield from pa.ipc.open_stream(pipe)
                except (pa.ArrowInvalid, OSError):
                    _receive(channel)  # raises what went wrong, if the worker knows
                    raise
                _receive(channel)

    def _ask(self, body: AskBody, descriptor: int | None = None) -> AnswerBody:
        with _connected(self.directory) as channel:
            channel.send(Ask(0, self.key, body), descriptor)
            return _receive(channel)


@dataclass(frozen=True, slots=True)
class ClusterTransfer:
    """The FileTransfer port of one attempt whose executors are elsewhere: for the driver, which lends signed addresses
    to them."""

    broker: BrokerTransfer

    def download(self, meta: ObjectMeta, path: Path) -> None:
        self.lend(files=[meta]).download(meta, path)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        return self.broker.upload(path, uri)

    def lend(self, files: Sequence[ObjectMeta] = (), names: Sequence[str] = ()) -> SignedTransfer:
        answer = self.broker._ask(AskUrls([(file.uri, file.etag) for file in files], list(names)))
        assert isinstance(answer, UrlsAnswer)
        reading = zip((file.uri for file in files), answer.reading, strict=True)
        return SignedTransfer(dict(reading), dict(zip(names, answer.creating, strict=True)))


def _receive(channel: "Channel[BrokerAnswer]") -> AnswerBody:
    message = channel.receive()
    if message is None:
        raise BrokerFailedError("the org's Spark process ended")
    return check(message[0].body)


@contextmanager
def _connected(directory: Path) -> Iterator["Channel[BrokerAnswer]"]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        with _short_path(directory) as path:
            connection.connect(path)
        yield executor_channel(connection)


@contextmanager
def _short_path(directory: Path) -> Iterator[str]:
    """Of the relay's socket, however deep the directory is: an address has room for a hundred characters."""
    descriptor = os.open(directory, os.O_PATH | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/relay"
    finally:
        os.close(descriptor)


class Relay:
    """Hands requests of Spark's Python processes on to the worker."""

    def __init__(self, directory: Path, ask: AskWorker) -> None:
        self._ask = ask
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with _short_path(directory) as path:
            self._listener.bind(path)
        self._listener.listen(256)
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(connection,), name="relayed", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(ChannelError):
            channel = relay_channel(connection)
            while (message := channel.receive()) is not None:
                request, descriptor = message
                try:
                    answer = self._ask(request.key, request.body, descriptor)
                finally:
                    if descriptor is not None:
                        os.close(descriptor)
                channel.send(BrokerAnswer(0, answer))


@dataclass(frozen=True, slots=True)
class BrokeredTables:
    """Reads the tables of one attempt; the worker holds the snapshot."""

    session: "SparkSession"
    transfer: BrokerTransfer
    ask: Callable[[AskBody], AnswerBody]

    def read(self, item: PayloadInput, declared: TableInput | LiveInput) -> "tuple[DataFrame, int]":
        """The rows, and about how many bytes they are."""
        from pyspark.sql.pandas.types import from_arrow_schema

        answer = self.ask(AskTable(item.input_index, item.unit if item.scope is None else None))
        assert isinstance(answer, TableParts)
        schema = pa.ipc.read_schema(pa.py_buffer(answer.arrow_schema))
        frame = self.session.range(0, answer.parts, 1, max(1, answer.parts)).mapInArrow(
            _rows_function(self.transfer, item.input_index), from_arrow_schema(schema)
        )
        selection = select_of_table(item, declared)
        return select(frame, item.name, selection), answer.rows * len(schema) * BYTES_PER_VALUE


def _rows_function(
    transfer: BrokerTransfer, input_index: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def fetch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from transfer.rows(input_index, number)

    return fetch


@dataclass(frozen=True, slots=True)
class ExportedTables:
    """Reads the tables of one attempt on a cluster: the worker writes their rows to files, all of one snapshot."""

    reader: Reader
    ask: Callable[[AskBody], AnswerBody]

    def read(self, item: PayloadInput, declared: TableInput | LiveInput) -> "tuple[DataFrame, int]":
        """The rows, and about how many bytes they are."""
        from pyspark.sql.pandas.types import from_arrow_schema

        cut = self.ask(AskTable(item.input_index, item.unit if item.scope is None else None))
        assert isinstance(cut, TableParts)
        files = []
        for part in range(cut.parts):
            answer = self.ask(AskExport(item.input_index, part))
            assert isinstance(answer, ObjectAnswer)
            files.append(answer.meta)
        schema = pa.ipc.read_schema(pa.py_buffer(cut.arrow_schema))
        if not files:
            return self.reader.session.createDataFrame([], from_arrow_schema(schema)), 0
        selection = select_of_table(item, declared)
        return self.reader.read(item.name, files, selection), cut.rows * len(schema) * BYTES_PER_VALUE

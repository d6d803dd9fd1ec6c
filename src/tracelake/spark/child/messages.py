"""What a worker and the Spark process of an org say to each other, and the channel on which they do.

The channel is a pair of connected sockets that keep the borders of messages. A message is MessagePack of one of the
types below; a large one travels as a file in memory whose descriptor is sent. Files are handed over as descriptors too,
never by name: neither side can make the other open a path.

    worker                         process
      Start            ->                       once: which Spark
                       <-  Ready | StartFailed  once
      RunAttempt       ->                       for each attempt, several at a time
                       <-  Progress             any number
                       <-  Ask                  what needs a credential, with a number
      BrokerAnswer           ->                       to that number
      CancelAttempt    ->                       the attempt should stop
                       <-  AttemptDone          once for each attempt

The worker trusts nothing that it reads here: what is not one of these types, or too large, ends the process.
"""

import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from tracelake.catalogue.context import OperatorResult
from tracelake.model.dag import OutputCheck, Schema
from tracelake.ports import ObjectMeta
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import EventIn, PayloadInput, TaskOutput, Unit

MOST_BYTES = 64 * 2**20
"""Of one message."""
_INLINE_BYTES = 32 * 1024
_MOST_DESCRIPTORS = 2
_SEND_SECONDS = 30
_HERE, _IN_FILE = b"\0", b"\1"


class ChannelError(Exception):
    """The other side sent what is not a message, or takes none."""


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    scratch: str
    master: str
    memory: str
    options: dict[str, str]
    java_options: list[str]
    log_level: str


class RunAttempt(msgspec.Struct, frozen=True, kw_only=True, tag="run"):
    key: str
    """Of the attempt, in this process."""
    module: str
    """Its `run` is the operator."""
    operator: str
    config: dict[str, Any]
    task_id: UUID
    attempt: int
    inputs: list[PayloadInput]
    outputs: list[TaskOutput]
    org: str
    traceparent: str | None
    checks: list[OutputCheck] = []
    references: list[PayloadInput] = []


class CancelAttempt(msgspec.Struct, frozen=True, tag="cancel"):
    key: str


class FilesAnswer(msgspec.Struct, frozen=True, tag="files"):
    files: list[ObjectMeta]


class TableAnswer(msgspec.Struct, frozen=True, tag="table"):
    columns: list[TableColumn]
    by_position: bool = False


class LiveAnswer(msgspec.Struct, frozen=True, tag="live"):
    """Files up to a boundary, and a table above it."""

    files: list[ObjectMeta]
    table: TableAnswer
    boundary: int | None = None


class TableParts(msgspec.Struct, frozen=True, tag="parts"):
    arrow_schema: bytes
    parts: int
    rows: int


class ObjectAnswer(msgspec.Struct, frozen=True, tag="object"):
    meta: ObjectMeta


class UrlsAnswer(msgspec.Struct, frozen=True, tag="urls"):
    """Signed, in the order in which they were asked for."""

    reading: list[str]
    creating: list[str]


class SchemaAnswer(msgspec.Struct, frozen=True, tag="schema"):
    schema: Schema | None


class Accepted(msgspec.Struct, frozen=True, tag="accepted"):
    pass


class FailureAnswer(msgspec.Struct, frozen=True, tag="failure"):
    """An exception, by the name of its class and its text."""

    kind: str
    text: str


AnswerBody: TypeAlias = (
    FilesAnswer
    | TableAnswer
    | LiveAnswer
    | TableParts
    | ObjectAnswer
    | UrlsAnswer
    | SchemaAnswer
    | Accepted
    | FailureAnswer
)


class BrokerAnswer(msgspec.Struct, frozen=True, tag="answer"):
    number: int
    body: AnswerBody


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    missing: dict[str, str]
    """Which limits the kernel does not offer, and why."""


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    text: str


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    key: str
    text: str


class AskFiles(msgspec.Struct, frozen=True, tag="files"):
    input_index: int
    unit: Unit


class AskTable(msgspec.Struct, frozen=True, tag="table"):
    """How the rows of an input that is a table are cut into parts."""

    input_index: int
    unit: Unit | None = None
    """Other positions than those of the input, of a table that is read by positions."""


class AskRows(msgspec.Struct, frozen=True, tag="rows"):
    """The rows of a part, as an Arrow stream into the pipe that comes with it."""

    input_index: int
    part: int


class AskExport(msgspec.Struct, frozen=True, tag="export"):
    """The rows of a part as a file in the object store; for a cluster, whose executors have no way to the worker."""

    input_index: int
    part: int


class AskSchema(msgspec.Struct, frozen=True, tag="schema"):
    output_index: int


class AskPublish(msgspec.Struct, frozen=True, tag="publish"):
    output_index: int
    uri: str
    records: int
    sha256: str | None = None
    """Of a batch that an executor of a cluster stored: the worker has not seen its bytes."""


class AskEmit(msgspec.Struct, frozen=True, tag="emit"):
    events: list[EventIn]


class AskDownload(msgspec.Struct, frozen=True, tag="download"):
    """A pinned object into the file that comes with it."""

    uri: str
    etag: str


class AskUpload(msgspec.Struct, frozen=True, tag="upload"):
    """The file that comes with it, as a new object."""

    uri: str


class AskUrls(msgspec.Struct, frozen=True, tag="urls"):
    """Signed addresses for executors of a cluster: to read pinned objects, given with their ETags, and to create new
    ones."""

    reading: list[tuple[str, str]]
    creating: list[str]


AskBody: TypeAlias = (
    AskFiles | AskTable | AskRows | AskExport | AskSchema | AskPublish | AskEmit | AskDownload | AskUpload | AskUrls
)


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    number: int
    key: str
    body: AskBody


class AttemptFailure(msgspec.Struct, frozen=True):
    kind: str
    """The name of the exception's class."""
    text: str
    final: bool = False
    """Another attempt would fail in the same way."""
    canceled: bool = False


class AttemptDone(msgspec.Struct, frozen=True, tag="done"):
    key: str
    result: OperatorResult | None = None
    failure: AttemptFailure | None = None


ToProcess: TypeAlias = Start | RunAttempt | CancelAttempt | BrokerAnswer
ToWorker: TypeAlias = Ready | StartFailed | Progress | Ask | AttemptDone
M = TypeVar("M")


def _plain(value: object) -> object:
    from collections.abc import Mapping

    if isinstance(value, Mapping):  # one that cannot be changed
        return dict(value)
    raise NotImplementedError(type(value).__name__)


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_of_worker: msgspec.msgpack.Decoder[ToProcess] = msgspec.msgpack.Decoder(ToProcess)
_of_process: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_asks: msgspec.msgpack.Decoder[Ask] = msgspec.msgpack.Decoder(Ask)
_answers: msgspec.msgpack.Decoder[BrokerAnswer] = msgspec.msgpack.Decoder(BrokerAnswer)


class Channel(Generic[M]):
    """Messages of type M come in. Any thread may send; one receives."""

    def __init__(self, connection: socket.socket, decoder: "msgspec.msgpack.Decoder[M]") -> None:
        self._socket = connection
        self._decoder = decoder
        self._sending = threading.Lock()
        # Who takes no messages must not stop whoever sends them.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _SEND_SECONDS, 0))

    def send(self, message: msgspec.Struct, descriptor: int | None = None) -> None:
        """Raises ChannelError."""
        body = _encoder.encode(message)
        passed = [] if descriptor is None else [descriptor]
        if len(body) <= _INLINE_BYTES:
            self._send(_HERE + body, passed)
            return
        if len(body) > MOST_BYTES:
            raise ChannelError(f"a message of {len(body):,} bytes, where at most {MOST_BYTES:,} are taken")
        file = os.memfd_create("message", os.MFD_CLOEXEC)
        try:
            with open(file, "wb", closefd=False) as writer:
                writer.write(body)
            self._send(_IN_FILE, [file, *passed])
        finally:
            os.close(file)

    def _send(self, data: bytes, descriptors: list[int]) -> None:
        try:
            with self._sending:
                socket.send_fds(self._socket, [data], descriptors)
        except OSError as error:
            raise ChannelError(f"a message was not taken: {error}") from error

    def receive(self) -> tuple[M, int | None] | None:
        """The next message, with a descriptor that is the caller's to close; None at the end. Raises ChannelError."""
        try:
            data, descriptors, flags, _ = socket.recv_fds(
                self._socket, _INLINE_BYTES + 1, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except OSError:
            return None
        try:
            if not data:
                return None
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ChannelError("a message is too large")
            body = data[1:] if data[:1] == _HERE else _read(descriptors.pop(0) if descriptors else -1)
            try:
                message = self._decoder.decode(body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise ChannelError(f"not a message: {error}") from None
            return message, descriptors.pop(0) if descriptors else None
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def free(self) -> None:
        """Close the socket itself, once nobody receives any more and no send has its descriptor."""
        with self._sending:
            self._socket.close()


def worker_channel(connection: socket.socket) -> "Channel[ToWorker]":
    """The worker's end."""
    return Channel(connection, _of_process)


def process_channel(connection: socket.socket) -> "Channel[ToProcess]":
    return Channel(connection, _of_worker)


def relay_channel(connection: socket.socket) -> "Channel[Ask]":
    """The end of the org's process, to which Spark's Python processes connect."""
    return Channel(connection, _asks)


def executor_channel(connection: socket.socket) -> "Channel[BrokerAnswer]":
    return Channel(connection, _answers)


def _read(descriptor: int) -> bytes:
    """The body of a large message; takes over the descriptor."""
    if descriptor < 0:
        raise ChannelError("a large message came without its file")
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_BYTES:
            raise ChannelError("a message is too large")
        chunks, place = [], 0
        while place < status.st_size and (chunk := os.pread(descriptor, status.st_size - place, place)):
            chunks.append(chunk)
            place += len(chunk)
        return b"".join(chunks)
    except OSError as error:
        raise ChannelError(f"a large message cannot be read: {error}") from error
    finally:
        os.close(descriptor)

"""What the worker and the process of a feed say to each other: frames of a length (4 bytes) and MessagePack."""

from datetime import datetime
from typing import Any, BinaryIO, Literal, TypeAlias

import msgspec

from tracelake.feeds.fetching import FeedUnit
from tracelake.feeds.files import FilePiece
from tracelake.feeds.hosts import FeedHosts
from tracelake.model.dag import OutputCheck, Schema
from tracelake.wire.task_calls import CheckReport

MOST_BYTES = 128 * 2**20
"""Of one frame."""


class FeedOutput(msgspec.Struct, frozen=True, kw_only=True):
    descriptor: int
    """Of the file to write."""
    kind: Literal["parquet", "lines"]
    schema: Schema | None = None
    """Of a buffered dataset, as it is declared now."""
    dataset: str = ""


class FeedDelivery(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    delivery_id: str
    received_at: datetime
    body: bytes


class FeedTask(msgspec.Struct, frozen=True, kw_only=True):
    operator: str
    config: dict[str, Any]
    unit: FeedUnit
    outputs: list[FeedOutput]
    """For rows, and for rejected rows if there are two."""
    hosts: FeedHosts = FeedHosts()
    secrets: dict[str, str] = {}
    deliveries: list[FeedDelivery] = []
    memory_bytes: int = 2**30
    checks: list[OutputCheck] = []
    """Of the rows of its outputs."""


class FeedProgress(msgspec.Struct, frozen=True, tag="progress"):
    text: str


class FeedDone(msgspec.Struct, frozen=True, tag="done"):
    outputs: list[list[FilePiece]]
    text: str
    checks: list[CheckReport] = []


class FeedFailed(msgspec.Struct, frozen=True, tag="failed"):
    text: str
    final: bool = False
    bug: bool = False
    """The text is a traceback, for the log alone."""


FeedMessage: TypeAlias = FeedProgress | FeedDone | FeedFailed

_task_decoder = msgspec.msgpack.Decoder(FeedTask)
_message_decoder: "msgspec.msgpack.Decoder[FeedMessage]" = msgspec.msgpack.Decoder(FeedMessage)


def frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(4, "big") + body


def read_task(stream: BinaryIO) -> FeedTask:
    return _task_decoder.decode(stream.read(int.from_bytes(stream.read(4), "big")))


def read_message(body: bytes) -> FeedMessage:
    """Raises msgspec.MsgspecError."""
    return _message_decoder.decode(body)

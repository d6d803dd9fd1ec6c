"""Shared pieces of the wire types: the strict base, bounded scalars, the error body."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

MAX_CURSOR = 2**63 - 1

Cursor = Annotated[int, Meta(ge=0, le=MAX_CURSOR)]
# `\Z`, not `$`: Python's `$` also matches before a last newline, and Postgres would then refuse the row.
Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]{0,127}\Z")]
# A runtime names a queue (`tasks.{runtime}`), so it keeps to what every transport takes.
Runtime = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_-]{0,63}\Z")]
ShortText = Annotated[str, Meta(min_length=1, max_length=200)]
Revision = Annotated[str, Meta(max_length=200)]
MAX_PARTITION_KEY_BYTES = 512
PartitionKey = Annotated[str, Meta(min_length=1, max_length=MAX_PARTITION_KEY_BYTES)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Uri = Annotated[str, Meta(min_length=1, max_length=2048)]
Seconds = Annotated[int, Meta(ge=1, le=7 * 24 * 3600)]


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A body that we receive; unknown fields are errors."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A body that we send; fields at their default are omitted."""


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    details: dict[str, Any] = {}


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorInfo


class Answer(Reply, frozen=True, kw_only=True):
    """One item of a batch reply: the status and body that the single call would have had."""

    status: int
    body: msgspec.Raw


class Answers(Reply, frozen=True, kw_only=True):
    answers: list[Answer]

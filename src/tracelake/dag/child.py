"""A process that reads documents for its parent: `python -m tracelake.dag.child SECONDS MEMORY_BYTES`.

Documents are untrusted and expensive to read: in this process they cannot block the parent's interpreter, nor use more
processor time and memory than the limits allow. The process has no credential and no network; it ends when its standard
input closes.

Messages in both directions are a length (4 bytes, big endian) and that much MessagePack: a request, then its reply.
"""

import math
import os
import resource
import signal
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import msgspec

from tracelake.catalogue import read_config
from tracelake.dag.places import located
from tracelake.dag.problems import DagInvalidError
from tracelake.dag.reader import read_dag
from tracelake.dag.surroundings import Surroundings
from tracelake.errors import TraceError
from tracelake.model.dag import Dag, Problem

NICENESS = 10
"""Heartbeats take precedence over documents."""
_MAX_TRACEBACK = 4_000


class ReadRequest(msgspec.Struct, tag="read"):
    text: bytes
    surroundings: Surroundings


class LocateRequest(msgspec.Struct, tag="locate"):
    text: bytes
    problems: list[Problem]


class ConfigRequest(msgspec.Struct, tag="config"):
    operator: str
    config: dict[str, Any]


class DagReply(msgspec.Struct, tag="dag"):
    dag: Dag


class ProblemsReply(msgspec.Struct, tag="problems"):
    """The problems of an invalid document, or the given ones with their positions."""

    problems: list[Problem]


class InvalidConfigReply(msgspec.Struct, tag="invalid"):
    """The details of a `job_invalid` error."""

    message: str
    details: dict[str, Any]


class DoneReply(msgspec.Struct, tag="done"):
    pass


class FailureReply(msgspec.Struct, tag="failure"):
    """A bug, for the parent's log."""

    text: str
    memory: bool = False
    """The memory limit was exceeded."""


DocumentRequest = ReadRequest | LocateRequest | ConfigRequest
DocumentReply = DagReply | ProblemsReply | InvalidConfigReply | DoneReply | FailureReply


def _plain(value: object) -> object:
    if isinstance(value, Mapping):  # such as an immutable one
        return dict(value)
    raise NotImplementedError(type(value).__name__)


ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
REPLIES = msgspec.msgpack.Decoder(DocumentReply)
_REQUESTS = msgspec.msgpack.Decoder(DocumentRequest)


def answer(request: DocumentRequest) -> DocumentReply:
    try:
        if isinstance(request, ReadRequest):
            return DagReply(read_dag(request.text, request.surroundings))
        if isinstance(request, LocateRequest):
            return ProblemsReply(located(request.text, request.problems))
        read_config(request.operator, request.config)
        return DoneReply()
    except DagInvalidError as error:
        return ProblemsReply(error.problems)
    except TraceError as error:
        return InvalidConfigReply(error.message, error.details)


def frame(message: msgspec.Struct) -> bytes:
    body = ENCODER.encode(message)
    return len(body).to_bytes(4, "big") + body


def serve(requests: BinaryIO, replies: BinaryIO, seconds: float) -> None:
    while len(head := requests.read(4)) == 4:
        body = requests.read(int.from_bytes(head, "big"))
        _limit_time(seconds)
        try:
            reply = answer(_REQUESTS.decode(body))
        except MemoryError:
            reply = FailureReply("out of memory", memory=True)
        except Exception:
            reply = FailureReply(traceback.format_exc()[-_MAX_TRACEBACK:])
        replies.write(frame(reply))
        replies.flush()
        del body, reply


def _limit_time(seconds: float) -> None:
    """Limit the processor time, in case the parent that enforces the deadline is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def main(arguments: list[str]) -> None:
    seconds, memory = float(arguments[0]), int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the parent decides
    with suppress(OSError):
        os.nice(NICENESS)
    for kind, limit in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        with suppress(ValueError, OSError):  # the machine allows less already
            resource.setrlimit(kind, (limit, limit))
    import tracelake.catalogue.sql.gate  # noqa: F401 - now, so that no document waits for it

    serve(sys.stdin.buffer, sys.stdout.buffer, seconds)


if __name__ == "__main__":
    main(sys.argv[1:])

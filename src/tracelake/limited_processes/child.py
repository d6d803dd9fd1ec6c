"""A process that works for its parent: it answers one request after the other until its standard input closes.

It cannot block the parent's interpreter, nor use more processor time and memory than the limits allow. It has no
credential.
"""

import math
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import BinaryIO

NICENESS = 10
"""Heartbeats take precedence, unless the parent says otherwise."""
_MAX_TRACEBACK = 4_000


class ReplyKind(IntEnum):
    """The first byte of a reply."""

    ANSWER = 0
    FAILURE = 1
    """A bug; the rest is a traceback for the parent's log."""
    OUT_OF_MEMORY = 2


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def serve(answer: Callable[[bytes], bytes], requests: BinaryIO, replies: BinaryIO, seconds: float) -> None:
    while len(head := requests.read(4)) == 4:
        body = requests.read(int.from_bytes(head, "big"))
        _limit_time(seconds)
        try:
            reply = bytes([ReplyKind.ANSWER]) + answer(body)
        except MemoryError:
            reply = bytes([ReplyKind.OUT_OF_MEMORY])
        except Exception:
            reply = bytes([ReplyKind.FAILURE]) + traceback.format_exc()[-_MAX_TRACEBACK:].encode()
        replies.write(frame(reply))
        replies.flush()
        del body, reply


def _limit_time(seconds: float) -> None:
    """Limit the processor time, in case the parent that enforces the deadline is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def limit_and_serve(arguments: list[str], prepare: Callable[[], Callable[[bytes], bytes]]) -> None:
    """The main function of a child, whose arguments are the seconds and bytes that it may use, and its niceness.

    `prepare` runs under the limit on memory, before the first request, and returns what answers requests.
    """
    seconds, memory = float(arguments[0]), int(arguments[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the parent decides
    with suppress(OSError):
        os.nice(int(arguments[2]))
    for kind, limit in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        with suppress(ValueError, OSError):  # the machine allows less already
            resource.setrlimit(kind, (limit, limit))
    serve(prepare(), sys.stdin.buffer, sys.stdout.buffer, seconds)

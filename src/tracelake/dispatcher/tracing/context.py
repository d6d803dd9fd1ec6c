"""Trace contexts as pure values: read and written as W3C `traceparent`, with span ids that follow from what they name.

A span id is a hash of the task, the attempt or the event it stands for. So every Dispatcher knows the id of every span
without storing it, also of one that another Dispatcher began, and saying a span twice says the same one.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import NamedTuple, TypeAlias
from uuid import UUID

# Later versions may append fields behind a dash; what stands before them stays.
_TRACEPARENT = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<span>[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?",
    re.ASCII,
)
_MAX_LENGTH = 512
_SAMPLED = 0x01


class TraceContext(NamedTuple):
    """A place in a trace: the span that others are children of."""

    trace_id: int
    span_id: int
    sampled: bool = True

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.sampled else '00'}"

    def at(self, span_id: int) -> "TraceContext":
        """Another span of the same trace."""
        return TraceContext(self.trace_id, span_id, self.sampled)


def parse(text: str | None) -> TraceContext | None:
    """Parses a `traceparent`; None for anything else."""
    if text is None or len(text) > _MAX_LENGTH:
        return None
    match = _TRACEPARENT.fullmatch(text)
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["more"] is not None):
        return None
    trace_id, span_id = int(match["trace"], 16), int(match["span"], 16)
    if not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(match["flags"], 16) & _SAMPLED))


def new_trace_id() -> int:
    return secrets.randbits(128) or 1


def is_sampled(trace_id: int, ratio: float) -> bool:
    """By the trace id alone, as OpenTelemetry's samplers do: whoever is asked gives the same answer.

    It is a share of ids that are random, and no limit for who chooses them.
    """
    return trace_id & (2**64 - 1) < round(ratio * 2**64)


def span_id_of(*parts: object) -> int:
    """Never 0, which stands for no span. No part may hold a NUL, so that different parts never read the same."""
    text = "\0".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big") or 1


def task_span(task_id: UUID) -> int:
    return span_id_of("task", task_id)


def attempt_span(task_id: UUID | str, attempt: int) -> int:
    return span_id_of("attempt", task_id, attempt)


def traceparent_of_attempt(traceparent: str | None, task_id: UUID, attempt: int) -> str | None:
    """What an attempt continues. A task that was never claimed has no attempt: then it is the task itself."""
    within = parse(traceparent)
    if within is None:
        return None
    return str(within.at(attempt_span(task_id, attempt) if attempt else task_span(task_id)))


Attributes: TypeAlias = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Span:
    name: str
    context: TraceContext
    parent: int | None
    """The id of the span above it, in the same trace."""
    start: datetime
    end: datetime | None = None
    """None: it ends with the commit."""
    attributes: Mapping[str, str | int] = field(default_factory=dict)
    error: str | None = None
    """One word for what went wrong."""
    server: bool = False
    """It stands for a request that somebody sent."""

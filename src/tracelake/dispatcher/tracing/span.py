"""A span before it is sent: what is known of it, without OpenTelemetry."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

from tracelake.dispatcher.tracing.context import TraceContext

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

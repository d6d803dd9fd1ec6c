"""The settings of a sink, as one frozen object."""

from dataclasses import dataclass, field

from tracelake.model.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    batches: int
    """The most batches of one dataset that are received at once."""
    max_receives: int
    visibility_seconds: float
    wait_seconds: float = 20.0
    poll_seconds: float
    """How often the sink asks for new and changed datasets."""
    large_bytes: int
    """Batches of at least this many bytes together are loaded by Spark."""
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 10.0))

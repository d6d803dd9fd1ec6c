"""What a sink must know, as one frozen object."""

from dataclasses import dataclass, field

from tracelake.model.backoff import Backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkConfig:
    batches: int
    """So many of one dataset are taken at once."""
    max_receives: int
    visibility_seconds: float
    wait_seconds: float = 20.0
    poll_seconds: float
    """A table that was deployed meanwhile is seen after so long."""
    large_bytes: int
    """From so many bytes on, batches are worth the price of Spark."""
    backoff: Backoff = field(default_factory=lambda: Backoff(0.2, 10.0))

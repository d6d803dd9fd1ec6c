"""Sources in the user API: `/v1/sources`, pause and resume."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from tracelake.wire.base import Cursor, Reply, Request
from tracelake.wire.head_progress import HeadProgressRow

RunState = Literal["starting", "running", "backing_off", "stopping", "dead", "ended"]
"""Of an always_on source: `starting` waits for a worker, `backing_off` failed and restarts at `until`, `stopping` was
asked to end, `dead` failed (no retries left) and needs a retry by a person, `ended` completed or was cancelled."""
SourceState = RunState | Literal["waiting", "paused", "stopped"]
"""`waiting`: for its time, a delivery or a person (every kind but always_on). Of every kind: `paused` by a person,
`stopped` by a full queue downstream."""


class SourceRow(Reply, frozen=True, kw_only=True):
    """A source of an active version."""

    dag: str
    job: str
    kind: Literal["cron", "webhook", "manual", "always_on"]
    state: SourceState
    paused_by: str | None = None
    paused_at: datetime | None = None
    since: datetime | None = None
    """When the state began: the claim, the end, the pause, or the moment when the queue became full."""
    because: str | None = None
    """Of a source that is `stopped`: the queue that is full."""
    kept: int = 0
    """Events that wait because of a pause or a full queue, or for their processing afterwards; the largest number of
    any input."""
    held_by: str | None = None
    """The job whose failed unit holds the events, as `dag/job`, if neither a pause nor a queue does."""
    silent_since: datetime | None = None
    """Since when the heartbeat of its worker has been overdue."""
    until: datetime | None = None
    """When the next attempt starts."""
    error: str | None = None
    """The error of its last attempt."""
    last_cursor: int | None = None
    last_partition: str | None = None
    last_event_at: datetime | None = None
    lag_seconds: float | None = None
    """Of an always_on source that has not ended: the age of its last event."""
    task_id: UUID | None = None
    attempt: int = 0
    schedule: str | None = None
    """Of a cron source, with its `time_zone` and the `catch_up` of missed slots."""
    time_zone: str | None = None
    catch_up: Literal["none", "last", "all"] | None = None
    counts_since: datetime | None = None
    """Of a cron source: slots before this time are not due."""
    last_slot: datetime | None = None
    """Of a cron source: the newest slot that was fired."""
    next_slot: datetime | None = None
    """Of a cron source; computed by the command line, never sent by the API."""
    overdue_since: datetime | None = None
    """A slot that should have been fired by now; computed like `next_slot`."""
    deliveries: int | None = None
    """Of a webhook: the number of deliveries."""
    last_delivery_at: datetime | None = None
    progress: HeadProgressRow | None = None
    """Of an always_on source that follows the head of a chain."""


class SourcesReply(Reply, frozen=True, kw_only=True):
    sources: list[SourceRow]
    now: datetime | None = None
    """The time of the store."""


class PauseReply(Reply, frozen=True, kw_only=True):
    dag: str
    job: str
    paused: bool
    paused_by: str | None = None
    paused_at: datetime | None = None
    duplicate: bool = False
    """The source was in this state before."""


class RepairRequest(Request, frozen=True, kw_only=True):
    from_block: Cursor | None = None
    """Files from this block on are read again; without it, from the first block that changed."""


class RepairReply(Reply, frozen=True, kw_only=True):
    dag: str
    job: str
    from_block: int | None = None
    task_id: UUID | None = None
    """The run of the source, which is tried again at once."""

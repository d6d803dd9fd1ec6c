"""The user API's view of sources: `/v1/sources`, and pausing one."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from tracelake.wire.base import Reply

RunState = Literal["starting", "running", "backing_off", "stopping", "dead", "ended"]
"""Of an always_on source: `starting` is ready for a worker, `backing_off` failed and starts again at `until`,
`stopping` was asked to end, `dead` failed for good and waits for a person's retry, `ended` ended by itself or was
cancelled."""
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
    """When its state began: the claim, the end, the pause, the first moment of the full queue."""
    because: str | None = None
    """Of a source that is `stopped`: what is full."""
    kept: int = 0
    """Events that wait for the end of a pause, of a full queue, or to be worked off after it (of the input that has
    most of them)."""
    held_by: str | None = None
    """The job whose failed unit keeps such events, as `dag/job`: neither a pause nor a queue does."""
    silent_since: datetime | None = None
    """Of a run whose worker should have been heard of since then, and was not."""
    until: datetime | None = None
    """When it is tried again."""
    error: str | None = None
    """What its last attempt died of."""
    last_cursor: int | None = None
    last_partition: str | None = None
    last_event_at: datetime | None = None
    lag_seconds: float | None = None
    """Of an always_on source that has not ended: the age of its last event."""
    task_id: UUID | None = None
    attempt: int = 0
    schedule: str | None = None
    """Of a cron source; with its time zone, and what is done about slots that were missed."""
    time_zone: str | None = None
    catch_up: Literal["none", "last", "all"] | None = None
    counts_since: datetime | None = None
    """Of a cron source: no slot before this is missing."""
    last_slot: datetime | None = None
    """Of a cron source: the newest that was fired."""
    next_slot: datetime | None = None
    """Of a cron source, as the command line reads its schedule; the API does not say it."""
    overdue_since: datetime | None = None
    """The same: a slot that should have been fired by now."""
    deliveries: int | None = None
    """Of a webhook: how many there were."""
    last_delivery_at: datetime | None = None


class SourcesReply(Reply, frozen=True, kw_only=True):
    sources: list[SourceRow]
    now: datetime | None = None
    """The store's time."""


class PauseReply(Reply, frozen=True, kw_only=True):
    dag: str
    job: str
    paused: bool
    paused_by: str | None = None
    paused_at: datetime | None = None
    duplicate: bool = False
    """It was so before."""

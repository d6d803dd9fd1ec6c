"""The user API's view of everything at once: `/v1/overview`, what `trace top` shows."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from tracelake.wire.base import Reply
from tracelake.wire.pressure import PressureEdgeRow, QueueRow
from tracelake.wire.sources_view import SourceRow

CountName = Literal["made", "events", "ready", "running", "held", "retrying", "failed"]


class JobLoad(Reply, frozen=True, kw_only=True):
    """A job of an active version: what it has to do, and what came in the window."""

    dag: str
    job: str
    job_id: UUID
    source: str | None = None
    """The kind of source, if it is one."""
    made: int
    """Tasks made in the window."""
    events: int
    """Events of its outputs in the window."""
    ready: int
    oldest_ready_seconds: float | None = None
    """How long the oldest ready task has been waiting."""
    running: int
    held: int
    """They wait for a place of a limit."""
    retrying: int
    """They failed, and wait for their next attempt."""
    failed: int
    """Failed for good, and neither retried nor skipped."""
    cut: list[CountName] = []
    """Counts that were not taken to the end: there are at least as many. Events and tasks of the window are counted up
    to 10,000 each; of the live tasks the 10,000 oldest and the 10,000 newest. Where many jobs have much, each is
    counted up to a smaller number, its share."""


class OverviewReply(Reply, frozen=True, kw_only=True):
    now: datetime
    since: datetime
    """Where the window starts: as asked for, but no more than an hour ago."""
    serving_since: datetime
    """Since when the Dispatcher that answers has been running."""
    jobs: list[JobLoad]
    queues: list[QueueRow]
    """Those with a threshold."""
    stopped: list[PressureEdgeRow]
    """Inputs from which no tasks are made right now, and why."""
    sources: list[SourceRow]

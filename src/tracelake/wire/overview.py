"""The overview of an org in the user API, `/v1/overview`, which `trace top` shows."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from tracelake.wire.base import Reply
from tracelake.wire.pressure import PressureEdgeRow, QueueRow
from tracelake.wire.sources_view import SourceRow

CountName = Literal["made", "events", "ready", "running", "held", "retrying", "failed", "dead_letters"]


class JobLoad(Reply, frozen=True, kw_only=True):
    """The load of a job of an active version: its live tasks, and its tasks and events of the window."""

    dag: str
    job: str
    job_id: UUID
    source: str | None = None
    """The kind of source, if the job is one."""
    made: int
    """Tasks created in the window."""
    events: int
    """Events of its outputs in the window."""
    ready: int
    oldest_ready_seconds: float | None = None
    """How long the oldest ready task has been waiting."""
    running: int
    held: int
    """Tasks that wait for a limit on running tasks."""
    retrying: int
    """Tasks that failed and wait for their next attempt."""
    failed: int
    """Tasks that failed, have no retry left, and were not skipped."""
    gaps: int = 0
    """Units that were skipped or cancelled, so that nothing will compute them; up to 1,000 such tasks are looked at."""
    dead_letters: int = 0
    """Batches that sinks rejected, of the tables that the job writes."""
    cut: list[CountName] = []
    """Counts that are lower bounds. Events and tasks of the window are counted up to 10,000 each, live tasks up to the
    10,000 oldest and the 10,000 newest; if many jobs have many, each is counted up to a smaller share."""


class OverviewReply(Reply, frozen=True, kw_only=True):
    now: datetime
    since: datetime
    """The start of the window, as requested, but at most an hour ago."""
    serving_since: datetime
    """The start time of the Dispatcher that replies."""
    jobs: list[JobLoad]
    queues: list[QueueRow]
    """The queues with a threshold."""
    stopped: list[PressureEdgeRow]
    """Inputs that create no tasks right now, and why."""
    sources: list[SourceRow]

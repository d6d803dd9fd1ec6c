"""Tasks in the user API: lists, details, retries and skips."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.base import Reply, Request
from tracelake.wire.datasets import EventRow
from tracelake.wire.jobs import JobOutputRow
from tracelake.wire.units import PayloadInput, Unit

TaskStatus = Literal["Queued", "Running", "Completed", "Failed", "Canceled"]
TaskStatusFilter = Literal["Queued", "Running", "Retrying", "Completed", "Failed", "Skipped", "Canceled"]
"""What a list of tasks can be narrowed to. `Retrying`: failed, and waits for its next attempt (`next_retry_at`);
`Failed`: failed for good and not skipped; `Skipped`: failed for good and skipped."""


class RetryReply(Reply, frozen=True, kw_only=True):
    task_id: UUID
    status: str
    max_attempts: int | None = None
    duplicate: bool = False
    """It is queued or running already."""
    cancel_requested: bool = False
    """It runs, but was asked to stop: it can be retried once it is Canceled."""


class SkipReply(Reply, frozen=True, kw_only=True):
    task_id: UUID
    status: str
    duplicate: bool = False


class TaskRow(Reply, frozen=True, kw_only=True):
    task_id: UUID
    dag: str
    job: str
    operator: str
    status: TaskStatus
    attempt: int
    max_attempts: int | None = None
    held: bool = False
    cancel_requested: bool = False
    skipped: bool = False
    unit: Unit | None = None
    revision: str = ""
    created_at: datetime
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    next_retry_at: datetime | None = None
    error: str | None = None


class TasksPage(Reply, frozen=True, kw_only=True):
    tasks: list[TaskRow]
    next: str | None = None
    """Pass it as `cursor` for the following page; after a page that was asked for with `after`, as `after`."""
    settled: UUID | None = None
    """With `after`: nothing will appear any more up to here. When there is no `next`, pass it as `after` next time;
    tasks above it come again, and perhaps with others between them."""
    serving_since: datetime | None = None
    """With `after`: since when the Dispatcher that answers has been running."""


class TaskLookup(Request, frozen=True, kw_only=True):
    task_ids: Annotated[list[UUID], Meta(min_length=1, max_length=1000)]


class AttemptRow(Reply, frozen=True, kw_only=True):
    attempt: int
    outcome: str | None = None
    worker_id: str | None = None
    claimed_at: datetime | None = None
    error: str | None = None
    spark: dict[str, int] | None = None
    """What Spark did for it, where that was said: the figures of `SparkMetrics`, as far as they are not 0."""


class TaskDetail(Reply, frozen=True, kw_only=True):
    task: TaskRow
    runtime: str
    inputs: list[PayloadInput]
    outputs: list[JobOutputRow]
    result: Any = None
    """What the operator reported about its outputs."""
    attempts: list[AttemptRow]
    """Oldest first, the current one last."""
    events: list[EventRow] = []

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
"""The filters of a list of tasks. `Retrying`: failed, with a next attempt (`next_retry_at`); `Failed`: failed, with
no retry left, and not skipped; `Skipped`: failed and skipped."""


class RetryReply(Reply, frozen=True, kw_only=True):
    task_id: UUID
    status: str
    max_attempts: int | None = None
    duplicate: bool = False
    """The task is queued or running already."""
    cancel_requested: bool = False
    """The task runs but was asked to stop: it can be retried once it is Canceled."""


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
    window: str | None = None
    """The unit as a date, if it is a window of time: `2026-03-03`, `2026-03-03 13:00`, `2026-W10`, `2026-03`."""
    revision: str = ""
    created_at: datetime
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    next_retry_at: datetime | None = None
    error: str | None = None


class TasksPage(Reply, frozen=True, kw_only=True):
    tasks: list[TaskRow]
    next: str | None = None
    """Pass it as `cursor` for the next page, or as `after` if this page was requested with `after`."""
    settled: UUID | None = None
    """With `after`: no task will appear up to this id any more. If there is no `next`, pass it as `after` next time;
    tasks above it are returned again, perhaps with others between them."""
    serving_since: datetime | None = None
    """With `after`: the start time of the Dispatcher that replies."""


class TaskLookup(Request, frozen=True, kw_only=True):
    task_ids: Annotated[list[UUID], Meta(min_length=1, max_length=1000)]


class AttemptRow(Reply, frozen=True, kw_only=True):
    attempt: int
    outcome: str | None = None
    worker_id: str | None = None
    claimed_at: datetime | None = None
    error: str | None = None
    spark: dict[str, int] | None = None
    """The figures of `SparkMetrics` that are not 0, if Spark reported any."""
    operator_package: str | None = None
    """The installed package, with its version, that the operator came from; none for operators of Trace itself."""
    has_log: bool = False
    """Its log is kept (`GET /v1/tasks/{task_id}/log`)."""


class TaskDetail(Reply, frozen=True, kw_only=True):
    task: TaskRow
    runtime: str
    inputs: list[PayloadInput]
    outputs: list[JobOutputRow]
    result: Any = None
    """The operator's report on its outputs."""
    attempts: list[AttemptRow]
    """Oldest first; the last is the current one."""
    events: list[EventRow] = []

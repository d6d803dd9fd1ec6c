"""Failed tasks in the user API: their errors in groups, and actions on many of them."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.base import ErrorInfo, Reply, Request

MAX_AT_ONCE = 200
"""Tasks of one call; a caller with more makes several calls."""
MAX_GROUPS = 20

TaskAction = Literal["retry", "skip", "cancel"]


class ErrorGroup(Reply, frozen=True, kw_only=True):
    """Tasks that failed with the same error, apart from numbers, addresses and ids in its text."""

    error: str
    """The whole error of the newest of them."""
    tasks: int
    jobs: list[str]
    """Their jobs, as `dag/job`; the first ten."""
    task_id: UUID
    """The newest of them."""
    unit: str | None = None
    """Its unit in words."""
    failed_at: datetime | None = None
    """When it failed."""


class FailuresReply(Reply, frozen=True, kw_only=True):
    """Tasks that failed and have no retry left, by error; the largest group first."""

    now: datetime
    tasks: int
    """How many there are, counted up to 10,000."""
    more: bool = False
    """Counting stopped at the limit."""
    grouped: int
    """How many of them are in groups: the newest, up to 1,000."""
    groups: list[ErrorGroup]
    """The 20 largest."""
    other_groups: int = 0
    """The number of smaller groups that are left out."""


class TaskVersion(Request, frozen=True, kw_only=True):
    """A task as the caller saw it: the action is refused if it has moved on."""

    task_id: UUID
    attempt: Annotated[int, Meta(ge=0, le=2**31 - 1)]


class TaskActionsRequest(Request, frozen=True, kw_only=True):
    """`retry` and `skip` act on tasks that failed and have no retry left; `cancel` on queued and running ones, and on
    those that wait for a retry."""

    action: TaskAction
    tasks: Annotated[list[TaskVersion], Meta(min_length=1, max_length=MAX_AT_ONCE)]


class TaskActionOutcome(Reply, frozen=True, kw_only=True):
    task_id: UUID
    outcome: Literal["done", "duplicate", "changed", "refused"]
    """`duplicate`: the action was taken before. `changed`: the task has moved on, and nothing was done to it."""
    status: str | None = None
    error: ErrorInfo | None = None
    """Why it was refused."""


class TaskActionsReply(Reply, frozen=True, kw_only=True):
    outcomes: list[TaskActionOutcome]
    """In the order of the request."""

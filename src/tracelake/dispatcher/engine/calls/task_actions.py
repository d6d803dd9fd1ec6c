"""What people and platform services do to a task: cancel it, retry it, skip its unit."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from tracelake.catalogue.sql.query_config import QUERY
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.engine.calls.call import (
    Call,
    CallNeeds,
    DecisionContext,
    LockedTask,
    Respond,
    always,
    require,
)
from tracelake.dispatcher.engine.plan import AuditEntry, StateChange, wake_of
from tracelake.errors import TraceError
from tracelake.model import lifecycle
from tracelake.model.task import Status, Task


@dataclass(frozen=True, slots=True)
class TaskActionResult:
    """The task after the action; `duplicate` if the action had been taken before."""

    task: Task
    duplicate: bool
    changed: bool = False
    """The task is not as the caller saw it, and nothing was done."""


@dataclass(frozen=True, slots=True)
class CancelCall(Call[TaskActionResult]):
    task_id: UUID = field()
    by: Actor | None = None
    """None: a platform service, which sees every org."""
    seen_attempt: int | None = None
    """The caller saw the task at this attempt, not ended; it may have started meanwhile, and is cancelled then too."""

    needs = CallNeeds()
    routing_org = None

    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[TaskActionResult]:
        locked = require(locked) if self.by is None else _require_own(locked, self.by)
        task = locked.task
        if self.seen_attempt is not None and task.finished and task.status is not Status.CANCELED:
            return always(TaskActionResult(task, duplicate=False, changed=True))
        canceled = lifecycle.cancel(task, locked.now)
        if canceled is not None:
            context.plan.changes.append(StateChange(task, canceled))
            if self.by is not None:
                context.plan.audit.append(_audit(self.by, task, "task.cancel", {"status": task.status.value}))
        return always(TaskActionResult(canceled or task, duplicate=canceled is None))


@dataclass(frozen=True, slots=True)
class RetryCall(Call[TaskActionResult]):
    """A person retries a failed or cancelled task."""

    task_id: UUID = field()
    by: Actor = field()
    seen_attempt: int | None = None
    """The caller saw this attempt of the task fail, with no retry left; None: it is retried as it is now."""

    needs = CallNeeds(superseded=True)

    @property
    def routing_org(self) -> UUID | None:
        return self.by.org_id

    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[TaskActionResult]:
        locked = _require_own(locked, self.by)
        task, job = locked.task, locked.job
        if self.seen_attempt is not None and not _awaits_decision(task, self.seen_attempt):
            duplicate = task.status is Status.QUEUED and task.attempt == self.seen_attempt
            return always(TaskActionResult(task, duplicate=duplicate, changed=not duplicate))
        if locked.superseded:
            raise TraceError(
                "task_finished",
                "The task belongs to a version of the DAG that is not active.",
                status=task.status.value,
            )
        if job.operator == QUERY and task.finished:
            raise TraceError(
                "task_finished", "A batch query that ended is not run again: submit it again.", status=task.status.value
            )
        retried = lifecycle.retry(task, locked.now, more_attempts=job.max_attempts)
        if retried is not None:
            wake = wake_of(context.config.runtimes, job.runtime)
            context.plan.changes.append(StateChange(task, retried, wake=wake))
            context.plan.audit.append(_audit(self.by, task, "task.retry", {"attempt": task.attempt}))
        return always(TaskActionResult(retried or task, duplicate=retried is None))


@dataclass(frozen=True, slots=True)
class SkipCall(Call[TaskActionResult]):
    """A person accepts the gap that a failed unit leaves."""

    task_id: UUID = field()
    by: Actor = field()
    seen_attempt: int | None = None
    """The caller saw this attempt of the task fail, with no retry left; None: it is skipped as it is now."""

    needs = CallNeeds()
    routing_org = None

    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[TaskActionResult]:
        locked = _require_own(locked, self.by)
        task = locked.task
        if self.seen_attempt is not None and not _awaits_decision(task, self.seen_attempt):
            duplicate = task.attempt == self.seen_attempt and task.skipped_at is not None and task.finished
            return always(TaskActionResult(task, duplicate=duplicate, changed=not duplicate))
        skipped = lifecycle.skip(task, locked.now)
        if skipped is not None:
            context.plan.changes.append(StateChange(task, skipped))
            context.plan.audit.append(_audit(self.by, task, "task.skip", {"unit": task.unit_key}))
        return always(TaskActionResult(skipped or task, duplicate=skipped is None))


def _require_own(locked: LockedTask | None, by: Actor) -> LockedTask:
    """Returns the locked task, or raises 404, also for the task of another org."""
    locked = require(locked)
    if locked.task.org_id != by.org_id:
        raise TraceError("task_not_found")
    return locked


def _awaits_decision(task: Task, attempt: int) -> bool:
    """Whether the task failed with this attempt, has no retry left, and nobody has accepted the gap."""
    failed = task.status is Status.FAILED and task.finished and task.skipped_at is None
    return failed and task.attempt == attempt


def _audit(by: Actor, task: Task, action: str, details: dict[str, Any]) -> AuditEntry:
    return AuditEntry(task.org_id, by.subject, action, f"task:{task.task_id}", details)

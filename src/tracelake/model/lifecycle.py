"""Every transition of a task, as pure functions: a snapshot and the time in, a snapshot or a refusal out.

`TRANSITIONS` is the drawing in docs/state-machine.md as data. Each function below produces only edges of that table
(a test compares all three), and `dispatcher.engine` is the only place that writes the result.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from msgspec.structs import replace

from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff, Retry
from tracelake.model.task import Outcome, Status, Task


class Verb(StrEnum):
    CREATE = "create"
    CLAIM = "claim"
    HEARTBEAT = "heartbeat"
    COMPLETE = "complete"
    EXPIRE = "expire"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    RETRY = "retry"
    SKIP = "skip"
    REVIVE = "revive"


class NotClaimed(StrEnum):
    ALREADY_RUNNING = "AlreadyRunning"
    COMPLETED = "Completed"
    CANCELED = "Canceled"
    FAILED = "Failed"
    NOT_FOUND = "NotFound"
    NOT_READY = "NotReady"


_Q, _R, _C, _F, _X = Status.QUEUED, Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELED

TRANSITIONS: frozenset[tuple[Verb, Status | None, Status]] = frozenset(
    {
        (Verb.CREATE, None, _Q),
        (Verb.CLAIM, _Q, _R),
        (Verb.HEARTBEAT, _R, _R),
        (Verb.HEARTBEAT, _F, _R),  # a late heartbeat takes the lease back
        (Verb.HEARTBEAT, _Q, _R),
        (Verb.COMPLETE, _R, _C),
        (Verb.COMPLETE, _R, _F),
        (Verb.COMPLETE, _R, _X),
        (Verb.COMPLETE, _F, _C),  # late replies of an attempt that only the clock had judged
        (Verb.COMPLETE, _F, _F),
        (Verb.COMPLETE, _Q, _C),
        (Verb.COMPLETE, _Q, _F),
        (Verb.COMPLETE, _Q, _Q),
        (Verb.EXPIRE, _R, _F),
        (Verb.EXPIRE, _R, _X),
        (Verb.REQUEUE, _F, _Q),
        (Verb.CANCEL, _Q, _X),
        (Verb.CANCEL, _F, _X),
        (Verb.CANCEL, _R, _R),  # only asks; the worker or its lease ends it
        (Verb.RETRY, _F, _Q),
        (Verb.RETRY, _X, _Q),
        (Verb.SKIP, _F, _F),
        (Verb.REVIVE, _X, _Q),  # what a cutover cancelled, when its version is active again
    }
)


def claim(
    task: Task,
    now: datetime,
    *,
    lease_token: UUID,
    lease_seconds: int,
    timeout_seconds: int | None,
    worker_id: str,
    claim_id: str | None,
) -> Task | NotClaimed:
    """Start the next attempt. The same `claim_id` on the attempt it started gets that lease again."""
    match task.status:
        case Status.RUNNING:
            same = claim_id is not None and claim_id == task.claim_id
            return task if same else NotClaimed.ALREADY_RUNNING
        case Status.COMPLETED:
            return NotClaimed.COMPLETED
        case Status.CANCELED:
            return NotClaimed.CANCELED
        case Status.FAILED:
            return NotClaimed.FAILED if task.finished else NotClaimed.NOT_READY
        case Status.QUEUED:
            if task.held:
                return NotClaimed.NOT_READY
    deadline = None if timeout_seconds is None else now + timedelta(seconds=timeout_seconds)
    return replace(
        task,
        status=Status.RUNNING,
        attempt=task.attempt + 1,
        outcome=None,
        lease_token=lease_token,
        lease_expires_at=_lease_end(now, lease_seconds, deadline),
        deadline_at=deadline,
        claimed_at=now,
        worker_id=worker_id,
        claim_id=claim_id,
        ready_at=None,
        error=None,
    )


def check_current(task: Task, attempt: int, lease_token: UUID) -> None:
    if not task.is_current(attempt, lease_token):
        raise fenced(task)


def heartbeat(task: Task, now: datetime, *, attempt: int, lease_token: UUID, lease_seconds: int) -> Task:
    """Extend the lease, or take it back after the timeout verdict; never past the deadline."""
    check_current(task, attempt, lease_token)
    if task.deadline_at is not None and now >= task.deadline_at:
        raise TraceError("deadline_exceeded", attempt=task.attempt, status=task.status.value)
    return replace(
        task,
        status=Status.RUNNING,
        outcome=None,
        lease_expires_at=_lease_end(now, lease_seconds, task.deadline_at),
        ready_at=None,
        next_retry_at=None,
        finished_at=None,
        held=False,
        held_by=None,
        error=None,
    )


def next_retry(
    task: Task, now: datetime, backoff: Backoff, *, stopped: bool = False, not_started: bool = False
) -> Retry:
    """When to try again after this attempt, should it have failed; `stopped` if its worker had to end, and it had not;
    `not_started` if nobody took it over.

    The wait follows the attempts that failed in a row. A task with attempts without end is meant to run for ever: an
    attempt that lived longer than the longest wait was a healthy one, and the counting starts anew with it. One that
    was stopped is no failure: there is no wait, and it neither lengthens the row nor, if it was short, ends it. One
    that did not start is none either, but whoever takes attempts over needs time: the wait is always the first one.
    """
    last_seen = now if task.lease_expires_at is None else min(now, task.lease_expires_at)
    lived = timedelta(0) if task.claimed_at is None else last_seen - task.claimed_at
    healthy = task.max_attempts is None and lived > timedelta(seconds=backoff.max_seconds)
    forgiven = max(0, task.attempt - 1) if healthy else task.forgiven
    if stopped:
        return Retry(timedelta(0), min(forgiven + 1, task.attempt))
    if not_started:
        return Retry(backoff.delay(1), min(forgiven + 1, task.attempt))
    return Retry(backoff.delay(task.attempt - forgiven), forgiven)


def complete(
    task: Task,
    now: datetime,
    *,
    attempt: int,
    lease_token: UUID,
    status: Outcome,
    retryable: bool,
    error: str | None,
    retry: Retry,
    stopped: bool = False,
) -> Task | None:
    """The worker's final report. None means a repeat: the attempt has reported before, whatever this report carries.

    `stopped`: the attempt failed because its worker had to end, or never started. That costs none: there is one more.
    A `Canceled` that nobody requested is a final failure: its unit is missing, and only a person may accept that.
    """
    if _is_repeat(task, attempt, lease_token, status):
        return None
    check_current(task, attempt, lease_token)
    if status is Outcome.COMPLETED:
        if task.cancel_requested:
            raise TraceError("cancel_requested", attempt=task.attempt, status=task.status.value)
        return _end(task, now, Status.COMPLETED, Outcome.COMPLETED, None)
    if task.cancel_requested:
        return _end(task, now, Status.CANCELED, status, error)
    if status is Outcome.CANCELED:
        return _end(task, now, Status.FAILED, status, error or "the worker reported Canceled, but nobody requested it")
    if stopped and task.max_attempts is not None:
        task = replace(task, max_attempts=task.max_attempts + 1)
    if not (retryable and task.may_retry):
        return _end(task, now, Status.FAILED, Outcome.FAILED, error)
    if task.status is Status.RUNNING or task.finished:
        return _await_retry(task, now, Outcome.FAILED, error, retry)
    # The timeout verdict has already scheduled the retry: it keeps its place, only the verdict changes.
    return replace(task, outcome=Outcome.FAILED, error=error)


def expire(task: Task, now: datetime, *, retry: Retry) -> Task:
    """The timeout verdict on a Running task whose lease ran out."""
    assert task.status is Status.RUNNING
    message = "the lease ran out without a heartbeat"
    if task.deadline_at is not None and now >= task.deadline_at:
        message = "timed out: it ran longer than timeout_seconds of its job"
    if task.cancel_requested:
        return _end(task, now, Status.CANCELED, Outcome.TIMEOUT, message)
    if not task.may_retry:
        return _end(task, now, Status.FAILED, Outcome.TIMEOUT, message)
    return _await_retry(task, now, Outcome.TIMEOUT, message, retry)


def requeue(task: Task, now: datetime) -> Task:
    """A due retry becomes ready; lease token and verdict stay until the next claim."""
    assert task.status is Status.FAILED
    assert task.next_retry_at is not None
    return replace(task, status=Status.QUEUED, next_retry_at=None, ready_at=now)


def cancel(task: Task, now: datetime) -> Task | None:
    """End what does not run, ask what runs. None means it was cancelled, or asked, before."""
    if task.status is Status.CANCELED or task.cancel_requested:
        return None
    if task.finished:
        raise TraceError("task_finished", status=task.status.value)
    if task.status is Status.RUNNING:
        return replace(task, cancel_requested=True)
    # What the last attempt said stays; one that never ran has nothing to say.
    return _end(task, now, Status.CANCELED, task.outcome, task.error or "cancelled before it ran")


def retry(task: Task, now: datetime, *, more_attempts: int | None) -> Task | None:
    """A person's retry of what failed or was cancelled: ready at once, with more attempts, never with the number reset.
    None: it is on its way already.

    `more_attempts` is what the job grants a task; None is without end.
    """
    if task.status in (Status.QUEUED, Status.RUNNING):
        return None
    if task.status is Status.COMPLETED:
        raise TraceError("task_finished", status=task.status.value)
    limit = task.max_attempts
    if task.finished:
        limit = None if limit is None or more_attempts is None else task.attempt + more_attempts
    return replace(
        task,
        status=Status.QUEUED,
        cancel_requested=False,
        max_attempts=limit,
        next_retry_at=None,
        finished_at=None,
        skipped_at=None,
        ready_at=now,
    )


def skip(task: Task, now: datetime) -> Task | None:
    """A person accepts the gap that a failed unit leaves. None means it was skipped before."""
    if task.status is not Status.FAILED or not task.finished:
        raise TraceError("task_not_failed", status=task.status.value)
    return None if task.skipped_at is not None else replace(task, skipped_at=now)


def revive(task: Task, now: datetime) -> Task:
    """What a cutover cancelled is ready again when its version is active again: nobody had decided against its unit.

    With one attempt more where the last one was spent, since it was stopped and did not fail. A cutover moves many
    tasks at once, so `dispatcher.deploy.tasks` says the same in SQL; a test holds the two together.
    """
    assert task.status is Status.CANCELED
    spent = task.max_attempts is not None and task.max_attempts <= task.attempt
    return replace(
        task,
        status=Status.QUEUED,
        cancel_requested=False,
        max_attempts=task.attempt + 1 if spent else task.max_attempts,
        finished_at=None,
        error=None,
        ready_at=now,
    )


def fenced(task: Task) -> TraceError:
    return TraceError("fenced", attempt=task.attempt, status=task.status.value)


def _is_repeat(task: Task, attempt: int, lease_token: UUID, status: Outcome) -> bool:
    if task.attempt != attempt or task.lease_token != lease_token:
        return False
    if task.outcome not in (None, Outcome.TIMEOUT):
        return True
    # Cancelled by the clock or by a person before the worker could say so: its agreement is no conflict.
    return task.status is Status.CANCELED and status is Outcome.CANCELED


def _lease_end(now: datetime, lease_seconds: int, deadline: datetime | None) -> datetime:
    end = now + timedelta(seconds=lease_seconds)
    return end if deadline is None else min(end, deadline)


def _end(task: Task, now: datetime, status: Status, outcome: Outcome | None, error: str | None) -> Task:
    return replace(
        task,
        status=status,
        outcome=outcome,
        lease_expires_at=None,
        ready_at=None,
        next_retry_at=None,
        held=False,
        held_by=None,
        finished_at=now,
        # A gap that a person accepted stays accepted, whatever the attempt reports late. A result closes it.
        skipped_at=None if status is Status.COMPLETED else task.skipped_at,
        error=error,
    )


def _await_retry(task: Task, now: datetime, outcome: Outcome, error: str | None, retry: Retry) -> Task:
    return replace(
        task,
        status=Status.FAILED,
        outcome=outcome,
        lease_expires_at=None,
        next_retry_at=now + retry.after,
        finished_at=None,
        forgiven=retry.forgiven,
        error=error,
    )

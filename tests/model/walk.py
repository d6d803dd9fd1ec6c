"""Everything that can happen to a task, as pure moves: for walks through all reachable snapshots and random ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from tracelake.errors import TraceError
from tracelake.model import lifecycle
from tracelake.model.backoff import Retry
from tracelake.model.lifecycle import NotClaimed, Verb
from tracelake.model.task import Outcome, Status, Task

START = datetime(2030, 1, 1, tzinfo=UTC)
RETRY = Retry(timedelta(seconds=30), 0)
LEASE = 120


def lease_of(attempt: int) -> UUID:
    return UUID(int=(0x4 << 76) | (0b10 << 62) | attempt)


def fresh(max_attempts: int | None, at: datetime = START) -> Task:
    """What `create` writes."""
    return Task(
        task_id=UUID(int=1),
        org_id=UUID(int=2),
        job_id=UUID(int=3),
        status=Status.QUEUED,
        attempt=0,
        max_attempts=max_attempts,
        ready_at=at,
    )


@dataclass(frozen=True)
class Move:
    """`by` is the attempt that speaks, for the verbs of a task's own calls."""

    verb: Verb
    name: str
    run: Callable[[Task, datetime], "Task | NotClaimed | None"]
    by: int | None = None
    word: Outcome | None = None

    def apply(self, task: Task, now: datetime) -> "Task | NotClaimed | TraceError | None":
        try:
            return self.run(task, now)
        except TraceError as refusal:
            return refusal


def moves(task: Task, *, timeout: int | None = 200) -> Iterator[Move]:
    """Every move that somebody may try on this snapshot, sensible or not."""
    for claim_id in (None, "a", "b"):
        yield Move(Verb.CLAIM, f"claim {claim_id}", _claim(claim_id, timeout))
    for attempt in range(1, task.attempt + 2):
        yield Move(Verb.HEARTBEAT, f"heartbeat of {attempt}", _beat(attempt, lease_of(attempt)), attempt)
        for word in (Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELED):
            for retryable in (True, False):
                name = f"complete {attempt} {word} {retryable}"
                yield Move(Verb.COMPLETE, name, _say(attempt, lease_of(attempt), word, retryable), attempt, word)
        failed = Outcome.FAILED
        name = f"stop {attempt}"
        yield Move(Verb.COMPLETE, name, _say(attempt, lease_of(attempt), failed, True, stopped=True), attempt, failed)
    stranger = UUID(int=99)
    yield Move(Verb.HEARTBEAT, "heartbeat of a stranger", _beat(task.attempt, stranger), 0)
    word = Outcome.COMPLETED
    yield Move(Verb.COMPLETE, "complete by a stranger", _say(task.attempt, stranger, word, True), 0, word)
    yield Move(Verb.CANCEL, "cancel", lifecycle.cancel)
    yield Move(Verb.RETRY, "retry", lambda task, now: lifecycle.retry(task, now, more_attempts=2))
    yield Move(Verb.SKIP, "skip", lifecycle.skip)
    if task.status is Status.CANCELED:
        yield Move(Verb.REVIVE, "revive", lifecycle.revive)
    if task.status is Status.RUNNING:
        yield Move(Verb.EXPIRE, "expire", lambda task, now: lifecycle.expire(task, now, retry=RETRY))
    if task.next_retry_at is not None:
        yield Move(Verb.REQUEUE, "requeue", lifecycle.requeue)


def held(task: Task) -> Task | None:
    """Holding is no verb of the state machine: a limit holds what is ready, and lets it go again."""
    by = None if task.held else "limit"
    return replace(task, held=not task.held, held_by=by) if task.status is Status.QUEUED else None


def shape(task: Task) -> tuple[object, ...]:
    """What decisions depend on, times reduced to whether they are set."""
    return (
        task.status,
        task.outcome,
        task.cancel_requested,
        task.held,
        task.attempt,
        task.max_attempts,
        task.claim_id,
        task.deadline_at is None,
        task.next_retry_at is None,
        task.finished_at is None,
        task.skipped_at is None,
    )


def reachable(max_attempts: int | None, *, timeout: int | None, most_attempts: int = 3) -> list[Task]:
    """One task of every shape that any sequence of moves leads to."""
    first = fresh(max_attempts)
    found = {shape(first): first}
    waiting = [(first, START)]
    while waiting:
        task, now = waiting.pop()
        for pause in (1, 150, 1000):
            later = now + timedelta(seconds=pause)
            after = [move.apply(task, later) for move in moves(task, timeout=timeout)] + [held(task)]
            for result in after:
                if not isinstance(result, Task) or result.attempt > most_attempts or shape(result) in found:
                    continue
                found[shape(result)] = result
                waiting.append((result, later))
    return list(found.values())


def _claim(claim_id: str | None, timeout: int | None) -> Callable[[Task, datetime], Task | NotClaimed]:
    return lambda task, now: lifecycle.claim(
        task,
        now,
        lease_token=lease_of(task.attempt + 1),
        lease_seconds=LEASE,
        timeout_seconds=timeout,
        worker_id="w",
        claim_id=claim_id,
    )


def _beat(attempt: int, lease: UUID) -> Callable[[Task, datetime], Task]:
    return lambda task, now: lifecycle.heartbeat(task, now, attempt=attempt, lease_token=lease, lease_seconds=LEASE)


def _say(
    attempt: int, lease: UUID, word: Outcome, retryable: bool, stopped: bool = False
) -> Callable[[Task, datetime], Task | None]:
    return lambda task, now: lifecycle.complete(
        task,
        now,
        attempt=attempt,
        lease_token=lease,
        status=word,
        retryable=retryable,
        error=None,
        retry=RETRY,
        stopped=stopped,
    )

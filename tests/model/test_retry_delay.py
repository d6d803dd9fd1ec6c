"""The wait after an attempt: by the failures in a row, which a healthy life of an endless task ends."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tracelake.model import lifecycle
from tracelake.model.backoff import Backoff
from tracelake.model.lifecycle import next_retry
from tracelake.model.task import Outcome, Status, Task

NOW = datetime(2026, 1, 31, tzinfo=UTC)
BACKOFF = Backoff(30, 600)
LONGEST = 600


def task(attempt: int, max_attempts: int | None, lived: float, unseen: float, forgiven: int = 0) -> Task:
    """An attempt that was claimed so long ago, and whose lease ended so long before now."""
    return Task(
        task_id=UUID(int=1),
        org_id=UUID(int=2),
        job_id=UUID(int=3),
        status=Status.RUNNING,
        attempt=attempt,
        max_attempts=max_attempts,
        claimed_at=NOW - timedelta(seconds=unseen + lived),
        lease_expires_at=NOW - timedelta(seconds=unseen),
        forgiven=forgiven,
    )


def wait(task: Task) -> float:
    return next_retry(task, NOW, BACKOFF).after.total_seconds()


@given(
    attempt=st.integers(1, 10_000),
    max_attempts=st.none() | st.integers(1, 10_000),
    lived=st.floats(0, 10_000),
    unseen=st.floats(0, 10_000),
)
def test_only_a_healthy_life_of_an_endless_task_starts_anew(
    attempt: int, max_attempts: int | None, lived: float, unseen: float
) -> None:
    seconds = wait(task(attempt, max_attempts, lived, unseen))
    healthy = max_attempts is None and lived > 600.001
    if healthy or attempt == 1:
        assert 30 <= seconds <= 45
    elif attempt >= 6 and (max_attempts is not None or lived < 599.999):
        assert 450 <= seconds <= 600


def test_a_lease_that_still_runs_counts_up_to_now() -> None:
    alive = task(9, None, lived=700, unseen=-200)
    assert wait(alive) >= 450, "it has lived for 500 seconds"


def test_a_task_that_nobody_claimed_has_not_lived() -> None:
    fresh = Task(
        task_id=UUID(int=1), org_id=UUID(int=2), job_id=UUID(int=3), status=Status.QUEUED, attempt=9, max_attempts=None
    )
    assert wait(fresh) >= 450


class Life(NamedTuple):
    """How an attempt went: so long, and then it failed, was stopped with its worker, or fell silent."""

    seconds: int
    end: str


LIVES = st.lists(
    st.builds(Life, st.sampled_from([1, 599, 601, 100_000]), st.sampled_from(["failed", "stopped", "silent"])),
    min_size=1,
    max_size=12,
)


def live(lives: Sequence[Life], max_attempts: int | None) -> list[float]:
    """The wait after each."""
    now, waits = NOW, []
    current = replace(task(0, max_attempts, 0, 0), status=Status.QUEUED, lease_expires_at=None, claimed_at=None)
    for number, life in enumerate(lives, 1):
        lease = UUID(int=number)
        claimed = lifecycle.claim(
            current, now, lease_token=lease, lease_seconds=life.seconds, timeout_seconds=None, worker_id="w",
            claim_id=None,
        )  # fmt: skip
        assert isinstance(claimed, Task)
        now += timedelta(seconds=life.seconds)
        stopped = life.end == "stopped"
        if life.end == "silent":
            now += timedelta(days=1)  # nobody was there to see its lease end
            ended: Task | None = lifecycle.expire(claimed, now, retry=next_retry(claimed, now, BACKOFF))
        else:
            retry = next_retry(claimed, now, BACKOFF, stopped=stopped)
            ended = lifecycle.complete(
                claimed, now, attempt=number, lease_token=lease, status=Outcome.FAILED, retryable=True, error=None,
                retry=retry, stopped=stopped,
            )  # fmt: skip
        assert ended is not None
        assert ended.next_retry_at is not None
        waits.append((ended.next_retry_at - now).total_seconds())
        now = ended.next_retry_at
        current = lifecycle.requeue(ended, now)
    return waits


def expected_row(lives: Sequence[Life]) -> int:
    """Failures in a row up to the last life, said anew: the healthy one, if any, is the first that counts."""
    row = 0
    for life in lives:
        if life.seconds > LONGEST:
            row = 0
        if life.end != "stopped":
            row += 1
    return row


@given(LIVES)
def test_the_wait_of_an_endless_task_follows_how_its_recent_attempts_went(lives: list[Life]) -> None:
    for number, seconds in enumerate(live(lives, None), 1):
        if lives[number - 1].end == "stopped":
            assert seconds == 0
            continue
        row = expected_row(lives[:number])
        low = min(30 * 2.0 ** (row - 1), 450)
        assert low <= seconds <= min(1.5 * 30 * 2.0 ** (row - 1), 600), (lives[:number], row)


@given(LIVES)
def test_the_wait_of_any_other_task_counts_every_failure(lives: list[Life]) -> None:
    failures = 0
    for life, seconds in zip(lives, live(lives, 100), strict=True):
        if life.end == "stopped":
            assert seconds == 0
            continue
        failures += 1
        assert min(30 * 2.0 ** (failures - 1), 450) <= seconds


def test_after_weeks_of_health_a_second_crash_waits_twice_the_first_and_not_the_longest() -> None:
    weeks = [Life(1_000_000, "failed")] * 200
    first, second, third = live([*weeks, Life(1, "failed"), Life(1, "failed")], None)[-3:]
    assert first <= 45 < second <= 90 < third <= 180


def test_a_stop_costs_no_attempt_even_the_last() -> None:
    assert live([Life(5, "stopped")] * 3, 1) == [0, 0, 0]


def test_a_stop_costs_no_attempt_before_the_last_either() -> None:
    lives = [Life(5, "stopped"), Life(5, "failed"), Life(5, "stopped")]
    assert [seconds > 0 for seconds in live(lives, 2)] == [False, True, False]


def test_a_stop_that_is_reported_after_the_timeout_verdict_costs_no_attempt_either() -> None:
    running = replace(task(1, 1, 10, 10), lease_token=UUID(int=7))
    over = lifecycle.expire(running, NOW, retry=next_retry(running, NOW, BACKOFF))
    assert over.finished
    skipped = lifecycle.skip(over, NOW)
    assert skipped is not None
    for ended in (over, skipped):
        again = lifecycle.complete(
            ended, NOW, attempt=1, lease_token=UUID(int=7), status=Outcome.FAILED, retryable=True, error="stopped",
            retry=next_retry(ended, NOW, BACKOFF, stopped=True), stopped=True,
        )  # fmt: skip
        assert again is not None
        assert (again.status, again.next_retry_at, again.finished_at) == (Status.FAILED, NOW, None)
        assert (again.max_attempts, again.skipped_at) == (2, ended.skipped_at)


def test_the_verdict_says_whether_the_time_or_the_lease_was_over() -> None:
    for deadline, words in ((NOW, "timed out"), (NOW + timedelta(seconds=1), "the lease ran out"), (None, "the lease")):
        running = replace(task(1, 3, 10, 0), deadline_at=deadline)
        ended = lifecycle.expire(running, NOW, retry=next_retry(running, NOW, BACKOFF))
        assert ended.error is not None
        assert ended.error.startswith(words)

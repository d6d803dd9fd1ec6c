"""The wait after an attempt: by the number of attempts, unless an endless task had a healthy life."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tracelake.model.lifecycle import retry_delay
from tracelake.model.retry import Backoff
from tracelake.model.task import Status, Task

NOW = datetime(2026, 1, 31, tzinfo=UTC)
BACKOFF = Backoff(30, 600)


def task(attempt: int, max_attempts: int | None, lived: float, unseen: float) -> Task:
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
    )


@given(
    attempt=st.integers(1, 10_000),
    max_attempts=st.none() | st.integers(1, 10_000),
    lived=st.floats(0, 10_000),
    unseen=st.floats(0, 10_000),
)
def test_only_a_healthy_life_of_an_endless_task_starts_anew(
    attempt: int, max_attempts: int | None, lived: float, unseen: float
) -> None:
    wait = retry_delay(task(attempt, max_attempts, lived, unseen), NOW, BACKOFF).total_seconds()
    healthy = max_attempts is None and lived > 600.001
    if healthy or attempt == 1:
        assert 30 <= wait <= 45
    elif attempt >= 6 and (max_attempts is not None or lived < 599.999):
        assert 450 <= wait <= 600


def test_a_lease_that_still_runs_counts_up_to_now() -> None:
    alive = task(9, None, lived=700, unseen=-200)
    assert retry_delay(alive, NOW, BACKOFF).total_seconds() >= 450, "it has lived for 500 seconds"


def test_a_task_that_nobody_claimed_has_not_lived() -> None:
    fresh = Task(
        task_id=UUID(int=1), org_id=UUID(int=2), job_id=UUID(int=3), status=Status.QUEUED, attempt=9, max_attempts=None
    )
    assert retry_delay(fresh, NOW, BACKOFF).total_seconds() >= 450

"""The CHECK constraints of the table `tasks`, said again in Python.

Twice on purpose: the transitions are tested against this text without a database, and a test on real Postgres holds
this text against the migration, so that neither can drift alone.
"""

from collections.abc import Callable

from tracelake.model.task import Outcome, Status, Task

CONSTRAINTS: dict[str, Callable[[Task], bool]] = {
    "tasks_attempt_check": lambda t: t.attempt >= 0,
    "tasks_max_attempts_check": lambda t: t.max_attempts is None or t.max_attempts > 0,
    "attempts_are_bounded": lambda t: t.max_attempts is None or t.attempt <= t.max_attempts,
    "forgiven_were_tried": lambda t: 0 <= t.forgiven <= t.attempt,
    "claimed_has_lease_token": lambda t: (t.attempt > 0) == (t.lease_token is not None),
    "running_has_a_lease": lambda t: (t.status is Status.RUNNING) == (t.lease_expires_at is not None),
    "running_was_claimed": lambda t: t.status is not Status.RUNNING or (t.attempt > 0 and t.outcome is None),
    "lease_ends_by_deadline": lambda t: (
        t.lease_expires_at is None or t.deadline_at is None or t.lease_expires_at <= t.deadline_at
    ),
    "ended_attempt_has_word": lambda t: t.status is Status.RUNNING or t.attempt == 0 or t.outcome is not None,
    "completed_by_its_worker": lambda t: (t.status is Status.COMPLETED) == (t.outcome is Outcome.COMPLETED),
    # SQL: `outcome IN (...)` is unknown for NULL, and unknown passes; ended_attempt_has_word closes that gap.
    "failed_was_claimed": lambda t: (
        t.status is not Status.FAILED or (t.attempt > 0 and t.outcome is not Outcome.COMPLETED)
    ),
    "only_failed_waits": lambda t: t.next_retry_at is None or t.status is Status.FAILED,
    "only_queued_is_ready": lambda t: (t.ready_at is not None) == (t.status is Status.QUEUED),
    "only_queued_is_held": lambda t: not t.held or t.status is Status.QUEUED,
    "only_running_is_asked": lambda t: not t.cancel_requested or t.status in (Status.RUNNING, Status.CANCELED),
    "completed_is_no_gap": lambda t: t.skipped_at is None or t.status is not Status.COMPLETED,
    "ended_has_its_time": lambda t: (
        (t.finished_at is not None)
        == (t.status in (Status.COMPLETED, Status.CANCELED) or (t.status is Status.FAILED and t.next_retry_at is None))
    ),
}


def broken(task: Task) -> list[str]:
    """The constraints that a row like this violates."""
    return [name for name, holds in CONSTRAINTS.items() if not holds(task)]

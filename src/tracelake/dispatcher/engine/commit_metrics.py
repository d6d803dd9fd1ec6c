"""Counts what a transaction did, after its commit, so that what was rolled back is never counted."""

from collections import Counter
from collections.abc import Sequence

from tracelake.dispatcher.engine.plan import StateChange, WriteResult
from tracelake.dispatcher.metrics import PRODUCERS, Metrics
from tracelake.model.task import Status, Task


def count_written(metrics: Metrics, applied: WriteResult) -> None:
    """Counts events by producer, and tasks by what made them."""
    events = Counter(
        (_kind(key[0]), "duplicate" if duplicate else "routed" if routed else "kept")
        for key, (duplicate, routed) in applied.events.items()
    )
    for labels, count in events.items():
        metrics.events.labels(*labels).inc(count)
    created_count = len(applied.created)
    if created_count:
        metrics.created_tasks.labels("call").inc(created_count)
    if len(applied.created_tasks) > created_count:
        metrics.created_tasks.labels("event").inc(len(applied.created_tasks) - created_count)


def count_failed(metrics: Metrics, changes: Sequence[StateChange]) -> None:
    """Counts tasks that failed (no retries left)."""
    failed = sum(_is_finally_failed(change.after) and not _is_finally_failed(change.before) for change in changes)
    if failed:
        metrics.failed_tasks.inc(failed)


def _is_finally_failed(task: Task) -> bool:
    return task.status is Status.FAILED and task.next_retry_at is None


def _kind(producer: str) -> str:
    """Returns the kind of a producer: sources name theirs before a colon, a task is its id alone."""
    kind, colon, _ = producer.partition(":")
    return kind if colon and kind in PRODUCERS else "task"

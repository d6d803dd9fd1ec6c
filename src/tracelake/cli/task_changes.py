"""The changes of a task between two reads of it, and the lines that show them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Literal

import msgspec
from rich.text import Text

from tracelake.cli import text as words
from tracelake.cli.text import ago, clean, clock, shortened, unit_text
from tracelake.wire.tasks import TaskRow

_ERROR_LENGTH = 200

Change = Literal["created", "claimed", "stopping", "queued", "retrying", "completed", "failed", "skipped", "canceled"]
STATUS: dict[Change, str] = {
    "created": "Queued",
    "queued": "Queued",
    "claimed": "Running",
    "stopping": "Running",
    "retrying": "Retrying",
    "completed": "Completed",
    "failed": "Failed",
    "skipped": "Skipped",
    "canceled": "Canceled",
}
_CHANGE_STYLES: dict[Change, str] = {
    "claimed": "cyan",
    "stopping": "yellow",
    "retrying": "yellow",
    "completed": "green",
    "failed": "bold red",
    "skipped": "dim",
    "canceled": "dim",
}


class TaskAction(msgspec.Struct, frozen=True, kw_only=True):
    """A line of `trace tasks --follow --json`."""

    at: datetime
    """When it happened; if the row does not tell, when it was seen."""
    change: Change
    task: TaskRow
    """The task when it was read."""


def is_finished(task: TaskRow) -> bool:
    return task.status in ("Completed", "Canceled") or has_failed(task)


def has_failed(task: TaskRow) -> bool:
    return task.status == "Failed" and task.next_retry_at is None


def changes(before: TaskRow | None, task: TaskRow) -> Iterator[TaskAction]:
    """The changes between two reads of a task, in order, as far as its row tells."""
    now = words.current_time()
    if before is None:
        yield TaskAction(at=task.created_at, change="created", task=task)
    if task.claimed_at is not None and task.attempt > (0 if before is None else before.attempt):
        yield TaskAction(at=task.claimed_at, change="claimed", task=task)
    if task.status == "Running":
        if task.cancel_requested and not (before is not None and before.cancel_requested):
            yield TaskAction(at=now, change="stopping", task=task)
        return
    word = _word(task)
    if before is None:
        is_new = word != "queued"
    else:
        is_new = (_word(before), before.held, before.attempt) != (word, task.held, task.attempt)
    if is_new:
        yield TaskAction(at=task.finished_at or now, change=word, task=task)


def _word(task: TaskRow) -> Change:
    match task.status:
        case "Completed":
            return "completed"
        case "Canceled":
            return "canceled"
        case "Failed" if task.skipped:
            return "skipped"
        case "Failed":
            return "failed" if task.next_retry_at is None else "retrying"
        case "Running":
            return "claimed"
        case _:
            return "queued"


def change_line(change: TaskAction) -> Text:
    task = change.task
    attempt = f"{task.attempt}/{task.max_attempts}" if task.max_attempts else str(task.attempt)
    line = Text.assemble(
        (f"{clock(change.at)}  ", "dim"),
        (f"{change.change:<9}  ", _CHANGE_STYLES.get(change.change, "")),
        (f"{clean(f'{task.dag}/{task.job}')}  ", "bold"),
        f"{unit}  " if (unit := unit_text(task.unit, task.window)) else "",
        (str(task.task_id), "dim"),
    )
    if change.change in ("claimed", "retrying", "failed"):
        line.append(f"  attempt {attempt}", style="dim")
    if change.change == "retrying":
        line.append(f"  next attempt {ago(task.next_retry_at)}", style="dim")
    if change.change in ("created", "queued") and task.held:
        line.append("  waits for a concurrency limit", style="yellow")
    if change.change in ("retrying", "failed") and task.error:
        line.append(f"  {shortened(task.error, _ERROR_LENGTH)}", style="red")
    return line

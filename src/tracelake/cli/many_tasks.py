"""Retries, skips or cancels many tasks: a preview, a confirmation, and then batch by batch.

Each task is handled as it was in the preview: one that has moved on since then is left alone. A repeated command does
nothing twice, and continues where one was interrupted, because what is done no longer matches.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import click
import msgspec
from rich.text import Text

from tracelake.cli import session as sessions
from tracelake.cli.error_groups import failure_lines
from tracelake.cli.names import resolve_job
from tracelake.cli.session import Session, live_view
from tracelake.cli.text import clean, count
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.failures import (
    MAX_AT_ONCE,
    FailuresReply,
    TaskAction,
    TaskActionOutcome,
    TaskActionsReply,
    TaskActionsRequest,
    TaskVersion,
)
from tracelake.wire.tasks import TaskRow

T = TypeVar("T")

NOT_CONFIRMED = 2
"""The exit status when there was nobody to ask."""
_TRIES = 10
"""How often a batch is repeated while the server is not available."""
_REFUSED_SHOWN = 5
_DONE = {"retry": "retried", "skip": "skipped", "cancel": "cancelled or asked to stop"}
_OPEN = ("Running", "Retrying", "Queued")
"""In this order: a task that starts meanwhile is seen once more, and one that is cancelled is not."""


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """Which tasks: failed ones, or open ones to be cancelled, of a DAG or a job."""

    action: TaskAction
    dag: str | None
    job: str | None
    version: int | None

    @property
    def words(self) -> str:
        name = f"{self.dag}/{self.job}" if self.job else self.dag or ""
        return clean(name + (f", version {self.version}" if self.version is not None else ""))

    @property
    def filters(self) -> dict[str, Any]:
        """Without a version: tasks of active versions and of those being built. Others cannot be retried."""
        names: dict[str, Any] = {"dag": self.dag, "job": self.job}
        return names | ({"current": True} if self.version is None else {"version": self.version})


class Preview(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a command would do."""

    action: str
    matched: int
    more: bool = False
    """There are more than were counted."""
    failures: FailuresReply | None = None
    open: dict[str, int] | None = None
    """For cancel: the tasks by state."""


class ManyDone(msgspec.Struct, frozen=True, kw_only=True):
    """What a command did."""

    action: str
    done: int
    duplicate: int
    """Had been handled before."""
    changed: int
    """Moved on since the preview, and were left alone."""
    refused: int
    errors: list[TaskActionOutcome]
    """The first of the refused ones."""


def act_on_many(
    session: Session, action: TaskAction, dag: str | None, job: str | None, version: int | None, *, yes: bool
) -> None:
    """Runs the command and ends with its exit status: 1 if the server refused a task, 2 if nobody confirmed."""
    selection = session.run(lambda client: _select(client, action, dag, job, version), dag=dag, job=job)
    names = {"dag": selection.dag, "job": selection.job}
    preview, at = session.run(lambda client: _preview(client, selection), **names)
    if not preview.matched:
        session.answer(preview)
        kind = "open" if action == "cancel" else "failed"
        session.say(f"{selection.words} has no {kind} task: nothing to {action}.")
        return
    if not session.as_json:
        _show_preview(session, selection, preview)
    if not yes:
        _confirm(session, selection, preview)
    result = session.run(lambda client: _act(session, client, selection, preview, at))
    status = 1 if result.refused else 0
    session.answer(result, status)
    _tell(session, selection, result)
    click.get_current_context().exit(status)


async def _select(
    client: UserClient, action: TaskAction, dag: str | None, job: str | None, version: int | None
) -> TaskSelection:
    if job is not None and (dag is None or "/" in job):
        job_dag, job = await resolve_job(client, job)
        if dag not in (None, job_dag):
            raise click.UsageError(f"--dag names {dag} and --job names {job_dag}: leave out one of them.")
        dag = job_dag
    return TaskSelection(action, dag, job, version)


async def _preview(client: UserClient, selection: TaskSelection) -> tuple[Preview, datetime]:
    """The preview, and its moment by the server's clock."""
    failures = await client.call(routes.LIST_FAILURES, **selection.filters)
    if selection.action != "cancel":
        preview = Preview(action=selection.action, matched=failures.tasks, more=failures.more, failures=failures)
        return preview, failures.now
    states: dict[str, int] = {}
    more = False
    for status in _OPEN:
        page = await client.call(routes.LIST_TASKS, status=status, limit=500, **selection.filters)
        states[status] = len(page.tasks)
        more = more or page.next is not None
    return Preview(action="cancel", matched=sum(states.values()), more=more, open=states), failures.now


def _show_preview(session: Session, selection: TaskSelection, preview: Preview) -> None:
    more = " or more" if preview.more else ""
    if preview.failures is not None:
        noun = "failed task" if preview.matched == 1 else "failed tasks"
        session.say(f"{preview.matched:,}{more} {noun} of ", (selection.words, "bold"), ":")
        session.show(*failure_lines(preview.failures))
        return
    states = ", ".join(f"{number} {status.lower()}" for status, number in (preview.open or {}).items() if number)
    session.say(f"{preview.matched:,}{more} open tasks of ", (selection.words, "bold"), f": {states}.")


def _confirm(session: Session, selection: TaskSelection, preview: Preview) -> None:
    """Asks the person at the terminal; without one, ends the command."""
    if sys.stdin is not None and sys.stdin.isatty() and not session.as_json:
        number = f"{preview.matched:,}{' or more' if preview.more else ''}"
        gap = " Their units stay missing until somebody retries them." if selection.action == "skip" else ""
        click.confirm(f"{selection.action.capitalize()} {number} tasks?{gap}", abort=True)
        return
    if session.as_json:
        session.json(preview)
    click.echo(f"Nothing was changed: add --yes to {selection.action} them.", err=True)
    raise click.exceptions.Exit(NOT_CONFIRMED)


async def _act(
    session: Session, client: UserClient, selection: TaskSelection, preview: Preview, at: datetime
) -> ManyDone:
    counts: Counter[str] = Counter()
    errors: list[TaskActionOutcome] = []
    with live_view(session.console) as update:
        async for tasks in _batches(client, selection, at):
            for outcome in await _send(client, selection.action, tasks):
                counts[outcome.outcome] += 1
                if outcome.outcome == "refused" and len(errors) < _REFUSED_SHOWN:
                    errors.append(outcome)
            if preview.matched > MAX_AT_ONCE and not session.as_json:
                of = f"{preview.matched:,}{'+' if preview.more else ''}"
                update(Text(f"{counts['done']:,} of {of} {_DONE[selection.action]}", style="dim"))
    numbers = {name: counts[name] for name in ("done", "duplicate", "changed", "refused")}
    return ManyDone(action=selection.action, errors=errors, **numbers)


async def _batches(client: UserClient, selection: TaskSelection, at: datetime) -> AsyncIterator[list[TaskRow]]:
    """The tasks as they are now, page by page; those that failed or were created after the preview are left out."""
    for status in _OPEN if selection.action == "cancel" else ("Failed",):
        cursor: str | None = None
        while True:
            parameters = selection.filters | {"status": status, "cursor": cursor}
            page = await _repeat(partial(client.call, routes.LIST_TASKS, limit=MAX_AT_ONCE, **parameters))
            tasks = [task for task in page.tasks if (task.finished_at or task.created_at) <= at]
            if tasks:
                yield tasks
            if page.next is None or page.next == cursor:
                break
            cursor = page.next


async def _send(client: UserClient, action: TaskAction, tasks: list[TaskRow]) -> list[TaskActionOutcome]:
    versions = [TaskVersion(task_id=task.task_id, attempt=task.attempt) for task in tasks]
    request = TaskActionsRequest(action=action, tasks=versions)
    reply: TaskActionsReply = await _repeat(partial(client.call, routes.ACT_ON_TASKS, request))
    return reply.outcomes


async def _repeat(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats the call while the server is not available: what was done by then is a duplicate."""
    for left in reversed(range(_TRIES)):
        try:
            return await call()
        except TraceError as error:
            if not error.retryable or not left:
                raise
        await asyncio.sleep(sessions.EVERY_SECONDS)
    raise AssertionError("the last try returns or raises")


def _tell(session: Session, selection: TaskSelection, result: ManyDone) -> None:
    session.say((f"{count(result.done, 'task')} {_DONE[selection.action]}.", "green" if result.done else ""))
    if result.duplicate:
        session.say(f"{count(result.duplicate, 'task')} had been handled before.")
    if result.changed:
        session.say(f"{count(result.changed, 'task')} had moved on since the preview, and nothing was done to them.")
    if result.refused:
        session.say((f"{count(result.refused, 'task')} refused:", "red"))
        for outcome in result.errors:
            message = "" if outcome.error is None else f"{outcome.error.code}: {outcome.error.message}"
            session.say(f"  {outcome.task_id}: {message}")
    if result.done and selection.action != "skip" and selection.dag is not None:
        session.hint("follow them", "tasks", "--dag", selection.dag, "--watch")

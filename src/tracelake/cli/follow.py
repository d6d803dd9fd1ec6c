"""`--follow` of events and tasks: one line for each thing that happens, from now on until Ctrl-C.

What was printed is never printed again, and what comes next is asked for behind it; so a Dispatcher that is away for a
while costs time and nothing else. That it was away is said on standard error. With `--json` every line is a document.

Events: each one once, when it is first seen (with a state: when it is first seen in that state), and none is missed.
Tasks: a line when it was made and one for each change. What happened between two looks is told by the times in the
task's row. Tasks that were there before are followed from their next change on: the newest open ones, and the newest
failed ones, which somebody may retry (`MOST_BEFORE` of each status). Of all of them the newest are remembered
(`MOST_OPEN` open ones, `MOST_BEFORE` failed ones).
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import click
from rich.text import Text

from tracelake.cli import text as words
from tracelake.cli.listing import whole_line
from tracelake.cli.missing import explained
from tracelake.cli.paging import PAGE_ROWS
from tracelake.cli.session import Session, away, looks
from tracelake.cli.task_changes import STATUS, TaskAction, change_line, changes, clock, has_failed, is_finished
from tracelake.cli.text import clean, compact
from tracelake.client.errors import StackDownError
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.datasets import EventKey, EventLookup, EventRow
from tracelake.wire.tasks import TaskLookup, TaskRow

MOST_OPEN = 5000
"""Tasks, or events that wait for a state, that are remembered."""
MOST_BEFORE = 500
_BEFORE = ("Queued", "Retrying", "Running", "Failed")
_AT_ONCE = 1000
_LAST_TASK = UUID(int=2**128 - 1)

K = TypeVar("K")
T = TypeVar("T")

_EVENT_STYLES = {"Routed": "green", "AwaitsCommit": "yellow", "NotCurrent": "dim", "Outdated": "dim"}


class Follower(Protocol):
    @property
    def place(self) -> str:
        """Where it is, for people."""

    @property
    def serving_since(self) -> datetime | None:
        """Since when the Dispatcher that answered last has been running."""

    async def look(self) -> None:
        """Print all that is new."""


def follow(session: Session, start: Callable[[UserClient], Follower]) -> None:
    """Until Ctrl-C."""
    try:
        session.run(lambda client: _follow(session, start(client)))
    except KeyboardInterrupt:
        return


async def _follow(session: Session, follower: Follower) -> None:
    lost: type[TraceError] | None = None
    since = None
    async for item in looks(follower.look):
        if isinstance(item, TraceError):
            if lost is None or (lost is not type(item) and isinstance(item, StackDownError)):
                note(away(item))
            lost = type(item)
            continue
        if since is None and lost is None and not session.as_json:
            note("Following; Ctrl-C ends it.")
        elif lost is not None:
            note(f"The Dispatcher answers again; going on {follower.place}.")
        elif since is not None and is_newer(follower.serving_since, since):
            # It was back before anybody had to wait: the supervisor keeps its sockets open.
            note(f"The Dispatcher was restarted; going on {follower.place}.")
        since, lost = max(filter(None, (since, follower.serving_since)), default=None), None


def is_newer(since: datetime | None, before: datetime) -> bool:
    """Several Dispatchers may answer in turn: only one that started later than all of those before is a new one."""
    return since is not None and since > before


def note(text: str) -> None:
    click.echo(clean(text), err=True)


# --- events


class EventFollower:
    def __init__(self, session: Session, client: UserClient, dataset: str | None, state: str | None) -> None:
        self._session, self._client = session, client
        self._dataset, self._state = dataset, state
        self._after: int | None = None
        self.serving_since: datetime | None = None
        self._open: Newest[int, str] = Newest("events that may come into this state")
        """Events that may still come into the wanted state, with their datasets."""

    @property
    def place(self) -> str:
        return f"after event {self._after}"

    async def look(self) -> None:
        if self._after is None:
            first = self._client.call(routes.LIST_EVENTS, dataset=self._dataset, after=str(MAX_CURSOR), limit=1)
            self._after = (await explained(self._client, first, dataset=self._dataset)).settled or 0
        while True:
            page = await self._client.call(
                routes.LIST_EVENTS, dataset=self._dataset, after=str(self._after), limit=PAGE_ROWS
            )
            self.serving_since = page.serving_since
            for event in page.events:
                self._take(event)
            if page.next is None:
                self._after = self._after if page.settled is None else page.settled
                break
            self._after = int(page.next)
        await self._look_again()

    def _take(self, event: EventRow) -> None:
        if self._state in (None, event.state):
            self._print(event)
        elif self._state != "AwaitsCommit":  # nothing comes into that state later
            self._open.put(event.event_id, event.dataset, MOST_OPEN)

    async def _look_again(self) -> None:
        for part in parts(list(self._open.items())):
            keys = [EventKey(dataset=dataset, event_id=event_id) for event_id, dataset in part]
            for event in (await self._client.call(routes.LOOK_UP_EVENTS, EventLookup(events=keys))).events:
                if event.state == self._state:
                    del self._open[event.event_id]
                    self._print(event)

    def _print(self, event: EventRow) -> None:
        if self._session.as_json:
            self._session.json(event)
        else:
            self._session.show(whole_line(event_line(event)))


def producer_text(event: EventRow) -> str:
    """The task with its attempt, or whoever else said it. Of a commit: the task of its first batch."""
    if event.batches:
        first, left = event.batches[0], (event.batch_count or 1) - 1
        return f"{first.task_id}#{first.attempt}" + (f" and {left:,} more" if left else "")
    return event.producer if event.attempt is None else f"{event.producer}#{event.attempt}"


def event_line(event: EventRow) -> Text:
    unit = event.partition_key if event.cursor is None else str(event.cursor)
    line = Text.assemble(
        (f"{clock(event.created_at)}  ", "dim"),
        (f"{clean(event.dataset)}  ", "bold"),
        f"{clean(unit or '')}  ",
        (event.state, _EVENT_STYLES.get(event.state, "")),
        (f"  event {event.event_id} by {clean(producer_text(event))}", "dim"),
    )
    if event.revision:
        line.append(f"  revision {clean(event.revision)}", style="dim")
    if event.invalidates is not None:
        line.append(f"  invalidates {compact(event.invalidates)}", style="yellow")
    return line


# --- tasks


class TaskFollower:
    def __init__(
        self, session: Session, client: UserClient, status: str | None, since: datetime | None, **names: str | None
    ) -> None:
        self._session, self._client = session, client
        self._status, self._names = status, names
        self.serving_since: datetime | None = None
        self._filters: dict[str, Any] = {"since": since} | names
        self._after: UUID | None = None if since is None else UUID(int=0)
        self._shown_ids: set[UUID] = set()
        """Of those that the server will show again."""
        self._open: Newest[UUID, TaskRow] = Newest("open tasks")
        self._failed: Newest[UUID, TaskRow] = Newest(None)
        """For good, unless somebody retries or skips them."""

    @property
    def place(self) -> str:
        return f"with {words.count(len(self._open), 'open task')}"

    async def look(self) -> None:
        if self._after is None:
            first = self._client.call(routes.LIST_TASKS, after=str(_LAST_TASK), limit=1, **self._filters)
            # What is there already is not of now, also if it comes again for a while.
            begin = (await explained(self._client, first, **self._names)).settled or UUID(int=0)
            shown_ids, begin = await self._read(begin, lambda _: None)
            await self._remember_those_before()
            self._after, self._shown_ids = begin, shown_ids
            return
        _, self._after = await self._read(self._after, self._begin)
        self._shown_ids = {task_id for task_id in self._shown_ids if task_id > self._after}
        await self._look_again()

    async def _remember_those_before(self) -> None:
        names: dict[str, Any] = {name: value for name, value in self._names.items() if value is not None}
        for status in _BEFORE:
            page = await self._client.call(routes.LIST_TASKS, status=status, limit=MOST_BEFORE, **names)
            if page.next is not None and status != "Failed":
                note(f"More than {MOST_BEFORE} tasks are {status} already; the newest of them are followed.")
            for task in reversed(page.tasks):
                self._keep(task)

    async def _read(self, after: UUID, take: Callable[[TaskRow], None]) -> tuple[set[UUID], UUID]:
        """What is above it, each task once; and where to go on the next time."""
        task_ids: set[UUID] = set()
        position = after
        while True:
            page = await self._client.call(routes.LIST_TASKS, after=str(position), limit=PAGE_ROWS, **self._filters)
            self.serving_since = page.serving_since
            for task in page.tasks:
                task_ids.add(task.task_id)
                if task.task_id not in self._shown_ids:
                    take(task)
            if page.next is None:
                return task_ids, max(after, page.settled or after)
            position = UUID(page.next)

    def _begin(self, task: TaskRow) -> None:
        self._shown_ids.add(task.task_id)
        self._tell(None, task)

    async def _look_again(self) -> None:
        for part in parts([*self._open.items(), *self._failed.items()]):
            task_ids = [task_id for task_id, _ in part]
            now = {
                task.task_id: task
                for task in (await self._client.call(routes.LOOK_UP_TASKS, TaskLookup(task_ids=task_ids))).tasks
            }
            for task_id, before in part:
                if task_id in now:
                    self._tell(before, now[task_id])
                else:
                    self._forget(task_id)

    def _tell(self, before: TaskRow | None, task: TaskRow) -> None:
        for change in changes(before, task):
            if self._status in (None, STATUS[change.change]):
                self._print(change)
        self._keep(task)

    def _keep(self, task: TaskRow) -> None:
        group = self._failed if has_failed(task) else self._open
        if is_finished(task) or task.task_id not in group:
            self._forget(task.task_id)
        if has_failed(task):
            group.put(task.task_id, task, MOST_BEFORE)
        elif not is_finished(task):
            group.put(task.task_id, task, MOST_OPEN)

    def _forget(self, task_id: UUID) -> None:
        self._open.pop(task_id, None)
        self._failed.pop(task_id, None)

    def _print(self, change: TaskAction) -> None:
        if self._session.as_json:
            self._session.json(change)
        else:
            self._session.show(whole_line(change_line(change)))


# --- both


def parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]


class Newest(dict[K, T]):
    """Remembers a bounded number: what was put in first is forgotten first, and that is said once if `what` is."""

    def __init__(self, what: str | None) -> None:
        super().__init__()
        self._what, self._announced = what, what is None

    def put(self, key: K, value: T, most: int) -> None:
        self[key] = value
        if len(self) > most:
            del self[next(iter(self))]
            if not self._announced:
                note(f"There are more than {most} {self._what}; the oldest are not followed any more.")
            self._announced = True

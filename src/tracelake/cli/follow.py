"""`--follow` of events and tasks: one line for each change from now on, until Ctrl-C.

Nothing is printed twice, and each request continues after the last line; so an outage of the Dispatcher loses nothing.
Outages are reported on standard error. With `--json` every line is a document.

Events: one line each, when it is first seen (with a state: when it is first seen in that state); none is missed.
Tasks: a line when the task is created and one for each change. The times in the task's row tell what happened between
two looks. Tasks that exist already are followed from their next change on: the newest open ones, and the newest failed
ones, which somebody may retry (`MOST_BEFORE` of each status). The newest of all are remembered (`MOST_OPEN` open ones,
`MOST_BEFORE` failed ones).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import click
from rich.text import Text

from tracelake.cli import text as words
from tracelake.cli.listing import whole_line
from tracelake.cli.session import Session, away, looks
from tracelake.cli.task_changes import STATUS, change_line, changes, has_failed, is_finished
from tracelake.cli.text import clean, clock, compact
from tracelake.client.errors import StackDownError
from tracelake.client.name_suggestions import suggest_names
from tracelake.client.paging import PAGE_ROWS
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.datasets import EventKey, EventLookup, EventRow
from tracelake.wire.tasks import TaskLookup, TaskRow

MOST_OPEN = 5000
"""How many open tasks, or events that may reach a state, are remembered."""
MOST_BEFORE = 500
_BEFORE = ("Queued", "Retrying", "Running", "Failed")
_AT_ONCE = 1000
_LAST_TASK = UUID(int=2**128 - 1)

K = TypeVar("K")
T = TypeVar("T")

EVENT_STYLES = {"Routed": "green", "AwaitsCommit": "yellow", "NotCurrent": "dim", "Outdated": "dim"}


class Follower(ABC):
    """Prints what is new at each look."""

    def __init__(self, session: Session, client: UserClient) -> None:
        self._session, self._client = session, client
        self.serving_since: datetime | None = None
        """The start of the Dispatcher that answered last."""

    @property
    @abstractmethod
    def place(self) -> str:
        """How far it has come, for people."""

    @abstractmethod
    async def look(self) -> None:
        """Prints everything new."""

    def _print(self, document: Any, line: Text) -> None:
        if self._session.as_json:
            self._session.json(document)
        else:
            self._session.show(whole_line(line))


def follow(session: Session, start: Callable[[UserClient], Follower]) -> None:
    """Follows until Ctrl-C."""
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
            note(f"The Dispatcher answers again; continuing {follower.place}.")
        elif since is not None and is_newer(follower.serving_since, since):
            # No call failed meanwhile: the supervisor keeps its sockets open.
            note(f"The Dispatcher was restarted; continuing {follower.place}.")
        since, lost = max(filter(None, (since, follower.serving_since)), default=None), None


def is_newer(since: datetime | None, before: datetime) -> bool:
    """Whether a Dispatcher that started later than all before has answered; several may answer in turn."""
    return since is not None and since > before


def note(text: str) -> None:
    click.echo(clean(text), err=True)


# --- events


class EventFollower(Follower):
    def __init__(self, session: Session, client: UserClient, dataset: str | None, state: str | None) -> None:
        super().__init__(session, client)
        self._dataset, self._state = dataset, state
        self._after: int | None = None
        self._open: Newest[int, str] = Newest("events that may reach this state")
        """Events that may still reach the state, with their datasets."""

    @property
    def place(self) -> str:
        return f"after event {self._after}"

    async def look(self) -> None:
        if self._after is None:
            first = self._client.call(routes.LIST_EVENTS, dataset=self._dataset, after=str(MAX_CURSOR), limit=1)
            self._after = (await suggest_names(self._client, first, dataset=self._dataset)).settled or 0
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
            self._print(event, event_line(event))
        elif self._state != "AwaitsCommit":  # no event reaches that state later
            self._open.put(event.event_id, event.dataset, MOST_OPEN)

    async def _look_again(self) -> None:
        for part in parts(list(self._open.items())):
            keys = [EventKey(dataset=dataset, event_id=event_id) for event_id, dataset in part]
            for event in (await self._client.call(routes.LOOK_UP_EVENTS, EventLookup(events=keys))).events:
                if event.state == self._state:
                    del self._open[event.event_id]
                    self._print(event, event_line(event))


def producer_text(event: EventRow) -> str:
    """The task and its attempt, or the source; for a commit, the task of its first batch."""
    if event.batches:
        first, left = event.batches[0], (event.batch_count or 1) - 1
        return f"{first.task_id}#{first.attempt}" + (f" and {left:,} more" if left else "")
    return event.producer if event.attempt is None else f"{event.producer}#{event.attempt}"


def event_unit_text(event: EventRow) -> str:
    return clean(event.window or (event.partition_key or "" if event.cursor is None else str(event.cursor)))


def event_line(event: EventRow) -> Text:
    line = Text.assemble(
        (f"{clock(event.created_at)}  ", "dim"),
        (f"{clean(event.dataset)}  ", "bold"),
        f"{event_unit_text(event)}  ",
        (event.state, EVENT_STYLES.get(event.state, "")),
        (f"  event {event.event_id} by {clean(producer_text(event))}", "dim"),
    )
    if event.revision:
        line.append(f"  revision {clean(event.revision)}", style="dim")
    if event.invalidates is not None:
        line.append(f"  invalidates {compact(event.invalidates)}", style="yellow")
    return line


# --- tasks


class TaskFollower(Follower):
    def __init__(
        self,
        session: Session,
        client: UserClient,
        status: str | None,
        since: datetime | None,
        version: int | None,
        **names: str | None,
    ) -> None:
        super().__init__(session, client)
        self._status, self._names = status, names
        self._jobs: dict[str, Any] = {"version": version} | names
        self._filters: dict[str, Any] = {"since": since} | self._jobs
        self._after: UUID | None = None if since is None else UUID(int=0)
        self._shown_ids: set[UUID] = set()
        """The tasks that the server will list again."""
        self._open: Newest[UUID, TaskRow] = Newest("open tasks")
        self._failed: Newest[UUID, TaskRow] = Newest(None)
        """Tasks that failed (no retries left), unless somebody retries or skips them."""

    @property
    def place(self) -> str:
        return f"with {words.count(len(self._open), 'open task')}"

    async def look(self) -> None:
        if self._after is None:
            first = self._client.call(routes.LIST_TASKS, after=str(_LAST_TASK), limit=1, **self._filters)
            # Tasks that exist already are not new, although the server may list them again for a while.
            begin = (await suggest_names(self._client, first, **self._names)).settled or UUID(int=0)
            shown_ids, begin = await self._read(begin, lambda _: None)
            await self._remember_those_before()
            self._after, self._shown_ids = begin, shown_ids
            return
        _, self._after = await self._read(self._after, self._begin)
        self._shown_ids = {task_id for task_id in self._shown_ids if task_id > self._after}
        await self._look_again()

    async def _remember_those_before(self) -> None:
        filters = {name: value for name, value in self._jobs.items() if value is not None}
        for status in _BEFORE:
            page = await self._client.call(routes.LIST_TASKS, status=status, limit=MOST_BEFORE, **filters)
            if page.next is not None and status != "Failed":
                note(f"More than {MOST_BEFORE} tasks are {status} already; only the newest {MOST_BEFORE} are followed.")
            for task in reversed(page.tasks):
                self._keep(task)

    async def _read(self, after: UUID, take: Callable[[TaskRow], None]) -> tuple[set[UUID], UUID]:
        """Takes each task after `after` once; returns the ids that were listed, and where to continue."""
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
                self._print(change, change_line(change))
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


# --- both


def parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _AT_ONCE):
        yield items[start : start + _AT_ONCE]


class Newest(dict[K, T]):
    """A dict of bounded size, which drops its oldest entries; the first drop is reported if `what` names them."""

    def __init__(self, what: str | None) -> None:
        super().__init__()
        self._what, self._announced = what, what is None

    def put(self, key: K, value: T, most: int) -> None:
        self[key] = value
        if len(self) > most:
            del self[next(iter(self))]
            if not self._announced:
                note(f"There are more than {most} {self._what}; the oldest are no longer followed.")
            self._announced = True

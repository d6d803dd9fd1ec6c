"""The table that two jobs write: its sink is killed halfway, and tasks whose rows it refuses are corrected.

The schema that is deployed first forgets a value, on purpose: tasks that make rows with it fail before anything of them
is published. With the right schema they are retried, and the table is what it would have been.
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from tracelake.cli.status import read_parts
from tracelake.cli.text import clean, count, unit_text
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.db.migrate import Connection
from tracelake.demo import DemoError
from tracelake.demo.plan import DAG, TABLE, WRITERS, DemoPlan
from tracelake.demo.screen import DemoScreen
from tracelake.model.buffered import quoted, table_name
from tracelake.settings.home import Home
from tracelake.stack.provision import connected
from tracelake.wire import routes
from tracelake.wire.buffers import BufferedDataset, DeadBatch
from tracelake.wire.tasks import TaskRow

SINK = "sink"
_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 120.0
_MOST_SHOWN = 3

_ROWS = "SELECT block_number, log_index, amount::text AS amount, found FROM {} ORDER BY 1, 2"


@dataclass(slots=True)
class SinkKill:
    at: float
    batches: int
    """How many batches were in the table then."""
    back: float | None = None
    """Seconds until the supervisor had started it again."""
    seconds: float | None = None
    """Seconds until another batch was in the table."""


@dataclass(slots=True)
class TableStory:
    kill: SinkKill | None = None
    refused: list[str] = field(default_factory=list)
    """The errors of tasks whose rows did not fit the schema."""
    retried: int = 0
    """How many of them completed with the right schema."""
    batches: int = 0
    """How many batches are in the table at the end."""
    dead: int = 0
    """Dead letters, at the end."""


@dataclass(frozen=True, slots=True)
class Row:
    block_number: int
    log_index: int
    amount: str
    found: str


class DemoTable:
    """Asks the API; what is in the table, Postgres data says. A sink is one process of the stack."""

    def __init__(self, stack: LocalStack, client: UserClient, plan: DemoPlan, screen: DemoScreen) -> None:
        self._stack = stack
        self._client = client
        self._plan = plan
        self._screen = screen
        self._killed: int | None = None
        self._dataset_uuid: UUID | None = None
        self.story = TableStory()

    async def look(self) -> None:
        """While the work goes on: kill the sink once it is halfway, and see it come back."""
        kill = self.story.kill
        if kill is not None and kill.seconds is not None:
            return
        pid, done = self._sink(), await self._in_table()
        total = len(WRITERS) * self._plan.units
        if kill is None:
            if pid is not None and done >= max(1, total // 3):
                self._kill(pid, done, total)
            return
        if kill.back is None and pid not in (None, self._killed):
            kill.back = time.monotonic() - kill.at
            self._screen.say("the sink was started again by the supervisor")
        if done > kill.batches:
            kill.seconds = time.monotonic() - kill.at
            text = f"the sink goes on, {kill.seconds:.1f} s after the kill: {done} of {total} batches are in the table"
            self._screen.say(text, "green")

    async def settle(self, refused: Sequence[TaskRow]) -> None:
        """Once nobody writes any more: wait for the sink, and correct the tasks whose rows the schema refused."""
        await self._until_nothing_waits()
        for task in refused[:_MOST_SHOWN]:
            self._screen.say(f"{task.job} {unit_text(task.unit, task.window)} failed: {clean(task.error or '')}", "red")
        self.story.refused = [task.error or "" for task in refused]
        await self._mend()
        if refused:
            for task in refused:
                await self._client.call(routes.RETRY_TASK, task_id=task.task_id)
            self._screen.say(f"retried {count(len(refused), 'task')}")
            self.story.retried = await self._until_completed([task.task_id for task in refused])
            await self._until_nothing_waits()
        self.story.batches, self.story.dead = await self._in_table(), len(await self._letters())
        if not self.story.batches:
            self._screen.say("there was no large transfer, so the table is empty")
        elif not self.story.dead:
            self._screen.say(f"no batch waits and none is dead: all {self.story.batches} are in the table", "green")

    async def rows(self) -> list[Row]:
        async with self._data() as data:
            records = await data.fetch(_ROWS.format(await self._name()))
        return [Row(**row) for row in records]

    async def size(self) -> int:
        async with self._data() as data:
            size: int = await data.fetchval("SELECT pg_total_relation_size($1::text::regclass)", await self._name())
        return size

    # -- the sink

    def _sink(self) -> int | None:
        parts = read_parts(Home(Path(self._stack.home)))
        return next((part.pid for part in parts if part.name == SINK), None)

    def _kill(self, pid: int, done: int, expected: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self._killed = pid
            self.story.kill = SinkKill(time.monotonic(), done)
            self._screen.say(f"killed the sink (SIGKILL) with {done} of {expected} batches in the table", "red")

    async def _mend(self) -> None:
        deployed = await self._client.call(routes.DEPLOY, self._plan.document(), dag=DAG, activate=True)
        changes = "; ".join(text for change in deployed.plan.datasets for text in change.table)
        self._screen.say(f"deployed the schema that knows mints: {changes}")

    async def _until_completed(self, tasks: Sequence[UUID]) -> int:
        """How many of these tasks completed, once none of them is open."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            rows = [(await self._client.call(routes.SHOW_TASK, task_id=task_id)).task for task_id in tasks]
            if not any(row.status in ("Queued", "Running") or row.next_retry_at is not None for row in rows):
                return sum(row.status == "Completed" for row in rows)
            if time.monotonic() > until:
                raise DemoError(f"tasks that were retried did not end in {_PATIENCE_SECONDS:.0f} s")
            await asyncio.sleep(_LOOK_SECONDS)

    # -- what is there

    async def _until_nothing_waits(self) -> None:
        until = time.monotonic() + _PATIENCE_SECONDS
        while await self._waiting():
            if time.monotonic() > until:
                raise DemoError(f"batches of {TABLE} wait, and no sink took them all in {_PATIENCE_SECONDS:.0f} s")
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)
        await self.look()

    async def _waiting(self) -> int:
        backlog = (await self._dataset()).backlog
        return 0 if backlog is None else backlog.batches

    async def _letters(self) -> list[DeadBatch]:
        return (await self._client.call(routes.LIST_DEAD_BATCHES, dataset=TABLE)).letters

    async def _dataset(self) -> BufferedDataset:
        service = self._stack.internal_client()
        try:
            return next(dataset for dataset in (await service.buffers()).datasets if dataset.name == TABLE)
        finally:
            await service.close()

    async def _name(self) -> str:
        return quoted(table_name(await self._uuid()))

    async def _uuid(self) -> UUID:
        if self._dataset_uuid is None:
            self._dataset_uuid = (await self._dataset()).dataset_uuid
        return self._dataset_uuid

    async def _in_table(self) -> int:
        async with self._data() as data:
            # Functions have tables too, which the same sink fills.
            statement = "SELECT count(*) FROM buffer_commits WHERE dataset_uuid = $1"
            batches: int = await data.fetchval(statement, await self._uuid())
        return batches

    def _data(self) -> "AbstractAsyncContextManager[Connection]":
        return connected(Path(self._stack.data_dsn_file).read_text().strip())

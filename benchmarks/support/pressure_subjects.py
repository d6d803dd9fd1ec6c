"""What the pressure benchmark measures of the overloaded branch itself: accepting into it, and working it off."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from benchmarks.support.pressure_load import Company
from benchmarks.support.pressure_stack import (
    FEEDERS,
    FREE_DAG,
    FULL_DAG,
    HEALTHY_DAG,
    KEPT,
    KEPT_DAG,
    LIMITED_DAG,
    Database,
    PressureStack,
    Speaker,
    claim_speakers,
)
from benchmarks.support.routing_stack import Watch, job_id
from benchmarks.support.stack import Clients
from tracelake.client.user import UserClient
from tracelake.model.ids import new_id
from tracelake.wire import routes
from tracelake.wire.jobs import TriggerRequest

_A_CALL = 1000
"""Events in one call, at most."""
_PAUSE = 0.05


class Sustained:
    """Events per second that are accepted and stored into a branch whose queue is full: none of them is routed."""

    def __init__(self, state: Database, speakers: Sequence[Speaker], reader: UUID, tasks: int) -> None:
        self._state = state
        self._speakers = speakers
        self._reader = reader
        self._tasks = tasks

    @classmethod
    async def of(cls, user: UserClient, clients: Clients, state: Database, producers: int) -> "Sustained":
        for _ in range(producers):
            await user.call(routes.TRIGGER, TriggerRequest(partition_key=f"feeder {new_id()}"), dag="full", job="begin")
        speakers = await claim_speakers(clients, FEEDERS, producers)
        cursors = itertools.count()  # one stream, however many of them write it
        for speaker in speakers:
            speaker.next = cursors
        await speakers[0].say_next(1)
        reader = await job_id(state, "full", "reader")
        subject = cls(state, speakers, reader, 1)
        await subject.check()
        return subject

    async def single(self, events: int) -> float:
        return await self._rate(self._speakers, events, 1)

    async def batch(self, events: int, size: int, producers: int) -> float:
        return await self._rate(self._speakers[:producers], events, size)

    async def check(self) -> None:
        """The queue is as full as it was: whatever was said since waits before it."""
        made: int = await self._state.fetchval("SELECT count(*) FROM tasks WHERE job_id = $1", self._reader)
        assert made == self._tasks, made

    async def _rate(self, speakers: Sequence[Speaker], events: int, size: int) -> float:
        left = events // size

        async def produce(speaker: Speaker) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await speaker.say_next(size)

        started = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for speaker in speakers:
                group.create_task(produce(speaker))
        seconds = time.perf_counter() - started
        await self.check()
        return events / seconds


@dataclass(frozen=True, slots=True)
class Resumed:
    """Seconds since the call that resumed the source was sent."""

    tasks_s: float
    """Every event is a task, and the edge is live again."""
    claimable_s: float
    """The wake-up of each of these tasks could be received."""


class Kept:
    """A source that is paused, says events, and is resumed; its reader has no limit, and nobody takes its tasks."""

    def __init__(self, user: UserClient, source: Speaker, state: Database, queue: Database, reader: UUID) -> None:
        self._user = user
        self.source = source
        self._state = state
        self._queue = queue
        self._reader = reader
        self._tasks = Watch(0.005)
        self._claimable = Watch(0.005)
        self._made = 0

    async def keep(self, events: int) -> None:
        await self._user.call(routes.PAUSE_SOURCE, dag="kept", job="keeper")
        for _ in range(events // _A_CALL):
            await self.source.say_next(_A_CALL)
        assert await self._count() == self._made, "a paused source made tasks"

    async def resume(self) -> None:
        await self._user.call(routes.RESUME_SOURCE, dag="kept", job="keeper")

    async def clear(self, events: int) -> None:
        """Once all is there: exactly one task and one wake-up for each of these events."""
        async with asyncio.timeout(60):
            while not (await self._is_live() and await self._is_published()):
                await asyncio.sleep(0.01)
        self._made += events
        made = await self._count()
        assert made == self._made, (made, self._made)
        gone = await self._queue.execute("DELETE FROM messages WHERE queue = $1", f"tasks.{KEPT}")
        assert gone == f"DELETE {events}", gone

    async def drain(self, events: int) -> Resumed:
        await self.keep(events)
        started = time.perf_counter()
        await self.resume()
        tasks_s = await self._tasks.seconds(started, self._is_live)
        claimable_s = await self._claimable.seconds(started, self._is_published)
        await self.clear(events)
        return Resumed(tasks_s, claimable_s)

    async def _is_live(self) -> bool:
        live: bool = await self._state.fetchval(
            "SELECT position IS NULL FROM edges WHERE node_id = (SELECT node_id FROM jobs WHERE job_id = $1)",
            self._reader,
        )
        return live

    async def _is_published(self) -> bool:
        empty: bool = await self._state.fetchval("SELECT NOT EXISTS (SELECT FROM outbox)")
        return empty

    async def _count(self) -> int:
        count: int = await self._state.fetchval("SELECT count(*) FROM tasks WHERE job_id = $1", self._reader)
        return count


class Backlog(Company):
    """A drain as company: the source is resumed, and goes on with an event after each `_PAUSE`."""

    def __init__(self, kept: Kept, events: int) -> None:
        self._kept = kept
        self._events = events
        self._said = 0

    async def prepare(self) -> None:
        await self._kept.keep(self._events)
        self._said = self._events

    async def run(self, over: asyncio.Event) -> None:
        await self._kept.resume()
        while not over.is_set():
            await self._kept.source.say_next(1)
            self._said += 1
            await asyncio.sleep(_PAUSE)

    async def settle(self) -> None:
        await self._kept.clear(self._said)


@dataclass
class Opened:
    """A stack with the DAGs of the benchmark, and what speaks to it."""

    stack: PressureStack
    clients: Clients
    user: UserClient
    state: Database
    queue: Database
    _kept: Kept | None = None

    @classmethod
    async def of(cls, stack: PressureStack) -> "Opened":
        await stack.deploy(HEALTHY_DAG, LIMITED_DAG, FREE_DAG, FULL_DAG, KEPT_DAG)
        state, queue = await asyncpg.connect(stack.state_dsn), await asyncpg.connect(stack.queue_dsn)
        return cls(stack, stack.clients(), stack.user(), state, queue)

    async def kept(self, source: Speaker | None = None) -> Kept:
        if self._kept is None:
            assert source is not None
            reader = await job_id(self.state, "kept", "reader")
            self._kept = Kept(self.user, source, self.state, self.queue, reader)
        return self._kept

    async def close(self) -> None:
        for each in (self.clients, self.user, self.state, self.queue):
            await each.close()

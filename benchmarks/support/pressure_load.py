"""The load of the pressure benchmark: a branch that is measured, and a flood beside it.

The healthy branch is an open loop far below what the machine can do. The flood says a fixed number of events per second
and its tasks are taken at a fixed, much lower rate; whether its queues have a limit is the DAG's matter alone, so a
flood into limited queues and one into unlimited ones are the same work for whoever sends it.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from benchmarks.support.pressure_stack import (
    FIRST,
    HIDDEN,
    MAX_DEPTH,
    SECOND,
    Database,
    Effort,
    Speaker,
    claim_all,
    complete_all,
    fence_of,
)
from benchmarks.support.stack import Clients
from tracelake.dispatcher.engine.pressure.levels import Level, Thresholds, next_level, share
from tracelake.ports.queue import Delivery
from tracelake.wire.claims import ClaimReply
from tracelake.wire.task_calls import CompleteRequest
from tracelake.wire.units import EventIn


@dataclass(frozen=True, slots=True)
class Slice:
    """What the healthy branch did for some seconds."""

    latencies: list[float]
    per_s: float
    busy: float
    """The share of the machine's processors that was in use, by whomever."""
    dispatcher: float
    """The share of one processor that the Dispatcher used."""


class Healthy:
    """source -> first -> second; an event's latency runs from sending it until second's completion is answered."""

    def __init__(self, clients: Clients, head: Speaker, dispatcher_pid: int) -> None:
        self._dispatcher_pid = dispatcher_pid
        self._clients = clients
        self._head = head
        self._sent: dict[int, float] = {}
        self._finished: dict[int, float] = {}
        self._done = asyncio.Event()
        self._takers = [asyncio.create_task(self._take(FIRST)), asyncio.create_task(self._take(SECOND))]

    async def close(self) -> None:
        for taker in self._takers:
            taker.cancel()
            with suppress(asyncio.CancelledError):
                await taker

    async def run(self, rate: float, seconds: float) -> Slice:
        count = int(rate * seconds)
        cursors = [next(self._head.next) for _ in range(count)]
        self._sent, self._finished = {}, {}
        self._done.clear()
        before = Effort.of(self._dispatcher_pid)
        start = time.perf_counter() + 0.05

        async def say(index: int, cursor: int) -> None:
            await asyncio.sleep(max(0.0, start + index / rate - time.perf_counter()))
            self._sent[cursor] = time.perf_counter()
            await self._head.say(cursor)

        async def finish() -> None:
            async with asyncio.timeout(seconds + 30):
                while any(cursor not in self._finished for cursor in cursors):
                    self._done.clear()
                    await self._done.wait()

        async with asyncio.TaskGroup() as group:
            group.create_task(finish())
            for index, cursor in enumerate(cursors):
                group.create_task(say(index, cursor))
        after = Effort.of(self._dispatcher_pid)
        ticks = after.all - before.all
        return Slice(
            latencies=[self._finished[cursor] - self._sent[cursor] for cursor in cursors],
            per_s=count / (max(self._finished[cursor] for cursor in cursors) - start),
            busy=(after.busy - before.busy) / ticks,
            dispatcher=(after.dispatcher - before.dispatcher) / ticks * (os.cpu_count() or 1),
        )

    async def _take(self, runtime: str) -> None:
        """A worker with a slot for every task: none waits for another."""
        async with asyncio.TaskGroup() as group:
            while True:
                for delivery in await self._clients.queue.receive(f"tasks.{runtime}", 10, HIDDEN, wait_seconds=20.0):
                    group.create_task(self._work(delivery, last=runtime == SECOND))

    async def _work(self, delivery: Delivery, *, last: bool) -> None:
        (claim,) = await claim_all(self._clients, [delivery])
        assert claim.task is not None
        assert claim.capability_token is not None
        unit = claim.task.inputs[0].unit.cursor
        assert unit is not None
        events = [] if last else [_event_of(claim, unit.to)]
        body = CompleteRequest(**fence_of(claim), status="Completed", events=events)
        await self._clients.task.complete(claim.capability_token, body)
        if last:
            # When first completes out of order, the larger cursor's unit reads the smaller one as well.
            for cursor in self._sent:
                if unit.after < cursor <= unit.to:
                    self._finished.setdefault(cursor, time.perf_counter())
            self._done.set()
        await self._clients.queue.ack([delivery])


def _event_of(claim: ClaimReply, cursor: int) -> EventIn:
    assert claim.task is not None
    output = claim.task.outputs[0]
    return EventIn(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, cursor=cursor)


@dataclass(frozen=True, slots=True)
class FloodPlan:
    """Per second and source `calls` with `events` each; the slow jobs together finish `taken` tasks per second."""

    calls: int = 20
    events: int = 8
    taken: int = 80
    late: int = 0
    """Of the calls of a source so many in a row say late cursors, which make no tasks."""


class Company:
    """What happens beside the healthy branch; this one does nothing."""

    lead = 0.0
    """Seconds that it runs before a reading begins."""

    async def prepare(self) -> None:
        """What has to be there before it runs."""

    async def run(self, over: asyncio.Event) -> None:
        """Until it is set."""

    async def settle(self) -> None:
        """Work off what is left, so that the next one finds the stack as this one did."""


class Flood(Company):
    """Producers that say more than the slow jobs behind them take. What is left is worked off by `settle`."""

    lead = 0.5

    def __init__(self, clients: Clients, speakers: Sequence[Speaker], runtime: str, plan: FloodPlan) -> None:
        self._clients = clients
        self._speakers = speakers
        self._queue = f"tasks.{runtime}"
        self._plan = plan
        self.said = 0
        self._due = 0
        self._done = 0

    async def run(self, over: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            for number, speaker in enumerate(self._speakers):
                group.create_task(self._speak(speaker, number / len(self._speakers) / self._plan.calls, over))
            group.create_task(self._take_slowly(over))

    async def settle(self) -> None:
        """At full speed, until every event that asks for a task has one that is finished."""
        async with asyncio.timeout(60):
            while self._done < self._due:
                deliveries = await self._clients.queue.receive(self._queue, 100, HIDDEN, wait_seconds=20.0)
                self._done += await complete_all(self._clients, deliveries)
        assert self._done == self._due, "an event made a second task"

    async def _speak(self, speaker: Speaker, offset: float, over: asyncio.Event) -> None:
        number = 0
        async for _ in _ticks(1 / self._plan.calls, offset, over):
            if number % (self._plan.late + 1) == 0:
                await speaker.say_next(self._plan.events)
                self._due += self._plan.events
            else:
                await speaker.say_late(self._plan.events)
            self.said += self._plan.events
            number += 1

    async def _take_slowly(self, over: asyncio.Event) -> None:
        async for _ in _ticks(0.1, 0.0, over):
            deliveries = await self._clients.queue.receive(self._queue, self._plan.taken // 10, HIDDEN)
            self._done += await complete_all(self._clients, deliveries)


async def _ticks(every: float, offset: float, over: asyncio.Event) -> AsyncIterator[None]:
    """By the clock, whether or not the last one took longer."""
    due = time.perf_counter() + offset
    while not over.is_set():
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        yield
        due += every


@dataclass(frozen=True, slots=True)
class Depths:
    """What became of limited queues: the most ready tasks in one, and how often one was full."""

    most: int
    trips: int


async def depths(state: Database, jobs: Sequence[UUID], since: datetime, until: datetime) -> Depths:
    """From the times at which each task was made and claimed; all of them are finished by now."""
    most = trips = 0
    for job in jobs:
        steps = await state.fetch(
            """SELECT moment, sum(step)::int AS step FROM (
                   SELECT created_at AS moment, 1 AS step FROM tasks WHERE job_id = $1 AND created_at >= $2
                   UNION ALL SELECT claimed_at, -1 FROM tasks WHERE job_id = $1 AND created_at >= $2) AS steps
               WHERE moment <= $3 GROUP BY moment ORDER BY moment""",
            job,
            since,
            until,
        )
        depth, level = 0, Level.NONE
        for row in steps:
            depth += row["step"]
            before, level = level, next_level(level, share(Thresholds(MAX_DEPTH, None), depth, 0.0))
            trips += level is Level.ALL and before is not Level.ALL
            most = max(most, depth)
    return Depths(most, trips)

"""What the routing benchmark measures, one class each. Every reading is a number; smaller is better."""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import asyncpg
import msgspec

from benchmarks.support.routing_stack import (
    CHAIN,
    FAN,
    FAN_SIZE,
    FEEDERS,
    READERS,
    Watch,
    job_id,
)
from benchmarks.support.stack import Clients
from benchmarks.support.stats import percentile
from tracelake.client.user import UserClient
from tracelake.model.ids import new_id
from tracelake.ports.queue import Delivery
from tracelake.wire import routes
from tracelake.wire.claims import ClaimRequest
from tracelake.wire.jobs import BlockRange, TriggerRequest
from tracelake.wire.task_calls import EventsRequest
from tracelake.wire.units import EventIn

Database: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_HIDDEN = 3600.0
_UNIT = 100
_FRESH = 10_000_000
"""Units from here on are nobody else's."""
_WAKEUP = msgspec.json.Decoder(dict[str, UUID])


@dataclass(frozen=True, slots=True)
class Feeder:
    """A claimed task that says events."""

    task_id: UUID
    attempt: int
    lease_token: UUID
    capability_token: str
    dataset_uuid: UUID
    dataset_version: UUID

    def says(self, start: int) -> EventsRequest:
        """One event: the unit of blocks that begins there."""
        end = start + _UNIT - 1
        event = EventIn(
            dataset_uuid=self.dataset_uuid,
            dataset_version=self.dataset_version,
            partition_key=f"{start}-{end}",
            start=start,
            end=end,
        )
        return EventsRequest(task_id=self.task_id, attempt=self.attempt, lease_token=self.lease_token, events=[event])


async def claim_feeders(user: UserClient, clients: Clients, count: int) -> list[Feeder]:
    for _ in range(count):
        await user.call(routes.TRIGGER, TriggerRequest(partition_key=f"feeder {new_id()}"), dag="feed", job="begin")
    deliveries: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(deliveries) < count:
            deliveries += await clients.queue.receive(f"tasks.{FEEDERS}", count, _HIDDEN, wait_seconds=20.0)
    return [await _claim(clients, delivery) for delivery in deliveries]


async def _claim(clients: Clients, delivery: Delivery) -> Feeder:
    task_id = _WAKEUP.decode(delivery.body)["task_id"]
    claim = await clients.internal.call(routes.CLAIM_TASK, ClaimRequest(task_id=task_id, worker_id="bench"))
    assert claim.attempt is not None
    assert claim.lease_token is not None
    assert claim.capability_token is not None
    assert claim.task is not None
    output = claim.task.outputs[0]
    return Feeder(
        task_id,
        claim.attempt,
        claim.lease_token,
        claim.capability_token,
        output.dataset_uuid,
        output.dataset_version,
    )


class OneByOne:
    """One event after the other, each a call whose task is made when it returns.

    Units lie apart from each other and from the ranges that are stored, at random places among them.
    """

    def __init__(self, clients: Clients, feeder: Feeder, *, gaps: int, seed: int) -> None:
        self._clients = clients
        self._feeder = feeder
        self._gaps = random.Random(seed).sample(range(gaps), gaps)

    async def ms(self) -> float:
        body = self._feeder.says(self._gaps.pop() * 4 * _UNIT + 2 * _UNIT)
        started = time.perf_counter()
        reply = await self._clients.task.call(routes.ANNOUNCE_EVENTS, self._feeder.capability_token, body)
        seconds = time.perf_counter() - started
        assert reply.events[0].routed
        return seconds * 1000


async def medians_ms(subjects: Sequence[OneByOne], calls: int) -> list[float]:
    """Of so many calls to each, in turns, so that every pair of them saw the same machine."""
    taken: dict[OneByOne, list[float]] = {subject: [] for subject in subjects}
    for number in range(calls):
        for subject in subjects[:: 1 if number % 2 == 0 else -1]:
            taken[subject].append(await subject.ms())
    return [percentile(values, 0.5) for values in taken.values()]


async def register_ranges(connection: Database, feeder: Feeder, count: int) -> None:
    """As routing leaves them: runs of one unit each, with three units' gap between any two."""
    await connection.execute(
        """INSERT INTO dataset_runs (dataset_uuid, dataset_version, unit_size, unit_offset, range_start, range_end)
           SELECT $1, $2, $4::int, 0, n * 4 * $4::bigint, n * 4 * $4::bigint + $4 - 1
           FROM generate_series(0, $3::int - 1) AS n""",
        feeder.dataset_uuid,
        feeder.dataset_version,
        count,
        _UNIT,
        timeout=120,
    )
    await connection.execute("VACUUM ANALYZE", timeout=120)


class PacedEvents:
    """Open loop: events are sent on schedule, one a call, whether or not earlier ones are answered.

    A receiver waits at the readers' queue. An event's latency runs from sending the call until the receiver holds the
    wake-up of its task, so it contains the receive.
    """

    def __init__(self, clients: Clients, feeders: list[Feeder], state: Database) -> None:
        self._clients = clients
        self._feeders = itertools.cycle(feeders)
        self._state = state
        self._numbers = itertools.count(_FRESH)

    async def latencies(self, rate: float, seconds: float) -> tuple[list[float], list[float]]:
        """Of each event: to its wake-up, and to the call's answer."""
        while await self._receive(0.0):
            pass  # what other measurements left there
        count = int(rate * seconds)
        numbers = [next(self._numbers) for _ in range(count)]
        sent: dict[str, float] = {}
        answered: list[float] = []
        received: dict[UUID, float] = {}

        async def say(number: int, at: float) -> None:
            feeder = next(self._feeders)
            body = feeder.says(number * _UNIT)
            await asyncio.sleep(max(0.0, at - time.perf_counter()))
            started = time.perf_counter()
            reply = await self._clients.task.call(routes.ANNOUNCE_EVENTS, feeder.capability_token, body)
            answered.append(time.perf_counter() - started)
            assert reply.events[0].routed
            sent[f"p:{body.events[0].partition_key}"] = started

        async def receive() -> None:
            async with asyncio.timeout(seconds + 60):
                while len(received) < count:
                    deliveries = await self._receive(20.0)
                    now = time.perf_counter()
                    for delivery in deliveries:
                        received[_WAKEUP.decode(delivery.body)["task_id"]] = now

        start = time.perf_counter() + 0.2
        async with asyncio.TaskGroup() as group:
            group.create_task(receive())
            for index, number in enumerate(numbers):
                group.create_task(say(number, start + index / rate))
        rows = await self._state.fetch("SELECT task_id, unit_key FROM tasks WHERE task_id = ANY($1)", list(received))
        assert len(rows) == count
        return [received[row["task_id"]] - sent[row["unit_key"]] for row in rows], answered

    async def _receive(self, wait_seconds: float) -> list[Delivery]:
        return await self._clients.queue.receive(f"tasks.{READERS}", 100, _HIDDEN, wait_seconds=wait_seconds)


class Trigger:
    """One task at a time: from sending the trigger until the database says Completed."""

    def __init__(self, user: UserClient, state: Database) -> None:
        self._user = user
        self._state = state
        self._watch = Watch()
        self._cursors = itertools.count()

    async def median_ms(self, tasks: int) -> float:
        return percentile([await self._one() for _ in range(tasks)], 0.5) * 1000

    async def _one(self) -> float:
        started = time.perf_counter()
        reply = await self._user.call(
            routes.TRIGGER, TriggerRequest(cursor=next(self._cursors)), dag="single", job="begin"
        )
        (task_id,) = reply.tasks

        async def completed() -> bool:
            found: bool = await self._state.fetchval(
                "SELECT status = 'Completed' FROM tasks WHERE task_id = $1", task_id
            )
            return found

        return await self._watch.seconds(started, completed)


class Chain:
    """From sending the trigger until the last job's task is Completed."""

    def __init__(self, user: UserClient, state: Database, last_job: UUID) -> None:
        self._user = user
        self._state = state
        self._last_job = last_job
        self._watch = Watch(0.002)
        self._cursors = itertools.count()

    @classmethod
    async def of(cls, user: UserClient, state: Database) -> "Chain":
        return cls(user, state, await job_id(state, "chain", f"job_{CHAIN:02}"))

    async def seconds(self) -> float:
        cursor = next(self._cursors)
        started = time.perf_counter()
        await self._user.call(routes.TRIGGER, TriggerRequest(cursor=cursor), dag="chain", job="begin")

        async def completed() -> bool:
            found: bool = await self._state.fetchval(
                "SELECT EXISTS (SELECT FROM tasks WHERE job_id = $1 AND unit_key = $2 AND status = 'Completed')",
                self._last_job,
                f"c:{cursor}",
            )
            return found

        return await self._watch.seconds(started, completed)


class BareHop:
    """The floor of a hop: four commits of one row each, one after the other, the last with a NOTIFY that is waited for.

    As many as a hop cannot do without: the completion with its event and task, the message, the outbox, the claim.
    """

    def __init__(self, writer: Database, listener: Database) -> None:
        self._writer = writer
        self._listener = listener
        self._heard = asyncio.Event()

    @classmethod
    async def open(cls, dsn: str) -> "BareHop":
        writer, listener = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
        hop = cls(writer, listener)
        await writer.execute("CREATE TABLE bench_hops (hop bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text)")
        await listener.add_listener("bench_hops", lambda *_: hop._heard.set())
        return hop

    async def close(self) -> None:
        await self._writer.close()
        await self._listener.close()

    async def hop_ms(self, hops: int) -> float:
        """The mean of so many in a row."""
        started = time.perf_counter()
        for _ in range(hops):
            self._heard.clear()
            for _ in range(3):
                await self._writer.execute("INSERT INTO bench_hops (note) VALUES ($1)", "one row")
            await self._writer.execute(
                """WITH stored AS (INSERT INTO bench_hops (note) VALUES ($1))
                   SELECT pg_notify('bench_hops', 'hop')""",
                "one row",
            )
            await self._heard.wait()
        return (time.perf_counter() - started) / hops * 1000


class FanOut:
    """From sending the trigger until the last of the wake-ups could be received; nobody receives them."""

    def __init__(self, user: UserClient, queue: Database, units: int) -> None:
        self._user = user
        self._queue = queue
        self._units = units
        self._watch = Watch(0.01)
        self._rounds = itertools.count()

    async def seconds(self) -> float:
        blocks = self._units * FAN_SIZE
        first = next(self._rounds) * blocks
        started = time.perf_counter()
        unit = BlockRange(start=first, end=first + blocks - 1)
        await self._user.call(routes.TRIGGER, TriggerRequest(range=unit), dag="fan", job="begin")

        async def all_there() -> bool:
            count: int = await self._queue.fetchval(
                "SELECT count(*) FROM messages WHERE queue = $1 AND visible_at <= trace_now()", f"tasks.{FAN}"
            )
            return count >= self._units

        seconds = await self._watch.seconds(started, all_there)
        gone = await self._queue.execute("DELETE FROM messages WHERE queue = $1", f"tasks.{FAN}")
        assert gone == f"DELETE {self._units}", gone
        return seconds

"""The real thing that the machine drives: one Dispatcher on real Postgres, with time that moves in both databases."""

import asyncio
import time
from collections.abc import Iterable
from itertools import count
from typing import Any
from uuid import UUID

import asyncpg

from tests.support.dispatcher import MOVABLE_CLOCK, DispatcherHarness, Reply
from tracelake.ports import Delivery, Message

VISIBILITY = 60.0


class World:
    def __init__(self, harness: DispatcherHarness) -> None:
        self.harness = harness
        self._examples = count(1)
        self.now = 0.0
        self._watching: tuple[float, float] | None = None
        harness.use_movable_clock()
        self._queue_db: asyncpg.Connection[asyncpg.Record] = harness.run(asyncpg.connect(harness.queue_dsn))
        harness.run(self._queue_db.execute(MOVABLE_CLOCK))

    def close(self) -> None:
        self.harness.run(self._queue_db.close())

    def next_example(self) -> str:
        """A name for the org, the runtime (and so the queue) of one example: nothing is shared with another."""
        return f"example_{next(self._examples)}_{time.time_ns()}"

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.harness.advance(seconds)
        step = "UPDATE test_clock SET ahead = ahead + make_interval(secs => $1)"
        self.harness.run(self._queue_db.execute(step, seconds))

    def reap(self) -> float:
        """One round of the reaper; answers since when, by the contract, it has been watching."""
        self.harness.reap()
        moment = time.monotonic()
        if self._watching is None or moment - self._watching[1] > 14.0:
            self._watching = (self.now, moment)  # it begins to watch, or has slept and begins again
        self._watching = (self._watching[0], moment)
        return self._watching[0]

    def restart(self) -> None:
        self.harness.restart()
        self._watching = None

    # What the tables say

    def rows(self, task_ids: Iterable[str]) -> dict[str, asyncpg.Record]:
        found = self.harness.sql("SELECT * FROM tasks WHERE task_id = ANY($1)", list(task_ids))
        return {str(row["task_id"]): row for row in found}

    def events(self, task_ids: Iterable[str]) -> list[tuple[str, int]]:
        found = self.harness.sql("SELECT producer, cursor FROM events WHERE producer = ANY($1)", list(task_ids))
        return sorted((row["producer"], row["cursor"]) for row in found)

    def publishes(self, task_ids: Iterable[str]) -> list[tuple[str, int, str, bool]]:
        """Each with whether sinks may have it."""
        found = self.harness.sql("SELECT * FROM buffer_publishes WHERE task_id = ANY($1)", list(task_ids))
        return sorted(
            (str(row["task_id"]), row["attempt"], row["batch_uri"], row["released_at"] is not None) for row in found
        )

    def outbox(self, task_ids: Iterable[str]) -> set[str]:
        found = self.harness.sql("SELECT key FROM outbox WHERE key = ANY($1)", [UUID(key) for key in task_ids])
        return {str(row["key"]) for row in found}

    def messages(self, queue: str) -> dict[str, int]:
        """How many live messages each key has."""
        query = "SELECT key, count(*) AS messages FROM messages WHERE queue = $1 GROUP BY key"
        return {row["key"]: row["messages"] for row in self.harness.run(self._queue_db.fetch(query, queue))}

    # The queue

    def receive(self, queue: str, limit: int) -> list[Delivery]:
        return self.harness.run(self.harness.dispatcher.ports.queue.receive(queue, limit, VISIBILITY))

    def ack(self, deliveries: list[Delivery]) -> int:
        return self.harness.run(self.harness.dispatcher.ports.queue.ack(deliveries))

    def publish_again(self, queue: str, key: str) -> None:
        message = Message(queue, key, b'{"task_id":"%s"}' % key.encode())
        self.harness.run(self.harness.dispatcher.ports.queue.publish([message]))

    def purge(self, queue: str) -> None:
        self.harness.run(self._queue_db.execute("DELETE FROM messages WHERE queue = $1", queue))

    def relay_all(self) -> None:
        while self.harness.relay():
            pass

    def reconcile(self) -> int:
        return self.harness.run(self.harness.dispatcher.reconciler.run_once())

    # Calls

    def together(self, calls: list[tuple[str, str, Any, dict[str, str]]]) -> list[Reply]:
        """`(listener, path, body, headers)`, all under way at the same time."""

        async def send() -> list[Reply]:
            requests = (self.harness.call_async(where, "POST", path, body, head) for where, path, body, head in calls)
            return await asyncio.gather(*requests)

        return self.harness.run(send())

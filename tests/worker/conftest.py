"""A worker on a real queue and a Dispatcher in memory."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest

from tests.support.configs import worker_config
from tests.support.postgres import TestCluster
from tests.worker.fake_dispatcher import FakeDispatcher, FakeTask
from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.model.backoff import Backoff
from tracelake.ports import NoSecrets, SecretProvider
from tracelake.ports.queue import Message, QueueDepth
from tracelake.worker import Worker
from tracelake.worker.operators import OPERATORS, Operator

QUEUE = "tasks.ecs_platform"


@dataclass
class Bench:
    """Everything a worker test needs."""

    dsn: str
    cluster: TestCluster
    dispatcher: FakeDispatcher = field(default_factory=FakeDispatcher)
    operators: dict[str, Operator] = field(default_factory=lambda: dict(OPERATORS))
    secrets: SecretProvider = field(default_factory=NoSecrets)
    signals: Counter[str] = field(default_factory=Counter)
    tasks_signalled: Counter[tuple[str, UUID]] = field(default_factory=Counter)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    queue: PostgresQueue = field(init=False)

    @asynccontextmanager
    async def working(self, **options: Any) -> AsyncIterator["asyncio.Task[None]"]:
        """A worker that runs until the block ends, or ended by itself."""
        settings: Mapping[str, Any] = {
            "worker_id": "test-worker",
            "queues": (QUEUE,),
            "slots": 8,
            "heartbeat_seconds": 0.02,
            "grace_seconds": 5.0,
            "backoff": Backoff(0.002, 0.02),
            **options,
        }
        self.queue = PostgresQueue(self.dsn)
        worker = Worker(
            worker_config(**settings),
            queue=self.queue,
            claims=self.dispatcher,
            tasks=self.dispatcher,
            operators=self.operators,
            secrets=self.secrets,
            log_calls=self.dispatcher,
            on_signal=self._on_signal,
        )
        self.stop = asyncio.Event()
        running = asyncio.create_task(worker.run(self.stop))
        try:
            yield running
        finally:
            self.stop.set()
            try:
                await running
            finally:
                await self.queue.close()

    def _on_signal(self, name: str, task_id: UUID | None) -> None:
        self.signals[name] += 1
        if task_id is not None:
            self.tasks_signalled[name, task_id] += 1

    async def wake(self, *tasks: FakeTask | UUID, queue: str = QUEUE) -> None:
        ids = [task if isinstance(task, UUID) else task.task_id for task in tasks]
        await self.wake_raw(*(msgspec.json.encode({"task_id": task_id}) for task_id in ids), queue=queue)

    async def wake_raw(self, *bodies: bytes, queue: str = QUEUE) -> None:
        await self.queue.publish([Message(queue, "key", body) for body in bodies])

    async def depth(self) -> QueueDepth:
        found = await self.queue.depths()
        return found[0] if found else QueueDepth(QUEUE, 0, 0, 0, 0.0)

    async def until_empty(self) -> None:
        async with asyncio.timeout(30):
            while await self.queue.depths():
                await asyncio.sleep(0.005)

    async def admin(self, statement: str) -> None:
        connection = await asyncpg.connect(self.cluster.cluster.superuser_dsn())
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    @property
    def database(self) -> str:
        return self.dsn.split("@/", 1)[1].split("?", 1)[0]


@pytest.fixture
def bench(cluster: TestCluster, queue_dsn: str) -> Bench:
    return Bench(queue_dsn, cluster)


@pytest.fixture
def frozen_bench(bench: Bench) -> Bench:
    """The queue's clock stands still: no message comes back by itself, however slow the machine is."""

    async def freeze() -> None:
        connection = await asyncpg.connect(bench.cluster.user_dsn(bench.dsn, "trace_state"))
        await connection.execute(
            "CREATE OR REPLACE FUNCTION trace_now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE AS "
            "$$ SELECT timestamptz '2026-01-01 00:00:00+00' $$"
        )
        await connection.close()

    asyncio.run(freeze())
    return bench

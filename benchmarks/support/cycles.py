"""The eight steps of a task's life, three ways: single calls, batch calls, bare asyncpg.

create + outbox, publish, outbox done, receive, claim, heartbeat, complete + event, ack. The Dispatcher does the second
and third by itself; the bare floor does each in a transaction of its own on the very same tables.
"""

import asyncio
import time
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from benchmarks.support.stack import Clients
from tracelake.client.task import TaskCall
from tracelake.errors import TraceError
from tracelake.model.ids import new_id, new_secret_id
from tracelake.wire import routes
from tracelake.wire.claims import ClaimReply, ClaimRequest
from tracelake.wire.platform import DatasetSpec, JobReply, JobRequest, TaskSpec, TasksRequest
from tracelake.wire.task_calls import CompleteRequest, HeartbeatRequest
from tracelake.wire.units import EventIn

VISIBILITY = 60.0
_WAKEUP = msgspec.json.Decoder(dict[str, UUID])


async def make_job(clients: Clients, runtime: str) -> JobReply:
    """One job, and so one queue, per subject: they never take each other's messages."""
    return await clients.internal.call(
        routes.REGISTER_JOB,
        JobRequest(
            org="bench",
            dag="lifecycle",
            name=f"job_{runtime}",
            runtime=runtime,
            operator="noop",
            outputs=[DatasetSpec(name=f"out_{runtime}", storage="none")],
        ),
    )


def _event(job: JobReply, cursor: int) -> EventIn:
    output = job.outputs[0]
    return EventIn(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, cursor=cursor)


class SingleCycles:
    """Many wrappers, each with one task at a time and one call per step."""

    def __init__(self, clients: Clients, job: JobReply, runtime: str, *, in_flight: int) -> None:
        self._clients = clients
        self._job = job
        self._queue = f"tasks.{runtime}"
        self._in_flight = in_flight
        self._cursor = 0

    async def rate(self, cycles: int) -> float:
        left = cycles
        started = time.perf_counter()

        async def wrapper() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self.cycle()

        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(wrapper())
        return cycles / (time.perf_counter() - started)

    async def cycle(self) -> None:
        await self.create_one()
        await self.run_one()

    async def create_one(self) -> UUID:
        reply = await self._clients.internal.call(
            routes.CREATE_TASKS, TasksRequest(tasks=[TaskSpec(job_id=self._job.job_id)])
        )
        return reply.tasks[0].task_id

    async def run_one(self) -> tuple[UUID, float, float]:
        """Receive, claim, heartbeat, complete, ack; answers the task, when it was received, the claim's seconds."""
        clients = self._clients
        deliveries = await clients.queue.receive(self._queue, 1, VISIBILITY, wait_seconds=30.0)
        received = time.perf_counter()
        task_id = _WAKEUP.decode(deliveries[0].body)["task_id"]
        claim = await clients.internal.call(routes.CLAIM_TASK, ClaimRequest(task_id=task_id, worker_id="bench"))
        claim_seconds = time.perf_counter() - received
        fence = _fence(task_id, claim)
        assert claim.capability_token is not None
        await clients.task.call(routes.HEARTBEAT, claim.capability_token, HeartbeatRequest(**fence))
        self._cursor += 1
        body = CompleteRequest(**fence, status="Completed", events=[_event(self._job, self._cursor)])
        done = await clients.task.complete(claim.capability_token, body)
        assert done.status == "Completed"
        await clients.queue.ack(deliveries)
        return task_id, received, claim_seconds


class BatchCycles:
    """Wrappers with many small tasks: up to `size` per request in every step."""

    def __init__(self, clients: Clients, job: JobReply, runtime: str, *, in_flight: int, size: int) -> None:
        self._clients = clients
        self._job = job
        self._queue = f"tasks.{runtime}"
        self._in_flight = in_flight
        self._size = size
        self._cursor = 0

    async def rate(self, cycles: int) -> float:
        left = cycles
        started = time.perf_counter()

        async def wrapper() -> None:
            nonlocal left
            while left > 0:
                count = min(self._size, left)
                left -= count
                await self._cycle(count)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._in_flight):
                group.create_task(wrapper())
        return cycles / (time.perf_counter() - started)

    async def _cycle(self, count: int) -> None:
        clients = self._clients
        await clients.internal.call(
            routes.CREATE_TASKS, TasksRequest(tasks=[TaskSpec(job_id=self._job.job_id)] * count)
        )
        while count > 0:
            deliveries = await clients.queue.receive(self._queue, count, VISIBILITY, wait_seconds=30.0)
            count -= len(deliveries)
            tasks = [_WAKEUP.decode(delivery.body)["task_id"] for delivery in deliveries]
            claims = await clients.internal.claim_batch([ClaimRequest(task_id=t, worker_id="bench") for t in tasks])
            beats, words = [], []
            for task_id, claim in zip(tasks, claims, strict=True):
                assert not isinstance(claim, TraceError)
                assert claim.capability_token is not None
                fence = _fence(task_id, claim)
                self._cursor += 1
                event = _event(self._job, self._cursor)
                beats.append(TaskCall(claim.capability_token, HeartbeatRequest(**fence)))
                word = CompleteRequest(**fence, status="Completed", events=[event])
                words.append(TaskCall(claim.capability_token, word))
            for answers in (await clients.task.batch(beats), await clients.task.batch(words)):
                assert not any(isinstance(answer, TraceError) for answer in answers)
            await clients.queue.ack(deliveries)


def _fence(task_id: UUID, claim: ClaimReply) -> Any:
    assert claim.status == "Claimed", claim
    return {"task_id": task_id, "attempt": claim.attempt, "lease_token": claim.lease_token}


_BARE_RECEIVE = """
    UPDATE messages SET visible_at = trace_now() + interval '60 s', receives = receives + 1, receipt = 1
    WHERE (key, message_id) = (SELECT key, message_id FROM messages WHERE queue = 'bare' AND visible_at <= trace_now()
                               ORDER BY visible_at LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING key, message_id"""


class BareCycles:
    """The floor: the same rows by bare asyncpg, one transaction per step, one connection per database and worker."""

    def __init__(self, state_dsn: str, queue_dsn: str, job: JobReply, *, connections: int) -> None:
        self._state_dsn = state_dsn
        self._queue_dsn = queue_dsn
        self._job = job
        self._connections = connections
        self._pairs: list[tuple[asyncpg.Connection, asyncpg.Connection]] = []
        self._cursor = 0

    async def open(self) -> None:
        for _ in range(self._connections):
            self._pairs.append((await asyncpg.connect(self._state_dsn), await asyncpg.connect(self._queue_dsn)))

    async def close(self) -> None:
        for pair in self._pairs:
            for connection in pair:
                await connection.close()

    async def rate(self, cycles: int) -> float:
        left = cycles
        started = time.perf_counter()

        async def worker(state: asyncpg.Connection, queue: asyncpg.Connection) -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self._cycle(state, queue)

        async with asyncio.TaskGroup() as group:
            for pair in self._pairs:
                group.create_task(worker(*pair))
        return cycles / (time.perf_counter() - started)

    async def _cycle(self, state: asyncpg.Connection, queue: asyncpg.Connection) -> None:
        job, output = self._job, self._job.outputs[0]
        task_id = new_id()
        async with state.transaction():
            await state.execute(
                "INSERT INTO tasks (task_id, org_id, job_id, status, max_attempts, inputs, ready_at) "
                "VALUES ($1, $2, $3, 'Queued', 3, '[]', trace_now())",
                task_id, job.org_id, job.job_id,
            )  # fmt: skip
            # Never due for the Dispatchers' own relays: this worker publishes it itself.
            outbox_id = await state.fetchval(
                "INSERT INTO outbox (kind, queue, key, next_try_at) VALUES ('task_wakeup', 'bare', $1, 'infinity') "
                "RETURNING outbox_id",
                task_id,
            )
        await queue.execute(
            "INSERT INTO messages (queue, key, body, published_at, visible_at) "
            "VALUES ('bare', $1, $2, trace_now(), trace_now())",
            str(task_id), b'{"task_id":"%s"}' % str(task_id).encode(),
        )  # fmt: skip
        await state.execute("DELETE FROM outbox WHERE outbox_id = $1", outbox_id)
        message = None
        while message is None:  # a neighbour may have taken ours and have published its own after we looked
            message = await queue.fetchrow(_BARE_RECEIVE)
        claimed = UUID(message["key"])
        lease_token = new_secret_id()
        await state.execute(
            """UPDATE tasks SET status = 'Running', attempt = attempt + 1, lease_token = $2, ready_at = NULL,
                   claimed_at = trace_now(), worker_id = 'bare', lease_expires_at = trace_now() + interval '120 s'
               WHERE task_id = $1 AND status = 'Queued'""",
            claimed, lease_token,
        )  # fmt: skip
        await state.execute(
            """UPDATE tasks SET lease_expires_at = trace_now() + interval '120 s'
               WHERE task_id = $1 AND status = 'Running' AND attempt = 1 AND lease_token = $2""",
            claimed, lease_token,
        )  # fmt: skip
        self._cursor += 1
        async with state.transaction():
            await state.execute(
                """UPDATE tasks SET status = 'Completed', outcome = 'Completed', lease_expires_at = NULL,
                       finished_at = trace_now()
                   WHERE task_id = $1 AND status = 'Running' AND attempt = 1 AND lease_token = $2""",
                claimed, lease_token,
            )  # fmt: skip
            await state.execute(
                """INSERT INTO events (org_id, producer, attempt, dataset_uuid, dataset_version, unit, cursor, state,
                                       routed_seq)
                   VALUES ($1, $2, 1, $3, $4, $5, $6, 'Routed', nextval('events_routed_seq'))""",
                job.org_id, str(claimed), output.dataset_uuid, output.dataset_version,
                f"c:{self._cursor}", self._cursor,
            )  # fmt: skip
        await queue.execute(
            "DELETE FROM messages WHERE (key, message_id) = ($1, $2)", message["key"], message["message_id"]
        )

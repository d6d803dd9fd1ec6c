"""The stack of the pressure benchmark: its DAGs, and how the benchmark takes the place of sources and workers.

Every source is `always_on`: the benchmark claims its run and speaks for it. Every job has a queue that no worker
serves, so that the benchmark says how fast its tasks are taken.
"""

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import asyncpg
import msgspec

from benchmarks.support.routing_stack import RoutingStack
from benchmarks.support.stack import Clients
from tracelake.client.task import TaskCall
from tracelake.errors import TraceError
from tracelake.ports.queue import Delivery
from tracelake.wire import routes
from tracelake.wire.claims import ClaimReply, ClaimRequest
from tracelake.wire.task_calls import CompleteRequest, EventsRequest
from tracelake.wire.units import EventIn

Database: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

SOURCES, FIRST, SECOND = "bench-sources", "bench-first", "bench-second"
LIMITED, FREE, FEEDERS, FULL, KEPT = "bench-limited", "bench-free", "bench-feeders", "bench-full", "bench-kept"

MAX_DEPTH = 42
HIDDEN = 3600.0
"""A message that was received is nobody else's for the rest of the run."""
_MANY = 1_000_000_000
_WAKEUP = msgspec.json.Decoder(dict[str, UUID])


def _source(name: str, priority: str = "normal") -> str:
    return (
        f"  - {{name: {name}, activation: source, source: {{kind: always_on}}, runtime: {SOURCES},"
        f" operator: noop, priority: {priority}}}\n"
    )


def _job(name: str, runtime: str, inputs: Sequence[str], more: str = "") -> str:
    read = ", ".join(f"{{from: {{job: {job}}}}}" for job in inputs)
    return f"  - {{name: {name}, activation: reactive, runtime: {runtime}, operator: noop, inputs: [{read}]{more}}}\n"


def _branch(name: str, runtime: str, limit: str) -> str:
    """A DAG with two producers before one queue: the one gives way at 80 %, the other at 100 %."""
    sources = _source(f"{name}_bulk", "bulk") + _source(f"{name}_normal")
    return f"name: {name}\njobs:\n" + sources + _job("slow", runtime, [f"{name}_bulk", f"{name}_normal"], limit)


_LIMIT = f", max_queue_depth: {MAX_DEPTH}"

# The branch that is measured, and beside it in the same DAG one with a limit and one without.
HEALTHY_DAG = (
    "name: healthy\njobs:\n"
    + _source("head")
    + _job("first", FIRST, ["head"])
    + _job("second", SECOND, ["first"])
    + _source("limited_beside")
    + _job("limited_slow", LIMITED, ["limited_beside"], _LIMIT)
    + _source("free_beside")
    + _job("free_slow", FREE, ["free_beside"])
)
LIMITED_DAG = _branch("limited", LIMITED, _LIMIT)
FREE_DAG = _branch("free", FREE, "")

LIMITED_SOURCES = ("limited_bulk", "limited_normal", "limited_beside")
FREE_SOURCES = ("free_bulk", "free_normal", "free_beside")
LIMITED_JOBS = (("limited", "slow"), ("healthy", "limited_slow"))

# Feeders are many claimed tasks, since one producer has one call in flight; the queue after them is never served.
FULL_DAG = (
    "name: full\njobs:\n  - {name: begin, activation: source, source: {kind: manual}}\n"
    + _job("feeder", FEEDERS, ["begin"], ", execution_strategy: PerPartition")
    + _job("reader", FULL, ["feeder"], ", max_queue_depth: 1")
)

KEPT_DAG = "name: kept\njobs:\n" + _source("keeper") + _job("reader", KEPT, ["keeper"])


class PressureStack(RoutingStack):
    def __init__(self) -> None:
        super().__init__((SOURCES, FIRST, SECOND, LIMITED, FREE, FEEDERS, FULL, KEPT))


@dataclass(slots=True)
class Speaker:
    """A claimed task that says events: cursors of its first output.

    Those that are next are larger than all before, and each becomes a task. Late ones are smaller: units that were made
    before them read them too, so they are accepted, stored and routed like any other, and make no task.
    """

    clients: Clients
    job: str
    fence: dict[str, Any]
    capability_token: str
    dataset_uuid: UUID
    dataset_version: UUID
    next: "itertools.count[int]" = field(default_factory=lambda: itertools.count(_MANY))
    late: "itertools.count[int]" = field(default_factory=itertools.count)

    async def say(self, *cursors: int) -> None:
        said = [
            EventIn(dataset_uuid=self.dataset_uuid, dataset_version=self.dataset_version, cursor=cursor)
            for cursor in cursors
        ]
        reply = await self.clients.task.call(
            routes.ANNOUNCE_EVENTS, self.capability_token, EventsRequest(**self.fence, events=said)
        )
        assert reply.accepted == len(cursors)
        assert not any(answer.duplicate for answer in reply.events)

    async def say_next(self, count: int) -> None:
        await self.say(*itertools.islice(self.next, count))

    async def say_late(self, count: int) -> None:
        await self.say(*itertools.islice(self.late, count))


async def claim_speakers(clients: Clients, runtime: str, count: int) -> list[Speaker]:
    """The tasks of a queue that the benchmark keeps for itself."""
    deliveries: list[Delivery] = []
    async with asyncio.timeout(60):
        while len(deliveries) < count:
            deliveries += await clients.queue.receive(f"tasks.{runtime}", count, HIDDEN, wait_seconds=20.0)
    return [_speaker(clients, claim) for claim in await claim_all(clients, deliveries)]


def _speaker(clients: Clients, claim: ClaimReply) -> Speaker:
    assert claim.capability_token is not None
    assert claim.task is not None
    output = claim.task.outputs[0]
    return Speaker(
        clients,
        claim.task.job.name,
        fence_of(claim),
        claim.capability_token,
        output.dataset_uuid,
        output.dataset_version,
    )


async def claim_all(clients: Clients, deliveries: Sequence[Delivery]) -> list[ClaimReply]:
    asked = [ClaimRequest(task_id=_WAKEUP.decode(item.body)["task_id"], worker_id="bench") for item in deliveries]
    claims: list[ClaimReply] = []
    for answer in await clients.internal.claim_batch(asked):
        assert not isinstance(answer, TraceError), answer
        assert answer.status == "Claimed", answer
        claims.append(answer)
    return claims


async def complete_all(clients: Clients, deliveries: Sequence[Delivery]) -> int:
    """Each of these tasks from claim to ack, in as few requests as a worker with many slots needs."""
    if not deliveries:
        return 0
    words = []
    for claim in await claim_all(clients, deliveries):
        assert claim.capability_token is not None
        words.append(TaskCall(claim.capability_token, CompleteRequest(**fence_of(claim), status="Completed")))
    for answer in await clients.task.batch(words):
        assert not isinstance(answer, TraceError), answer
    await clients.queue.ack(deliveries)
    return len(deliveries)


def fence_of(claim: ClaimReply) -> dict[str, Any]:
    assert claim.task is not None
    return {"task_id": claim.task.task_id, "attempt": claim.attempt, "lease_token": claim.lease_token}


@dataclass(frozen=True, slots=True)
class Effort:
    """Processor time since the machine was started, in ticks."""

    all: int
    """That there was, on every processor."""
    busy: int
    """That somebody used."""
    dispatcher: int

    @classmethod
    def of(cls, dispatcher_pid: int) -> "Effort":
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        own = Path(f"/proc/{dispatcher_pid}/stat").read_text().rpartition(")")[2].split()
        return cls(sum(ticks), sum(ticks) - ticks[3] - ticks[4], int(own[11]) + int(own[12]))

"""Org A of the benchmark of tenants, in a process of its own: its work must not take the time of who measures.

    python -m benchmarks.support.tenants_load HOME INFO DOCUMENT_BYTES DRY_RUNS

Says `ready`, then works from each line `go` to the next line, and answers that one with what it had answered, as JSON.
"""

import asyncio
import itertools
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import uvloop

from benchmarks.support.stack import BenchStack, Clients
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.claims import ClaimRequest
from tracelake.wire.jobs import BlockRange, TriggerRequest
from tracelake.wire.platform import DatasetSpec, JobReply, JobRequest, TaskSpec, TasksRequest
from tracelake.wire.task_calls import CompleteRequest, EventsRequest
from tracelake.wire.units import EventIn, Invalidates

ORG_A = "default"
EVENTS = 1_000
RANGES = 50

_SMALL = """\
name: small
jobs:
  - {{name: tick, activation: source, source: {{kind: manual}}}}
  - {{name: work, activation: reactive, runtime: ecs_platform, operator: sleep, config: {{seconds: {number}}},
     inputs: [{{from: {{job: tick}}}}]}}
"""
_FEED = """\
name: feed
jobs:
  - {name: begin, activation: source, source: {kind: manual}}
  - {name: feeder, activation: reactive, runtime: ecs_platform, operator: noop, inputs: [{from: {job: begin}}],
     execution_strategy: PerPartition}
  - {name: reader, activation: reactive, runtime: ecs_platform, operator: noop, inputs: [{from: {job: feeder}}],
     execution_strategy: PerPartition}
"""


def large_document(size: int) -> bytes:
    """A DAG of up to 900 jobs with queries, of at most so many bytes."""
    text = "name: large\njobs:\n  - {name: tick, activation: source, source: {kind: manual}}\n"
    for number in range(900):
        label = f"{number:04}" * (size // 900 // 5)
        job = (
            f"  - {{name: j{number}, activation: reactive, runtime: ecs_platform, operator: spark_sql,\n"
            f"     inputs: [{{from: {{job: tick}}}}],\n"
            f"     config: {{inputs: {{t: 0}}, query: \"SELECT abs(value) AS value, '{label}' AS label FROM t\"}}}}\n"
        )
        if len(text) + len(job) > size:
            break
        text += job
    return text.encode()


async def make_job(clients: Clients, org: str, name: str) -> JobReply:
    return await clients.internal.call(
        routes.REGISTER_JOB,
        JobRequest(
            org=org,
            dag="tenants",
            name=name,
            runtime=f"tenants_{name}",
            operator="noop",
            outputs=[DatasetSpec(name=f"out_{name}", storage="none")],
        ),
    )


async def make_tasks(clients: Clients, job: JobReply, count: int) -> list[UUID]:
    reply = await clients.internal.call(routes.CREATE_TASKS, TasksRequest(tasks=[TaskSpec(job_id=job.job_id)] * count))
    return [task.task_id for task in reply.tasks]


async def claim(clients: Clients, task_id: UUID) -> tuple[str, dict[str, Any]]:
    reply = await clients.internal.call(routes.CLAIM_TASK, ClaimRequest(task_id=task_id, worker_id="bench"))
    assert reply.status == "Claimed", reply
    assert reply.capability_token is not None
    fence = {"task_id": task_id, "attempt": reply.attempt, "lease_token": reply.lease_token}
    return reply.capability_token, fence


class BusyOrg:
    """Everything that org A does."""

    def __init__(self, clients: Clients, user: UserClient, *, document: bytes, dry_runs: int) -> None:
        self._clients, self._user = clients, user
        self._document, self._dry_runs = document, dry_runs
        self._numbers = itertools.count(1)
        self.answered: Counter[str] = Counter()

    async def prepare(self) -> None:
        self._job = await make_job(self._clients, ORG_A, "busy")
        await self._user.call(routes.DEPLOY, _FEED.encode(), dag="feed", activate=True)
        trigger = TriggerRequest(range=BlockRange(start=0, end=9))
        made = await self._user.call(routes.TRIGGER, trigger, dag="feed", job="begin")
        self._feeder = await claim(self._clients, made.tasks[0])
        payload = await self._clients.internal.call(routes.FETCH_TASK, task_id=made.tasks[0])
        assert payload.task is not None
        self._fed = payload.task.outputs[0]

    async def run(self, stop: asyncio.Event) -> None:
        kinds: list[Callable[[], Awaitable[None]]] = [self._deploy, self._complete, self._invalidate]
        kinds += [self._dry_run] * self._dry_runs
        loops = [asyncio.create_task(self._again(kind)) for kind in kinds]
        await stop.wait()
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        # What was sent is still worked on: a plan of A's own comes after all of it.
        with suppress(TraceError):
            await self._user.call(
                routes.DEPLOY, _SMALL.format(number=1).encode(), dag="small", dry_run=True, activate=True
            )

    async def _again(self, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await work()
                self.answered[work.__name__] += 1
            except TraceError as refusal:
                self.answered[refusal.code] += 1
                await asyncio.sleep(0.05)

    async def _deploy(self) -> None:
        await self._user.call(
            routes.DEPLOY, _SMALL.format(number=next(self._numbers) % 1000).encode(), dag="small", activate=True
        )

    async def _dry_run(self) -> None:
        await self._user.call(routes.DEPLOY, self._document, dag="large", dry_run=True, activate=True)

    async def _complete(self) -> None:
        (task_id,) = await make_tasks(self._clients, self._job, 1)
        token, fence = await claim(self._clients, task_id)
        output = self._job.outputs[0]
        events = [
            EventIn(
                dataset_uuid=output.dataset_uuid,
                dataset_version=output.dataset_version,
                cursor=next(self._numbers),
            )
            for _ in range(EVENTS)
        ]
        await self._clients.task.complete(token, CompleteRequest(**fence, status="Completed", events=events))

    async def _invalidate(self) -> None:
        token, fence = self._feeder
        place: dict[str, Any] = {"dataset_uuid": self._fed.dataset_uuid, "dataset_version": self._fed.dataset_version}
        first = next(self._numbers) * 10 * RANGES
        ranges = [(first + 10 * number, first + 10 * number + 9) for number in range(RANGES)]
        events = [EventIn(**place, partition_key=f"{start}-{end}", start=start, end=end) for start, end in ranges]
        await self._clients.task.call(routes.ANNOUNCE_EVENTS, token, EventsRequest(**fence, events=events))
        start, end = ranges[0]
        again = EventIn(
            **place,
            partition_key=f"{start}-{end}",
            start=start,
            end=end,
            revision=f"r{first}",
            invalidates=Invalidates(start=first, end=ranges[-1][1], reason="bench"),
        )
        await self._clients.task.call(routes.ANNOUNCE_EVENTS, token, EventsRequest(**fence, events=[again]))


async def main(home: Path, info: dict[str, Any], size: int, dry_runs: int) -> None:
    clients = BenchStack.attached(home, info).clients()
    user = UserClient.of_stack(msgspec.convert(info, LocalStack))
    busy = BusyOrg(clients, user, document=large_document(size), dry_runs=dry_runs)
    await busy.prepare()
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        stop = asyncio.Event()
        load = asyncio.create_task(busy.run(stop))
        await asyncio.to_thread(sys.stdin.readline)
        stop.set()
        await load
        print(json.dumps(busy.answered), flush=True)
    await asyncio.gather(clients.close(), user.close())


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))

"""A stack with models by day, whose input units the benchmark commits itself, as tasks do it."""

import asyncio
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import asyncpg
import msgspec

from benchmarks.support.models_data import UnitFile
from benchmarks.support.routing_stack import FEEDERS, RoutingStack
from benchmarks.support.stack import Clients
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.client.user import UserClient
from tracelake.settings import Settings
from tracelake.wire import routes
from tracelake.wire.claims import ClaimReply, ClaimRequest
from tracelake.wire.platform import DatasetSpec, JobReply, JobRequest, TaskSpec, TasksRequest
from tracelake.wire.task_calls import CompleteRequest, DatasetPublished, StorageRef
from tracelake.wire.units import EventIn, Unit

ORG = "default"
MODELS = "ecs_platform"
"""The runtime of models."""
DAILY = ("flows", "balances", "averages")
"""Models whose cost of a day does not depend on how many days there are."""

_HIDDEN = 3600.0
_SECONDS = 300.0
_AT_ONCE = 8
_WAKEUP = msgspec.json.Decoder(dict[str, UUID])

_DAG = """
name: {name}
defaults: {{runtime: ecs_platform}}
jobs:{jobs}
publish:
{publish}
"""
_JOBS = {
    "flows": """
  - name: flows
    activation: reactive
    operator: spark_sql
    units: {by: time, grain: day, when: updated}
    inputs: [{from: {dataset: DATASET}, by: timestamp}]
    config:
      inputs: {transfers: 0}
      query: SELECT token, count(*) AS transfers, sum(amount) AS volume FROM transfers GROUP BY token""",
    "balances": """
  - name: balances
    activation: reactive
    operator: spark_sql
    units: {by: time, grain: day, when: updated}
    inputs: [{from: {dataset: DATASET}, by: timestamp}, {self: previous, columns: {holder: bigint, balance: bigint}}]
    config:
      inputs: {transfers: 0, before: 1}
      query: |
        SELECT holder, sum(amount) AS balance
        FROM (SELECT holder, amount FROM transfers UNION ALL SELECT holder, balance FROM before) GROUP BY holder""",
    "averages": """
  - name: averages
    activation: reactive
    operator: spark_sql
    units: {by: time, grain: day, when: updated}
    inputs: [{from: {dataset: DATASET}, by: timestamp, lookback: 6}]
    config:
      inputs: {transfers: 0}
      query: SELECT token, count(*) / 7 AS per_day FROM transfers GROUP BY token""",
    "newcomers": """
  - name: newcomers
    activation: reactive
    operator: spark_sql
    units: {by: time, grain: day, when: updated}
    inputs: [{from: {dataset: DATASET}, read: history, by: timestamp}]
    config:
      inputs: {transfers: 0}
      query: SELECT holder FROM transfers GROUP BY holder HAVING min(timestamp) BETWEEN ${start} AND ${end}""",
}


def model_dag(name: str, models: Iterable[str]) -> str:
    """Models of the dataset `NAME_transfers`."""
    return _DAG.format(
        name=name,
        jobs="".join(_JOBS[model].replace("DATASET", f"{name}_transfers") for model in models),
        publish="\n".join(f"  {name}_{model}: {{from: {{job: {model}}}, storage: s3}}" for model in models),
    )


@dataclass(frozen=True, slots=True)
class ClaimedTask:
    reply: ClaimReply

    @property
    def fence(self) -> dict[str, Any]:
        assert self.reply.task is not None
        return {
            "task_id": self.reply.task.task_id,
            "attempt": self.reply.attempt,
            "lease_token": self.reply.lease_token,
        }

    @property
    def token(self) -> str:
        assert self.reply.capability_token is not None
        return self.reply.capability_token

    @property
    def prefix(self) -> str:
        assert self.reply.task is not None
        prefix = self.reply.task.outputs[0].storage.write_prefix
        assert prefix is not None
        return prefix


class ModelStack(RoutingStack):
    """The benchmark claims the tasks that write transfers, and as long as no worker runs, those of models."""

    def __init__(self) -> None:
        super().__init__((FEEDERS,))

    def __enter__(self) -> Self:
        super().__enter__()
        self._transfer = S3Transfer(Settings.load({"home": self.home}, environ={}).resolve_object_store())
        with tempfile.NamedTemporaryFile(dir=self._scratch, delete=False) as file:
            self._empty = Path(file.name)
        return self

    def upload(self, claimed: ClaimedTask, path: Path | None) -> None:
        self._transfer.upload(path or self._empty, f"{claimed.prefix}rows.parquet")
        self._transfer.upload(self._empty, f"{claimed.prefix}_SUCCESS")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def open_calls(self) -> "ModelCalls":
        return ModelCalls(self, self.clients(), self.user(), await asyncpg.connect(self.state_dsn))


@dataclass(frozen=True, slots=True)
class ModelCalls:
    """The calls of writers of transfers, and of models."""

    stack: ModelStack
    clients: Clients
    user: UserClient
    state: "asyncpg.Connection[asyncpg.Record]"

    async def close(self) -> None:
        await self.clients.close()
        await self.user.close()
        await self.state.close()

    async def register(self, name: str) -> JobReply:
        """A job of the platform that writes the dataset `NAME_transfers`."""
        dataset = DatasetSpec(name=f"{name}_transfers", storage="s3")
        body = JobRequest(org=ORG, dag="bench", name=name, runtime=FEEDERS, operator="noop", outputs=[dataset])
        return await self.clients.internal.call(routes.REGISTER_JOB, body)

    async def receive(self, count: int) -> list[UUID]:
        """Takes so many wake-ups of models."""
        task_ids: list[UUID] = []
        async with asyncio.timeout(_SECONDS):
            while len(task_ids) < count:
                deliveries = await self.clients.queue.receive(f"tasks.{MODELS}", count, _HIDDEN, wait_seconds=5.0)
                task_ids += [_WAKEUP.decode(item.body)["task_id"] for item in deliveries]
                await self.clients.queue.ack(deliveries)
        return task_ids

    async def claim_writer(self, job: JobReply, unit: UnitFile) -> ClaimedTask:
        start, end = unit.blocks
        spec = TaskSpec(job_id=job.job_id, unit=Unit(partition_key=f"{start}-{end}", start=start, end=end))
        reply = await self.clients.internal.call(routes.CREATE_TASKS, TasksRequest(tasks=[spec]))
        return await self.claim(reply.tasks[0].task_id)

    async def claim(self, task_id: UUID) -> ClaimedTask:
        return ClaimedTask(
            await self.clients.internal.call(routes.CLAIM_TASK, ClaimRequest(task_id=task_id, worker_id="bench"))
        )

    async def complete(self, claimed: ClaimedTask, unit: UnitFile | None = None) -> None:
        """The files are there already. Times of blocks are those of the unit, or of what a model has read."""
        task = claimed.reply.task
        assert task is not None
        (output,) = task.outputs
        start, end = unit.blocks if unit is not None else task.inputs[0].unit.blocks
        assert start is not None
        known: dict[str, Any] = {} if unit is None else dict(zip(("time_min", "time_max"), unit.times, strict=True))
        bucket, _, key = claimed.prefix.removeprefix("s3://").partition("/")
        version: dict[str, Any] = {"dataset_uuid": output.dataset_uuid, "dataset_version": output.dataset_version}
        body = CompleteRequest(
            **claimed.fence,
            status="Completed",
            datasets_published=[
                DatasetPublished(
                    **version,
                    storage_ref=StorageRef(scheme="s3", bucket=bucket, prefix=key, glob="*.parquet"),
                    range_start=start,
                    range_end=end,
                    **known,
                )
            ],
            events=[EventIn(**version, partition_key=f"{start}-{end}", start=start, end=end)],
        )
        await self.clients.task.complete(claimed.token, body)

    async def commit(self, job: JobReply, unit: UnitFile) -> None:
        """One unit, or one more revision of it, from its task to its commit."""
        claimed = await self.claim_writer(job, unit)
        await asyncio.to_thread(self.stack.upload, claimed, unit.path)
        await self.complete(claimed, unit)

    async def commit_all(self, job: JobReply, units: Iterable[UnitFile]) -> None:
        """Many units, some at a time."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def commit(unit: UnitFile) -> None:
            async with limit:
                await self.commit(job, unit)

        async with asyncio.TaskGroup() as group:
            for unit in units:
                group.create_task(commit(unit))

    async def settle(self) -> float:
        """Waits until nothing is open, and returns the time at which that was seen."""
        query = """
            SELECT NOT EXISTS (SELECT FROM tasks WHERE finished_at IS NULL)
               AND NOT EXISTS (SELECT FROM edges WHERE position IS NOT NULL AND phase <> 'Parked')
               AND NOT EXISTS (SELECT FROM pending_units WHERE due OR waits_for IS NOT NULL)"""
        async with asyncio.timeout(4 * _SECONDS):
            while not await self.state.fetchval(query):
                await asyncio.sleep(0.01)
        return time.perf_counter()

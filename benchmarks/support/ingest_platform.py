"""What the platform adds to a task: evm_ingest through a real stack, one task after another."""

import asyncio
import json
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self
from uuid import UUID

import asyncpg

from benchmarks.support.ingest_ours import BATCH, CHUNK
from benchmarks.support.routing_stack import RoutingStack, job_id
from tracelake.client.user import UserClient
from tracelake.settings.home import Home
from tracelake.wire import routes
from tracelake.wire.jobs import BlockRange, TriggerRequest

_DAG = """
name: chain_{number}
defaults: {{runtime: ecs_platform}}
jobs:
  - {{name: ranges, activation: source, source: {{kind: manual}}}}
  - name: ingest
    activation: reactive
    operator: evm_ingest
    execution_strategy: PerPartition
    config: {{chain_id: {chain_id}, chunk_blocks: {chunk}, batch_size: {batch}}}
    inputs: [{{from: {{job: ranges}}}}]
    outputs: 3
publish:
  blocks_{number}: {{from: {{job: ingest, output_index: 0}}, storage: s3}}
  transactions_{number}: {{from: {{job: ingest, output_index: 1}}, storage: s3}}
  logs_{number}: {{from: {{job: ingest, output_index: 2}}, storage: s3}}
"""
_TASK_SECONDS = 120
_MEASURED = "operator ended"


class Platform:
    def __init__(self, url: str, chain_id: int, blocks: int) -> None:
        self._chain_id = chain_id
        self._url = url
        self._blocks = blocks
        self._stack = RoutingStack()

    def __enter__(self) -> Self:
        self._stack.__enter__()
        home = Home(self._stack.home)
        home.rpc_file.write_text(f'default = "{self._url}"\n')
        home.rpc_file.chmod(0o600)
        self._stack.start_worker()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    async def measure(self, seconds: float, warm: int, say: Callable[[str], None]) -> dict[str, float]:
        """Tasks after `warm` of them, until the operator has worked for so long."""
        state = await asyncpg.connect(self._stack.state_dsn)
        user = self._stack.user()
        tasks: list[UUID] = []
        inside = wall = held = 0.0
        try:
            while inside < seconds:
                task_id, lasted, claimed = await self._task(user, state, len(tasks))
                tasks.append(task_id)
                if len(tasks) > warm:
                    operator = await self._operator_seconds(task_id)
                    inside, wall, held = inside + operator, wall + lasted, held + claimed
        finally:
            await user.close()
            await state.close()
        count = len(tasks) - warm
        say(
            f"  {count} tasks of about {self._blocks} blocks: {wall:.2f} s from made to Completed, {held:.2f} s of it"
            f" claimed, {inside:.2f} s inside the operator: {(wall - inside) / count * 1000:.0f} ms more for a task"
        )
        return {
            "platform_overhead": round((wall - inside) / inside, 4),
            "platform_ms_per_task": round((wall - inside) / count * 1000, 1),
            "operator_seconds": round(inside, 1),
        }

    async def _task(
        self, user: UserClient, state: "asyncpg.Connection[asyncpg.Record]", number: int
    ) -> tuple[UUID, float, float]:
        """Each has a DAG of its own, since a unit that is there is not made again."""
        name = f"chain_{number}"
        await self._stack.deploy(_DAG.format(number=number, chain_id=self._chain_id, chunk=CHUNK, batch=BATCH))
        job = await job_id(state, name, "ingest")
        await user.call(
            routes.TRIGGER, TriggerRequest(range=BlockRange(start=0, end=self._blocks - 1)), dag=name, job="ranges"
        )
        deadline = time.monotonic() + _TASK_SECONDS
        while time.monotonic() < deadline:
            found = await state.fetchrow(
                """SELECT task_id, status, error, attempt,
                          extract(epoch FROM finished_at - created_at) AS lasted,
                          extract(epoch FROM finished_at - claimed_at) AS claimed
                   FROM tasks WHERE job_id = $1""",
                job,
            )
            if found is not None and found["status"] == "Completed":
                if found["attempt"] != 1:
                    raise RuntimeError(f"a task needed {found['attempt']} attempts: {found['error']}")
                return found["task_id"], float(found["lasted"]), float(found["claimed"])
            if found is not None and found["status"] not in ("Queued", "Running"):
                raise RuntimeError(f"a task ended as {found['status']}: {found['error']}")
            await asyncio.sleep(0.05)
        raise RuntimeError("a task does not end")

    async def _operator_seconds(self, task_id: UUID) -> float:
        """As the worker's log says, which is written as soon as the operator is done."""
        for line in reversed((self._stack.home / "logs" / "worker.log").read_text().splitlines()):
            if str(task_id) in line and _MEASURED in line:
                seconds: float = json.loads(line)["seconds"]
                return seconds
        raise RuntimeError("the worker did not say how long the operator took")

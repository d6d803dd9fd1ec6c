"""`trace up` in a home that stays, started again for each reading, and the first Spark task of each start."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

import msgspec

from benchmarks.support.ingest_chain import cpu_seconds_below, processes_below
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.stack.machine import wrap
from tracelake.wire import routes
from tracelake.wire.jobs import BlockRange, TriggerRequest

DAG = "first"
BLOCKS = 20
DOCUMENT = """\
name: first
defaults: {runtime: ecs_platform}
jobs:
  - name: backfill
    activation: source
    source: {kind: manual}
  - name: ingest
    activation: reactive
    operator: evm_ingest
    execution_strategy: PerPartition
    config: {chain_id: CHAIN}
    inputs: [{from: {job: backfill}}]
    outputs: 3
  - name: count
    activation: reactive
    operator: spark_sql
    execution_strategy: PerPartition
    config:
      inputs: {blocks: 0}
      query: SELECT block_number, count(*) AS n FROM blocks GROUP BY block_number
    inputs: [{from: {job: ingest, output_index: 0}}]
publish:
  counts: {from: {job: count}, storage: s3}
"""
_TASK_SECONDS = 300.0
_LOOK_SECONDS = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Memory:
    """Of all processes of a stack."""

    megabytes: float
    java: int
    """How many Java processes there are."""


class StartedStack:
    """One run of `trace up`; `ready_seconds` is how long it took, from the start of its process."""

    def __init__(self, home: Path, **settings: str) -> None:
        self._home = home
        self._settings = settings

    def __enter__(self) -> Self:
        command = [
            sys.executable,
            "-m",
            "tracelake",
            "up",
            f"--home={self._home}",
            "--json",
            "--set=query_service=false",
            "--set=runner=false",
        ]
        command += [f"--set={name}={value}" for name, value in self._settings.items()]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}
        self._began = time.perf_counter()
        self._process = subprocess.Popen(
            wrap(command, death_signal=signal.SIGTERM), env=environment, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.ready_seconds = time.perf_counter() - self._began
        if not line:
            raise RuntimeError("the stack did not start; see its messages above")
        self.ready_cpu = self.cpu_seconds()
        self.info = msgspec.json.decode(line, type=LocalStack)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    async def prepare(self, chain_id: int) -> None:
        """Deploys the DAG and runs each of its jobs once."""
        client = UserClient.of_stack(self.info)
        try:
            document = DOCUMENT.replace("CHAIN", str(chain_id)).encode()
            await client.call(routes.DEPLOY, document, dag=DAG, activate=True)
            order = TriggerRequest(range=BlockRange(start=0, end=BLOCKS - 1))
            await client.call(routes.TRIGGER, order, dag=DAG, job="backfill")
            deadline = time.monotonic() + _TASK_SECONDS
            while time.monotonic() < deadline:
                tasks = (await client.call(routes.LIST_TASKS, dag=DAG)).tasks
                if [task.status for task in tasks].count("Completed") == 2:
                    return
                await asyncio.sleep(_LOOK_SECONDS)
            raise RuntimeError("the jobs of the benchmark do not end")
        finally:
            await client.close()

    async def run_task(self, job: str) -> float:
        """Runs the unit of a job again; answers the seconds since the start of `trace up`."""
        client = UserClient.of_stack(self.info)
        try:
            order = TriggerRequest(range=BlockRange(start=0, end=BLOCKS - 1))
            reply = await client.call(routes.TRIGGER, order, dag=DAG, job=job)
            assert reply.task_id is not None
            await self._wait_for(client, reply.task_id)
            return time.perf_counter() - self._began
        finally:
            await client.close()

    async def _wait_for(self, client: UserClient, task_id: UUID) -> None:
        deadline = time.monotonic() + _TASK_SECONDS
        while time.monotonic() < deadline:
            task = (await client.call(routes.SHOW_TASK, task_id=task_id)).task
            if task.status == "Completed":
                return
            if task.status in ("Failed", "Canceled"):
                raise RuntimeError(f"the task failed: {task.error}")
            await asyncio.sleep(_LOOK_SECONDS)
        raise RuntimeError("the task does not end")

    def cpu_seconds(self) -> float:
        return cpu_seconds_below(self._process.pid)

    def memory(self) -> Memory:
        pids = processes_below(self._process.pid)
        return Memory(sum(map(_bytes, pids)) / 2**20, sum(_name(pid) == "java" for pid in pids))


def _bytes(pid: int) -> int:
    """Memory of a process, with its share of what it shares; all of it where the kernel tells its owner no more."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""

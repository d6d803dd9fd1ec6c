"""A stack for the routing benchmark: queues that no worker serves, a real worker beside them, and the DAGs."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from types import TracebackType
from uuid import UUID

import asyncpg
import msgspec

from benchmarks.support.stack import BenchStack
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.settings.home import Home
from tracelake.stack.machine import wrap
from tracelake.wire import routes

CHAIN = 40
FAN_UNITS = 10_000
FAN_SIZE = 100

FEEDERS, READERS, FAN = "bench-feeders", "bench-readers", "bench-fan"

# Feeders are claimed by the benchmark itself; what they say makes tasks of `reader`, which nobody takes.
FEED_DAG = f"""
name: feed
jobs:
  - {{name: begin, activation: source, source: {{kind: manual}}}}
  - name: feeder
    activation: reactive
    runtime: {FEEDERS}
    operator: noop
    inputs: [{{from: {{job: begin}}}}]
  - name: reader
    activation: reactive
    runtime: {READERS}
    operator: noop
    execution_strategy: PerPartition
    inputs: [{{from: {{job: feeder}}}}]
"""

SINGLE_DAG = """
name: single
jobs:
  - {name: begin, activation: source, source: {kind: manual}}
  - {name: work, activation: reactive, runtime: ecs_platform, operator: noop, inputs: [{from: {job: begin}}]}
"""

FAN_DAG = f"""
name: fan
jobs:
  - {{name: begin, activation: source, source: {{kind: manual}}}}
  - name: split
    activation: reactive
    runtime: dispatcher
    operator: range_splitter
    config: {{size: {FAN_SIZE}}}
    inputs: [{{from: {{job: begin}}}}]
  - name: work
    activation: reactive
    runtime: {FAN}
    operator: noop
    execution_strategy: PerPartition
    inputs: [{{from: {{job: split}}}}]
"""


def chain_dag() -> str:
    """`job_01` reads the source, every other job the one before it."""
    lines = ["name: chain", "defaults: {runtime: ecs_platform}", "jobs:"]
    lines.append("  - {name: begin, activation: source, source: {kind: manual}}")
    before = "begin"
    for number in range(1, CHAIN + 1):
        name = f"job_{number:02}"
        lines.append(
            f"  - {{name: {name}, activation: reactive, operator: noop, inputs: [{{from: {{job: {before}}}}}]}}"
        )
        before = name
    return "\n".join(lines)


def crowd_dag(name: str, jobs: int) -> str:
    """A source and readers of it: `jobs` in all."""
    lines = [f"name: {name}", "defaults: {runtime: ecs_platform}", "jobs:"]
    lines.append("  - {name: begin, activation: source, source: {kind: manual}}")
    lines += [
        f"  - {{name: job_{number}, activation: reactive, operator: noop, inputs: [{{from: {{job: begin}}}}]}}"
        for number in range(1, jobs)
    ]
    return "\n".join(lines)


class RoutingStack(BenchStack):
    """Leases outlive the run, and no reconciler wakes the tasks again that are left lying on purpose."""

    def __init__(self, runtimes: Iterable[str] = (FEEDERS, READERS, FAN)) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="trace-bench-"))
        registry = self._scratch / "runtimes.toml"
        registry.write_text("".join(f'[runtimes.{name}]\nkind = "queue"\n' for name in runtimes))
        super().__init__(
            TRACE_RUNTIMES_FILE=str(registry),
            TRACE_LEASE_SECONDS="3600",
            TRACE_RECONCILE_SECONDS="3600",
            TRACE_USER_RATE_PER_SECOND="100000",
            TRACE_USER_RATE_BURST="100000",
        )
        self._worker: subprocess.Popen[bytes] | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop_worker()
        finally:
            super().__exit__(kind, error, trace)
            shutil.rmtree(self._scratch, ignore_errors=True)

    def start_worker(self) -> None:
        """One worker process with the product's own settings, taking `ecs_platform`."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}
        with (self.home / "logs" / "worker.log").open("ab") as log:
            self._worker = subprocess.Popen(
                wrap(
                    [sys.executable, "-m", "tracelake", "worker", "--home", str(self.home)],
                    death_signal=signal.SIGTERM,
                ),
                env=environment,
                stderr=log,
            )

    def stop_worker(self) -> None:
        if self._worker is not None:
            self._worker.terminate()
            self._worker.wait(30)
            self._worker = None

    def user(self) -> UserClient:
        return UserClient.of_stack(msgspec.convert(self.info, LocalStack))

    async def deploy(self, *documents: str) -> None:
        """Each by the user API; active when this returns, since nothing has a history yet."""
        user = self.user()
        try:
            for text in documents:
                name = text.split("name: ", 1)[1].split("\n", 1)[0]
                reply = await user.call(routes.DEPLOY, text.encode(), dag=name, activate=True)
                assert reply.state == "Active", reply.state
        finally:
            await user.close()

    def dispatcher_peak_mb(self) -> float:
        """The most memory the Dispatcher process has had resident since it was started."""
        status = Path(f"/proc/{self.dispatcher_pid()}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) / 1024

    def dispatcher_pid(self) -> int:
        parts = msgspec.json.decode(Home(self.home).parts_file.read_bytes())
        pid: int = next(part["pid"] for part in parts if part["name"] == "dispatcher")
        return pid


async def job_id(connection: "asyncpg.Connection[asyncpg.Record]", dag: str, job: str) -> UUID:
    found: UUID = await connection.fetchval(
        """SELECT v.job_id FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version
           WHERE d.dag_name = $1 AND v.job_name = $2""",
        dag,
        job,
    )
    return found


class Watch:
    """Waits for something to be seen in a database, and hardly disturbs what it waits for.

    Nothing is asked before three fifths of the shortest wait so far have passed; then every millisecond (or `every`).
    """

    def __init__(self, every: float = 0.001) -> None:
        self._every = every
        self._shortest = 0.0

    async def seconds(self, started: float, is_there: Callable[[], Awaitable[bool]]) -> float:
        """From `started` to the answer that says so."""
        async with asyncio.timeout(120):
            await asyncio.sleep(max(0.0, started + 0.6 * self._shortest - time.perf_counter()))
            while not await is_there():
                await asyncio.sleep(self._every)
        seconds = time.perf_counter() - started
        self._shortest = min(self._shortest or seconds, seconds)
        return seconds

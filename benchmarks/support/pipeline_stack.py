"""Trace's side of the pipeline: a stack as `trace up` starts it, and the demo's DAG, once for each reading."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import asyncpg
import msgspec

from benchmarks.support.ingest_chain import cpu_seconds_below
from tracelake.client.stack import LocalStack
from tracelake.client.user import UserClient
from tracelake.model.buffered import view_names
from tracelake.settings.home import Home, private_directory, write_private
from tracelake.stack.machine import wrap
from tracelake.wire import routes
from tracelake.wire.jobs import BlockRange, TriggerRequest

DAG_FILE = Path(__file__).parents[2] / "examples" / "token_flows" / "flows.yaml"
OPERATOR_JOBS = ("ingest", "check", "decode", "summarise", "by_token", "by_sender")
_WINDOW_JOB = "summarise"
"""The job that computes windows of time, each as its blocks come; the others compute units of blocks."""
_READING_SECONDS = 1800
_LOOK_SECONDS = 0.02


@dataclass(frozen=True)
class ChainCut:
    """How a chain is cut into work."""

    blocks: int
    size: int
    """Blocks of a unit."""
    grain: str
    """The windows of the summary."""


@dataclass(frozen=True)
class PipelineReading:
    seconds: float
    cpu: float
    rows: dict[str, int]


class PipelineStack:
    def __init__(self, url: str) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="trace-bench-"))
        private_directory(self.home)
        write_private(Home(self.home).rpc_file, f"default = {json.dumps(url)}\n")
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [
            sys.executable,
            "-m",
            "tracelake",
            "up",
            f"--home={self.home}",
            "--json",
            "--set=query_service=false",
            "--set=runner=false",
        ]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}
        self._process = subprocess.Popen(
            wrap(command, death_signal=signal.SIGTERM), env=environment, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the stack did not start; see its messages above")
        self._stack = msgspec.json.decode(line, type=LocalStack)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)
        shutil.rmtree(self.home, ignore_errors=True)

    async def run(self, cut: ChainCut) -> PipelineReading:
        """Deploys the DAG under a new name, then measures from the trigger to the last row in the table."""
        self._number += 1
        dag = f"token_flows_{self._number}"
        client = UserClient.of_stack(self._stack)
        state = await asyncpg.connect(self._dsn("state"))
        try:
            await client.call(routes.DEPLOY, self._document(dag, cut).encode(), dag=dag, activate=True)
            tasks = 1 + (len(OPERATOR_JOBS) - 1) * -(-cut.blocks // cut.size)
            cpu, began = self._cpu(), time.perf_counter()
            order = TriggerRequest(range=BlockRange(start=0, end=cut.blocks - 1))
            await client.call(routes.TRIGGER, order, dag=dag, job="backfill")
            await self._wait(state, dag, tasks)
            seconds = time.perf_counter() - began
            return PipelineReading(seconds, self._cpu() - cpu, await self._rows(state, dag))
        finally:
            await state.close()
            await client.close()

    async def profile(self) -> dict[str, dict[str, float]]:
        """Of the last reading, by job: tasks, seconds of an attempt, and what Spark did, all per task."""
        state = await asyncpg.connect(self._dsn("state"))
        try:
            rows = await state.fetch(
                """SELECT v.job_name AS job, count(*) AS tasks,
                          round(avg(extract(epoch FROM t.finished_at - t.claimed_at)), 3) AS seconds,
                          round(avg((m.figures->>'jobs')::int), 1) AS jobs,
                          round(avg((m.figures->>'stages')::int), 1) AS stages,
                          round(avg((m.figures->>'tasks')::int), 1) AS spark_tasks,
                          round(avg((m.figures->>'run_ms')::int)) AS run_ms
                   FROM tasks t JOIN dag_version_jobs v ON v.job_id = t.job_id
                   JOIN dags d ON d.active_version = v.dag_version_id
                   LEFT JOIN spark_metrics m ON m.task_id = t.task_id AND m.attempt = t.attempt
                   WHERE d.dag_name = $1 GROUP BY v.job_name ORDER BY min(t.claimed_at)""",
                f"token_flows_{self._number}",
            )
        finally:
            await state.close()
        return {row["job"]: {name: float(value or 0) for name, value in row.items() if name != "job"} for row in rows}

    def cpu_by_program(self) -> dict[str, float]:
        """CPU seconds since the start of the stack, by what the process is."""
        assert self._process is not None
        by_program: dict[str, float] = defaultdict(float)
        for pid in _below(self._process.pid):
            try:
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            by_program[_program(command)] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return dict(by_program)

    def _cpu(self) -> float:
        assert self._process is not None
        return cpu_seconds_below(self._process.pid)

    def _dsn(self, database: str) -> str:
        return (self.home / "secrets" / f"{database}.dsn").read_text().strip()

    def _document(self, dag: str, cut: ChainCut) -> str:
        """The example, with names of its own: a unit that is there is not made again."""
        text = DAG_FILE.read_text()
        text = text.replace("name: token_flows\n", f"name: {dag}\n", 1)
        text = re.sub(r"config: \{size: \d+\}", f"config: {{size: {cut.size}}}", text)
        text = re.sub(r"grain: \w+", f"grain: {cut.grain}", text)
        head, publish = text.split("\npublish:\n")
        return head + "\npublish:\n" + re.sub(r"(?m)^  (\w+):", rf"  \1_{self._number}:", publish)

    async def _wait(self, state: "asyncpg.Connection[asyncpg.Record]", dag: str, tasks: int) -> None:
        query = """SELECT count(*) FILTER (WHERE t.finished_at IS NULL) AS open,
                          count(*) FILTER (WHERE t.status = 'Completed' AND v.job_name <> $2) AS done,
                          max(t.error) FILTER (WHERE t.status = 'Failed') AS error
                   FROM tasks t JOIN dag_version_jobs v ON v.job_id = t.job_id
                   JOIN dags d ON d.active_version = v.dag_version_id WHERE d.dag_name = $1"""
        waiting = """SELECT EXISTS (SELECT FROM buffer_publishes WHERE committed_at IS NULL)
                            OR EXISTS (SELECT FROM pending_units WHERE due OR waits_for IS NOT NULL)"""
        deadline = time.monotonic() + _READING_SECONDS
        while time.monotonic() < deadline:
            row = await state.fetchrow(query, dag, _WINDOW_JOB)
            assert row is not None
            if row["error"] is not None:
                raise RuntimeError(f"a task failed: {row['error']}")
            if row["done"] >= tasks and not row["open"] and not await state.fetchval(waiting):
                return
            await asyncio.sleep(_LOOK_SECONDS)
        raise RuntimeError(f"the DAG does not end: {dict(row or {})}")

    async def _rows(self, state: "asyncpg.Connection[asyncpg.Record]", dag: str) -> dict[str, int]:
        rows = await state.fetch(
            """SELECT DISTINCT ON (v.job_name, t.unit_start) v.job_name, t.result
               FROM tasks t JOIN dag_version_jobs v ON v.job_id = t.job_id
               JOIN dags d ON d.active_version = v.dag_version_id WHERE d.dag_name = $1
               ORDER BY v.job_name, t.unit_start, t.finished_at DESC""",
            dag,
        )
        counts: dict[str, int] = defaultdict(int)
        for row in rows:
            outputs: Any = json.loads(row["result"]) if isinstance(row["result"], str) else row["result"]
            for output in outputs if isinstance(outputs, list) else []:
                counts[f"{row['job_name']}.{output['output_index']}"] += output.get("row_count") or 0
        data = await asyncpg.connect(self._dsn("data"))
        try:
            view = ".".join(view_names("default", f"large_transfers_{self._number}"))
            large: int = await data.fetchval(f"SELECT count(*) FROM {view}")
        finally:
            await data.close()
        return {
            "findings": counts["check.0"],
            "transfers": counts["decode.0"],
            "hourly_flows": counts["summarise.0"],
            "large_transfers": large,
        }


def _below(pid: int) -> list[int]:
    pids = [pid]
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in thread.read_text().split()]
        except OSError:
            continue
        for child in children:
            pids += _below(child)
    return pids


def _program(command: str) -> str:
    names = {
        "java": "/java ",
        "spark python": "pyspark",
        "spark driver": "spark.child",
        "worker": "tracelake worker",
        "dispatcher": "tracelake dispatcher",
        "postgres": "postgres",
        "object store": "weed",
    }
    return next((name for name, part in names.items() if part in command), "other")

"""Brings the functions of the demo to the stack, follows their runs, and reads what they published.

They run while Spark works. The hostile one runs first, so that all others show that it changed nothing. A machine that
cannot isolate functions runs none: the demo says why, and goes on without them.
"""

import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import UUID

from tracelake.cli.status import read_parts
from tracelake.cli.text import clean, unit_text
from tracelake.client.stack import LocalStack
from tracelake.client.uploads import push_bundle
from tracelake.client.user import UserClient
from tracelake.demo import DemoError, functions
from tracelake.demo.functions import FUNCTIONS, HOSTILE, HOSTILE_SOURCE, MEMORY_JOB, DemoFunction, FunctionArchive
from tracelake.demo.plan import DemoPlan
from tracelake.demo.progress import JobProgress, measure_job
from tracelake.demo.screen import DemoScreen
from tracelake.model.buffered import quoted, table_name
from tracelake.settings.home import Home
from tracelake.stack.provision import connected
from tracelake.wire import routes
from tracelake.wire.datasets import DatasetRow
from tracelake.wire.jobs import TriggerRequest
from tracelake.wire.tasks import TaskRow

RUNNER = "runner"
_TRANSFERS = "transfers"
_NO_SANDBOX = "(sandbox_unavailable): "
"""How a task's error goes on that no runner may isolate, before the reason."""
_LOOK_SECONDS = 0.2
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class HostileAttempt:
    tried: str
    refused: bool
    result: str


@dataclass(slots=True)
class FunctionStory:
    """What happened to the functions."""

    problem: str | None = None
    """Why none ran here."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Jobs whose language this machine cannot run, each with the reason."""
    functions: list[DemoFunction] = field(default_factory=list)
    """Those that run here."""
    tasks: list[TaskRow] = field(default_factory=list)
    """Of all of them and of the hostile one."""
    attempts: list[HostileAttempt] = field(default_factory=list)
    runner_restarts: int = 0

    def of(self, function: DemoFunction, job: str | None = None) -> list[TaskRow]:
        return [task for task in self.tasks if (task.dag, task.job) == (function.dag, job or function.job)]

    @property
    def runs(self) -> int:
        """How many runs of functions completed, without the hostile one."""
        return sum(task.status == "Completed" for function in self.functions for task in self.of(function))

    @property
    def memory_end(self) -> str:
        """How the run ended that took memory: the first line of its error, without the advice at its end."""
        errors = [task.error or "it was not stopped" for task in self.of(HOSTILE, MEMORY_JOB)]
        return ": ".join(errors[0].partition("\n")[0].split(": ")[:2]) if errors else "it did not run"

    @property
    def runs_afterwards(self) -> int:
        """How many functions began after both hostile runs had ended."""
        ends = [task.finished_at for job in (HOSTILE.job, MEMORY_JOB) for task in self.of(HOSTILE, job)]
        if len(ends) < 2 or None in ends:
            return 0
        last_end = max(end for end in ends if end is not None)
        started = [task.claimed_at for function in self.functions for task in self.of(function)]
        return sum(claimed is not None and claimed > last_end for claimed in started)


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """The rows of a function's dataset, and the size of its table."""

    rows: list[dict[str, Any]]
    bytes: int


class DemoFunctions:
    def __init__(self, stack: LocalStack, client: UserClient, plan: DemoPlan, screen: DemoScreen) -> None:
        self._stack = stack
        self._client = client
        self._plan = plan
        self._screen = screen
        self._home = Home(Path(stack.home))
        self.story = FunctionStory()

    async def begin(self) -> None:
        """Upload and deploy them, and start the hostile one. The others start with each unit of transfers."""
        if self._stack.query_url is None:
            self._give_up("this machine cannot isolate untrusted work")
            return
        for function in FUNCTIONS:
            if reason := functions.find_obstacle(function):
                self.story.skipped[function.job] = reason
                self._screen.say(f"the function {function.job} ({function.title}) is left out: {reason}", "yellow")
            else:
                self.story.functions.append(function)
        for function in (HOSTILE, *self.story.functions):
            # In the home of the stack, which goes with the demo however that ends.
            await self._deploy(functions.build(function, self._home.root / "functions"))
        await self._client.call(
            routes.TRIGGER,
            TriggerRequest(cursor=1, idempotency_key="demo-hostile"),
            dag=HOSTILE.dag,
            job=HOSTILE_SOURCE,
        )
        names = ", ".join(f"{function.job} ({function.title})" for function in self.story.functions)
        self._screen.say(f"deployed functions that read transfers: {names}; and started a hostile one")

    def observe(self, tasks: Sequence[TaskRow]) -> list[JobProgress]:
        """Takes the tasks of all DAGs, and returns how far the functions are. Raises DemoError if one failed."""
        if self.story.problem is not None:
            return []
        mine = {HOSTILE.dag, *(function.dag for function in self.story.functions)}
        self.story.tasks = [task for task in tasks if task.dag in mine]
        for task in self.story.tasks:
            if task.status not in ("Failed", "Canceled") or task.next_retry_at is not None or task.job == MEMORY_JOB:
                continue
            _, separator, reason = (task.error or "").partition(_NO_SANDBOX)
            if separator:
                self._give_up(clean(reason))
                return []
            raise DemoError(
                f"the function {task.job} {unit_text(task.unit)} failed (no retries left): {clean(task.error or '')}"
            )
        return [
            measure_job(function.job, self.story.of(function), self._plan.units, self._plan.blocks)
            for function in self.story.functions
        ]

    @property
    def finished(self) -> bool:
        if self.story.problem is not None:
            return True
        hostile = [task for job in (HOSTILE.job, MEMORY_JOB) for task in self.story.of(HOSTILE, job)]
        ended = [task for task in hostile if task.status in ("Completed", "Failed") and task.next_retry_at is None]
        return len(ended) == 2 and self.story.runs >= functions.count_runs(self._plan, len(self.story.functions))

    async def settle(self) -> dict[str, PublishedTable]:
        """Once all have run: what is in their tables, by the name of the dataset, when nothing waits for a sink."""
        if self.story.problem is not None:
            return {}
        tables = await self._until_nothing_waits([HOSTILE, *self.story.functions])
        contents = {name: await self._read(function, tables[name]) for name, function in self._by_dataset().items()}
        self.story.attempts = [
            HostileAttempt(row["tried"], row["refused"], row["result"]) for row in contents.pop(HOSTILE.dataset).rows
        ]
        self.story.runner_restarts = next(
            (part.restarts for part in read_parts(self._home) if part.name == RUNNER), self.story.runner_restarts
        )
        return contents

    # -- steps

    def _give_up(self, reason: str) -> None:
        self.story.problem = reason
        self._screen.say(f"no function runs here: {reason}", "yellow")

    async def _deploy(self, project: FunctionArchive) -> None:
        bundle = await push_bundle(self._client, project.archive, project.request)
        config = await self._find_targets() if project.function is HOSTILE else None
        document = project.fill(bundle.bundle_id, config)
        await self._client.call(routes.DEPLOY, document, dag=project.function.dag, activate=True)

    async def _find_targets(self) -> dict[str, Any]:
        """What an attacker would have to guess is given to the hostile function."""
        datasets: dict[str, DatasetRow] = {
            row.name: row for row in (await self._client.call(routes.LIST_DATASETS)).datasets
        }
        transfers = datasets[_TRANSFERS]
        bucket = self._stack.object_store.buckets["datasets"]
        runner = next((part.pid for part in read_parts(self._home) if part.name == RUNNER), None)
        return {
            "secret_file": self._stack.admin_token_file,
            "runner": runner or os.getpid(),
            "postgres": postgres_address(self._data_dsn()),
            "internal": urlsplit(self._stack.internal_url).netloc,
            "files": f"s3://{bucket}/datasets/{transfers.dataset_uuid}/{transfers.current_version}/",
        }

    def _data_dsn(self) -> str:
        return Path(self._stack.data_dsn_file).read_text().strip()

    def _by_dataset(self) -> dict[str, DemoFunction]:
        return {function.dataset: function for function in (HOSTILE, *self.story.functions)}

    async def _until_nothing_waits(self, readers: Sequence[DemoFunction]) -> dict[str, UUID]:
        """The tables of these functions, once sinks have taken all of their batches."""
        names = {function.dataset for function in readers}
        until = time.monotonic() + _PATIENCE_SECONDS
        service = self._stack.internal_client()
        try:
            while True:
                tables = [dataset for dataset in (await service.buffers()).datasets if dataset.name in names]
                if not any(dataset.backlog is not None and dataset.backlog.batches for dataset in tables):
                    return {dataset.name: dataset.dataset_uuid for dataset in tables}
                if time.monotonic() > until:
                    raise DemoError(f"rows of functions wait, and no sink took them in {_PATIENCE_SECONDS:.0f} s")
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            await service.close()

    async def _read(self, function: DemoFunction, dataset_uuid: UUID) -> PublishedTable:
        name = quoted(table_name(dataset_uuid))
        async with connected(self._data_dsn()) as data:
            rows = await data.fetch(f"SELECT * FROM {name} ORDER BY {function.order}")  # noqa: S608 - names of ours
            size: int = await data.fetchval("SELECT pg_total_relation_size($1::text::regclass)", name)
        return PublishedTable([dict(row) for row in rows], size)


def postgres_address(dsn: str) -> str:
    """The host and port of a database, or the path of its socket."""
    parts = urlsplit(dsn)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    host, port = parts.hostname or query.get("host", "127.0.0.1"), parts.port or query.get("port", "5432")
    return f"{host}/.s.PGSQL.{port}" if host.startswith("/") else f"{host}:{port}"

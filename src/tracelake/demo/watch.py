"""Follows the work to its end, kills a worker on the way, and notes how its tasks came back; then the table is settled.

It asks the API alone. Which worker holds a task is in its attempts; which process a worker is, the stack's list of
parts says.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

from tracelake.cli.status import read_parts
from tracelake.cli.text import clean, unit_text
from tracelake.client.paging import collect
from tracelake.client.user import UserClient
from tracelake.demo import DemoError
from tracelake.demo.function_runs import DemoFunctions, FunctionStory
from tracelake.demo.plan import DAG, FLOWS, SOURCE, TABLE, WRITERS, DemoPlan
from tracelake.demo.progress import JobProgress, measure
from tracelake.demo.screen import DemoScreen, starts_spark
from tracelake.demo.table import DemoTable, TableStory
from tracelake.errors import TraceError
from tracelake.settings.home import Home
from tracelake.wire import routes
from tracelake.wire.jobs import BlockRange as Range
from tracelake.wire.jobs import TriggerRequest
from tracelake.wire.tasks import TaskRow

_LOOK_SECONDS = 0.4
_STALLED_SECONDS = 300.0
_MOST_TASKS = 50_000
_MOST_RESTARTS = 4
_MOST_KILLS = 3
_MOST_FAILURES = 20


@dataclass(frozen=True, slots=True)
class Return:
    """A task that its worker left behind, and who took it up."""

    task: str
    attempt: int
    worker: str
    seconds: float
    """The seconds from the kill until the task was claimed again."""


def _seconds(kill: "Kill") -> float:
    return (datetime.now(UTC) - kill.at).total_seconds()


@dataclass(slots=True)
class Kill:
    worker: str
    at: datetime
    left: dict[UUID, str]
    """Its tasks, by name."""
    back: float | None = None
    """The seconds until the supervisor had started it again."""
    expired: set[UUID] = field(default_factory=set)
    """The tasks whose lease has expired."""
    returns: dict[UUID, Return] = field(default_factory=dict)

    @property
    def recovered(self) -> bool:
        return len(self.returns) == len(self.left)

    @property
    def seconds(self) -> float:
        return max((each.seconds for each in self.returns.values()), default=0.0)


@dataclass(slots=True)
class Story:
    """What happened in a run."""

    seconds: float = 0.0
    """The seconds from the trigger to the last task."""
    kill: Kill | None = None
    tasks: list[TaskRow] = field(default_factory=list)
    table: TableStory = field(default_factory=TableStory)
    functions: FunctionStory = field(default_factory=FunctionStory)


async def begin(client: UserClient, plan: DemoPlan, screen: DemoScreen, functions: DemoFunctions) -> None:
    """Deploy the DAG, ask for the range, and deploy the functions; everything after that happens by itself."""
    deployed = await client.call(routes.DEPLOY, plan.document(without_mints=True), dag=DAG, activate=True)
    names = ", ".join(change.job for change in deployed.plan.jobs)
    screen.say(f"deployed the DAG {DAG}: {names}; the schema of {TABLE} forgets mints, on purpose")
    block_range = Range(start=plan.first, end=plan.last)
    await client.call(routes.TRIGGER, TriggerRequest(range=block_range, idempotency_key="demo"), dag=DAG, job=SOURCE)
    units = "1 unit" if plan.units == 1 else f"{plan.units} units of {plan.unit:,}"
    screen.say(f"triggered blocks {plan.first:,} to {plan.last:,}: {units}")
    # Spark starts meanwhile, so they cost no time.
    await functions.begin()


async def follow(
    home: Home, client: UserClient, plan: DemoPlan, screen: DemoScreen, table: DemoTable, functions: DemoFunctions
) -> Story:
    story = await _Watch(home, client, plan, screen, table, functions).run()
    story.functions = functions.story
    await table.settle([task for task in story.tasks if _is_refused(task)])
    story.tasks = (await collect(client, routes.LIST_TASKS, "tasks", limit=_MOST_TASKS, dag=DAG)).tasks
    story.table = table.story
    return story


class _Watch:
    def __init__(
        self,
        home: Home,
        client: UserClient,
        plan: DemoPlan,
        screen: DemoScreen,
        table: DemoTable,
        functions: DemoFunctions,
    ) -> None:
        self._home = home
        self._table = table
        self._functions = functions
        self._client = client
        self._plan = plan
        self._screen = screen
        self._names: dict[str, str] = {}
        """Names of workers by the process ids they have had."""
        self._story = Story()
        self._kills = 0
        self._spark_since: float | None = None
        self._spark_runs = False

    async def run(self) -> Story:
        began = changed = time.monotonic()
        before: Counter[str] = Counter()
        failures = 0
        while True:
            try:
                done = await self._look()
                failures = 0
            except TraceError as error:
                # A busy machine may be late with an answer; one that is away for long is a failure.
                failures += 1
                if not error.retryable or failures > _MOST_FAILURES:
                    raise
                done = False
            if done:
                break
            tasks = (*self._story.tasks, *self._functions.story.tasks)
            state = Counter(f"{task.job} {task.status}" for task in tasks)
            if state != before:
                before, changed = state, time.monotonic()
            elif time.monotonic() - changed > _STALLED_SECONDS:
                raise DemoError(f"nothing has happened for {_STALLED_SECONDS:.0f} s")
            await asyncio.sleep(_LOOK_SECONDS)
        self._story.seconds = time.monotonic() - began
        return self._story

    async def _look(self) -> bool:
        """Whether everything is done."""
        self._learn_names()
        all_tasks = (await collect(self._client, routes.LIST_TASKS, "tasks", limit=_MOST_TASKS)).tasks
        tasks = [task for task in all_tasks if task.dag == DAG]
        self._story.tasks = tasks
        jobs = measure(self._plan, tasks)
        self._note_spark(jobs)
        self._screen.show([*jobs, *self._functions.observe(all_tasks)], datetime.now(UTC))
        self._fail_if_failed(tasks)
        await self._kill_or_note(tasks)
        await self._table.look()
        refused = Counter(task.job for task in tasks if _is_refused(task))
        finished = self._functions.finished and all(job.done + refused[job.job] >= job.total for job in jobs)
        return finished and await self._has_all_flows()

    def _note_spark(self, jobs: Sequence[JobProgress]) -> None:
        """Says why nothing moves at first, and when that is over."""
        starting = starts_spark(jobs)
        if starting and self._spark_since is None:
            self._spark_since = time.monotonic()
            self._screen.say("starting Spark in the workers: no unit is done before it runs, some seconds from now")
        elif not starting and self._spark_since is not None and not self._spark_runs:
            self._spark_runs = True
            self._screen.say(f"Spark runs; the first unit was done {time.monotonic() - self._spark_since:.1f} s later")

    async def _has_all_flows(self) -> bool:
        """Whether no day is about to be computed again."""
        reply = await self._client.call(routes.EXPLAIN_DATASET, name=FLOWS)
        return reply.state == "fine"

    def _learn_names(self) -> None:
        for part in read_parts(self._home):
            if part.restarts > _MOST_RESTARTS:
                raise DemoError(f"{part.name} ends again and again: it {part.ended}, and its log says why")
            if part.pid is None or not part.name.startswith("worker") or str(part.pid) in self._names:
                continue
            self._names[str(part.pid)] = part.name
            kill = self._story.kill
            if kill is not None and kill.back is None and part.name == kill.worker:
                kill.back = _seconds(kill)
                self._screen.say(f"{kill.worker} was started again by the supervisor")

    def _worker(self, worker_id: str | None) -> str:
        """The name of a worker by its id, which holds its process id."""
        pid = (worker_id or "").split(":")[1:2]
        return self._names.get(pid[0], "a worker") if pid else "a worker"

    def _fail_if_failed(self, tasks: Sequence[TaskRow]) -> None:
        for task in tasks:
            if task.status in ("Failed", "Canceled") and task.next_retry_at is None and not _is_refused(task):
                detail = f": {clean(task.error)}" if task.error else ""
                raise DemoError(f"{_name(task)} failed (no retries left){detail}")

    async def _kill_or_note(self, tasks: Sequence[TaskRow]) -> None:
        if self._story.kill is not None:
            await self._note_returns(self._story.kill)
        elif any(task.job == "ingest" and task.status == "Completed" for task in tasks) or self._plan.units == 1:
            await self._kill(tasks)

    async def _kill(self, tasks: Sequence[TaskRow]) -> None:
        """The worker that holds most. Spark is up by now, so what it holds is at work."""
        tasks_by_worker: dict[str, dict[UUID, str]] = {}
        for task in tasks:
            if task.status == "Running":
                attempts = (await self._client.call(routes.SHOW_TASK, task_id=task.task_id)).attempts
                worker_id = attempts[-1].worker_id if attempts else None
                if worker_id and attempts[-1].outcome is None:
                    tasks_by_worker.setdefault(worker_id, {})[task.task_id] = _name(task)
        if not tasks_by_worker:
            return
        worker_id = max(tasks_by_worker, key=lambda each: len(tasks_by_worker[each]))
        pid = worker_id.split(":")[1]
        if pid not in self._names:
            return
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
            left = tasks_by_worker[worker_id]
            self._kills += 1
            self._story.kill = Kill(self._worker(worker_id), datetime.now(UTC), left)
            self._screen.say(
                f"killed {self._worker(worker_id)} (SIGKILL) while it did {', '.join(sorted(left.values()))}", "red"
            )

    async def _note_returns(self, kill: Kill) -> None:
        for task_id, name in kill.left.items():
            if task_id in kill.returns:
                continue
            detail = await self._client.call(routes.SHOW_TASK, task_id=task_id)
            if task_id not in kill.expired and any(each.outcome == "Timeout" for each in detail.attempts):
                kill.expired.add(task_id)
                self._screen.say(f"{name}: lease expired, {_seconds(kill):.1f} s after the kill", "yellow")
            later = [each for each in detail.attempts if each.claimed_at is not None and each.claimed_at > kill.at]
            if later:
                seconds = (later[0].claimed_at - kill.at).total_seconds() if later[0].claimed_at else 0.0
                retry = Return(name, later[0].attempt, self._worker(later[0].worker_id), seconds)
                kill.returns[task_id] = retry
                self._screen.say(
                    f"{name}: attempt {retry.attempt} by {retry.worker}, {seconds:.1f} s after the kill",
                    "green",
                )
            elif detail.task.status == "Completed":
                # It had said its last word before the signal came.
                kill.returns[task_id] = Return(name, detail.task.attempt, kill.worker, 0.0)
        if kill.recovered and not kill.seconds and self._kills < _MOST_KILLS:
            # All of them had: there was nothing to recover from.
            self._screen.say(f"{kill.worker} had just finished what it did")
            self._story.kill = None


def _is_refused(task: TaskRow) -> bool:
    """Its rows do not fit the schema of the table, which forgets a value on purpose."""
    return (
        task.job in WRITERS and task.status == "Failed" and task.next_retry_at is None and "mint" in (task.error or "")
    )


def _name(task: TaskRow) -> str:
    return clean(f"{task.job} {unit_text(task.unit, task.window)}")

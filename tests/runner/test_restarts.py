"""A Dispatcher or a runner that dies at any step of an invocation: one accepted result, never two runs at once.

Postgres, the listeners, the runner and its sandboxes are real. A Dispatcher that dies is one whose step never happens,
or whose reply never arrives; what it leaves behind is found by the next round. A runner that dies loses its memory, and
its sandboxes end without a report.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.invoke.support import blocks, events_of, own_task, rows_waiting
from tests.runner.support import RunnerHarness, running
from tests.support.dispatcher import DispatcherHarness
from tracelake.client import DispatcherUnavailableError, TaskClient
from tracelake.dispatcher.invoke.loop import HIDE_SECONDS
from tracelake.runner.function import FunctionRunner
from tracelake.runner.outcome import RunResult
from tracelake.runner.service import RunnerService
from tracelake.wire.claims import BundleRef, Invocation

pytestmark = pytest.mark.system

QUICK = "def handler(event, context):\n    return {}"
WAITS_ONCE = """
import time
def handler(event, context):
    if event['attempt'] == 1:
        print('began', flush=True)
        time.sleep(600)
"""


@dataclass(eq=False)
class Faults:
    """The next fault. It is also the Dispatcher's invoker, the runner's client of it, and what runs functions."""

    next: str = ""
    runner: RunnerHarness = field(init=False)
    bundle: BundleRef = field(init=False)
    tasks: TaskClient = field(init=False)
    functions: FunctionRunner = field(init=False)
    active: int = 0
    overlaps: int = 0
    runs: int = 0
    began: asyncio.Event = field(default_factory=asyncio.Event)
    away: int = 0
    """How many calls of the runner find no Dispatcher."""

    def reach(self, point: str) -> bool:
        if self.next != point:
            return False
        self.next = ""
        return True

    # --- the Dispatcher's invoker

    async def invoke(self, invocation: Invocation) -> None:
        if self.reach("dispatcher, before invoke"):
            raise RuntimeError("killed")
        if self.reach("runner, before invoke"):
            await self.kill_runner()
        await self.runner.invoke(msgspec.structs.replace(invocation, bundle=self.bundle))
        if self.reach("dispatcher, before the reply"):
            raise RuntimeError("killed")
        if self.reach("runner, before the reply"):
            await self.kill_runner()
            raise RuntimeError("no reply")

    async def close(self) -> None:
        pass

    # --- the runner's client

    async def call(self, *arguments: Any) -> Any:
        if self.away:
            self.away -= 1
            raise DispatcherUnavailableError("killed")
        return await self.tasks.call(*arguments)

    async def complete(self, *arguments: Any) -> Any:
        if self.reach("dispatcher, before the report"):
            raise DispatcherUnavailableError("killed")
        if self.reach("runner, before the report"):
            raise asyncio.CancelledError
        reply = await self.tasks.complete(*arguments)
        if self.reach("dispatcher, after the commit"):
            raise DispatcherUnavailableError("killed")
        if self.reach("runner, after the report"):
            raise asyncio.CancelledError
        return reply

    # --- what runs functions

    async def run(self, *arguments: Any) -> RunResult:
        self.runs += 1
        self.active += 1
        self.overlaps += self.active > 1
        self.began.set()
        try:
            return await self.functions.run(*arguments)
        finally:
            self.active -= 1

    async def kill_runner(self) -> None:
        """Its sandboxes end, nobody is told, and another one starts that knows nothing."""
        application = self.runner.application
        attempts = [task for _, task in application.service._current.values()]
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts)
        tools = application.service._tools
        application.service = RunnerService(tools, application.metrics, slots=8, wait_seconds=2.0)


@pytest.fixture
def faults(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[Faults]:
    item = Faults()
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, invoker=item)
    try:
        harness.use_movable_clock()
        with running(harness, tmp_path / "runner") as item.runner:
            service = item.runner.application.service
            item.tasks, item.functions = service._tools.tasks, service._tools.functions
            service._tools = replace(service._tools, tasks=item, functions=item)  # type: ignore[arg-type]
            yield item
    finally:
        harness.stop()


def settle(faults: Faults) -> None:
    faults.runner.dispatcher.run(faults.runner.application.service.settle())


def finish(faults: Faults, task_id: str) -> Any:
    """Whatever was left behind is found: first the row of the outbox, then the lease."""
    harness = faults.runner.dispatcher
    for _ in range(3):
        settle(faults)
        harness.advance(HIDE_SECONDS + 1)
        harness.invoke()
        settle(faults)
        if harness.row(task_id)["status"] == "Completed":
            break
        harness.reap()
        harness.advance(700)
        harness.reap()
        harness.advance(700)
        harness.requeue_due()
        harness.invoke()
    return harness.row(task_id)


def start_task(faults: Faults, source: str) -> str:
    faults.bundle = faults.runner.store.add({"main.py": source})
    harness = faults.runner.dispatcher
    return own_task(harness, "udf", unit=blocks(0, 9), runtime="lambda", limits={"timeout_seconds": 600})


def check(faults: Faults, task_id: str, *, attempt: int, runs: int) -> None:
    harness = faults.runner.dispatcher
    row = finish(faults, task_id)
    assert (row["status"], row["attempt"], faults.runs, faults.overlaps) == ("Completed", attempt, runs, 0)
    assert not faults.next, "the fault was reached"
    assert len(events_of(harness, task_id)) == 1
    assert rows_waiting(harness) == 0
    before = faults.runs
    finish(faults, task_id)
    assert faults.runs == before, "nothing is left that could run again"


@pytest.mark.parametrize(
    ("fault", "attempt", "runs"),
    [
        ("dispatcher, before invoke", 1, 1),
        ("dispatcher, before the reply", 1, 1),
        ("dispatcher, before the report", 1, 1),
        ("dispatcher, after the commit", 1, 1),
        ("runner, before invoke", 1, 1),
        ("runner, before the report", 2, 2),
        ("runner, after the report", 1, 1),
    ],
)
def test_a_part_that_dies_at_a_step(faults: Faults, fault: str, attempt: int, runs: int) -> None:
    task_id = start_task(faults, QUICK)
    faults.next = fault
    faults.runner.dispatcher.invoke()
    check(faults, task_id, attempt=attempt, runs=runs)


def test_an_attempt_that_is_handed_over_again_while_it_runs(faults: Faults) -> None:
    task_id = start_task(faults, "import time\ndef handler(event, context):\n    time.sleep(2)")
    harness = faults.runner.dispatcher
    faults.next = "dispatcher, before the reply"
    harness.invoke()
    harness.run(faults.began.wait())
    harness.advance(HIDE_SECONDS + 1)
    assert harness.invoke() == 1, "the next Dispatcher finds the row"
    check(faults, task_id, attempt=1, runs=1)


def test_a_runner_that_dies_before_its_reply_gets_the_same_attempt_again(faults: Faults) -> None:
    task_id = start_task(faults, QUICK)
    faults.next = "runner, before the reply"
    faults.runner.dispatcher.invoke()
    row = finish(faults, task_id)
    assert (row["status"], row["attempt"], faults.overlaps) == ("Completed", 1, 0)
    assert len(events_of(faults.runner.dispatcher, task_id)) == 1


def test_a_dispatcher_that_is_away_while_the_function_runs(faults: Faults) -> None:
    task_id = start_task(faults, "import time\ndef handler(event, context):\n    time.sleep(1)")
    faults.away = 3
    faults.runner.dispatcher.invoke()
    settle(faults)
    assert faults.away < 3, "a heartbeat found nobody"
    check(faults, task_id, attempt=1, runs=1)


def test_a_runner_that_dies_while_the_function_runs(faults: Faults) -> None:
    task_id = start_task(faults, WAITS_ONCE)
    harness = faults.runner.dispatcher
    harness.invoke()
    harness.run(faults.began.wait())
    harness.run(faults.kill_runner())
    assert harness.row(task_id)["status"] == "Running", "nobody was told"
    check(faults, task_id, attempt=2, runs=2)


def test_an_attempt_that_was_cut_off_and_one_that_took_over(faults: Faults) -> None:
    """The lease of an attempt that still runs is over, and the next attempt comes to the same runner."""
    task_id = start_task(faults, WAITS_ONCE)
    harness = faults.runner.dispatcher
    faults.away = 10_000
    harness.invoke()
    harness.run(faults.began.wait())
    harness.reap()
    harness.advance(700)
    harness.reap()
    harness.advance(700)
    assert harness.requeue_due() == 1
    harness.invoke()
    check(faults, task_id, attempt=2, runs=2)

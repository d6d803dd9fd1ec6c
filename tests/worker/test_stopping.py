"""SIGTERM: nothing new is taken, what runs is finished or handed over, and nothing is acked that is not final."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import FakeTask, until
from tests.worker.test_emit import cursors, event
from tests.worker.test_faults import FOR_EVER, Gated
from tracelake.worker import CanceledError, OperatorContext, OperatorResult
from tracelake.worker.operators import Operator


def test_what_runs_is_finished(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        task, late = bench.dispatcher.add("sleep", FOR_EVER), bench.dispatcher.add("noop")
        async with bench.working(grace_seconds=60) as running:
            await bench.wake(task)
            await until(operator.running.is_set, "the operator")
            bench.stop.set()
            beats = task.heartbeats
            await until(lambda: task.heartbeats > beats + 2, "heartbeats while stopping")
            await bench.wake(late)
            operator.gate.set()
            await running
            assert (task.status, late.status) == ("Completed", "Queued")
            depth = await bench.depth()
            assert (depth.ready, depth.in_flight) == (1, 0)
        assert not operator.cancelled

    asyncio.run(main())


def handed_over(task: FakeTask) -> bool:
    """The final word that leads to another attempt at once."""
    final = task.final
    return final is not None and (final.status, final.retryable, final.error_code) == (
        "Failed",
        True,
        "worker_stopping",
    )


def test_what_takes_too_long_is_handed_over(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working(grace_seconds=0.05, last_word_seconds=60) as running:
            await bench.wake(task)
            await until(operator.running.is_set, "the operator")
            bench.stop.set()
            await running
            assert operator.cancelled
            assert handed_over(task), "what it returned when it was told to stop may be half of it"
            assert (await bench.depth()).in_flight == 0
        assert bench.dispatcher.calls["complete"] == 1

    asyncio.run(main())


class Saying:
    """A source that says one thing when the test lets it, and runs until it is told to stop."""

    def __init__(self, bench: Bench, *, returns: bool = False) -> None:
        self.say = threading.Event()
        self.running = threading.Event()
        self.paused: list[bool] = []
        self._returns = returns
        bench.operators["sleep"] = Operator(self)

    def __call__(self, context: OperatorContext) -> OperatorResult:
        self.paused.append(context.paused.is_set())
        self.running.set()
        while not context.cancel.wait(0.001):
            if self.say.is_set():
                self.say.clear()
                context.emit([event(1)])
        if self._returns:
            return OperatorResult(events=[event(2)])
        raise CanceledError


def test_a_source_is_handed_over_at_once_and_what_it_said_is_heard(bench: Bench) -> None:
    """The Dispatcher was away when it spoke: its word is delivered all the same, and before the final one."""

    async def main() -> None:
        source, task = Saying(bench), bench.dispatcher.add("sleep", FOR_EVER, always_on=True)
        async with bench.working(grace_seconds=3600, heartbeat_seconds=3600) as running:
            await bench.wake(task)
            await until(source.running.is_set, "the source")
            bench.dispatcher.away = True
            source.say.set()
            await until(lambda: bench.dispatcher.refused_while_away["batch"] > 1, "its tries")
            bench.stop.set()
            tries = bench.dispatcher.refused_while_away["batch"]
            await until(lambda: bench.dispatcher.refused_while_away["batch"] > tries + 1, "tries while stopping")
            bench.dispatcher.away = False
            await running
            assert handed_over(task)
            assert cursors(task) == [1]
            assert (await bench.depth()).in_flight == 0

    asyncio.run(main())


def test_a_source_that_returns_because_it_was_told_to_stop_has_not_ended(bench: Bench) -> None:
    async def main() -> None:
        source, task = Saying(bench, returns=True), bench.dispatcher.add("sleep", FOR_EVER, always_on=True)
        async with bench.working(grace_seconds=3600) as running:
            await bench.wake(task)
            await until(source.running.is_set, "the source")
            bench.stop.set()
            await running
        assert handed_over(task)
        assert task.final is not None
        assert [item.cursor for item in task.final.events] == [2]

    asyncio.run(main())


def test_a_source_that_is_claimed_while_the_worker_stops_is_handed_on(bench: Bench) -> None:
    async def main() -> None:
        Saying(bench)
        bench.dispatcher.away = True
        task = bench.dispatcher.add("sleep", FOR_EVER, always_on=True)
        async with bench.working(grace_seconds=3600) as running:
            await bench.wake(task)
            await until(lambda: bench.dispatcher.refused_while_away["claim"], "a claim")
            bench.stop.set()
            tries = bench.dispatcher.refused_while_away["claim"]
            await until(lambda: bench.dispatcher.refused_while_away["claim"] > tries + 1, "claims while stopping")
            bench.dispatcher.away = False
            await running
        assert handed_over(task)

    asyncio.run(main())


def test_a_cancel_is_a_cancel_also_while_the_worker_stops(bench: Bench) -> None:
    async def main() -> None:
        source, task = Saying(bench), bench.dispatcher.add("sleep", FOR_EVER, always_on=True)
        async with bench.working(grace_seconds=3600) as running:
            await bench.wake(task)
            await until(source.running.is_set, "the source")
            task.cancel = True
            beats = task.heartbeats
            await until(lambda: task.heartbeats > beats, "the word of the Dispatcher")
            bench.stop.set()
            await running
        assert task.status == "Canceled"

    asyncio.run(main())


def test_what_fails_by_itself_meanwhile_has_failed(bench: Bench) -> None:
    async def main() -> None:
        running_now = threading.Event()

        def broken(context: OperatorContext) -> OperatorResult:
            running_now.set()
            context.cancel.wait()
            raise ValueError("no such chain")

        bench.operators["sleep"] = Operator(broken)
        task = bench.dispatcher.add("sleep", FOR_EVER, always_on=True)
        async with bench.working(grace_seconds=3600) as running:
            await bench.wake(task)
            await until(running_now.is_set, "the source")
            bench.stop.set()
            await running
        assert task.final is not None
        assert (task.final.error_code, task.final.error_message) == (None, "ValueError: no such chain")

    asyncio.run(main())


@pytest.mark.parametrize("always_on", [False, True])
def test_a_stuck_operator_does_not_hold_up_the_end_and_is_spoken_for(bench: Bench, always_on: bool) -> None:
    async def main() -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stuck(_context: OperatorContext) -> OperatorResult:
            loop.call_soon_threadsafe(started.set)
            time.sleep(600)
            return OperatorResult()

        bench.operators["sleep"] = Operator(stuck)
        task = bench.dispatcher.add("sleep", FOR_EVER, always_on=always_on)
        async with bench.working(grace_seconds=0.05, last_word_seconds=2) as running:
            await bench.wake(task)
            await started.wait()
            bench.stop.set()
            async with asyncio.timeout(30):
                await running
            assert handed_over(task)
            assert (await bench.depth()).in_flight == 0

    asyncio.run(main())


def test_what_nobody_hears_is_left_to_its_lease(bench: Bench) -> None:
    async def main() -> None:
        source, task = Saying(bench), bench.dispatcher.add("sleep", FOR_EVER, always_on=True)
        async with bench.working(grace_seconds=0.05, last_word_seconds=0.05) as running:
            await bench.wake(task)
            await until(source.running.is_set, "the source")
            bench.dispatcher.away = True
            bench.stop.set()
            async with asyncio.timeout(30):
                await running
            assert (await bench.depth()).in_flight == 1
        assert (task.status, task.final) == ("Running", None)

    asyncio.run(main())


def test_a_source_that_starts_paused_knows_it_before_it_says_anything(bench: Bench) -> None:
    async def main() -> None:
        source, task = Saying(bench), bench.dispatcher.add("sleep", FOR_EVER, always_on=True, pause=True)
        async with bench.working(grace_seconds=3600, heartbeat_seconds=3600):
            await bench.wake(task)
            await until(source.running.is_set, "the source")
            assert source.paused == [True]
            assert task.heartbeats == 0

    asyncio.run(main())


def test_stopping_while_the_dispatcher_is_away(bench: Bench) -> None:
    async def main() -> None:
        bench.dispatcher.away = True
        async with bench.working(grace_seconds=0.05) as running:
            await bench.wake(bench.dispatcher.add())
            await until(lambda: bench.dispatcher.refused_while_away["claim"], "a claim")
            bench.stop.set()
            async with asyncio.timeout(30):
                await running
            assert (await bench.depth()).in_flight == 1

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_ends_by_signal(tmp_path: Path, number: signal.Signals) -> None:
    """It waits for a stack that never comes, and leaves when told to."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRACE_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tracelake", "worker", "--home", str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stderr is not None
        assert "waiting for the stack" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("reason", ["fenced", "canceled"])
def test_an_operator_that_never_stops_loses_its_slot(bench: Bench, reason: str) -> None:
    async def main() -> None:
        running, gate = threading.Event(), threading.Event()

        def stay(_context: OperatorContext) -> OperatorResult:
            running.set()
            gate.wait()
            return OperatorResult()

        bench.operators["sleep"] = Operator(stay)
        task, other = bench.dispatcher.add("sleep", FOR_EVER), bench.dispatcher.add("noop")
        async with bench.working(slots=1, abandon_seconds=0.05):
            await bench.wake(task)
            await until(running.is_set, "the operator")
            await bench.wake(other)
            if reason == "fenced":
                bench.dispatcher.fence(task)
            else:
                task.cancel = True
            await until(lambda: other.status == "Completed", "the only slot to be free")
            assert bench.tasks_signalled["abandoned", task.task_id] == 1
            assert task.status == ("Canceled" if reason == "canceled" else "Running")
        gate.set()

    asyncio.run(main())

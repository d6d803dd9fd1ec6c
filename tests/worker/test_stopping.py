"""SIGTERM: nothing new is taken, what runs is finished or left to its lease, and nothing is acked that is not final."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import until
from tests.worker.test_faults import FOR_EVER, Gated
from tracelake.worker import OperatorContext, OperatorResult
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


def test_what_takes_too_long_is_left_to_its_lease(bench: Bench) -> None:
    async def main() -> None:
        operator = Gated(bench)
        task = bench.dispatcher.add("sleep", FOR_EVER)
        async with bench.working(grace_seconds=0.05) as running:
            await bench.wake(task)
            await until(operator.running.is_set, "the operator")
            bench.stop.set()
            await running
            await until(lambda: operator.cancelled, "the operator to be told")
            assert (await bench.depth()).in_flight == 1
        assert (task.status, task.final) == ("Running", None)
        assert bench.dispatcher.calls["complete"] == 0

    asyncio.run(main())


def test_a_stuck_operator_does_not_hold_up_the_end(bench: Bench) -> None:
    async def main() -> None:
        started = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stuck(_context: OperatorContext) -> OperatorResult:
            loop.call_soon_threadsafe(started.set)
            time.sleep(600)
            return OperatorResult()

        bench.operators["sleep"] = Operator(stuck)
        async with bench.working(grace_seconds=0.05) as running:
            await bench.wake(bench.dispatcher.add("sleep", FOR_EVER))
            await started.wait()
            bench.stop.set()
            async with asyncio.timeout(30):
                await running

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

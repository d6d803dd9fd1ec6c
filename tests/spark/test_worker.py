"""Spark operators in a whole worker, on a real queue and a Dispatcher in memory: what it does when the Dispatcher stops
an attempt, when it is away, and while Spark starts."""

import asyncio
import os
import sys
import threading
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.spark.support import DirectoryTransfer
from tests.support.postgres import TestCluster
from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import FakeDispatcher, FakeTask, until
from tracelake.client.task import TaskReply
from tracelake.errors import TraceError
from tracelake.spark import session as session_module
from tracelake.spark.operators import OPERATORS
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.spark.work import SparkWork
from tracelake.worker import OperatorResult
from tracelake.worker.operators import Operator
from tracelake.worker.spark import SparkOperators


@dataclass
class Punctual(FakeDispatcher):
    """It also knows tasks whose time is over."""

    late: list[FakeTask] = field(default_factory=list)

    def _heartbeat(self, task: FakeTask) -> TaskReply | TraceError:
        if any(task is one for one in self.late):
            return TraceError("deadline_exceeded")
        return super()._heartbeat(task)


@dataclass
class SparkBench:
    worker: Bench
    shared: SharedSession
    marks: Path

    def serve(self, shared: SharedSession, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """`sleep` is an operator of Spark from now on: one part that works until the gate is opened."""
        marks = self.marks
        gate = self.gate

        def work_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if batch.num_rows:
                    (marks / str(os.getpid())).touch()
                    while not gate.exists():
                        time.sleep(0.02)
                yield batch

        def run(work: SparkWork) -> OperatorResult:
            work.session.range(0, 1, 1, 1).mapInArrow(work_on, "id long").collect()
            return OperatorResult()

        module = types.ModuleType(f"tests_spark_operator_{uuid4().hex}")
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(OPERATORS, "sleep", module.__name__)
        engine = SparkOperators(shared, DirectoryTransfer(scratch / "objects"), scratch)
        self.worker.operators["sleep"] = engine.operators()["sleep"]

    @property
    def gate(self) -> Path:
        return self.marks.with_name("gate")

    @property
    def running(self) -> list[int]:
        """Python processes that began to work and are still there."""
        return [int(mark.name) for mark in self.marks.iterdir() if Path("/proc", mark.name).exists()]

    def has_stopped(self) -> bool:
        jobs = self.shared.get().sparkContext.statusTracker().getActiveJobsIds()
        return not self.running and not jobs


@pytest.fixture
def spark_bench(
    cluster: TestCluster, queue_dsn: str, shared: SharedSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> SparkBench:
    marks = tmp_path / "marks"
    marks.mkdir()
    bench = SparkBench(Bench(queue_dsn, cluster, Punctual()), shared, marks)
    bench.serve(shared, tmp_path / "scratch", monkeypatch)
    shared.get()
    return bench


@pytest.mark.parametrize("reason", ["canceled", "fenced", "late"])
def test_the_work_in_spark_stops_when_the_dispatcher_says_so(spark_bench: SparkBench, reason: str) -> None:
    worker = spark_bench.worker
    dispatcher = worker.dispatcher
    assert isinstance(dispatcher, Punctual)

    async def main() -> None:
        task = dispatcher.add("sleep", {"seconds": 3600})
        async with worker.working():
            await worker.wake(task)
            await until(lambda: spark_bench.running, "the work in Spark")
            if reason == "canceled":
                task.cancel = True
            elif reason == "fenced":
                dispatcher.fence(task)
            else:
                dispatcher.late.append(task)
            await until(spark_bench.has_stopped, "the work in Spark to stop")
            await worker.until_empty()
        if reason == "canceled":
            assert task.status == "Canceled"
        else:
            assert worker.tasks_signalled["fenced", task.task_id] == 1
            assert dispatcher.calls["complete"] == 0

    asyncio.run(main())


def test_the_work_in_spark_goes_on_while_the_dispatcher_is_away(spark_bench: SparkBench) -> None:
    worker = spark_bench.worker
    dispatcher = worker.dispatcher

    async def main() -> None:
        task = dispatcher.add("sleep", {"seconds": 3600})
        async with worker.working():
            await worker.wake(task)
            await until(lambda: spark_bench.running, "the work in Spark")
            dispatcher.away = True
            await until(lambda: dispatcher.refused_while_away["batch"] > 5, "unheard heartbeats")
            assert spark_bench.running
            refused = dispatcher.refused_while_away["batch"]
            spark_bench.gate.touch()
            await until(lambda: not spark_bench.shared.get().sparkContext.statusTracker().getActiveJobsIds(), "Spark")
            await until(lambda: dispatcher.refused_while_away["batch"] > refused + 5, "final words that nobody hears")
            assert task.status == "Running"
            dispatcher.away = False
            await until(lambda: task.status == "Completed", "the final word to be heard")
            await worker.until_empty()
        assert task.attempt == 1
        assert task.final is not None
        assert task.final.spark is not None
        assert task.final.spark.tasks == 1

    asyncio.run(main())


def test_operators_without_spark_do_not_wait_for_it_to_start(
    spark_bench: SparkBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening, may_open = threading.Event(), threading.Event()

    def open_slowly(_config: SparkConfig) -> object:
        opening.set()
        may_open.wait(60)
        return spark_bench.shared.get()

    monkeypatch.setattr(session_module, "open_session", open_slowly)
    spark_bench.serve(SharedSession(spark_bench.shared.config), tmp_path / "scratch", monkeypatch)
    spark_bench.gate.touch()
    worker = spark_bench.worker
    worker.operators["ticker"] = Operator(lambda _context: OperatorResult())

    async def main() -> None:
        waiting = worker.dispatcher.add("sleep", {"seconds": 3600})
        inline, threaded = worker.dispatcher.add("noop"), worker.dispatcher.add("ticker", {"seconds": 1})
        async with worker.working():
            await worker.wake(waiting)
            await until(opening.is_set, "the session to be opened")
            await worker.wake(inline, threaded)
            await until(lambda: (inline.status, threaded.status) == ("Completed", "Completed"), "those without Spark")
            assert waiting.status == "Running"
            may_open.set()
            await until(lambda: waiting.status == "Completed", "the task that waited for Spark")

    asyncio.run(main())

"""Work in Spark that cannot be cancelled: its slot is freed all the same, and its neighbours lose time and no attempt.

In a process of its own: the session is replaced, and other tests share that of this process.
"""

import asyncio
import multiprocessing
import sys
import time
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa

from tests.spark.support import DirectoryTransfer
from tests.support.postgres import TestCluster
from tests.worker.conftest import Bench
from tests.worker.fake_dispatcher import FakeDispatcher, FakeTask, until
from tracelake.client.task import TaskReply
from tracelake.errors import TraceError
from tracelake.spark.operators import OPERATORS
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.spark.work import SparkWork
from tracelake.worker import OperatorResult
from tracelake.worker.spark import REPLACED, SparkOperators

WITHOUT_END = f"SELECT '{'a' * 60}b' RLIKE '^(a|a|aa)+$' AS x"
"""Spark computes it before it begins a job: there is nothing to cancel, and Java's patterns do not look up."""
RUNAWAY, NEIGHBOUR = 3600, 1


@dataclass
class Punctual(FakeDispatcher):
    late: list[FakeTask] = field(default_factory=list)

    def _heartbeat(self, task: FakeTask) -> TaskReply | TraceError:
        if any(task is one for one in self.late):
            return TraceError("deadline_exceeded")
        return super()._heartbeat(task)


def test_a_query_without_end_loses_its_slot(cluster: TestCluster, queue_dsn: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=replace_session, args=(queue_dsn, tmp_path))
    process.start()
    process.join(300)
    assert process.exitcode == 0, "see what the process printed"


def replace_session(queue_dsn: str, directory: Path) -> None:
    marks, gate = directory / "marks", directory / "gate"
    marks.mkdir()

    def wait_at_gate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while not gate.exists():
                time.sleep(0.02)
            yield batch

    def run(work: SparkWork) -> OperatorResult:
        (marks / f"{work.context.task_id}-{work.context.attempt}").touch()
        if work.context.config.seconds == RUNAWAY:  # type: ignore[attr-defined]
            work.session.sql(WITHOUT_END).collect()
        else:
            work.session.range(0, 1, 1, 1).mapInArrow(wait_at_gate, "id long").collect()
        return OperatorResult()

    module = types.ModuleType("tests_spark_runaway")
    module.run = run  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    OPERATORS["sleep"] = module.__name__
    shared = SharedSession(SparkConfig(directory / "session", master="local[2]", memory="600m", log_level="error"))
    engine = SparkOperators(shared, DirectoryTransfer(directory / "objects"), directory / "scratch", stop_seconds=1)
    dispatcher = Punctual()
    bench = Bench(queue_dsn, Mock(spec=TestCluster), dispatcher)
    bench.operators["sleep"] = engine.operators()["sleep"]

    def has_begun(task: FakeTask) -> bool:
        return (marks / f"{task.task_id}-{task.attempt}").exists()

    async def main() -> None:
        runaway = dispatcher.add("sleep", {"seconds": RUNAWAY})
        neighbour, later = (dispatcher.add("sleep", {"seconds": NEIGHBOUR}) for _ in range(2))
        async with bench.working(slots=2):
            await bench.wake(runaway, neighbour)
            await until(lambda: has_begun(runaway) and has_begun(neighbour), "both tasks", 120)
            dispatcher.late.append(runaway)
            await until(lambda: neighbour.final is not None, "the session to be replaced", 60)
            assert neighbour.final is not None
            assert (neighbour.final.status, neighbour.final.error_code) == ("Failed", "worker_stopping")
            assert neighbour.final.error_message == f"worker_stopping: {REPLACED}"
            # As the Dispatcher does with that code: at once, and no attempt is used up.
            neighbour.status, neighbour.final = "Queued", None
            await bench.wake(neighbour, later)
            # Two slots for two tasks: the one that ran away has none.
            await until(lambda: has_begun(neighbour) and has_begun(later), "both slots", 120)
            gate.touch()
            await until(lambda: (neighbour.status, later.status) == ("Completed", "Completed"), "both tasks", 120)
        assert bench.tasks_signalled["fenced", runaway.task_id] == 1
        assert bench.tasks_signalled["abandoned", runaway.task_id] == 0
        assert runaway.final is None, "an attempt that is not current says nothing"

    try:
        asyncio.run(main())
    finally:
        engine.close()

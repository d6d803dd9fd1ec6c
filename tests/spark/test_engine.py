"""Spark operators as a worker runs them: side by side, cancelled for real, with errors that people can read."""

import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.spark.support import Bench, DirectoryTransfer
from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorContext, OperatorResult
from tracelake.spark.failures import SparkFailedError
from tracelake.spark.session import SharedSession
from tracelake.spark.work import SparkOperator, SparkWork
from tracelake.wire.units import Unit
from tracelake.worker.spark import Engine

UNIT = Unit(partition_key="0-9", start=0, end=9)


@pytest.fixture
def engine(shared: SharedSession, tmp_path: Path) -> Engine:
    return Engine(shared, DirectoryTransfer(tmp_path / "objects"), tmp_path / "scratch")


def run(engine: Engine, bench: Bench, operator: SparkOperator) -> OperatorResult:
    """As the worker calls it: by the name of a module."""
    name = f"tests_spark_operator_{uuid4().hex}"
    module = types.ModuleType(name)
    module.run = operator  # type: ignore[attr-defined]
    sys.modules[name] = module
    try:
        return engine._run(name, context_of(bench))
    finally:
        del sys.modules[name]


def context_of(bench: Bench) -> OperatorContext:
    return bench.work("noop", {}, UNIT, 1, {}).context


def endless(marks: Path) -> Any:
    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (marks / f"began-{uuid4().hex}").touch()
            while batch.num_rows:
                time.sleep(0.05)
            yield batch

    return wait


def test_cancelling_stops_the_work_in_spark(engine: Engine, bench: Bench, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def operator(work: SparkWork) -> OperatorResult:
        work.session.range(2).mapInArrow(endless(marks), "id long").collect()
        return work.result()

    def cancel_when_it_works() -> None:
        while not list(marks.iterdir()):
            time.sleep(0.02)
        bench.cancel.set()

    threading.Thread(target=cancel_when_it_works, daemon=True).start()
    with pytest.raises(CanceledError):
        run(engine, bench, operator)
    tracker = bench.session.sparkContext.statusTracker()
    assert not tracker.getActiveJobsIds(), "nothing of it runs any more"


def test_the_neighbour_goes_on(engine: Engine, bench: Bench, spark: Any, tmp_path: Path) -> None:
    other = Bench(spark, tmp_path / "other")
    marks = tmp_path / "marks"
    marks.mkdir()
    done: list[int] = []

    def stuck(work: SparkWork) -> OperatorResult:
        work.session.range(1).repartition(1).mapInArrow(endless(marks), "id long").collect()
        return work.result()

    def quick(work: SparkWork) -> OperatorResult:
        done.append(work.session.range(100).count())
        return OperatorResult()

    def stop_it() -> None:
        while not list(marks.iterdir()):
            time.sleep(0.02)
        run(engine, other, quick)
        bench.cancel.set()

    beside = threading.Thread(target=stop_it)
    beside.start()
    with pytest.raises(CanceledError):
        run(engine, bench, stuck)
    beside.join()
    assert done == [100]


def test_what_an_executor_raised_is_what_is_told(engine: Engine, bench: Bench) -> None:
    def fail(error: Exception) -> SparkOperator:
        def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            raise error

        def operator(work: SparkWork) -> OperatorResult:
            work.session.range(1).mapInArrow(broken, "id long").collect()
            return work.result()

        return operator

    with pytest.raises(NonRetryableError, match=r"^block 7 is wrong$"):
        run(engine, bench, fail(NonRetryableError("block 7 is wrong")))
    with pytest.raises(SparkFailedError) as told:
        run(engine, bench, fail(ValueError("in /home/somebody/file.parquet")))
    assert str(told.value) == "ValueError: in ..."


def test_a_query_that_cannot_be_is_not_tried_again(engine: Engine, bench: Bench) -> None:
    def operator(work: SparkWork) -> OperatorResult:
        work.session.range(1).select("nothing").collect()
        return work.result()

    with pytest.raises(NonRetryableError, match="nothing") as told:
        run(engine, bench, operator)
    assert "\n" not in str(told.value)


def test_links_go_with_the_task(engine: Engine, bench: Bench, tmp_path: Path) -> None:
    bench.transfer = DirectoryTransfer(tmp_path / "objects")
    bench.add_input("raw", pa.table({"block_number": [1, 2]}))
    seen: list[int] = []

    def operator(work: SparkWork) -> OperatorResult:
        seen.append(work.read().count())
        return OperatorResult()

    run(engine, bench, operator)
    assert seen == [2]
    assert not list((tmp_path / "scratch" / "tasks").iterdir())
    assert len(list((tmp_path / "scratch" / "cache").iterdir())) == 1, "the copy stays for the next one"

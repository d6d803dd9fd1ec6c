"""Spark operators as a worker runs them: side by side, cancelled for real, with errors that people can read."""

import subprocess
import sys
import threading
import time
import types
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from tests.spark.support import Bench, DirectoryTransfer
from tests.support.postgres import wait_until
from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorContext, OperatorResult
from tracelake.spark import gateway, measure
from tracelake.spark.failures import SparkFailedError
from tracelake.spark.session import SharedSession, pack_code
from tracelake.spark.work import SparkOperator, SparkWork
from tracelake.wire.units import Unit
from tracelake.worker.spark import SparkOperators

UNIT = Unit(partition_key="0-9", start=0, end=9)


@pytest.fixture
def engine(shared: SharedSession, tmp_path: Path) -> SparkOperators:
    return SparkOperators(shared, DirectoryTransfer(tmp_path / "objects"), tmp_path / "scratch")


def run(engine: SparkOperators, bench: Bench, operator: SparkOperator) -> OperatorResult:
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


def test_cancelling_stops_the_work_in_spark(engine: SparkOperators, bench: Bench, tmp_path: Path) -> None:
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


def test_the_neighbour_goes_on(engine: SparkOperators, bench: Bench, spark: Any, tmp_path: Path) -> None:
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


def test_what_an_executor_raised_is_what_is_told(engine: SparkOperators, bench: Bench) -> None:
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


def test_a_query_that_cannot_be_is_not_tried_again(engine: SparkOperators, bench: Bench) -> None:
    def operator(work: SparkWork) -> OperatorResult:
        work.session.range(1).select("nothing").collect()
        return work.result()

    with pytest.raises(NonRetryableError, match="nothing") as told:
        run(engine, bench, operator)
    assert "\n" not in str(told.value)


def test_links_go_with_the_task(engine: SparkOperators, bench: Bench, tmp_path: Path) -> None:
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


def test_what_spark_did_is_told_with_the_result(engine: SparkOperators, bench: Bench) -> None:
    def operator(work: SparkWork) -> OperatorResult:
        rows = work.session.range(0, 100_000, 1, 2).selectExpr("id % 10 AS kind")
        assert rows.groupBy("kind").count().count() == 10
        return OperatorResult()

    did = run(engine, bench, operator).spark
    assert did is not None
    assert did.jobs >= 1
    assert did.stages >= 2
    assert did.tasks >= 3
    assert did.failed_tasks == 0
    assert did.input_rows == 100_000
    assert did.shuffle_write_bytes == did.shuffle_read_bytes > 0
    nothing = run(engine, Bench(bench.session, bench.root / "other"), lambda _work: OperatorResult()).spark
    assert nothing is not None
    assert (nothing.jobs, nothing.stages) == (0, 0), "each attempt has its own"


def test_spilling_is_told(engine: SparkOperators, bench: Bench) -> None:
    def operator(work: SparkWork) -> OperatorResult:
        buffer = "spark.sql.windowExec.buffer"
        small = {f"{buffer}.in.memory.threshold": "100", f"{buffer}.spill.threshold": "1000"}
        rows = work.session.range(0, 5_000, 1, 1).selectExpr("sum(id) OVER (PARTITION BY id % 2) AS total")
        with settings(work, small):
            rows.write.format("noop").mode("overwrite").save()
        return OperatorResult()

    did = run(engine, bench, operator).spark
    assert did is not None
    assert did.spilled_memory_bytes > 0
    assert did.spilled_disk_bytes > 0


def test_figures_that_cannot_be_had_fail_no_task(
    engine: SparkOperators, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def operator(work: SparkWork) -> OperatorResult:
        work.session.range(10).count()
        return OperatorResult()

    monkeypatch.setattr(measure, "_PATIENCE_SECONDS", 0.0)
    assert run(engine, bench, operator) == OperatorResult()


def test_nothing_of_spark_is_printed(
    engine: SparkOperators, bench: Bench, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def speak(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            print("said in an executor", file=sys.stderr, flush=True)
            yield batch

    def operator(work: SparkWork) -> OperatorResult:
        work.session.range(1).mapInArrow(speak, "id long").collect()
        work.session.sparkContext._jvm.System.out.println("said by Java")  # type: ignore[union-attr]
        work.session.sql("SELECT CAST('x' AS INT)").collect()
        return OperatorResult()

    with pytest.raises(NonRetryableError, match="cannot be cast"):
        run(engine, bench, operator)
    wait_until(lambda: {"said in an executor", "said by Java"} <= {*caplog.messages}, "what was said to be logged")
    assert capfd.readouterr() == ("", "")


def test_pools_of_jobs_are_used_again(engine: SparkOperators, bench: Bench) -> None:
    seen: list[str | None] = []

    def operator(work: SparkWork) -> OperatorResult:
        seen.append(work.session.sparkContext.getLocalProperty("spark.scheduler.pool"))
        if len(seen) == 1:  # at the same time, as another task would be
            thread = threading.Thread(target=run, args=(engine, bench, operator))
            thread.start()
            thread.join()
        return OperatorResult()

    run(engine, bench, operator)
    run(engine, bench, operator)
    assert seen == ["tasks-0", "tasks-1", "tasks-0"]


def test_nobody_without_the_secret_speaks_with_spark_on_this_machine(engine: SparkOperators) -> None:
    assert engine.shared.get().sparkContext.getConf().get("spark.authenticate") == "true"


def test_lines_of_java_keep_their_level_and_name(caplog: pytest.LogCaptureFixture) -> None:
    relay = gateway.LogRelay()
    relay.log('{"level":"ERROR","logger":"TaskSetManager","message":"lost \\"one\\""}')
    relay.log("# A fatal error has been detected by the Java Runtime Environment:")
    relay.log("WARNING: Using incubator modules: jdk.incubator.vector")
    relay.log("")
    assert [(record.levelname, record.name, record.message) for record in caplog.records] == [
        ("ERROR", "spark.TaskSetManager", 'lost "one"'),
        ("WARNING", "spark", "# A fatal error has been detected by the Java Runtime Environment:"),
    ]


def test_the_output_of_a_process_has_one_owner(caplog: pytest.LogCaptureFixture) -> None:
    """A number that two files hold is closed twice, the second time when something else has it."""
    with subprocess.Popen([sys.executable, "-c", "print('a line')"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        gateway.LogRelay().run(process.stdout)
        assert process.stdout.closed
    assert "a line" in caplog.text


def test_the_code_that_is_sent_is_the_package_as_it_is_installed(tmp_path: Path) -> None:
    packed = zipfile.ZipFile(pack_code(tmp_path / "code.zip"))
    names = packed.namelist()
    assert "tracelake/spark/operators/evm_ingest.py" in names
    assert "tracelake/py.typed" in names, "data files too"
    assert not [name for name in names if name.endswith(".pyc")]
    # As a wheel is installed: files below a directory of the path.
    packed.extractall(tmp_path / "installed")
    again = tmp_path / "again.zip"
    script = f"from pathlib import Path; from tracelake.spark.session import pack_code; pack_code(Path({str(again)!r}))"
    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(tmp_path / "installed")}, check=True)
    assert zipfile.ZipFile(again).namelist() == names


@contextmanager
def settings(work: SparkWork, changed: Mapping[str, str]) -> Iterator[None]:
    for name, value in changed.items():
        work.session.conf.set(name, value)
    try:
        yield
    finally:
        for name in changed:
            work.session.conf.unset(name)

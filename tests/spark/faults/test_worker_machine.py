"""The machine of a worker: its disk is full, or a Python process of Spark is killed in the middle of its work."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.faults.support import Store, bench_on, fill, run_task, small_disk
from tests.spark.support import Bench
from tracelake.catalogue.context import OperatorResult
from tracelake.spark.failures import SparkFailedError
from tracelake.spark.session import SharedSession
from tracelake.spark.work import SparkWork
from tracelake.worker.spark import SparkOperators

NOISE = [os.urandom(32) for _ in range(20_000)]
ROWS = pa.table({"block_number": pa.array([number % 10 for number in range(20_000)], pa.uint32()), "hash": NOISE})
FULL = "^no space left on the worker's disk: free some below its home"


def copy(work: SparkWork) -> OperatorResult:
    work.write(work.read())
    return work.result()


def prepared(bench: Bench) -> Bench:
    bench.add_input("raw", ROWS)
    bench.add_output("copy")
    return bench


def test_no_room_to_fetch_what_it_reads(shared: SharedSession, store: Store, tmp_path: Path) -> None:
    bench = prepared(bench_on(shared.get(), tmp_path, store.patient))
    with small_disk(4) as disk:
        engine = SparkOperators(shared, store.patient, disk / "scratch")
        ballast = fill(disk, leave=100_000)
        with pytest.raises(SparkFailedError, match=FULL):
            run_task(engine, bench, copy)
        assert not [path for path in disk.joinpath("scratch").rglob("*") if path.is_file()], "not even a part of it"
        ballast.unlink()
        run_task(engine, bench, copy, attempt=2)
        assert bench.last is not None
        assert bench.last.written[0].rows == 20_000


def test_no_room_to_write(shared: SharedSession, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its neighbours go on, and nothing is left of it."""
    prepared(bench)
    engine = SparkOperators(shared, bench.transfer, tmp_path / "scratch")
    environment = shared.get().sparkContext.environment
    with small_disk(2) as disk:
        ballast = fill(disk, leave=100_000)
        usual = environment["TMPDIR"]
        monkeypatch.setitem(environment, "TMPDIR", str(disk))
        with pytest.raises(SparkFailedError, match=FULL):
            run_task(engine, bench, copy)
        assert [path.name for path in disk.iterdir()] == [ballast.name]
        assert bench.last is not None
        assert not bench.last.written

        monkeypatch.setitem(environment, "TMPDIR", usual)
        run_task(engine, bench, copy, attempt=2)
        assert bench.table().num_rows == 20_000


def waits(marks: Path) -> Any:
    """Passes its rows on, unless nobody was there before it: then it says who it is and waits to be killed."""

    def wait(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not (marks / "first").exists():
                (marks / "aside").write_text(str(os.getpid()))
                (marks / "aside").rename(marks / "first")
                while True:
                    time.sleep(0.05)
            yield batch

    return wait


def test_a_python_process_of_spark_is_killed(shared: SharedSession, bench: Bench, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    prepared(bench)
    engine = SparkOperators(shared, bench.transfer, tmp_path / "scratch")

    def operator(work: SparkWork) -> OperatorResult:
        work.write(work.read().mapInArrow(waits(marks), "block_number long, hash binary"))
        return work.result()

    def kill_it() -> None:
        while not (marks / "first").exists():
            time.sleep(0.02)
        os.kill(int((marks / "first").read_text()), signal.SIGKILL)

    killer = threading.Thread(target=kill_it, daemon=True)
    killer.start()
    with pytest.raises(SparkFailedError, match="a Python process of Spark ended unexpectedly"):
        run_task(engine, bench, operator)
    killer.join()
    assert not list((shared.config.scratch / "parts").iterdir()), "whoever is killed leaves nothing behind"
    run_task(engine, bench, operator, attempt=2)
    assert sorted(bench.table()["hash"].to_pylist()) == sorted(NOISE)

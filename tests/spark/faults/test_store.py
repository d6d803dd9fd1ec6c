"""The object store is away while a task reads or writes: a while is waited out, longer ends in a clean retry."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.faults.support import Store, bench_on, fill, read_back, run_task, running_store, small_disk
from tests.spark.support import BUCKET, Bench, plain_name
from tracelake.adapters.s3.access import WORKING
from tracelake.adapters.s3.object_store import S3ObjectStore
from tracelake.catalogue.context import OperatorResult
from tracelake.errors import StoreUnavailableError
from tracelake.spark.session import SharedSession
from tracelake.spark.work import SparkWork
from tracelake.worker.spark import SparkOperators

ROWS = pa.table({"block_number": pa.array(range(10), pa.uint32()), "value": pa.array(range(10), pa.uint64())})


def copy(work: SparkWork) -> OperatorResult:
    work.write(work.read())
    return work.result()


def prepared(store: Store, session: SparkSession, root: Path, rows: pa.Table = ROWS) -> Bench:
    bench = bench_on(session, root, store.patient)
    bench.add_input("raw", rows)
    bench.add_output("copy")
    return bench


def names(store: Store, bench: Bench) -> list[str]:
    objects = S3ObjectStore(store.embedded.access(), WORKING)
    found = asyncio.run(objects.list(f"{BUCKET}copy/{bench.task_id}/"))
    return [f"{Path(meta.uri).parent.name}/{plain_name(Path(meta.uri))}" for meta in found]


HOW: dict[str, Callable[[Store], None]] = {"stands still": Store.stand_still, "is down": Store.kill}


@pytest.mark.parametrize("how", HOW)
def test_away_while_a_task_reads(store: Store, shared: SharedSession, tmp_path: Path, how: str) -> None:
    bench = prepared(store, shared.get(), tmp_path)
    engine = SparkOperators(shared, store.transfer, tmp_path / "scratch")
    HOW[how](store)
    with pytest.raises(StoreUnavailableError, match="The object store is not available right now"):
        run_task(engine, bench, copy)
    assert not list((tmp_path / "scratch" / "cache").iterdir()), "no half of a file is kept"
    store.back()
    run_task(SparkOperators(shared, store.patient, tmp_path / "scratch"), bench, copy, attempt=2)
    assert names(store, bench) == ["2/_SUCCESS", "2/copy_0_9.parquet"]
    assert bench.last is not None
    assert read_back(store.patient, bench.last.written[0].files, tmp_path).to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("how", HOW)
def test_away_while_a_task_writes(store: Store, shared: SharedSession, tmp_path: Path, how: str) -> None:
    bench = prepared(store, shared.get(), tmp_path)
    engine = SparkOperators(shared, store.transfer, tmp_path / "scratch")

    def loses_it(work: SparkWork) -> OperatorResult:
        frame = work.read()
        HOW[how](store)
        work.write(frame)
        return work.result()

    with pytest.raises(StoreUnavailableError, match="The object store is not available right now"):
        run_task(engine, bench, loses_it)
    assert bench.last is not None
    assert not bench.last.written
    store.back()
    assert "1/_SUCCESS" not in names(store, bench), "nothing of it can be committed"
    run_task(SparkOperators(shared, store.patient, tmp_path / "scratch"), bench, copy, attempt=2)
    assert read_back(store.patient, bench.last.written[0].files, tmp_path).to_pylist() == ROWS.to_pylist()


@pytest.mark.parametrize("how", HOW)
def test_a_while_is_waited_out(store: Store, shared: SharedSession, tmp_path: Path, how: str) -> None:
    """It is started again, or goes on, while the task asks for it."""
    bench = prepared(store, shared.get(), tmp_path)
    engine = SparkOperators(shared, store.patient, tmp_path / "scratch")
    away = threading.Event()

    def loses_it(work: SparkWork) -> OperatorResult:
        frame = work.read()
        HOW[how](store)
        away.set()
        work.write(frame)
        return work.result()

    task = threading.Thread(target=run_task, args=(engine, bench, loses_it))
    task.start()
    away.wait()
    time.sleep(1.0)  # long enough that somebody asks in vain
    store.back()
    task.join()
    assert bench.last is not None
    assert read_back(store.patient, bench.last.written[0].files, tmp_path).to_pylist() == ROWS.to_pylist()


def test_its_disk_is_full(shared: SharedSession, tmp_path: Path) -> None:
    with small_disk(16) as disk, running_store(disk / "objects") as store:
        noise = [os.urandom(32) for _ in range(20_000)]
        rows = pa.table({"block_number": pa.array([0] * len(noise), pa.uint32()), "noise": noise})
        bench = prepared(store, shared.get(), tmp_path, rows)
        engine = SparkOperators(shared, store.transfer, tmp_path / "scratch")
        ballast = fill(disk, leave=0)
        with pytest.raises(
            StoreUnavailableError, match="fails with status 500: it may be overloaded, or its disk full"
        ):
            run_task(engine, bench, copy)
        assert names(store, bench) == []
        ballast.unlink()
        run_task(SparkOperators(shared, store.patient, tmp_path / "scratch"), bench, copy, attempt=2)
        assert names(store, bench) == ["2/_SUCCESS", "2/copy_0_9.parquet"]
        assert bench.last is not None
        assert read_back(store.patient, bench.last.written[0].files, tmp_path)["noise"].to_pylist() == noise

"""What tests have a driver do. What runs in executors stands inside of these functions: it travels by value, because
executors know nothing of the tests."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.errors import PySparkException

from tests.spark.cluster.driver import Task, engine, run_function
from tracelake.catalogue.context import CanceledError, OperatorResult
from tracelake.ports import ObjectMeta
from tracelake.spark.work import SparkWork

_PATIENCE_SECONDS = 120


def open_session() -> str:
    return engine().shared.get().version


def fail_in_a_query() -> None:
    with contextlib.suppress(PySparkException):
        engine().shared.get().sql("SELECT CAST('x' AS INT)").collect()
    logging.getLogger(__name__).info("a query failed")


def executors() -> int:
    """How many there are now, the driver not counted."""
    context = engine().shared.get().sparkContext._jsc.sc()
    return int(context.getExecutorMemoryStatus().size()) - 1


def where_code_comes_from() -> list[tuple[str, str]]:
    """In executors: the file of a module of ours, and the interpreter."""

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys

        from tracelake.adapters.s3 import transfer

        for batch in batches:
            count = batch.num_rows
            yield pa.RecordBatch.from_pydict({"file": [transfer.__file__] * count, "python": [sys.executable] * count})

    frame = engine().shared.get().range(0, 4, 1, 4).mapInArrow(look, "file string, python string")
    return [(row.file, row.python) for row in frame.collect()]


def cancel_when_it_works(task: Task, marks: Path, parts: int) -> str:
    """Work that never ends by itself, cancelled once that many parts of it run. Each leaves its process id."""

    def endless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (marks / str(os.getpid())).touch()
            while batch.num_rows:
                time.sleep(0.05)
            yield batch

    def operator(work: SparkWork) -> OperatorResult:
        work.session.range(0, parts, 1, parts).mapInArrow(endless, "id long").collect()
        return work.result()

    cancel = threading.Event()

    def watch() -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while len(list(marks.iterdir())) < parts and time.monotonic() < deadline:
            time.sleep(0.02)
        cancel.set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        run_function(operator, task, cancel=cancel)
    except CanceledError:
        return "canceled"
    return "not canceled"


def write_with_a_part_that_hangs(task: Task, marks: Path) -> OperatorResult:
    """The first part that was uploaded says so and hangs until somebody ends its process."""
    inner = engine().transfer

    class Hanging:
        def download(self, meta: ObjectMeta, path: Path) -> None:
            inner.download(meta, path)

        def upload(self, path: Path, uri: str) -> ObjectMeta:
            meta = inner.upload(path, uri)
            with (marks / "uploads").open("a") as log:
                log.write(f"{os.getpid()} {uri}\n")
            try:
                (marks / "hangs").touch(exist_ok=False)
            except FileExistsError:
                return meta
            (marks / f"hangs-{os.getpid()}").touch()
            while True:
                time.sleep(0.05)

    def operator(work: SparkWork) -> OperatorResult:
        start, end = work.blocks
        rows = work.session.range(start, end + 1).withColumnRenamed("id", "block_number")
        work.write(rows, files=4)
        return work.result()

    return run_function(operator, task, engine=replace(engine(), transfer=Hanging()))


def wait_in_an_executor(task: Task, marks: Path) -> tuple[str, str]:
    """Work that never ends by itself; answers the error that a worker would report."""

    def endless(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            (marks / f"began-{os.getpid()}").touch()
            while batch.num_rows:
                time.sleep(0.05)
            yield batch

    def operator(work: SparkWork) -> OperatorResult:
        (marks.parent / "java").write_text(str(java_process()))
        work.session.range(1).mapInArrow(endless, "id long").collect()
        return work.result()

    try:
        run_function(operator, task)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


def java_process() -> int | None:
    """None over Spark Connect."""
    from pyspark import SparkContext

    return None if SparkContext._gateway is None else SparkContext._gateway.proc.pid

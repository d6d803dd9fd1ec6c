"""Trouble to make: an object store that stands still, dies and comes back; a disk that is full; tasks on them."""

import os
import signal
import subprocess
import sys
import tempfile
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.support import Bench
from tests.support.object_store import start
from tests.support.postgres import wait_until
from tracelake.adapters.s3.access import StorePatience
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.catalogue.context import OperatorResult
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark.work import SparkOperator, SparkWork
from tracelake.spark.writer import WrittenFile
from tracelake.stack.seaweedfs import EmbeddedObjectStore, StorePorts
from tracelake.wire.units import Unit
from tracelake.worker.spark import SparkOperators

SHORT = StorePatience(request_seconds=1.0, retry_seconds=1.0, retries=3)
UNIT = Unit(partition_key="0-9", start=0, end=9)


@dataclass
class Store:
    """A real SeaweedFS in our hands."""

    embedded: EmbeddedObjectStore
    process: "subprocess.Popen[bytes]"

    @property
    def transfer(self) -> S3Transfer:
        """Impatient."""
        return S3Transfer(self.embedded.access(), SHORT)

    @property
    def patient(self) -> S3Transfer:
        """As it is in the product; a store that was just started has its first answers late."""
        return S3Transfer(self.embedded.access())

    def stand_still(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")  # a thread on another core goes on for a moment
        wait_until(lambda: all(_state(task) == "T" for task in tasks.iterdir()), "a store that stands still")

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.embedded.clean_up()

    def start(self) -> None:
        self.process = start(self.embedded)

    def back(self) -> None:
        """Whatever happened to it."""
        if self.process.poll() is None:
            self.go_on()
        else:
            self.start()


@contextmanager
def running_store(data: Path | None = None) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(prefix="trace-objects-") as directory:
        root = Path(directory)
        embedded = EmbeddedObjectStore(
            data or root / "objects", root / "access.json", root / "config", root / "log", StorePorts.choose()
        )
        store = Store(embedded, start(embedded))
        try:
            yield store
        finally:
            store.back()
            store.kill()


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A real file system of that size, in a namespace of its own, which ends with it. Nobody has to be root."""
    inner = f"mount -t tmpfs -o size={megabytes}m,mode=777 none /mnt && echo ready && exec cat"
    try:
        holder = subprocess.Popen(
            ["unshare", "--user", "--mount", "--map-root-user", "sh", "-c", inner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    except FileNotFoundError:
        pytest.skip("there is no `unshare` to make a small file system with")
    assert holder.stdout is not None
    try:
        disk = Path(f"/proc/{holder.pid}/root/mnt")
        if holder.stdout.readline() != "ready\n" or not os.access(disk, os.W_OK):
            pytest.skip("this machine does not let us mount a small file system")
        yield disk
    finally:
        holder.kill()
        holder.communicate()


def fill(disk: Path, leave: int) -> Path:
    """A file that takes all of it but so many bytes."""
    free = os.statvfs(disk)
    path = disk / "ballast"
    path.write_bytes(b"\1" * (free.f_bavail * free.f_frsize - leave))
    return path


def run_task(engine: SparkOperators, bench: Bench, operator: SparkOperator, attempt: int = 1) -> OperatorResult:
    """As the worker calls it: by the name of a module. What it wrote is in `bench.last` afterwards."""
    name = f"tests_spark_operator_{uuid4().hex}"
    module = types.ModuleType(name)

    def run(work: SparkWork) -> OperatorResult:
        bench.last = work
        return operator(work)

    module.run = run  # type: ignore[attr-defined]
    sys.modules[name] = module
    try:
        return engine._run(name, bench.work("noop", {}, UNIT, attempt, {}).context)
    finally:
        del sys.modules[name]


def bench_on(session: SparkSession, root: Path, transfer: FileTransfer) -> Bench:
    """A bench whose objects are in a real store."""
    bench = Bench(session, root)
    bench.transfer = transfer  # type: ignore[assignment]
    root.mkdir(parents=True, exist_ok=True)
    return bench


def read_back(transfer: FileTransfer, files: Sequence[WrittenFile | ObjectMeta], root: Path) -> pa.Table:
    """What exactly these files hold."""
    tables = []
    for file in files:
        path = root / f"{uuid4().hex}.parquet"
        transfer.download(file.meta if isinstance(file, WrittenFile) else file, path)
        tables.append(pq.read_table(path))
    return pa.concat_tables(tables)


def _state(task: Path) -> str:
    """The letter of a thread's state; one that ended meanwhile is as still as one that is stopped."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "T"

"""A process of its own that has the SparkOperators of a worker, and does there what a test asks for.

Classic Spark and Spark Connect cannot be in one process, nor two masters: each has one of these.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import UUID, uuid4

from tests.spark.cluster.daemons import Place
from tracelake.adapters.s3.access import S3Access
from tracelake.adapters.s3.transfer import S3Transfer
from tracelake.catalogue import read_config
from tracelake.catalogue.context import OperatorContext, OperatorResult
from tracelake.ports import ObjectMeta
from tracelake.spark.session import SharedSession, SparkConfig
from tracelake.spark.work import SparkOperator
from tracelake.stack import logs
from tracelake.wire.units import PayloadInput, StorageOut, TaskOutput, Unit
from tracelake.worker.spark import SparkOperators

P = ParamSpec("P")
T = TypeVar("T")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Input:
    name: str
    files: Sequence[ObjectMeta]
    where: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """What a worker would have claimed."""

    operator: str
    config: Mapping[str, Any]
    blocks: tuple[int, int]
    outputs: Sequence[str]
    inputs: Sequence[Input] = (Input("ranges", ()),)
    task_id: UUID = field(default_factory=uuid4)

    def prefix(self, output_index: int) -> str:
        return f"s3://trace-cluster/{self.outputs[output_index]}/{self.task_id}/1/"

    def context(self, cancel: threading.Event | None = None) -> OperatorContext:
        start, end = self.blocks
        unit = Unit(partition_key=f"{start}-{end}", start=start, end=end)
        return OperatorContext(
            task_id=self.task_id,
            attempt=1,
            config=read_config(self.operator, dict(self.config)),
            inputs=[
                PayloadInput(
                    input_index=index,
                    dataset_uuid=uuid4(),
                    dataset_version=uuid4(),
                    name=item.name,
                    unit=unit,
                    revision="",
                    where=None if item.where is None else dict(item.where),
                )
                for index, item in enumerate(self.inputs)
            ],
            outputs=[
                TaskOutput(
                    output_index=index,
                    dataset_uuid=uuid4(),
                    dataset_version=uuid4(),
                    name=name,
                    storage=StorageOut(kind="s3", write_prefix=self.prefix(index)),
                )
                for index, name in enumerate(self.outputs)
            ],
            progress=lambda _text: None,
            cancel=cancel or threading.Event(),
            paused=threading.Event(),
            emit=lambda _events: None,
            files=lambda item: list(self.inputs[item.input_index].files),
        )


class Driver:
    def __init__(self, pool: ProcessPoolExecutor, output: Path) -> None:
        self._pool = pool
        self.output = output
        """What the process and its children print, to standard output and standard error."""

    def ask(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """In the other process: a function of a module, whose first argument is the engine."""
        return self._pool.submit(do, *args, **kwargs)

    def run(self, task: Task) -> OperatorResult:
        return self.ask(run_task, task).result(timeout=300)


@contextmanager
def driver(place: Place, access: S3Access, scratch: Path, environment: Mapping[str, str]) -> Iterator[Driver]:
    output = scratch.with_name(f"{scratch.name}.log")
    pool = ProcessPoolExecutor(
        1,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(os.getpid(), place, access, scratch, environment, output),
    )
    try:
        yield Driver(pool, output)
        pool.submit(_end).result(timeout=60)
    finally:
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(cancel_futures=True)


# --- in the other process

_engine: SparkOperators | None = None


def engine() -> SparkOperators:
    assert _engine is not None
    return _engine


def run_task(task: Task) -> OperatorResult:
    return engine().operators()[task.operator].run(task.context())


def run_function(
    function: SparkOperator, task: Task, *, cancel: threading.Event | None = None, engine: SparkOperators | None = None
) -> OperatorResult:
    """An operator of the test's own; as the worker calls it, by the name of a module."""
    name = f"tests_spark_operator_{uuid4().hex}"
    module = types.ModuleType(name)
    module.run = function  # type: ignore[attr-defined]
    sys.modules[name] = module
    try:
        return (engine or _engine)._run(name, task.context(cancel))  # type: ignore[union-attr]
    finally:
        del sys.modules[name]


def _begin(
    parent: int, place: Place, access: S3Access, scratch: Path, environment: Mapping[str, str], output: Path
) -> None:
    global _engine
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    logs.configure("worker", "info")
    os.environ.update(place.environment)
    os.environ.update(environment)
    config = SparkConfig(scratch / "session", place.master, log_level="error")
    _engine = SparkOperators(SharedSession(config), S3Transfer(access), scratch)


def _end() -> None:
    engine().close()

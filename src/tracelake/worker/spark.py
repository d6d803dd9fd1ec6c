"""Spark operators in a worker: several tasks at a time in one session, each a job group that can be cancelled.

The session is opened when the first of them comes, so that nothing else waits for it. While an operator runs, somebody
watches whether it should stop, and stops Spark's work for it: an operator that waits for Spark cannot look by itself.

Not everything in Spark can be cancelled: an expression that computes without end does not look whether it should stop,
and what the optimizer computes on the driver is no job. Such work is given `stop_seconds`; then the session is
replaced, which ends its Java process, and the other tasks that ran there begin anew at no cost of an attempt.
"""

import importlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracelake.catalogue.context import (
    AttemptLostError,
    CanceledError,
    NonRetryableError,
    OperatorContext,
    OperatorResult,
)
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark.failures import LOST, SparkFailedError, explain
from tracelake.spark.files import FileCache
from tracelake.spark.measure import measure
from tracelake.spark.operators import OPERATORS
from tracelake.spark.reader import Reader, Selection, TableReader
from tracelake.spark.session import SharedSession
from tracelake.spark.work import SparkWork
from tracelake.wire.units import PayloadInput
from tracelake.worker.operators import Operator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

REPLACED = "the worker replaced its Spark session, because another task in it did not stop"
_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_pools: set[int] = set()
"""In use. Spark never forgets a pool, so they are numbered and used again."""
_pools_lock = threading.Lock()


def _no_data() -> str:
    raise NonRetryableError("this worker reads no tables: it was not told where Postgres data is")


@dataclass(frozen=True, slots=True)
class Engine:
    """What Spark operators of one worker share."""

    shared: SharedSession
    transfer: FileTransfer
    scratch: Path
    data_dsn: Callable[[], str] = _no_data
    """Of Postgres data, asked for when a task reads a table."""
    stop_seconds: float = 20.0
    """How long work in Spark may take to stop before the session is replaced."""

    @property
    def cache(self) -> FileCache:
        return FileCache(self.scratch / "cache", self.transfer)

    def operators(self) -> dict[str, Operator]:
        return {name: Operator(partial(self._run, module)) for name, module in OPERATORS.items()}

    def close(self) -> None:
        self.shared.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _run(self, module: str, context: OperatorContext) -> OperatorResult:
        run = importlib.import_module(module).run
        scratch = self.scratch / "tasks" / f"{context.task_id}-{context.attempt}"
        session = None
        try:
            session = self.shared.get()
            reader = Reader(session, self.cache, scratch, local=self.shared.config.local)
            tables = TableReader(session, self.data_dsn)
            work = SparkWork(context, session, self.transfer, partial(_read, reader), tables.read)
            with closing(tables), self._cancellable(session, context):
                began = time.monotonic()
                result: OperatorResult = run(work)
                told = {"task_id": str(context.task_id), "attempt": context.attempt}
                logger.info("operator ended", extra={**told, "seconds": round(time.monotonic() - began, 3)})
            if self.shared.config.connect:
                return result
            return replace(result, spark=measure(session, _group(context)))
        except CanceledError:
            raise
        except Exception as error:
            if context.cancel.is_set():
                raise CanceledError from error
            if session is not None and self.shared.was_replaced(session):
                raise AttemptLostError(REPLACED) from error
            if session is not None and self.shared.is_lost(session):
                raise SparkFailedError(LOST) from error
            explained = explain(error)
            if explained is error:
                raise
            raise explained from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @contextmanager
    def _cancellable(self, session: "SparkSession", context: OperatorContext) -> Iterator[None]:
        """Everything that this thread asks of Spark belongs to the attempt's group."""
        group, connect = _group(context), self.shared.config.connect
        if connect:
            session.addTag(group)
        else:
            session.sparkContext.setJobGroup(group, group, interruptOnCancel=True)
        done = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(session, context, done), name="cancel", daemon=True)
        with _pool() as pool:
            if not connect:
                session.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
            watcher.start()
            try:
                yield
            finally:
                done.set()
                watcher.join()
                with suppress(Exception):  # of a session that was lost there is nothing to take back
                    _leave_group(session, group, connect=connect)

    def _watch(self, session: "SparkSession", context: OperatorContext, done: threading.Event) -> None:
        while not context.cancel.is_set():
            if done.wait(_LOOK_SECONDS):
                return
        group = _group(context)
        # On a thread of its own: Java may be too busy to answer, and this one has to count the seconds.
        stopping = (done, session, group, self.shared.config.connect)
        threading.Thread(target=_cancel_until, args=stopping, name="cancel-group", daemon=True).start()
        if not done.wait(self.stop_seconds):
            logger.error("work in Spark did not stop; replacing the session", extra={"group": group})
            self.shared.replace(session)


def _read(reader: Reader, item: PayloadInput, files: Sequence[ObjectMeta]) -> "DataFrame":
    return reader.read(item.name, files, Selection(*item.unit.blocks, item.where))


def _group(context: OperatorContext) -> str:
    return f"{context.task_id}#{context.attempt}"


@contextmanager
def _pool() -> Iterator[str]:
    """A name that no other task of this process has now: as many as there are tasks at a time."""
    with _pools_lock:
        number = next(number for number in range(len(_pools) + 1) if number not in _pools)
        _pools.add(number)
    try:
        yield f"tasks-{number}"
    finally:
        with _pools_lock:
            _pools.remove(number)


def _leave_group(session: "SparkSession", group: str, *, connect: bool) -> None:
    if connect:
        session.removeTag(group)
        return
    for name in ("spark.jobGroup.id", "spark.job.description", "spark.scheduler.pool"):
        session.sparkContext.setLocalProperty(name, None)  # type: ignore[arg-type]


def _cancel_until(done: threading.Event, session: "SparkSession", group: str, connect: bool) -> None:
    """Again and again: the operator may be on its way to its next job."""
    while True:
        with suppress(Exception):  # a session that was lost has stopped already
            if connect:
                session.interruptTag(group)
            else:
                session.sparkContext.cancelJobGroup(group)
        if done.wait(_AGAIN_SECONDS):
            return

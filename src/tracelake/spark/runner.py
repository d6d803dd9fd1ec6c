"""One attempt of a Spark operator in a session: a job group of its own that is cancelled when the attempt is.

While an operator runs, somebody watches whether it should stop, and stops Spark's work for it: an operator that waits
for Spark cannot look by itself. Not everything in Spark can be cancelled: an expression that computes without end
does not look whether it should stop, and what the optimizer computes on the driver is no job. What happens then is
the caller's to say (`on_overdue`).
"""

import importlib
import logging
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracelake.catalogue.context import OperatorContext, OperatorResult
from tracelake.model.log_attribution import attempt_key, carry_key
from tracelake.ports import FileTransfer, ObjectMeta
from tracelake.spark.checks.evaluation import CheckEvaluation
from tracelake.spark.gateway import MDC_ATTEMPT
from tracelake.spark.input_files import InputFiles
from tracelake.spark.live_columns import LiveColumns
from tracelake.spark.measure import measure
from tracelake.spark.reader import Reader, Selection
from tracelake.spark.session import SparkConfig
from tracelake.spark.work import HoldTables, ReadTable, SparkWork, no_snapshot
from tracelake.storage.file_cache import FileCache
from tracelake.wire.units import PayloadInput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
_AGAIN_SECONDS = 1.0
_pools: set[int] = set()
"""In use. Spark never forgets a pool, so they are numbered and used again."""
_pools_lock = threading.Lock()
_log_contexts: "weakref.WeakKeyDictionary[SparkSession, Any]" = weakref.WeakKeyDictionary()
"""The class of Java that holds the context of its log, by session: to find it takes several calls."""


@dataclass(frozen=True, slots=True)
class AttemptRunner:
    session: "SparkSession"
    config: SparkConfig
    cache: FileCache
    """Holds the attempt's transfer."""
    scratch: Path
    """For directories of attempts."""
    read_table: ReadTable
    stop_seconds: float | None = None
    """After so long without an end `on_overdue` is called; None: never."""
    on_overdue: Callable[[], None] = lambda: None
    hold_tables: HoldTables = no_snapshot

    @property
    def transfer(self) -> FileTransfer:
        return self.cache.transfer

    def run(self, module: str, context: OperatorContext) -> OperatorResult:
        """What the operator raises is raised as it is."""
        function = importlib.import_module(module).run
        scratch = self.scratch / "tasks" / f"{context.task_id}-{context.attempt}"
        try:
            reader = Reader(self.session, self.cache, scratch, local=self.config.local)
            work = SparkWork(
                context,
                self.session,
                self.transfer,
                partial(_read, reader),
                self.read_table,
                partial(_open, reader),
                self.hold_tables,
            )
            with self._cancellable(context):
                began = time.monotonic()
                evaluation = CheckEvaluation(work) if context.checks else None
                if evaluation is not None:
                    work.check_rows = evaluation.check_batch
                result: OperatorResult = function(work)
                if evaluation is not None:
                    evaluation.check_files()
                    result.checks.extend(evaluation.reports)
                fields = {"task_id": str(context.task_id), "attempt": context.attempt}
                logger.info("operator ended", extra={**fields, "seconds": round(time.monotonic() - began, 3)})
            if self.config.connect:
                return result
            return replace(result, spark=measure(self.session, _group(context)))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    @contextmanager
    def _cancellable(self, context: OperatorContext) -> Iterator[None]:
        """Everything that this thread asks of Spark belongs to the attempt's group."""
        session, group, connect = self.session, _group(context), self.config.connect
        if connect:
            session.addTag(group)
        else:
            session.sparkContext.setJobGroup(group, group, interruptOnCancel=True)
            session.sparkContext.setLocalProperty(MDC_ATTEMPT, group)
            _log_context(session).put(MDC_ATTEMPT, group)
        done = threading.Event()
        watcher = threading.Thread(target=carry_key(self._watch), args=(context, done), name="cancel", daemon=True)
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

    def _watch(self, context: OperatorContext, done: threading.Event) -> None:
        while not context.cancel.is_set():
            if done.wait(_LOOK_SECONDS):
                return
        group = _group(context)
        # On a thread of its own: Java may be too busy to answer, and this one has to count the seconds.
        stopping = (done, self.session, group, self.config.connect)
        threading.Thread(target=_cancel_until, args=stopping, name="cancel-group", daemon=True).start()
        if self.stop_seconds is not None and not done.wait(self.stop_seconds):
            logger.error("work in Spark did not stop; replacing the session", extra={"group": group})
            self.on_overdue()


def _read(
    reader: Reader,
    session: "SparkSession",
    item: PayloadInput,
    files: Sequence[ObjectMeta],
    live: LiveColumns | None,
) -> "DataFrame":
    return replace(reader, session=session).read(item.name, files, Selection.of(item), live)


def _open(reader: Reader, item: PayloadInput, files: Sequence[ObjectMeta], live: LiveColumns | None) -> InputFiles:
    return reader.open(item.name, files, Selection.of(item), live)


def _group(context: OperatorContext) -> str:
    return attempt_key(context.task_id, context.attempt)


def _log_context(session: "SparkSession") -> Any:
    """Of the thread of Java that works for the calling one."""
    context = _log_contexts.get(session)
    if context is None:
        jvm = session.sparkContext._jvm
        assert jvm is not None
        context = _log_contexts[session] = jvm.org.slf4j.MDC
    return context


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
    _log_context(session).remove(MDC_ATTEMPT)
    for name in ("spark.jobGroup.id", "spark.job.description", "spark.scheduler.pool", MDC_ATTEMPT):
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

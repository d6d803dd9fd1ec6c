"""Spark operators in a worker.

Operators of the platform's own code (`trusted` in the catalogue) share the worker's session, which is opened when the
first of them comes. Everything that evaluates what users wrote runs in the process of its org
(`worker/org_process/pool.py`), unless `isolation` is None: then all share the session.

Work in the shared session that does not stop within `stop_seconds` ends it, with its Java process, and the other
tasks that ran there begin anew at no cost of an attempt.
"""

import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tracelake.catalogue import CATALOGUE
from tracelake.catalogue.context import (
    AttemptLostError,
    CanceledError,
    NonRetryableError,
    OperatorContext,
    OperatorResult,
)
from tracelake.ports import FileTransfer
from tracelake.spark.failures import LOST, SparkFailedError, explain
from tracelake.spark.operators import operator_modules
from tracelake.spark.reader import TableReader
from tracelake.spark.runner import AttemptRunner
from tracelake.spark.session import SharedSession
from tracelake.storage.file_cache import FileCache
from tracelake.worker.operators import Operator
from tracelake.worker.org_process.pool import OrgProcesses

REPLACED = "the worker replaced its Spark session, because another task in it did not stop"


def _no_data() -> str:
    raise NonRetryableError("this worker has no access to Postgres data, so it cannot read tables: set data_read_dsn")


@dataclass(frozen=True, slots=True)
class SparkOperators:
    """The Spark operators of one worker, and what they share."""

    shared: SharedSession
    transfer: FileTransfer
    scratch: Path
    data_dsn: Callable[[], str] = _no_data
    """Of Postgres data, asked for when a task reads a table."""
    stop_seconds: float = 20.0
    """How long work in Spark may take to stop before the session is replaced."""
    isolation: OrgProcesses | None = None
    """Processes of orgs; None: every operator runs in the shared session."""

    @property
    def cache(self) -> FileCache:
        return FileCache(self.scratch / "cache", self.transfer)

    def operators(self) -> dict[str, Operator]:
        return {name: Operator(self._place(name, module)) for name, module in operator_modules().items()}

    def close(self) -> None:
        if self.isolation is not None:
            self.isolation.close()
        self.shared.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def _place(self, name: str, module: str) -> Callable[[OperatorContext], OperatorResult]:
        spec = CATALOGUE.get(name)
        if self.isolation is None or (spec is not None and spec.trusted):
            return partial(self._run, module)
        return partial(self.isolation.run, name, module)

    def _run(self, module: str, context: OperatorContext) -> OperatorResult:
        session = None
        try:
            with self.shared.use() as session, closing(TableReader(session, self.data_dsn)) as tables:
                runner = AttemptRunner(
                    session,
                    self.shared.config,
                    self.cache,
                    self.scratch,
                    tables.read,
                    self.stop_seconds,
                    partial(self.shared.replace, session),
                    tables.hold,
                )
                return runner.run(module, context)
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

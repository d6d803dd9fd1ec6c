"""Logs of the attempts of a worker: which records belong to which, and how they get to the Dispatcher.

Nothing waits for a log, and a log that cannot be stored fails nothing. A log is reported after its attempt has ended,
together with those that end in the same moment, and while the attempt runs: after two seconds, then ever less often,
and only if it has new lines. Reports are whole, so what was lost is repeated by the next one. While the Dispatcher is
away, logs of ended attempts wait, within a bound of memory: the oldest go first.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol
from uuid import UUID

import msgspec

from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.model.log_attribution import ATTEMPT_KEY, RECORD_FIELD, attempt_key
from tracelake.wire.run_logs import MAX_LOGS, AttemptLogReport, StoreLogsReply, StoreLogsRequest
from tracelake.worker.attempt_log import AttemptLog

FIRST_SECONDS = 2.0
"""After which the log of a running attempt is reported first."""
_SLOWEST_SECONDS = 10.0
_SHARE = 0.1
"""Between two reports passes this share of the time that the attempt has run."""
_BYTES_PER_SECOND = 16 * 1024
"""Of the log of one attempt, in the long run."""
_GATHER_SECONDS = 0.3
"""For which a log that has ended waits for others; its last lines arrive meanwhile."""
_LOOK_SECONDS = 1.0
_CALL_BYTES = 1024 * 1024
_MOST_WAITING_BYTES = 16 * 1024 * 1024
_FLUSH_SECONDS = 2.0


class LogCalls(Protocol):
    async def store_logs(self, request: StoreLogsRequest) -> StoreLogsReply: ...


class AttemptLogs(logging.Handler):
    """A handler of the root logger, which gives each record to the log of its attempt."""

    def __init__(
        self, worker_id: str, calls: LogCalls, backoff: Backoff, *, first_seconds: float = FIRST_SECONDS
    ) -> None:
        super().__init__()
        self._worker_id = worker_id
        self._calls = calls
        self._backoff = backoff
        self._first_seconds = first_seconds
        self._running: dict[str, AttemptLog] = {}
        self._due: dict[str, float] = {}
        """When a running log is reported next."""
        self._ended: dict[str, AttemptLog] = {}
        """Whose last report has not arrived, oldest first."""
        self._wake = asyncio.Event()
        self._is_failing = False

    # --- records

    def emit(self, record: logging.LogRecord) -> None:
        log = self._find(record)
        if log is None:
            return
        with suppress(Exception):  # a record that cannot be formatted is the business of whoever wrote it
            log.add_record(record)

    def _find(self, record: logging.LogRecord) -> AttemptLog | None:
        key = getattr(record, RECORD_FIELD, None) or ATTEMPT_KEY.get()
        if key is None:
            task_id, attempt = getattr(record, "task_id", None), getattr(record, "attempt", None)
            key = f"{task_id}#{attempt}"
        return self._running.get(key) or self._ended.get(key)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        root = logging.getLogger()
        root.addHandler(self)
        try:
            yield
        finally:
            root.removeHandler(self)

    # --- attempts

    def open(self, task_id: UUID, attempt: int, hide: Callable[[str], str]) -> AttemptLog:
        """Everything that the current thread or coroutine does from now on belongs to the attempt."""
        log = AttemptLog(task_id, attempt, hide)
        self._running[log.key] = log
        self._due[log.key] = asyncio.get_running_loop().time() + self._first_seconds
        ATTEMPT_KEY.set(attempt_key(task_id, attempt))
        self._wake.set()
        return log

    def close_log(self, log: AttemptLog, ending: str, *, keep: bool = True) -> None:
        """The attempt has ended. With `keep` its log is reported once more."""
        log.end(ending)
        self._running.pop(log.key, None)
        self._due.pop(log.key, None)
        if not keep:
            return
        self._ended[log.key] = log
        self._drop_oldest()
        self._wake.set()

    def _drop_oldest(self) -> None:
        size = sum(log.size for log in self._ended.values())
        for key in list(self._ended):
            if size <= _MOST_WAITING_BYTES:
                return
            size -= self._ended.pop(key).size

    # --- reports

    async def run(self) -> None:
        """Until it is cancelled."""
        tries = 0
        while True:
            self._wake.clear()
            if not self._ended:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS if self._running else None):
                        await self._wake.wait()
            await asyncio.sleep(self._backoff.seconds(tries) if tries else _GATHER_SECONDS)
            tries = 0 if await self.report_due() else tries + 1

    async def report_due(self) -> bool:
        """Reports what has ended or is due. False if the Dispatcher did not take it."""
        now = asyncio.get_running_loop().time()
        due = [log for key, log in self._running.items() if self._due[key] <= now and log.last > log.reported_end]
        for batch in self._batches([*self._ended.values(), *due]):
            if not await self._send(batch):
                return False
        for log in due:
            if log.key in self._due:
                self._due[log.key] = now + self._pause_after(log)
        return True

    def _pause_after(self, log: AttemptLog) -> float:
        """A large log is sent less often: it is sent whole."""
        share = min(_SHARE * (time.monotonic() - log.began), _SLOWEST_SECONDS)
        return max(self._first_seconds, share, log.size / _BYTES_PER_SECOND)

    async def report_last(self) -> None:
        """Gives what has ended a last moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_SECONDS):
                await self.report_due()

    def _batches(self, logs: Sequence[AttemptLog]) -> Iterator[Mapping[str, AttemptLogReport]]:
        batch: dict[str, AttemptLogReport] = {}
        size = 0
        for log in logs:
            if batch and (size + log.size > _CALL_BYTES or len(batch) == MAX_LOGS):
                yield batch
                batch, size = {}, 0
            batch[log.key] = log.report()
            size += log.size
        if batch:
            yield batch

    async def _send(self, batch: Mapping[str, AttemptLogReport]) -> bool:
        request = StoreLogsRequest(worker_id=self._worker_id, logs=list(batch.values()))
        try:
            await self._calls.store_logs(request)
        except TraceError as error:
            if error.retryable or error.status >= 500:
                self._tell_once(error)
                return False
            if len(batch) > 1:  # one log that is refused takes no other along
                return all([await self._send({key: report}) for key, report in batch.items()])
            # Nothing changes by repeating it. A Dispatcher that is older than this worker has no such route.
            self._tell_once(error)
        except msgspec.MsgspecError as error:  # what cannot be written is no reason to write nothing from now on
            self._tell_once(error)
        else:
            self._is_failing = False
        for key, report in batch.items():
            log = self._running.get(key) or self._ended.get(key)
            if log is not None:
                log.reported_end = report.start + len(report.lines)
            if report.ending is not None:
                self._ended.pop(key, None)
        return True

    def _tell_once(self, error: Exception) -> None:
        if not self._is_failing:
            text = error.code if isinstance(error, TraceError) else type(error).__name__
            logging.getLogger(__name__).warning("logs of attempts cannot be stored", extra={"reason": text})
        self._is_failing = True

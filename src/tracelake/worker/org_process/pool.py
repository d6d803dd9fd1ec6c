"""The Spark processes of a worker: one for each org that has work, and a spare that hides the start of the next one.

The first spare starts with the worker. A worker without an attempt for `idle_seconds` ends all of them, the spare too;
the next attempt starts one again.

A process serves one org from its first attempt until it ends; it is never bound anew. There are at most `limit` of
them. For an org that has none and finds all places taken, the process that was idle longest is ended. If none is
idle, the one that has had its place longest takes no further attempts, ends when it is empty, and its org waits in
turn. Who waits is served in the order of arrival.

A process that crashes while several attempts run in it ends all of them at no cost; nobody knows whose fault it was.
Each then runs alone in a process of its own, where a crash counts as its failure.
"""

import itertools
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import TypeAlias
from uuid import UUID

from tracelake.catalogue.context import AttemptLostError, CanceledError, OperatorContext, OperatorResult
from tracelake.doc_pages import find_page
from tracelake.ports import FileTransfer
from tracelake.worker.org_process.launch import OrgProcessConfig
from tracelake.worker.org_process.process import IDLE, LOST_BESIDE, MEMORY, STOPPING, OrgProcess, ProcessGoneError
from tracelake.worker.org_process.process_tree import read_parents

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_WATCH_SECONDS = 1.0
_END_SECONDS = 30.0
_MOST_SUSPECTS = 10_000
_SETTLE_SECONDS = 5.0
"""An org that has just got its process sends more than one task."""
_SPARE_PAUSE = 30.0
"""After a spare that did not start."""


StartProcess: TypeAlias = Callable[[OrgProcessConfig, int, Callable[[], None]], OrgProcess]


class _Ticket:
    def __init__(self, org: str, *, alone: bool) -> None:
        self.org = org
        self.alone = alone


class OrgProcesses:
    def __init__(
        self,
        config: OrgProcessConfig,
        transfer: FileTransfer,
        data_dsn: Callable[[], str],
        *,
        limit: int = 4,
        idle_seconds: float = 300.0,
        spare: bool = True,
        spare_delay: float = 60.0,
        start: StartProcess = OrgProcess,
    ) -> None:
        """A start takes a core for seconds: the next spare starts when nothing runs, or after `spare_delay`."""
        self._config = config
        self._start = start
        self._transfer = transfer
        self._data_dsn = data_dsn
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._spare_wanted = spare
        self._spare_delay = spare_delay
        self._spare_from = self._busy_until = self._active_at = time.monotonic()
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._processes: list[OrgProcess] = []
        """Bound to an org."""
        self._spare: OrgProcess | None = None
        self._waiting: deque[_Ticket] = deque()
        self._start_now = False
        """Somebody waits for a process."""
        self._suspects: OrderedDict[UUID, None] = OrderedDict()
        self._warned: set[str] = set()
        self._closed = False
        self._supervisor = threading.Thread(target=self._supervise, name="spark-supervisor", daemon=True)
        self._supervisor.start()

    def run(self, name: str, module: str, context: OperatorContext) -> OperatorResult:
        """On the operator's thread, until the attempt has ended."""
        while True:
            alone = context.task_id in self._suspects
            process = self._acquire(_Ticket(context.org, alone=alone), context)
            try:
                return process.run(name, module, context, self._transfer, self._data_dsn)
            except ProcessGoneError:
                continue
            except AttemptLostError as error:
                if str(error) == LOST_BESIDE:
                    self._suspect(context.task_id)
                raise
            finally:
                self._release(process)
                if alone:
                    self._suspects.pop(context.task_id, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._supervisor.join()

    @property
    def processes(self) -> list[OrgProcess]:
        """Those that serve an org now."""
        with self._changed:
            return list(self._processes)

    @property
    def spare(self) -> OrgProcess | None:
        return self._spare

    # --- places

    def _acquire(self, ticket: _Ticket, context: OperatorContext) -> OrgProcess:
        with self._changed:
            self._active_at = time.monotonic()
            self._waiting.append(ticket)
            try:
                while True:
                    if context.cancel.is_set() or self._closed:
                        raise CanceledError
                    process = self._try(ticket)
                    if process is not None:
                        process.places += 1
                        return process
                    self._changed.wait(_LOOK_SECONDS)
            finally:
                self._waiting.remove(ticket)
                self._reopen()
                self._changed.notify_all()

    def _try(self, ticket: _Ticket) -> OrgProcess | None:
        own = [process for process in self._processes if process.org == ticket.org and process.alive]
        for process in own:
            if process.closing or process.alone or (ticket.alone and process.places):
                continue
            process.alone = ticket.alone
            return process
        if self._first_without_process() is not ticket:
            return None
        if sum(process.alive for process in self._processes) >= self._limit and not self._make_room():
            return None
        new = self._take_new()
        if new is not None:
            new.org, new.alone = ticket.org, ticket.alone
            new.bound_at = time.monotonic()
            self._processes.append(new)
            self._spare_from = time.monotonic() + _SETTLE_SECONDS
            self._busy_until = time.monotonic() + self._spare_delay
        return new

    def _first_without_process(self) -> _Ticket | None:
        """Of those that wait, in their order, the first that no process is open for."""
        return next(self._without_process(), None)

    def _without_process(self) -> Iterator[_Ticket]:
        served = {
            process.org for process in self._processes if process.alive and not process.closing and not process.alone
        }
        return (ticket for ticket in self._waiting if ticket.alone or ticket.org not in served)

    def _reopen(self) -> None:
        """A process takes attempts again when nobody but its own org waits for its place."""
        for process in self._processes:
            if process.closing and all(
                ticket.org == process.org and not ticket.alone for ticket in self._without_process()
            ):
                process.closing = False

    def _make_room(self) -> bool:
        """Whether there is a place now; if not, somebody has begun to leave."""
        alive = [process for process in self._processes if process.alive]
        idle = [process for process in alive if not process.places]
        if idle:
            leaving = min(idle, key=lambda process: process.used_at)
            self._processes.remove(leaving)
            leaving.end(IDLE)
            return True
        if not any(process.closing for process in alive):
            min(alive, key=lambda process: process.bound_at).closing = True
        return False

    def _take_new(self) -> OrgProcess | None:
        """The spare, which may still be on its way up; without one, it is asked for."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.alive:
            # Others of the org asked for this one too, while it started. Who still needs one asks again.
            self._start_now = False
            return spare
        self._start_now = True
        self._changed.notify_all()
        return None

    def _release(self, process: OrgProcess) -> None:
        with self._changed:
            process.places -= 1
            process.used_at = self._active_at = time.monotonic()
            if process.alone and not process.places:
                process.alone = False
            if not process.alive and process in self._processes:
                self._processes.remove(process)
            self._changed.notify_all()

    def _suspect(self, task_id: UUID) -> None:
        with self._changed:
            self._suspects[task_id] = None
            while len(self._suspects) > _MOST_SUSPECTS:
                self._suspects.popitem(last=False)

    # --- supervision

    def _supervise(self) -> None:
        """On one thread for the life of the worker: a process ends with the thread that started it."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._must_start(), _WATCH_SECONDS)
                if self._closed:
                    break
                starting = self._must_start()
                self._start_now = False
            if starting:
                self._start_spare()
            try:
                self._look_after()
            except Exception:
                logger.exception("Spark processes were not looked after")
        last = [*self._processes, *([self._spare] if self._spare else [])]
        for process in last:
            process.end(STOPPING)
        for process in last:
            process.ended.wait(_END_SECONDS)

    def _must_start(self) -> bool:
        spare = self._spare
        if spare is not None and spare.alive:
            return False
        if self._start_now:
            return True
        if self._is_idle():
            return False
        busy = any(process.places for process in self._processes)
        return self._spare_wanted and time.monotonic() >= (self._busy_until if busy else self._spare_from)

    def _is_idle(self) -> bool:
        """Whether there was no attempt of any org for so long that the spare is not worth its memory."""
        if self._waiting or any(process.places for process in self._processes):
            return False
        return self._active_at < time.monotonic() - self._idle_seconds

    def _start_spare(self) -> None:
        try:
            process = self._start(self._config, next(self._numbers), self._notify)
        except Exception:  # whatever it is: without this thread no process would ever start again
            logger.exception("a Spark process does not start")
            self._spare_from = self._busy_until = time.monotonic() + _SPARE_PAUSE
            return
        with self._changed:
            self._spare = process
            self._spare_from = self._busy_until = time.monotonic() + _SPARE_PAUSE
            self._changed.notify_all()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _look_after(self) -> None:
        with self._changed:
            bound, spare = list(self._processes), self._spare
            self._reopen()
            over = time.monotonic() - self._idle_seconds
            for process in bound:
                if not process.places and (process.used_at < over or not process.alive):
                    self._processes.remove(process)
                    process.end(IDLE)
            if spare is not None and self._is_idle():
                self._spare = None
                spare.end(IDLE)
        watched = [process for process in (*bound, spare) if process is not None and process.alive]
        self._warn(watched)
        if not self._config.local:
            return
        limit = self._config.memory_bytes + self._config.overhead_bytes
        parents = read_parents()
        for process in watched:
            if process.memory(parents) > limit:
                logger.error("a Spark process takes too much memory", extra={"org": process.org, "limit": limit})
                process.end(MEMORY)

    def _warn(self, processes: list[OrgProcess]) -> None:
        """Once for each limit that this machine does not offer."""
        for process in processes:
            for name, reason in process.missing.items():
                if name not in self._warned:
                    self._warned.add(name)
                    extra = {"limit": name, "reason": reason}
                    text = f"Spark processes of orgs run without a limit: see {find_page('spark.md')}"
                    logger.warning(text, extra=extra)

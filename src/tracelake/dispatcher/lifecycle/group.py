"""Group commit: calls that arrive while a transaction is in flight share the next one.

There is no timer: an idle Dispatcher commits a call at once, a busy one commits many at the price of one.
Promises: a batch holds at most one call per task, and calls of one task run in the order they came; a
statement that errors falls back to singles, so that one caller's bad input never fails its neighbours; a
store that is away is 503 for the whole batch, since a lost connection at COMMIT leaves the outcome open; a
caller who hangs up cancels nobody, itself included; calls of an org whose pointers are being moved step aside until
that is over (or 503 after a while), and hold up nobody else.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import asyncpg

from tracelake.db.transaction import RoutingBusyError
from tracelake.dispatcher.lifecycle.calls import Answer, Call
from tracelake.errors import StoreUnavailableError, TraceError

logger = logging.getLogger(__name__)

CommitBatch: TypeAlias = Callable[[Sequence[Call]], Awaitable[Sequence[Answer]]]


_PATIENCE_SECONDS = 5.0
_ASIDE_SECONDS = 0.05


@dataclass(slots=True)
class _Pending:
    call: Call
    answer: "asyncio.Future[Answer]"
    patience: float
    """How long it still steps aside."""


class GroupCommit:
    def __init__(self, commit: CommitBatch, *, max_batch: int, lanes: int) -> None:
        self._commit = commit
        self._max_batch = max_batch
        self._free_lanes = lanes
        self._waiting: dict[UUID, deque[_Pending]] = {}
        """Calls by task, in the order they came; the first of a busy task is in flight."""
        self._ready: deque[UUID] = deque()
        """Tasks with a waiting call and none in flight."""
        self._busy: set[UUID] = set()
        self._aside: set[UUID] = set()
        """Tasks whose first call steps aside."""
        self._running: set[asyncio.Task[None]] = set()
        self._closed = False

    def enqueue(self, call: Call) -> "asyncio.Future[Answer]":
        """Queue a call and return at once, so that a batch of calls keeps its order."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(StoreUnavailableError("The Dispatcher is stopping."))
            return future
        line = self._waiting.setdefault(call.task_id, deque())
        line.append(_Pending(call, future, _PATIENCE_SECONDS))
        if len(line) == 1 and call.task_id not in self._busy:
            self._ready.append(call.task_id)
        self._start_lane()
        return future

    def _start_lane(self) -> None:
        if self._free_lanes and self._ready:
            # Not before this turn of the loop ends: callers that are ready now share the batch.
            self._free_lanes -= 1
            self._supervise(self._run_lane())

    def _supervise(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Finish what was accepted, accept no more."""
        self._closed = True
        while running := set(self._running):
            await asyncio.gather(*running)
            # Not left to their callbacks: awaiting what is already done does not let the loop run those.
            self._running -= running

    def _step_aside(self, items: list[_Pending]) -> None:
        """Each stays the first of its task, and is tried again in a moment."""
        waiting = []
        for item in items:
            item.patience -= _ASIDE_SECONDS
            if item.patience <= 0:
                _settle(item, StoreUnavailableError("The DAGs of this org are being changed; repeat the call."))
                continue
            self._waiting[item.call.task_id].appendleft(item)
            self._aside.add(item.call.task_id)
            waiting.append(item.call.task_id)
        if waiting:
            self._supervise(self._come_back(waiting))

    async def _come_back(self, tasks: list[UUID]) -> None:
        await asyncio.sleep(_ASIDE_SECONDS)
        for task_id in tasks:
            self._aside.discard(task_id)
            self._ready.append(task_id)
        self._start_lane()

    async def _run_lane(self) -> None:
        try:
            while batch := self._take():
                try:
                    await self._run(batch)
                finally:
                    self._release(batch)
        finally:
            self._free_lanes += 1

    def _take(self) -> list[_Pending]:
        """One call of each of the tasks that waited longest. What a batch costs does not grow with what waits."""
        batch: list[_Pending] = []
        while self._ready and len(batch) < self._max_batch:
            task_id = self._ready.popleft()
            self._busy.add(task_id)
            batch.append(self._waiting[task_id].popleft())
        return batch

    def _release(self, batch: list[_Pending]) -> None:
        for item in batch:
            task_id = item.call.task_id
            self._busy.discard(task_id)
            if not self._waiting[task_id]:
                del self._waiting[task_id]
            elif task_id not in self._aside:
                self._ready.append(task_id)

    async def _run(self, batch: list[_Pending]) -> None:
        try:
            answers = await self._commit([item.call for item in batch])
        except StoreUnavailableError as away:
            for item in batch:
                _settle(item, away)
        except RoutingBusyError as busy:
            self._step_aside([item for item in batch if _org(item) == busy.org_id])
            others = [item for item in batch if _org(item) != busy.org_id]
            if others:
                await self._run(others)
        except Exception as error:
            if len(batch) == 1:
                _settle(batch[0], _unexpected(error))
                return
            logger.warning("a batch failed and is repeated one by one", extra={"size": len(batch)}, exc_info=error)
            for item in batch:
                await self._run([item])
        else:
            for item, answer in zip(batch, answers, strict=True):
                _settle(item, answer)


def _org(item: _Pending) -> UUID | None:
    """The org whose routing lock the call needs."""
    return getattr(item.call, "org_id", None)


def _unexpected(error: Exception) -> TraceError:
    if isinstance(error, asyncpg.DeadlockDetectedError | asyncpg.SerializationError | asyncpg.LockNotAvailableError):
        return StoreUnavailableError("The call met a concurrent one; repeat it.")
    logger.error("a lifecycle call failed", exc_info=error)
    return TraceError("internal")


def _settle(item: _Pending, answer: Answer) -> None:
    if item.answer.done():  # the caller hung up; the call itself stands
        return
    if isinstance(answer, TraceError):
        item.answer.set_exception(answer)
    else:
        item.answer.set_result(answer)

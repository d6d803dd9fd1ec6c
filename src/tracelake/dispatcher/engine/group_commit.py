"""Group commit: calls that arrive while a transaction is in flight share the next one.

There is no timer: an idle Dispatcher commits a call at once, a busy one commits many at the price of one. Promises:

- Every accepted call is answered exactly once, whatever `commit` raises. A caller who hangs up cancels nobody, itself
  included.
- Calls of one task run in the order they came, one at a time. A batch holds at most one call per task, and a bounded
  amount of estimated work.
- Claims and heartbeats have a lane of their own, ordinary calls another. These transactions wait for nobody's rows: a
  call that meets a lock, and each heavy call, goes to the slow lanes, and for a moment so do the others of its org.
  There a batch is of one org, an org has one lane at most, and it rests after a heavy batch while others call:
  what one org asks for without a pause leaves most of the time to them.
- An error that says nothing about the outcome of others (a statement that fails or takes too long) is repeated in
  smaller parts, at last one by one: one caller's input never fails its neighbours. A store that is away is 503 for the
  whole batch, since a connection lost at COMMIT leaves the outcome open.
- Calls of an org whose pointers are being moved are parked until that is over (503 after a while) and hold up nobody.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Protocol
from uuid import UUID

import asyncpg

from tracelake.db.routing_gate import RoutingBusyError
from tracelake.db.transaction import StatementTimeoutError
from tracelake.dispatcher.engine.calls.call import AnyCall, Call, Reply
from tracelake.dispatcher.engine.lanes import (
    LOCKED_ROW,
    CallOutcome,
    LaneKind,
    LaneRun,
    OrgKey,
    PendingCall,
    ReadyQueue,
    TaskLine,
)
from tracelake.errors import StoreUnavailableError, TraceError

logger = logging.getLogger(__name__)

BUSY_PATIENCE_SECONDS = 5.0
_FIRST_PARK_SECONDS = 0.02
_LONGEST_PARK_SECONDS = 0.2
_REPEAT_SECONDS = 30.0
"""After a timeout, parts of the batch are repeated for this long; then the rest is 503."""
_HEAVY_SHARE = 8
"""A call heavier than this part of a batch's weight is heavy."""
SLOW_LANES = 2
_REST_FACTOR = 2.0
"""An org's heavy batches take a third of the time at most while another org calls."""
_LONGEST_REST_SECONDS = 0.5
_AROUND_SECONDS = 1.0
"""An org that called within this time is around."""
_CONTENDED_SECONDS = 1.0
"""For this long after a call met a lock, its org's calls take the slow lane."""

_MET_A_LOCK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.LockNotAvailableError)


class BatchCommitter(Protocol):
    def __call__(self, calls: Sequence[AnyCall], *, patient: bool) -> Awaitable[Sequence[CallOutcome]]:
        """One transaction. Unless `patient` it waits for no row of a task: `LOCKED_ROW` is the outcome instead."""
        ...


class _Lane:
    def __init__(self, kind: LaneKind, runs: int) -> None:
        self.kind = kind
        self.free = runs
        self.ready = ReadyQueue()
        self.taken_at = 0.0
        """When calls were last taken, or began to wait."""


class GroupCommit:
    def __init__(self, commit: BatchCommitter, *, max_batch: int, lanes: int, max_weight: int = 512) -> None:
        self._commit = commit
        self._max_batch = max_batch
        self._max_weight = max_weight
        self._heavy = max(1, max_weight // _HEAVY_SHARE)
        runs = {LaneKind.URGENT: lanes, LaneKind.ORDINARY: lanes, LaneKind.SLOW: SLOW_LANES}
        self._lanes = {kind: _Lane(kind, number) for kind, number in runs.items()}
        self._lines: dict[UUID, TaskLine] = {}
        """Of every task with a call that is not answered."""
        self._parked: dict[UUID, list[PendingCall]] = {}
        """By org: the first calls of lines that wait until it can be routed for."""
        self._park_seconds: dict[UUID, float] = {}
        self._contended: dict[UUID, float] = {}
        """Until when calls of these orgs take the slow lane."""
        self._runs: set[LaneRun] = set()
        self._slow_orgs: set[OrgKey] = set()
        """Those that have a slow lane, or rest."""
        self._called_at: dict[UUID, float] = {}
        """When each org last called."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._closed = False

    def enqueue(self, call: Call[Reply]) -> "asyncio.Future[Reply]":
        """Queue a call and return at once, so that a batch of calls keeps its order."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self._closed:
            future.set_exception(StoreUnavailableError("The Dispatcher is stopping."))
            return future
        weight = call.weight
        if (owner := call.owner) is not None:
            self._called_at[owner] = asyncio.get_running_loop().time()
        kind = LaneKind.URGENT if call.urgent else LaneKind.ORDINARY
        if weight > self._heavy:
            kind = LaneKind.SLOW
        line = self._lines.get(call.task_id)
        if line is None:
            line = self._lines[call.task_id] = TaskLine(call.task_id)
            self._empty.clear()
        pending = PendingCall(call, future, weight, kind, line)
        line.calls.append(pending)
        if len(line.calls) == 1:
            self._schedule(pending)
        return future

    async def close(self) -> None:
        """Finishes the calls that were accepted, and accepts no more."""
        self._closed = True
        await self._empty.wait()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def stalled(self, seconds: float) -> bool:
        """Whether calls wait and nothing has moved for so long: a lane is stuck, and only a restart helps."""
        if not self._lines:
            return False
        before = asyncio.get_running_loop().time() - seconds
        return (
            any(run.progress_at < before for run in self._runs)
            or any(lane.ready and lane.taken_at < before for lane in self._lanes.values() if not self._at_work(lane))
            or any((item.patience_until or before) < before for items in self._parked.values() for item in items)
        )

    def _at_work(self, lane: _Lane) -> bool:
        return any(run.kind is lane.kind for run in self._runs)

    # Where a line's first call waits

    def _schedule(self, pending: PendingCall) -> None:
        org = pending.call.routing_org
        if org is not None and org in self._parked:
            self._park(org, [pending])
            return
        now = asyncio.get_running_loop().time()
        if org is not None and org in self._contended and pending.lane is not LaneKind.SLOW:
            if self._contended[org] > now:
                pending.lane = LaneKind.SLOW
            else:
                del self._contended[org]
        lane = self._lanes[pending.lane]
        if not lane.ready:
            lane.taken_at = now
        lane.ready.push(org, pending.line)
        self._start(lane)

    def _start(self, lane: _Lane) -> None:
        excluded = self._slow_orgs if lane.kind is LaneKind.SLOW else ()
        if lane.free and lane.ready.offers(excluded):
            # Not before this turn of the loop ends: callers that are ready now share the batch.
            lane.free -= 1
            task = asyncio.get_running_loop().create_task(self._run_lane(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _park(self, org_id: UUID, items: Sequence[PendingCall]) -> None:
        """Lets calls wait until their org can be routed for; they stay first of their tasks."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        waiting = []
        for item in items:
            item.run = None
            if item.patience_until is None:
                item.patience_until = now + BUSY_PATIENCE_SECONDS
            if now < item.patience_until:
                waiting.append(item)
        if waiting and org_id in self._parked:
            self._parked[org_id] += waiting
        elif waiting:
            self._parked[org_id] = waiting
            seconds = self._park_seconds.get(org_id, _FIRST_PARK_SECONDS)
            self._park_seconds[org_id] = min(2 * seconds, _LONGEST_PARK_SECONDS)
            loop.call_later(seconds * random.uniform(0.75, 1.25), self._unpark, org_id)  # noqa: S311 - jitter
        for item in items:
            if item not in waiting:
                self._settle(
                    item, StoreUnavailableError("Expected the org's DAGs to be at rest; they are changing. Repeat it.")
                )

    def _unpark(self, org_id: UUID) -> None:
        for item in self._parked.pop(org_id, ()):
            self._schedule(item)

    def _to_slow_lane(self, items: Sequence[PendingCall]) -> None:
        until = asyncio.get_running_loop().time() + _CONTENDED_SECONDS
        for item in items:
            item.run = None
            item.lane = LaneKind.SLOW
            if item.call.routing_org is not None:
                self._contended[item.call.routing_org] = until
            self._schedule(item)

    def _settle(self, pending: PendingCall, outcome: CallOutcome) -> None:
        """Answer the first call of a line; the next one is ready."""
        line = pending.line
        assert line.calls[0] is pending
        pending.run = None
        line.calls.popleft()
        if line.calls:
            self._schedule(line.calls[0])
        else:
            del self._lines[line.task_id]
            if not self._lines:
                self._empty.set()
        if pending.answer.done():  # the caller hung up; the call itself stands
            return
        if isinstance(outcome, TraceError):
            pending.answer.set_exception(outcome)
        else:
            pending.answer.set_result(outcome)

    # Lanes

    async def _run_lane(self, lane: _Lane) -> None:
        run = LaneRun(lane.kind, asyncio.get_running_loop().time())
        self._runs.add(run)
        try:
            while self._take(lane, run):
                began = run.progress_at
                try:
                    await self._commit_parts(run)
                finally:
                    if lane.kind is LaneKind.SLOW:
                        self._let_rest(lane, run, began)
                    # Whatever happened: what has no answer yet gets one, and its task goes on.
                    for pending in run.batch:
                        if pending.run is run:
                            self._settle(pending, StoreUnavailableError("The call was interrupted; repeat it."))
        except Exception:
            logger.exception("a lane of the group commit failed; its calls were answered")
        finally:
            self._runs.discard(run)
            lane.free += 1
            self._start(lane)

    def _let_rest(self, lane: _Lane, run: LaneRun, began: float) -> None:
        """Delays the next batch of the org after a heavy one; the lane goes on with other orgs."""
        org, now = run.batch[0].call.routing_org, asyncio.get_running_loop().time()

        def end() -> None:
            self._slow_orgs.discard(org)
            self._start(lane)

        heavy = org is not None and any(item.weight > self._heavy for item in run.batch)
        if heavy and self._others_around(org, now):
            seconds = min(_REST_FACTOR * (now - began), _LONGEST_REST_SECONDS)
            asyncio.get_running_loop().call_later(seconds, end)
        else:
            self._slow_orgs.discard(org)

    def _others_around(self, org: OrgKey, now: float) -> bool:
        self._called_at = {key: at for key, at in self._called_at.items() if at > now - _AROUND_SECONDS}
        return any(key != org for key in self._called_at)

    def _take(self, lane: _Lane, run: LaneRun) -> bool:
        run.progress_at = lane.taken_at = asyncio.get_running_loop().time()
        if lane.kind is LaneKind.SLOW:
            run.batch = lane.ready.take_org(self._max_batch, self._max_weight, self._slow_orgs)
            if run.batch:
                self._slow_orgs.add(run.batch[0].call.routing_org)
        else:
            run.batch = lane.ready.take(self._max_batch, self._max_weight)
        for pending in run.batch:
            pending.run = run
        return bool(run.batch)

    async def _commit_parts(self, run: LaneRun) -> None:
        """Commits the run's batch: afterwards each call is settled, parked, or in line for a slow lane."""
        loop = asyncio.get_running_loop()
        patient = run.kind is LaneKind.SLOW
        parts = deque([run.batch])
        give_up_at: float | None = None
        while parts:
            part = parts.popleft()
            try:
                if give_up_at is not None and loop.time() >= give_up_at:
                    raise StoreUnavailableError("The store takes too long right now; repeat the call.")
                outcomes = await self._commit([item.call for item in part], patient=patient)
            except StatementTimeoutError as late:
                if give_up_at is None:
                    give_up_at = loop.time() + _REPEAT_SECONDS
                if len(part) == 1:
                    self._settle(part[0], late)
                else:
                    parts.extendleft(_smaller(part, late))
            except StoreUnavailableError as away:
                for item in (*part, *(item for left in parts for item in left)):
                    self._settle(item, away)
                return
            except Exception as error:
                parts.extendleft(self._give_way(part, error, patient=patient))
            else:
                self._answer(part, outcomes)
            run.progress_at = loop.time()

    def _give_way(self, part: list[PendingCall], error: Exception, *, patient: bool) -> list[list[PendingCall]]:
        """Returns the parts of a failed part that are repeated now; the first to repeat stands last."""
        if isinstance(error, RoutingBusyError):
            parked = [item for item in part if item.call.routing_org == error.org_id]
            if parked:  # else no call declares that org: a bug, and repeating it as a whole would not end
                rest = [item for item in part if item.call.routing_org != error.org_id]
                self._park(error.org_id, parked)
                return [rest] if rest else []
        if isinstance(error, _MET_A_LOCK) and not patient and len(_alike(part)) == 1:
            self._to_slow_lane(part)
            return []
        if len(part) == 1:
            self._settle(part[0], _as_refusal(error))
            return []
        return _smaller(part, error)

    def _answer(self, part: list[PendingCall], outcomes: Sequence[CallOutcome]) -> None:
        if len(outcomes) != len(part):
            raise RuntimeError(f"expected {len(part)} answers of a commit, received {len(outcomes)}")
        for item, outcome in zip(part, outcomes, strict=True):
            if item.call.routing_org is not None:
                self._park_seconds.pop(item.call.routing_org, None)
            if outcome is LOCKED_ROW:
                self._to_slow_lane([item])
            else:
                self._settle(item, outcome)


def _alike(part: Sequence[PendingCall]) -> list[list[PendingCall]]:
    """Groups calls of one kind and org."""
    groups: dict[tuple[type[AnyCall], OrgKey], list[PendingCall]] = {}
    for item in part:
        groups.setdefault((type(item.call), item.call.routing_org), []).append(item)
    return list(groups.values())


def _smaller(part: Sequence[PendingCall], error: Exception) -> list[list[PendingCall]]:
    """Splits a failed part: by kind and org, then one by one. The first part to repeat stands last."""
    logger.warning("a batch failed and is repeated in parts", extra={"size": len(part)}, exc_info=error)
    groups = _alike(part)
    return list(reversed(groups if len(groups) > 1 else [[item] for item in part]))


def _as_refusal(error: Exception) -> TraceError:
    if isinstance(error, _MET_A_LOCK):
        return StoreUnavailableError("The call conflicts with a concurrent one; repeat it.")
    logger.error("a lifecycle call failed", exc_info=error)
    return TraceError("internal")

"""The lines and lanes that calls wait in: a line per task, and queues of the lines whose first call may run.

A line is in exactly one place: in the queue of a lane, in flight, or parked until its org can be routed for again. Its
first call stays first until it is answered, so the calls of a task run in the order they came, and none runs twice.
"""

import asyncio
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias
from uuid import UUID

from tracelake.dispatcher.engine.calls.call import AnyCall


class LaneKind(StrEnum):
    URGENT = "urgent"
    """Claims and heartbeats."""
    ORDINARY = "ordinary"
    SLOW = "slow"
    """Heavy calls, and those that met a lock: here alone a transaction waits for rows."""


@dataclass(slots=True, eq=False)
class PendingCall:
    """A call that is not answered yet."""

    call: AnyCall
    answer: "asyncio.Future[Any]"
    """What its caller awaits; typed by `GroupCommit.enqueue`."""
    weight: int
    lane: LaneKind
    line: "TaskLine"
    run: "LaneRun | None" = None
    """The run of a lane whose batch it is in."""
    patience_until: float | None = None
    """Set when its org is first found busy."""


@dataclass(slots=True, eq=False)
class LaneRun:
    """One lane at work."""

    kind: LaneKind
    progress_at: float
    batch: list[PendingCall] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class TaskLine:
    """The calls of one task, in the order they came."""

    task_id: UUID
    calls: deque[PendingCall] = field(default_factory=deque)


class LockedRow:
    """The outcome of a call whose task's row somebody else holds: nothing was decided."""


LOCKED_ROW = LockedRow()

CallOutcome: TypeAlias = Any
"""What a transaction answers for a call: its reply, the `TraceError` that refuses it, or `LOCKED_ROW`."""

OrgKey: TypeAlias = UUID | None
"""The org that a call routes for; None: it routes for no org."""


class _Batch:
    """Calls of one transaction, within the limits of their number and weight; the first may exceed the weight."""

    def __init__(self, most_calls: int, most_weight: int) -> None:
        self.calls: list[PendingCall] = []
        self._calls_left = most_calls
        self._weight_left = most_weight

    def take_first(self, lines: deque[TaskLine]) -> bool:
        """Takes the first line's first call; False if there is no room for it."""
        first = lines[0].calls[0]
        if not self._calls_left or (self.calls and first.weight > self._weight_left):
            return False
        lines.popleft()
        self.calls.append(first)
        self._calls_left -= 1
        self._weight_left -= first.weight
        return True


class ReadyQueue:
    """Lines whose first call may run: in order of arrival within an org, and orgs take turns."""

    def __init__(self) -> None:
        self._orgs: dict[OrgKey, deque[TaskLine]] = {}
        """In the order of their turns."""

    def __bool__(self) -> bool:
        return bool(self._orgs)

    def offers(self, excluded: Container[OrgKey]) -> bool:
        """Whether a line of an org that is not excluded waits."""
        return any(org not in excluded for org in self._orgs)

    def push(self, org: OrgKey, line: TaskLine) -> None:
        waiting = self._orgs.get(org)
        if waiting is None:
            self._orgs[org] = deque([line])
        else:
            waiting.append(line)

    def take(self, most_calls: int, most_weight: int) -> list[PendingCall]:
        """Takes one call of each org in turn until the batch is full. It has at least one call, however heavy."""
        batch = _Batch(most_calls, most_weight)
        while self._orgs:
            org, waiting = next(iter(self._orgs.items()))
            if not batch.take_first(waiting):
                break
            if not waiting:
                del self._orgs[org]
            elif len(self._orgs) > 1:
                self._orgs[org] = self._orgs.pop(org)  # to the end of the turns
        return batch.calls

    def take_org(self, most_calls: int, most_weight: int, excluded: Container[OrgKey]) -> list[PendingCall]:
        """Takes calls of one org alone: the next that is not excluded."""
        orgs = [org for org in self._orgs if org not in excluded]
        if not orgs:
            return []
        org = orgs[0]
        waiting = self._orgs.pop(org)
        batch = _Batch(most_calls, most_weight)
        while waiting and batch.take_first(waiting):
            pass
        if waiting:
            self._orgs[org] = waiting  # at the end of the turns
        return batch.calls

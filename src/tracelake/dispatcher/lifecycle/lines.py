"""Calls that wait: one line per task, and queues of the lines whose first call may run.

A line is in exactly one place: in the queue of a lane, in flight, or parked until its org can be routed for again. Its
first call stays first until it is answered, so the calls of a task run in the order they came, and none runs twice.
"""

import asyncio
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias
from uuid import UUID

from tracelake.dispatcher.lifecycle.calls import Answer, Call


class LaneKind(StrEnum):
    URGENT = "urgent"
    """Claims and heartbeats."""
    ORDINARY = "ordinary"
    SLOW = "slow"
    """Heavy calls, and those that met a lock: here alone a transaction waits for rows."""


@dataclass(slots=True, eq=False)
class PendingCall:
    call: Call
    answer: "asyncio.Future[Answer]"
    weight: int
    lane: LaneKind
    line: "TaskLine"
    run: object | None = None
    """The run of a lane whose batch it is in."""
    patience_until: float | None = None
    """Set when its org is first found busy."""


@dataclass(slots=True, eq=False)
class TaskLine:
    task_id: UUID
    calls: deque[PendingCall] = field(default_factory=deque)


OrgKey: TypeAlias = UUID | None
"""None: whoever routes for no org."""


def org_of(pending: PendingCall) -> OrgKey:
    orgs = pending.call.routing_orgs
    return orgs[0] if orgs else None


class ReadyQueue:
    """Lines whose first call may run: in order of arrival within an org, and orgs take turns."""

    def __init__(self) -> None:
        self._orgs: dict[OrgKey, deque[TaskLine]] = {}
        """In the order of their turns."""

    def __bool__(self) -> bool:
        return bool(self._orgs)

    def offers(self, excluded: Container[OrgKey]) -> bool:
        """Whether a line of any other org is here."""
        return any(org not in excluded for org in self._orgs)

    def push(self, org: OrgKey, line: TaskLine) -> None:
        waiting = self._orgs.get(org)
        if waiting is None:
            self._orgs[org] = deque([line])
        else:
            waiting.append(line)

    def take(self, most_calls: int, most_weight: int) -> list[PendingCall]:
        """One call of each org in turn, until the batch is full. It has at least one call, however heavy."""
        batch: list[PendingCall] = []
        weight = 0
        while self._orgs and len(batch) < most_calls:
            org, waiting = next(iter(self._orgs.items()))
            first = waiting[0].calls[0]
            if batch and weight + first.weight > most_weight:
                break
            waiting.popleft()
            batch.append(first)
            weight += first.weight
            if not waiting:
                del self._orgs[org]
            elif len(self._orgs) > 1:
                self._orgs[org] = self._orgs.pop(org)  # to the end of the turns
        return batch

    def take_org(self, most_calls: int, most_weight: int, excluded: Container[OrgKey]) -> list[PendingCall]:
        """Calls of the next org alone that is not excluded."""
        orgs = [org for org in self._orgs if org not in excluded]
        if not orgs:
            return []
        org = orgs[0]
        waiting = self._orgs.pop(org)
        batch: list[PendingCall] = []
        weight = 0
        while waiting and len(batch) < most_calls:
            first = waiting[0].calls[0]
            if batch and weight + first.weight > most_weight:
                break
            waiting.popleft()
            batch.append(first)
            weight += first.weight
        if waiting:
            self._orgs[org] = waiting  # at the end of the turns
        return batch

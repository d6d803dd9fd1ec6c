"""A commit function that behaves as badly as a store can, and checks every batch it is given."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

import asyncpg

from tracelake.db.routing_gate import RoutingBusyError
from tracelake.db.transaction import StatementTimeoutError
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.engine.calls.buffer_publish import BufferPublishCall
from tracelake.dispatcher.engine.calls.call import AnyCall
from tracelake.dispatcher.engine.calls.claim import ClaimCall
from tracelake.dispatcher.engine.calls.completion import CompleteCall
from tracelake.dispatcher.engine.calls.create import CreateCall
from tracelake.dispatcher.engine.calls.events import EventsCall
from tracelake.dispatcher.engine.calls.heartbeat import HeartbeatCall
from tracelake.dispatcher.engine.calls.task_actions import CancelCall, RetryCall, SkipCall
from tracelake.dispatcher.engine.lanes import LOCKED_ROW, CallOutcome
from tracelake.dispatcher.engine.plan import NewTask, WakeTarget
from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.wire.claims import ClaimRequest
from tracelake.wire.task_calls import BufferPublishRequest, CompleteRequest, EventsRequest, HeartbeatRequest
from tracelake.wire.units import EventIn

LEASE = UUID(int=99)
DATASET = UUID(int=100)
KINDS = ("claim", "heartbeat", "events", "complete", "heavy", "publish", "cancel", "retry", "skip", "create")
HEAVY_EVENTS = 40


def org(number: int) -> UUID:
    return UUID(int=1000 + number)


def make_call(kind: str, task: int, of_org: int = 0) -> AnyCall:
    """A call as the service and the user actions make it."""
    task_id, org_id = UUID(int=task), org(of_org)
    fence: dict[str, Any] = {"task_id": task_id, "attempt": 1, "lease_token": LEASE}
    actor = Actor("somebody", "an-org", org_id)
    event = EventIn(dataset_uuid=DATASET, dataset_version=DATASET, cursor=1)
    match kind:
        case "claim":
            return ClaimCall(ClaimRequest(task_id=task_id, worker_id="w"))
        case "heartbeat":
            return HeartbeatCall(HeartbeatRequest(**fence), org_id)
        case "events":
            return EventsCall(EventsRequest(**fence, events=[event]), org_id)
        case "complete":
            return CompleteCall(CompleteRequest(**fence, status="Completed", events=[event]), org_id)
        case "heavy":
            return CompleteCall(CompleteRequest(**fence, status="Completed", events=[event] * HEAVY_EVENTS), org_id)
        case "publish":
            uri = "s3://bucket/batch"
            return BufferPublishCall(BufferPublishRequest(**fence, dataset_uuid=DATASET, batch_uri=uri), None)
        case "cancel":
            return CancelCall(task_id, actor)
        case "retry":
            return RetryCall(task_id, actor)
        case "skip":
            return SkipCall(task_id, actor)
        case "create":
            return CreateCall(NewTask(task_id, org_id, UUID(int=5), 3, "[]", None, WakeTarget("task_wakeup", "q")))
    raise AssertionError(kind)


class Fault(StrEnum):
    """What a transaction does, apart from what its calls make it do."""

    NONE = "none"
    AWAY = "away"
    LOST_AT_COMMIT = "lost at COMMIT"
    TIMEOUT = "timeout"
    DEADLOCK = "deadlock"
    BUG = "bug"
    CANCELED = "canceled"
    TOO_FEW_ANSWERS = "too few answers"


@dataclass
class Traits:
    """What the store does to one call."""

    number: int
    poison: bool = False
    """Its statement fails."""
    slow: bool = False
    """Its statement takes too long."""
    locked: bool = False
    """Somebody holds its row until its caller is patient."""
    contended: bool = False
    """It waits for a row of its org until its caller is patient."""


@dataclass
class StoreModel:
    max_batch: int
    max_weight: int
    pauses: Sequence[float]
    faults: Sequence[Fault] = (Fault.NONE,)
    busy_until: dict[UUID, float] = field(default_factory=dict)
    """When each org's pointers are at rest again, in the loop's time."""
    traits: dict[int, Traits] = field(default_factory=dict)
    """By the identity of a call."""
    transactions: list[list[int]] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    open_outcome: set[int] = field(default_factory=set)
    """Calls whose transaction may or may not have been committed."""
    faults_met: set[int] = field(default_factory=set)
    in_flight: set[UUID] = field(default_factory=set)

    def add(self, call: AnyCall, traits: Traits) -> AnyCall:
        self.traits[id(call)] = traits
        return call

    def of(self, number: int) -> Traits:
        return next(item for item in self.traits.values() if item.number == number)

    async def commit(self, calls: Sequence[AnyCall], *, patient: bool) -> list[CallOutcome]:
        traits = [self.traits[id(call)] for call in calls]
        numbers = [item.number for item in traits]
        fault = self.faults[len(self.transactions) % len(self.faults)]
        pause = self.pauses[len(self.transactions) % len(self.pauses)]
        self.transactions.append(numbers)
        tasks = {call.task_id for call in calls}
        assert 1 <= len(calls) <= self.max_batch
        assert len(calls) == 1 or sum(call.weight for call in calls) <= self.max_weight, "too much work in a batch"
        assert len(tasks) == len(calls), "two calls of one task in a batch"
        assert not self.in_flight & tasks, "a task is in two batches at once"
        orgs = {call.routing_org for call in calls} - {None}
        assert not patient or len(orgs) <= 1, "orgs wait for each other"
        self.in_flight |= tasks
        try:
            return await self._run(calls, traits, fault, pause, patient=patient)
        finally:
            self.in_flight -= tasks

    async def _run(
        self, calls: Sequence[AnyCall], traits: Sequence[Traits], fault: Fault, pause: float, *, patient: bool
    ) -> list[CallOutcome]:
        await asyncio.sleep(pause)
        numbers = [item.number for item in traits]
        now = asyncio.get_running_loop().time()
        for org_id in sorted({call.routing_org for call in calls if call.routing_org is not None}):
            if self.busy_until.get(org_id, 0.0) > now:
                raise RoutingBusyError(org_id)
        if not patient and any(item.contended for item in traits):
            raise asyncpg.LockNotAvailableError("a row of the org is held")
        if any(item.slow for item in traits):
            await asyncio.sleep(15)
            raise StatementTimeoutError("too late")
        if any(item.poison for item in traits):
            raise ValueError("a statement failed")
        if fault is not Fault.NONE:
            self.faults_met.update(numbers)
            self._fail(fault, numbers)
        skipped = {item.number for item in traits if item.locked and not patient}
        self.committed += [number for number in numbers if number not in skipped]
        if fault is Fault.TOO_FEW_ANSWERS:
            self.open_outcome.update(numbers)
            return []
        return [LOCKED_ROW if number in skipped else self.answer(number) for number in numbers]

    def _fail(self, fault: Fault, numbers: list[int]) -> None:
        if fault is Fault.AWAY:
            raise StoreUnavailableError
        if fault is Fault.LOST_AT_COMMIT:
            self.open_outcome.update(numbers)
            raise StoreUnavailableError("the connection was lost")
        if fault is Fault.TIMEOUT:
            raise StatementTimeoutError("too late")
        if fault is Fault.DEADLOCK:
            raise asyncpg.DeadlockDetectedError("deadlock")
        if fault is Fault.BUG:
            raise KeyError("a bug")
        if fault is Fault.CANCELED:
            raise asyncio.CancelledError

    @staticmethod
    def answer(number: int) -> CallOutcome:
        """A third of the calls are refused, each in its own words."""
        return TraceError("fenced", f"refusal {number}") if number % 3 == 2 else ("answer", number)

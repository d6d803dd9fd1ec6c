"""What every lifecycle call is: what it declares before its transaction, and what it is given to decide on."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.file_publications import PublicationRegistry, PublicationRequest, WaitingEvent
from tracelake.dispatcher.engine.plan import WritePlan, WriteResult
from tracelake.dispatcher.engine.unit_order import UnitOrder
from tracelake.errors import TraceError
from tracelake.model.dag import OutputCheck
from tracelake.model.job import Job, Output
from tracelake.model.task import Task
from tracelake.wire.claims import ClaimRequest
from tracelake.wire.task_calls import CompleteRequest, EventsRequest, Fenced
from tracelake.wire.units import EventIn, TaskInput

Reply = TypeVar("Reply")
ReplyT_co = TypeVar("ReplyT_co", covariant=True)

Respond: TypeAlias = Callable[[WriteResult], Reply | TraceError]
"""Makes the reply of a call from what its transaction wrote."""

LIGHT = 1
"""The weight of a usual call. Weights are estimates of how many rows a transaction touches: the group commit bounds its
batches by the sum, and keeps heavy calls away from light ones. A wrong one costs time, never correctness."""
_INVALIDATION = 128
"""An invalidation makes up to `AT_ONCE` units of each reader anew; how many is known only while it is routed."""
_FILES_A_ROW = 16
"""Files of a publication are one array, not a row each."""


def weigh_events(events: Sequence[EventIn], readers: int) -> int:
    """Weighs each event as a row of its own, and a task for each of its readers."""
    invalidations = sum(event.invalidates is not None for event in events)
    return len(events) * (1 + readers) + invalidations * _INVALIDATION * readers


def weigh_files(publications: Sequence[PublicationRequest]) -> int:
    return sum(1 + len(item.objects) // _FILES_A_ROW for item in publications)


@dataclass(frozen=True, slots=True)
class CallNeeds:
    """What the transaction locks and reads for a call; what is not declared here, its `LockedTask` does not have."""

    task: bool = True
    """The row of its task. Only a call that creates its task goes without."""
    inputs: bool = False
    unit: bool = False
    """The open tasks of its unit are locked with it, and the newest completed inputs of the unit are read."""
    superseded: bool = False
    pause: bool = False


@dataclass(slots=True)
class DecisionContext:
    """What the decisions of one transaction share."""

    config: DispatcherConfig
    plan: WritePlan = field(default_factory=WritePlan)
    registry: PublicationRegistry = field(default_factory=PublicationRegistry)
    order: UnitOrder = field(default_factory=UnitOrder)


class LockedTask(msgspec.Struct, frozen=True, eq=False):
    """The locked task that a call is about, with what the call declared to need."""

    task: Task
    job: Job
    now: datetime
    unit: str | None
    inputs: list[TaskInput]
    epoch: int
    """The routing epoch of its org."""
    superseded: bool = False
    """Its job belongs to a version that is neither active nor being built."""
    paused: bool = False
    """It is the run of a source that should emit nothing for now."""
    config: str | None = None
    """Of a batch query, instead of its job's."""
    read_as_of: str | None = None
    """What an attempt that is claimed now reads; see `Task.read_as_of`."""
    checks: Sequence[OutputCheck] = ()
    """Of the rows that an attempt that is claimed now writes."""
    references: Sequence[TaskInput] = ()
    """What these checks read besides."""
    waiting_events: Sequence[WaitingEvent] = ()
    """The events that the completing attempt announced, and that wait for its commit."""


class Call(ABC, Generic[ReplyT_co]):
    """A lifecycle call: the group commit and its transaction use what it declares here, and never ask for its type."""

    __slots__ = ()

    @property
    @abstractmethod
    def task_id(self) -> UUID:
        """The task whose row is locked; a batch holds at most one call per task."""

    @property
    @abstractmethod
    def routing_org(self) -> UUID | None:
        """The org whose routing lock the transaction needs: its decision depends on the org's edges or pointers."""

    @property
    @abstractmethod
    def needs(self) -> CallNeeds: ...

    @abstractmethod
    def decide(self, locked: LockedTask | None, context: DecisionContext) -> Respond[ReplyT_co]:
        """Adds to the plan and returns how to reply once the plan is written.

        A `TraceError` refuses the call, and nothing of it is kept. There is no I/O here: whatever needs the object
        store was looked up before.
        """

    @property
    def publications(self) -> Sequence[PublicationRequest]:
        """The publications whose generations are locked, and whose committed units are read."""
        return ()

    @property
    def completing_attempt(self) -> int | None:
        """The attempt whose waiting events are read, if the call reports its success."""
        return None

    @property
    def weight(self) -> int:
        """An estimate of how many rows it makes the store touch."""
        return LIGHT

    @property
    def urgent(self) -> bool:
        """Whether a worker waits for it to keep or to get a lease."""
        return False

    @property
    def owner(self) -> UUID | None:
        """The org whose call it is, where that is known before its task is read."""
        return None


class AttemptCall(Call[ReplyT_co]):
    """A call of a worker or an attempt: its body names the task."""

    __slots__ = ()
    body: ClaimRequest | Fenced

    @property
    def task_id(self) -> UUID:
        return self.body.task_id


@dataclass(frozen=True, slots=True)
class AnnouncingCall(AttemptCall[ReplyT_co]):
    """A call that may announce events, and so routes for its org."""

    body: EventsRequest | CompleteRequest
    org_id: UUID
    """The org that the token names."""
    readers: int = field(default=1, kw_only=True)
    """An estimate of how many inputs read what it announces."""
    received: float = field(default_factory=time.monotonic, kw_only=True)

    needs = CallNeeds(unit=True)

    @property
    def routing_org(self) -> UUID | None:
        return self.org_id

    @property
    def owner(self) -> UUID | None:
        return self.org_id

    @property
    def weight(self) -> int:
        return LIGHT + weigh_events(self.body.events, self.readers) + weigh_files(self.publications)


AnyCall: TypeAlias = Call[Any]
"""A call of a batch, where calls with different replies stand side by side."""


def require(locked: LockedTask | None) -> LockedTask:
    """Returns the locked task, or raises 404."""
    if locked is None:
        raise TraceError("task_not_found")
    return locked


def always(reply: Reply) -> Respond[Reply]:
    return lambda _applied: reply


def output_for(job: Job, dataset_uuid: UUID | None, name: str | None, dataset_version: UUID | None) -> Output:
    """Returns the output that the given names agree on; a foreign dataset or version is 403, a contradiction 422."""
    output = _find(job, dataset_uuid, name)
    if output is None:
        raise TraceError("dataset_forbidden", field="dataset_uuid" if dataset_uuid else "dedupe_scope")
    if dataset_uuid is not None and name is not None and output.dataset.name != name:
        raise TraceError("body_invalid", "dataset_uuid and dedupe_scope name different datasets.", field="dedupe_scope")
    if dataset_version not in (None, output.dataset_version):
        raise TraceError(
            "dataset_forbidden", "The task writes another version of this dataset.", field="dataset_version"
        )
    return output


def _find(job: Job, dataset_uuid: UUID | None, name: str | None) -> Output | None:
    if dataset_uuid is not None:
        return job.by_dataset.get(dataset_uuid)
    return next((output for output in job.outputs if output.dataset.name == name), None)

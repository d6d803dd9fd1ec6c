"""Lifecycle calls as decisions.

`decide` gets a locked snapshot and either raises `TraceError` (nothing of the call is kept) or adds to the
plan and returns how to answer once the plan is written. It does no I/O; whatever needs the object store was
looked up before.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeAlias
from uuid import UUID

import msgspec

from tracelake.dispatcher.actor import Actor
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.lifecycle.grants import output_for
from tracelake.dispatcher.lifecycle.plan import (
    Applied,
    Audit,
    BufferPublish,
    Change,
    NewEvent,
    NewTask,
    Plan,
    Publication,
    Release,
    event_key,
    unit_of,
)
from tracelake.dispatcher.lifecycle.publications import WHOLE, Registry, WaitingEvent, decode_unit
from tracelake.dispatcher.lifecycle.publications import Request as PublicationRequest
from tracelake.dispatcher.lifecycle.unit_order import UnitOrder
from tracelake.dispatcher.lifecycle.wake import WAKEUP, wake_of
from tracelake.dispatcher.lifecycle.weights import LIGHT, weigh_events, weigh_files
from tracelake.errors import TraceError
from tracelake.model import lifecycle
from tracelake.model.ids import new_id, new_secret_id
from tracelake.model.job import Job, Storage
from tracelake.model.lifecycle import NotClaimed
from tracelake.model.task import Outcome, Status, Task
from tracelake.ports import ObjectMeta
from tracelake.wire.claims import ClaimRequest
from tracelake.wire.platform import CancelReply, CreatedTask
from tracelake.wire.task_calls import (
    BufferPublishReply,
    BufferPublishRequest,
    CompleteReply,
    CompleteRequest,
    EventAnswer,
    EventsReply,
    EventsRequest,
    HeartbeatRequest,
)
from tracelake.wire.tasks import RetryReply, SkipReply
from tracelake.wire.units import EventIn, TaskInput

Answer: TypeAlias = object
FREE_STOPS = 10
"""How many stops of workers cost a task no attempt; from then on a stop is a failure like any other."""
Respond: TypeAlias = Callable[[Applied], Answer]


@dataclass(slots=True)
class Context:
    """What the decisions of one transaction share."""

    config: DispatcherConfig
    plan: Plan = field(default_factory=Plan)
    registry: Registry = field(default_factory=Registry)
    order: UnitOrder = field(default_factory=UnitOrder)


class Subject(msgspec.Struct, frozen=True, eq=False):
    """The locked task a call is about."""

    task: Task
    job: Job
    now: datetime
    unit: str | None
    inputs: list[TaskInput]
    """Read for claims alone; nothing else needs them."""
    epoch: int
    """The routing epoch of its org."""
    superseded: bool = False
    """Its job is of a version that does not count now. Known for retries alone; nothing else asks."""
    paused: bool = False
    """The run of a source that should emit nothing for now. Known for claims and heartbeats alone."""
    waiting_events: Sequence[WaitingEvent] = ()
    """What the attempt has announced and that waits for its commit. Known for completions alone."""


class Call(Protocol):
    """What the group commit knows of a call; everything else is between the call and `LifecycleCommit`."""

    @property
    def task_id(self) -> UUID:
        """Which row to lock; a batch holds at most one call per task."""
        ...

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        """The orgs whose routing lock its transaction needs: those whose edges or pointers its decision depends on."""
        ...

    @property
    def weight(self) -> int:
        """Roughly how many rows it makes the store touch (`weights.py`)."""
        ...

    @property
    def urgent(self) -> bool:
        """A worker waits for it to keep or to get a lease."""
        ...

    @property
    def owner(self) -> UUID | None:
        """The org whose call it is, where that is known before its task is read."""
        ...

    def decide(self, subject: Subject | None, context: Context) -> Respond: ...


class LightCall:
    """What most calls are: a row or two, and nobody who loses a lease by waiting."""

    __slots__ = ()

    @property
    def weight(self) -> int:
        return LIGHT

    @property
    def urgent(self) -> bool:
        return False

    @property
    def owner(self) -> UUID | None:
        return None


@dataclass(frozen=True, slots=True)
class Claimed:
    """An attempt to hand out: the HTTP layer turns it into payload and token."""

    task: Task
    job: Job
    inputs: list[TaskInput]
    waited_seconds: float | None = None
    """How long it had been ready. None where a lost answer is repeated."""
    paused: bool = False
    """It is the run of a source that should emit nothing for now."""


@dataclass(frozen=True, slots=True)
class Beaten:
    """An extended lease."""

    task: Task
    job: Job
    now: datetime
    paused: bool = False
    """As above."""


@dataclass(frozen=True, slots=True)
class ClaimCall(LightCall):
    body: ClaimRequest

    @property
    def task_id(self) -> UUID:
        return self.body.task_id

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        return ()

    @property
    def urgent(self) -> bool:
        return True

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        if subject is None:
            return _always(NotClaimed.NOT_FOUND)
        task, job = subject.task, subject.job
        claimed = lifecycle.claim(
            task,
            subject.now,
            lease_token=new_secret_id(),
            lease_seconds=job.lease_seconds,
            timeout_seconds=job.timeout_seconds,
            worker_id=self.body.worker_id,
            claim_id=self.body.claim_id,
        )
        if isinstance(claimed, NotClaimed):
            return _always(claimed)
        waited = None
        if claimed is not task:
            context.plan.changes.append(Change(task, claimed))
            if task.ready_at is not None:
                waited = max(0.0, (subject.now - task.ready_at).total_seconds())
        return _always(Claimed(claimed, job, subject.inputs, waited, subject.paused))


@dataclass(frozen=True, slots=True)
class HeartbeatCall(LightCall):
    body: HeartbeatRequest
    org_id: UUID | None = None
    """By the token."""

    @property
    def task_id(self) -> UUID:
        return self.body.task_id

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        return ()

    @property
    def urgent(self) -> bool:
        return True

    @property
    def owner(self) -> UUID | None:
        return self.org_id

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        task, job, now = _existing(subject)
        alive = lifecycle.heartbeat(
            task,
            now,
            attempt=self.body.attempt,
            lease_token=self.body.lease_token,
            lease_seconds=job.lease_seconds,
        )
        context.plan.changes.append(Change(task, alive))
        assert subject is not None
        return _always(Beaten(alive, job, now, subject.paused))


@dataclass(frozen=True, slots=True)
class EventsCall(LightCall):
    body: EventsRequest
    org_id: UUID
    """By the token."""
    readers: int = 1
    """An estimate: how many inputs read what it emits."""
    received: float = field(default_factory=time.monotonic)

    @property
    def task_id(self) -> UUID:
        return self.body.task_id

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        return (self.org_id,)

    @property
    def weight(self) -> int:
        return LIGHT + weigh_events(self.body.events, self.readers)

    @property
    def owner(self) -> UUID | None:
        return self.org_id

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        task, job, _ = _existing(subject)
        lifecycle.check_current(task, self.body.attempt, self.body.lease_token)
        outdated = context.order.is_outdated(task)
        events = _new_events(self.body.events, task, job, {}, self.received, outdated=outdated)
        context.plan.events.extend(events)
        return lambda applied: _events_reply(events, applied)


@dataclass(frozen=True, slots=True)
class CompleteCall(LightCall):
    body: CompleteRequest
    org_id: UUID
    publications: Sequence[PublicationRequest] = ()
    objection: TraceError | None = None
    """What the object store had against it. A repeat is answered all the same."""
    readers: int = 1
    """As above."""
    received: float = field(default_factory=time.monotonic)

    @property
    def task_id(self) -> UUID:
        return self.body.task_id

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        return (self.org_id,)

    @property
    def weight(self) -> int:
        return LIGHT + weigh_events(self.body.events, self.readers) + weigh_files(self.publications)

    @property
    def owner(self) -> UUID | None:
        return self.org_id

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        task, job, now = _existing(subject)
        body = self.body
        # Only what waits in a queue has a worker that may have to end. Of a task whose attempts have an end, `forgiven`
        # counts exactly the stops.
        stopped = (
            body.error_code == "worker_stopping"
            and wake_of(context.config.runtimes, job.runtime).kind == WAKEUP
            and (task.max_attempts is None or task.forgiven < FREE_STOPS)
        )
        ended = lifecycle.complete(
            task,
            now,
            attempt=body.attempt,
            lease_token=body.lease_token,
            status=Outcome(body.status),
            retryable=body.retryable,
            error=body.error_message,
            retry=lifecycle.next_retry(task, now, context.config.retry, stopped=stopped),
            stopped=stopped,
        )
        if ended is None:
            return _always(CompleteReply(status=_recorded(task), duplicate=True, next_retry_at=task.next_retry_at))
        if self.objection is not None:
            raise self.objection
        _check_outputs(body, task, job, context.config)
        assert subject is not None
        made_for = decode_unit(subject.unit) if self.publications else None
        outdated = context.order.is_outdated(task)
        moves = [context.registry.publish(item, task, made_for, job, outdated=outdated) for item in self.publications]
        if ended.status is Status.COMPLETED:
            _check_announced(body.events, subject.waiting_events, job, moves)
        events = _new_events(body.events, task, job, _committed_units(moves), self.received, outdated=outdated)
        for move in moves:
            context.registry.accept(move)
        if ended.status is Status.COMPLETED:
            context.order.record_completed(task, task.input_order)
        result = msgspec.json.encode(body.outputs).decode() if body.outputs else None
        context.plan.changes.append(Change(task, ended, result, called=self.received))
        if body.spark is not None:
            context.plan.spark_metrics.append((task.task_id, task.attempt, msgspec.json.encode(body.spark).decode()))
        context.plan.publications.extend(moves)
        context.plan.events.extend(events)
        if ended.status is Status.COMPLETED and job.writes_batches and not outdated:
            # The rows of older inputs may have been published later, and released before.
            context.plan.releases.append(Release(task.task_id, task.attempt, renumber=bool(task.input_order)))
        return _always(CompleteReply(status=_recorded(ended), next_retry_at=ended.next_retry_at))


@dataclass(frozen=True, slots=True)
class BufferPublishCall(LightCall):
    body: BufferPublishRequest
    artifact: ObjectMeta | None
    objection: TraceError | None = None
    """What the object store had against it. An attempt that is not current hears that first."""

    @property
    def task_id(self) -> UUID:
        return self.body.task_id

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        return ()

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        task, job, _ = _existing(subject)
        body = self.body
        lifecycle.check_current(task, body.attempt, body.lease_token)
        if self.objection is not None:
            raise self.objection
        assert self.artifact is not None
        output = output_for(job, body.dataset_uuid, body.dedupe_scope, body.dataset_version)
        if output.dataset.storage is not Storage.BUFFERED:
            raise TraceError("dataset_forbidden", "This output is not a buffered dataset.", field="dataset_uuid")
        publish = BufferPublish(
            publish_id=new_id(),
            org_id=task.org_id,
            task_id=task.task_id,
            attempt=task.attempt,
            dataset_uuid=output.dataset_uuid,
            dataset_version=output.dataset_version,
            batch_uri=body.batch_uri,
            size_bytes=self.artifact.size,
            etag=self.artifact.etag,
            sha256=self.artifact.sha256,
            record_count=body.record_count,
            content_type=body.content_type,
            released=job.timeout_seconds is None,  # always_on: no completion to wait for
        )
        context.plan.buffer_publishes.append(publish)

        def respond(applied: Applied) -> Answer:
            publish_id, publish_seq, duplicate = applied.publishes[publish.key]
            return BufferPublishReply(publish_id=publish_id, publish_seq=publish_seq, duplicate=duplicate)

        return respond


@dataclass(frozen=True, slots=True)
class CancelCall(LightCall):
    task_id: UUID
    by: Actor | None = None
    """None: a platform service, which sees every org."""

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        return ()

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        task, _, now = _existing(subject) if self.by is None else _own(subject, self.by)
        canceled = lifecycle.cancel(task, now)
        if canceled is not None:
            context.plan.changes.append(Change(task, canceled))
            if self.by is not None:
                context.plan.audit.append(_audit(self.by, task, "task.cancel", {"status": task.status.value}))
        after = canceled or task
        return _always(
            CancelReply(
                task_id=task.task_id,
                status=after.status.value,
                cancel_requested=after.cancel_requested,
                duplicate=canceled is None,
            )
        )


@dataclass(frozen=True, slots=True)
class RetryCall(LightCall):
    """A person tries a failed task again."""

    task_id: UUID
    by: Actor

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        return () if self.by.org_id is None else (self.by.org_id,)

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        task, job, now = _own(subject, self.by)
        assert subject is not None
        if subject.superseded:
            raise TraceError(
                "task_finished",
                "The task is of a version of the DAG that is not active now.",
                status=task.status.value,
            )
        retried = lifecycle.retry(task, now, more_attempts=job.max_attempts)
        if retried is not None:
            wake = wake_of(context.config.runtimes, job.runtime)
            context.plan.changes.append(Change(task, retried, wake=wake))
            context.plan.audit.append(_audit(self.by, task, "task.retry", {"attempt": task.attempt}))
        after = retried or task
        return _always(
            RetryReply(
                task_id=task.task_id,
                status=after.status.value,
                max_attempts=after.max_attempts,
                duplicate=retried is None,
                cancel_requested=after.cancel_requested,
            )
        )


@dataclass(frozen=True, slots=True)
class SkipCall(LightCall):
    """A person accepts the gap that a failed unit leaves."""

    task_id: UUID
    by: Actor

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        return ()

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        task, _, now = _own(subject, self.by)
        skipped = lifecycle.skip(task, now)
        if skipped is not None:
            context.plan.changes.append(Change(task, skipped))
            context.plan.audit.append(_audit(self.by, task, "task.skip", {"unit": task.unit_key}))
        return _always(SkipReply(task_id=task.task_id, status=task.status.value, duplicate=skipped is None))


@dataclass(frozen=True, slots=True)
class CreateCall(LightCall):
    """Its task does not exist yet, so there is nothing to lock."""

    new: NewTask

    @property
    def task_id(self) -> UUID:
        return self.new.task_id

    @property
    def routing_orgs(self) -> tuple[UUID, ...]:
        return ()

    def decide(self, subject: Subject | None, context: Context) -> Respond:
        del subject
        context.plan.new_tasks.append(self.new)
        return self._respond

    def _respond(self, applied: Applied) -> Answer:
        if self.new.task_id in applied.created:
            return CreatedTask(task_id=self.new.task_id, status=Status.QUEUED.value)
        definition, status = applied.existing[self.new.task_id]
        if definition != self.new.definition:
            return TraceError("task_conflict", field="tasks.task_id")
        return CreatedTask(task_id=self.new.task_id, status=status, duplicate=True)


def _existing(subject: Subject | None) -> tuple[Task, Job, datetime]:
    if subject is None:
        raise TraceError("task_not_found")
    return subject.task, subject.job, subject.now


def _own(subject: Subject | None, by: Actor) -> tuple[Task, Job, datetime]:
    """Another org's task is as good as none."""
    if subject is None or subject.task.org_id != by.org_id:
        raise TraceError("task_not_found")
    return _existing(subject)


def _audit(by: Actor, task: Task, action: str, details: dict[str, Any]) -> Audit:
    return Audit(task.org_id, by.subject, action, f"task:{task.task_id}", details)


def _recorded(task: Task) -> str:
    """The status that answers a completion and its repeats: the worker's report, unless the task ended otherwise."""
    if task.outcome is None or (task.finished and task.status is not Status.COMPLETED):
        return task.status.value
    return task.outcome.value


def _check_outputs(body: CompleteRequest, task: Task, job: Job, config: DispatcherConfig) -> None:
    for report in body.outputs:
        output = output_for(job, report.dataset_uuid, None, report.dataset_version)
        if report.output_index not in (None, output.output_index):
            raise TraceError(
                "dataset_forbidden", "The dataset belongs to another output.", field="outputs.output_index"
            )
        registered = config.layout.location(output.dataset.storage, output, task.task_id, task.attempt)
        if report.location is not None and report.location != registered:
            raise TraceError("prefix_forbidden", field="outputs.location")
    for published in body.datasets_published:
        output = output_for(job, published.dataset_uuid, None, published.dataset_version)
        if output.dataset.storage is not Storage.S3:
            raise TraceError("dataset_forbidden", "Only s3 outputs are published by files.", field="datasets_published")


def _committed_units(moves: Sequence[Publication]) -> dict[tuple[UUID, str], int | None]:
    """The units that a completion commits, by every name that an event may have for them."""
    keys = ((move, key) for move in moves for key in (move.unit, move.cursor_unit) if key is not None)
    return {(move.dataset_uuid, key): move.revision for move, key in keys}


def _check_announced(
    events: Sequence[EventIn], waiting: Sequence[WaitingEvent], job: Job, moves: Sequence[Publication]
) -> None:
    """An event on an output that is kept in files comes with the publication of its unit."""
    said = [(event.dataset_uuid, unit_of(event.cursor, event.partition_key)) for event in events]
    units = _committed_units(moves)
    for dataset_uuid, unit in (*said, *waiting):
        output = job.by_dataset.get(dataset_uuid)
        if output is None or output.dataset.storage is not Storage.S3:
            continue
        if (dataset_uuid, unit) not in units and (dataset_uuid, WHOLE) not in units:
            published = (
                ", ".join(_unit_text(move.unit) for move in moves if move.dataset_uuid == dataset_uuid) or "nothing"
            )
            raise TraceError(
                "event_without_publication",
                f"The attempt announces {_unit_text(unit)} of {output.dataset.name} and publishes {published} of it: "
                "publish the files of the unit in `datasets_published`, or leave the event out.",
                field="events",
                dataset=output.dataset.name,
                unit=unit,
            )


def _unit_text(unit: str) -> str:
    """`c:12` and `p:0-9` as people write them."""
    kind, _, key = unit.partition(":")
    return f"cursor {key}" if kind == "c" else f"unit {key}" if kind == "p" else "the whole dataset"


def _new_events(
    events: Sequence[EventIn],
    task: Task,
    job: Job,
    committed: dict[tuple[UUID, str], int | None],
    received: float,
    *,
    outdated: bool,
) -> list[NewEvent]:
    producer = str(task.task_id)
    starts = job.timeout_seconds is None  # an always_on source: each of its events is news
    said = (task.revision, task.revision_kind, outdated, received, task.traceparent, starts)
    new = []
    for event in events:
        output = output_for(job, event.dataset_uuid, None, event.dataset_version)
        unit = unit_of(event.cursor, event.partition_key)
        revision = committed.get((event.dataset_uuid, unit), committed.get((event.dataset_uuid, WHOLE)))
        waits = not output.dataset.storage.routes_at_once
        key = event_key(producer, event)
        new.append(NewEvent(key, task.org_id, task.attempt, event, waits, revision, *said))
    return new


def _events_reply(events: Sequence[NewEvent], applied: Applied) -> EventsReply:
    answers = []
    for event in events:
        duplicate, routed = applied.events[event.key]
        answers.append(EventAnswer(duplicate=duplicate, routed=routed))
    return EventsReply(accepted=len(answers), duplicate=all(answer.duplicate for answer in answers), events=answers)


def _always(answer: Answer) -> Respond:
    return lambda _applied: answer

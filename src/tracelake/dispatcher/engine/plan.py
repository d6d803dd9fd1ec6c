"""What one transaction will write: filled by pure decisions, written by `writer.py` with one statement per table."""

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from tracelake.dispatcher.tracing.context import Span
from tracelake.model.job import Output
from tracelake.model.runtime import RuntimeKind, RuntimeRegistry
from tracelake.model.task import RevisionKind, Task
from tracelake.ports import ObjectMeta
from tracelake.wire.units import EventIn

Generation: TypeAlias = tuple[UUID, UUID]
"""dataset_uuid, dataset_version."""

EventKey: TypeAlias = tuple[str, UUID, UUID, str, str]
"""producer, dataset_uuid, dataset_version, unit, revision: the idempotency key of an event."""

PublishKey: TypeAlias = tuple[UUID, int, UUID, str]
"""task_id, attempt, dataset_uuid, batch_uri: the idempotency key of a published batch."""

TaskDefinition: TypeAlias = tuple[UUID, str, str | None]
"""job_id, inputs, unit: a task_id that is sent again must come with the same."""


class WakeTarget(NamedTuple):
    """How a ready task is started: `kind` of the outbox row, and the queue (or the runtime that is invoked)."""

    kind: str
    queue: str


@dataclass(frozen=True, slots=True)
class NewTask:
    task_id: UUID
    org_id: UUID
    job_id: UUID
    max_attempts: int | None
    inputs: str
    unit: str | None
    wake: "WakeTarget"
    limit_keys: tuple[str, ...] = ()
    node_id: UUID | None = None
    """The rest is what routing made it for; a task made by hand has none of it."""
    edge: int | None = None
    unit_key: str | None = None
    unit_start: int | None = None
    unit_end: int | None = None
    revision: str = ""
    revision_kind: RevisionKind = RevisionKind.EVENT
    input_order: tuple[int, ...] = ()
    counted: bool = False
    traceparent: str | None = None
    renews: bool = False
    """A task of the same unit that nobody has claimed yet is brought up to date instead."""

    @property
    def definition(self) -> TaskDefinition:
        return (self.job_id, self.inputs, self.unit)


@dataclass(slots=True)
class StateChange:
    """A task before and after a transition. `after` may change once: a limit without a place holds a ready task."""

    before: Task
    after: Task
    result: str | None = None
    wake: WakeTarget | None = None
    """For what becomes ready, unless it is held."""
    called: float | None = None
    """When the call came that said the final word; monotonic."""


class NewEvent(msgspec.Struct, frozen=True, eq=False):
    """An event to store. A struct, since a call may make a thousand: it is built in a tenth of a dataclass's time."""

    key: EventKey
    org_id: UUID
    attempt: int | None
    event: EventIn
    waits: bool
    """For outputs that commit by pointer: stored now, routed with the commit of its unit."""
    commit_revision: int | None = None
    inherited: str = ""
    """The revision that the producing task was made for: what a re-run says is new, also where it does not say so."""
    inherited_kind: RevisionKind = RevisionKind.EVENT
    outdated: bool = False
    """A task with newer inputs has completed the unit of its task: it is kept, and nobody hears of it."""
    received: float = 0.0
    """When the call came that says it (monotonic); 0 is with the plan. The rest is for tracing too."""
    within: str | None = None
    """The trace of the task that says it."""
    starts: bool = False
    """Nothing stands behind it that a trace could follow: it may begin one."""
    traceparent: str | None = None
    parent_span: int | None = None

    @property
    def effective_revision(self) -> str:
        """The revision that consumers see. For files it is the number of the commit."""
        if self.commit_revision is not None:
            return str(self.commit_revision)
        return self.event.revision or ("" if self.waits else self.inherited)

    @property
    def effective_kind(self) -> RevisionKind:
        """The kind that consumers see. Events of a manual run are manual; other kinds belong to the revision."""
        if self.inherited_kind is RevisionKind.MANUAL:
            return RevisionKind.MANUAL
        inherits = self.commit_revision is None and not self.event.revision and not self.waits
        return self.inherited_kind if inherits else RevisionKind.EVENT


@dataclass(frozen=True, slots=True)
class Publication:
    """A commit: these objects are now the unit's content, unless its `revision` is None."""

    manifest_id: UUID
    org_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    unit: str
    range_start: int | None
    range_end: int | None
    revision: int | None
    """None: newer inputs were committed before. It is recorded, and the pointer stays where it is."""
    task_id: UUID
    attempt: int
    prefix: str
    objects: tuple[ObjectMeta, ...]
    config_hash: str
    cursor_unit: str | None = None
    """The key of the cursor unit whose range this is: events may name the unit by it."""
    revision_kind: RevisionKind = RevisionKind.EVENT
    """Of the events that announce it."""
    times: tuple[int, int] | None = None
    """Of its first and its last block, in seconds since 1970; None: those of the units that its task reads."""
    table_start: int | None = None
    """Where the table of a live dataset begins, if the files hold rows of it."""
    is_live: bool = False


class BufferPublish(NamedTuple):
    """A row of `buffer_publishes`, with its columns in the order in which they are inserted."""

    publish_id: UUID
    org_id: UUID
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    size_bytes: int
    etag: str
    sha256: str | None
    record_count: int | None
    content_type: str
    released: bool
    """Sinks may have it at once; otherwise it waits for the completion of its attempt."""

    @property
    def key(self) -> PublishKey:
        return (self.task_id, self.attempt, self.dataset_uuid, self.batch_uri)


class BatchRelease(NamedTuple):
    """An attempt that completed, and whose batches go to the sinks."""

    task_id: UUID
    attempt: int
    rerun: bool
    """Its unit may have been released before. Its batches get the highest `publish_seq` anew, in their order: they
    replace whatever was released before."""


class AuditEntry(NamedTuple):
    """A user's change, for the audit log."""

    org_id: UUID
    subject: str
    action: str
    target: str
    details: dict[str, Any]


class SourceProgress(NamedTuple):
    """A row of `source_progress`, with its columns in the order in which they are inserted."""

    node_id: UUID
    org_id: UUID
    attempt: int
    state: str
    head: int | None
    stored: int | None
    stored_time: int | None
    announced: bool
    reorgs: int
    last_reorg_depth: int
    max_reorg_depth: int


class RoutedEvent(NamedTuple):
    """An event that may make tasks now. The fields are the columns that `RETURNING` names, in order."""

    routed_seq: int
    event_id: int
    org_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    cursor: int | None
    partition_key: str | None
    range_start: int | None
    range_end: int | None
    revision: str
    """The effective one."""
    invalidates: str | None
    producer: str
    traceparent: str | None
    revision_kind: str
    invalidation_id: str | None
    first_position: int | None = None
    """Of a table that its task writes: where the write begins that ends with the cursor, or with the range."""

    @property
    def generation(self) -> tuple[UUID, UUID]:
        return (self.dataset_uuid, self.dataset_version)

    @property
    def unit_key(self) -> str:
        return unit_of(self.cursor, self.partition_key)


class EventReceipt(NamedTuple):
    """What became of an announced event."""

    duplicate: bool
    routed: bool


class PublishReceipt(NamedTuple):
    """The row of a published batch; `duplicate` if it was there before."""

    publish_id: UUID
    publish_seq: int
    duplicate: bool


@dataclass(slots=True)
class WritePlan:
    new_tasks: list[NewTask] = field(default_factory=list)
    changes: list[StateChange] = field(default_factory=list)
    wakeups: list[tuple[UUID, WakeTarget]] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    buffer_publishes: list[BufferPublish] = field(default_factory=list)
    releases: list[BatchRelease] = field(default_factory=list)
    """Completions whose pinned batches go to the sinks now."""
    spark_metrics: list[tuple[UUID, int, str, str | None]] = field(default_factory=list)
    """task_id, attempt, figures as JSON, the package of the operator."""
    check_results: list[tuple[Any, ...]] = field(default_factory=list)
    """Rows of `check_results`, in the order of `task_rows`."""
    audit: list[AuditEntry] = field(default_factory=list)
    progress: list[SourceProgress] = field(default_factory=list)
    epochs: dict[UUID, int] = field(default_factory=dict)
    """org_id -> routing_epoch, read under the org's routing lock; for every org that has events or publications."""
    waited_for: set[str] = field(default_factory=set)
    """Limits of held tasks that this transaction locked. Whoever freed a place meanwhile had to pass these by."""
    received: float = field(default_factory=time.monotonic)
    """When the call came. This and the rest is for tracing."""
    within: str | None = None
    """The `traceparent` of whoever called; it may be anything."""
    spans: list[Span] = field(default_factory=list)
    """To be said once the transaction is committed."""


@dataclass(slots=True)
class WriteResult:
    """What a transaction wrote and found: replies depend on which rows existed before."""

    created_tasks: list[NewTask] = field(default_factory=list)
    """Every task that this transaction created."""
    created: set[UUID] = field(default_factory=set)
    existing: dict[UUID, tuple[TaskDefinition, str]] = field(default_factory=dict)
    """task_id -> (definition, status) of tasks that were there before."""
    events: dict[EventKey, EventReceipt] = field(default_factory=dict)
    publishes: dict[PublishKey, PublishReceipt] = field(default_factory=dict)
    batches_sent: int = 0
    """Batches that this transaction routed to the sinks."""
    routed: list[RoutedEvent] = field(default_factory=list)
    """Events that became routed in this transaction."""
    freed_edges: bool = False
    """An edge that a failed unit held may go on."""
    traced: dict[str, tuple[int, str]] = field(default_factory=dict)
    """traceparent -> (event_id, state) of new events that have one."""


def source_event(producer: str, org_id: UUID, output: Output, **unit: Any) -> NewEvent:
    """Makes the event of a source on one of its outputs: it has no task, and waits for no data."""
    event = EventIn(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, **unit)
    return NewEvent(event_key(producer, event), org_id, None, event, waits=False, starts=True)


def event_key(producer: str, event: EventIn) -> EventKey:
    return (
        producer,
        event.dataset_uuid,
        event.dataset_version,
        unit_of(event.cursor, event.partition_key),
        event.revision,
    )


def unit_of(cursor: int | None, partition_key: str | None) -> str:
    return f"c:{cursor}" if partition_key is None else f"p:{partition_key}"


WAKEUP = "task_wakeup"
INVOKE = "task_invoke"


def wake_of(runtimes: RuntimeRegistry, runtime: str) -> WakeTarget:
    """Returns how tasks of the runtime are started. One that the registry does not know has a queue of its name."""
    definition = runtimes.get(runtime)
    if definition is not None and definition.kind is not RuntimeKind.QUEUE:
        return WakeTarget(INVOKE, runtime)
    return WakeTarget(WAKEUP, (definition.queue if definition is not None else None) or f"tasks.{runtime}")

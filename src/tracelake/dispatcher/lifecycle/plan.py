"""What one transaction will write: filled by pure decisions, written by `rows.apply` in one statement a table."""

from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from tracelake.model.task import Task
from tracelake.ports import ObjectMeta
from tracelake.wire.units import EventIn

EventKey: TypeAlias = tuple[str, UUID, UUID, str, str]
"""producer, dataset_uuid, dataset_version, unit, revision: the idempotency key of an event."""


TaskDefinition: TypeAlias = tuple[UUID, str, str | None]
"""job_id, inputs, unit: a task_id that is sent again must come with the same."""


@dataclass(frozen=True, slots=True)
class NewTask:
    task_id: UUID
    org_id: UUID
    job_id: UUID
    max_attempts: int | None
    inputs: str
    unit: str | None
    queue: str

    @property
    def definition(self) -> TaskDefinition:
        return (self.job_id, self.inputs, self.unit)


@dataclass(frozen=True, slots=True)
class Change:
    before: Task
    after: Task
    result: str | None = None


@dataclass(frozen=True, slots=True)
class NewEvent:
    key: EventKey
    org_id: UUID
    attempt: int
    event: EventIn
    waits: bool
    """For outputs that commit by pointer: stored now, routed with the commit of its unit."""
    commit_revision: int | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """A pointer move: these objects are now the unit's content."""

    manifest_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    unit: str
    range_start: int | None
    range_end: int | None
    revision: int
    task_id: UUID
    attempt: int
    prefix: str
    objects: tuple[ObjectMeta, ...]
    config_hash: str


@dataclass(frozen=True, slots=True)
class BufferPublish:
    publish_id: UUID
    org_id: UUID
    task_id: UUID
    attempt: int
    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    size_bytes: int
    etag: str
    record_count: int | None
    content_type: str

    @property
    def key(self) -> tuple[UUID, int, UUID, str]:
        return (self.task_id, self.attempt, self.dataset_uuid, self.batch_uri)


@dataclass(slots=True)
class Plan:
    new_tasks: list[NewTask] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    wakeups: list[tuple[UUID, str]] = field(default_factory=list)
    events: list[NewEvent] = field(default_factory=list)
    publications: list[Publication] = field(default_factory=list)
    buffer_publishes: list[BufferPublish] = field(default_factory=list)


@dataclass(slots=True)
class Applied:
    """What the tables answered: needed for replies that depend on what was already there."""

    created: set[UUID] = field(default_factory=set)
    existing: dict[UUID, tuple[TaskDefinition, str]] = field(default_factory=dict)
    """task_id -> (definition, status) of tasks that were there before."""
    events: dict[EventKey, tuple[bool, bool]] = field(default_factory=dict)
    """event key -> (duplicate, routed)."""
    publishes: dict[tuple[UUID, int, UUID, str], tuple[UUID, int, bool]] = field(default_factory=dict)
    """publish key -> (publish_id, publish_seq, duplicate)."""


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

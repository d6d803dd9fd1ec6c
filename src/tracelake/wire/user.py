"""The user API: `/v1/*` on the public listener. Everything is of the caller's own org."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.model.dag import Problem
from tracelake.wire.base import Cursor, Name, Reply, Request, ShortText
from tracelake.wire.units import PayloadInput, Unit, check_partition

TaskStatus = Literal["Queued", "Running", "Completed", "Failed", "Canceled"]
TaskStatusFilter = Literal["Queued", "Running", "Retrying", "Completed", "Failed", "Skipped", "Canceled"]
"""What a list of tasks can be narrowed to. `Retrying`: failed, and waits for its next attempt (`next_retry_at`);
`Failed`: failed for good and not skipped; `Skipped`: failed for good and skipped."""

# --- deploying


class FieldChange(Reply, frozen=True, kw_only=True):
    """A single value that differs; without `before` or `after` it is not said there."""

    field: str
    """Its name, or its path one level down: `config.size`."""
    before: str | int | float | bool | None = None
    after: str | int | float | bool | None = None


class JobChange(Reply, frozen=True, kw_only=True):
    job: str
    change: Literal["added", "changed", "limits", "removed", "unchanged"]
    """`changed`: it writes other data, so its outputs are rebuilt. `limits`: only how it runs differs."""
    fields: list[str] = []
    """What differs; `upstream` when only something before it does."""
    values: list[FieldChange] = []
    """Those of the differences that are single values."""


class DatasetChange(Reply, frozen=True, kw_only=True):
    dataset: str
    change: Literal["added", "rebuilt", "removed", "unchanged", "restored"]
    """`restored`: a generation of an earlier version becomes the current one again."""
    job: str
    output_index: int = 0
    because: str = ""
    table: list[str] = []
    """What becomes of its table, in words; of buffered datasets alone."""


class Plan(Reply, frozen=True, kw_only=True):
    """What a deploy would change, as data; `deploy` applies exactly this."""

    dag: str
    version: int
    """The number that the version has, or will have."""
    new_version: bool
    active_version: int | None = None
    jobs: list[JobChange]
    datasets: list[DatasetChange]
    subscribers: list[str] = []
    """Jobs of other DAGs, as `dag/job`, that read a dataset this plan moves or removes."""
    needs_build: bool = False
    """Work must be done beside the active version before the cutover."""
    changes: bool = True
    """False: the active version is this very document."""
    notes: list[str] = []
    """What is allowed, but hardly meant."""


class DeployReply(Reply, frozen=True, kw_only=True):
    plan: Plan
    dag_version_id: UUID | None = None
    duplicate: bool = False
    """The version was there before."""
    state: Literal["Planned", "Created", "Building", "Active"] = "Planned"


class InvalidDag(Reply, frozen=True, kw_only=True):
    """`details` of the error `dag_invalid`."""

    problems: list[Problem]


class DagRow(Reply, frozen=True, kw_only=True):
    name: str
    active_version: int | None = None
    building_version: int | None = None
    versions: int
    jobs: int
    activated_at: datetime | None = None
    open_tasks: int
    failed_tasks: int
    """Failed for good, and neither retried nor skipped."""
    more: bool = False
    """There are more tasks than were counted: both numbers are at least that."""


class DagsReply(Reply, frozen=True, kw_only=True):
    dags: list[DagRow]


class BuildProgress(Reply, frozen=True, kw_only=True):
    done: int
    open: int
    failed: int
    draining_edges: int
    """Edges that have not yet seen all of their history."""
    more: bool = False
    """There are more tasks than were counted: each number is at least that."""


class DagVersionRow(Reply, frozen=True, kw_only=True):
    number: int
    dag_version_id: UUID
    state: Literal["Inactive", "Building", "Active"]
    created_by: str
    created_at: datetime
    activated_at: datetime | None = None
    jobs: int
    build: BuildProgress | None = None
    """While it is built."""


class DagVersionsReply(Reply, frozen=True, kw_only=True):
    dag: str
    versions: list[DagVersionRow]


class ActivateRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Which version becomes active: a number, or `previous` for the one that was active before."""

    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | Literal["previous"]
    now: bool = False
    """Cut over at once, also when the build is not finished."""


class EdgeRow(Reply, frozen=True, kw_only=True):
    """One input of a job, and how far it has come."""

    input_index: int
    dataset: str
    dataset_version: UUID
    where: dict[str, Any] | None = None
    phase: Literal["Active", "Staged", "Parked"]
    state: Literal["live", "draining", "held", "stopped", "paused", "parked"]
    """`stopped`: by a full queue; `paused`: its source was, by a person. Only the list of jobs tells these two."""
    routed_cursor: int | None = None
    backlog: int
    """Events that wait for this edge."""
    failed_units: int


class JobOutputRow(Reply, frozen=True, kw_only=True):
    output_index: int
    dataset: str
    dataset_uuid: UUID
    dataset_version: UUID
    storage: str
    dead_letters: int | None = None
    """Of a buffered dataset, in the list of jobs: batches of all its writers that were refused and wait for a person.
    Counted no further than 10,000."""


class JobRow(Reply, frozen=True, kw_only=True):
    dag: str
    name: str
    job_id: UUID
    activation: str
    runtime: str | None = None
    operator: str | None = None
    strategy: str
    priority: str = "normal"
    max_concurrency: int | None = None
    source: str | None = None
    inputs: list[EdgeRow] = []
    outputs: list[JobOutputRow] = []
    queued: int
    running: int
    held: int
    """They wait for a place of a limit."""
    retrying: int
    """They failed, and wait for their next attempt."""
    failed: int
    """Failed for good, and neither retried nor skipped."""
    more: bool = False
    """There are more tasks than were counted: each number is at least that."""


class JobsReply(Reply, frozen=True, kw_only=True):
    dag: str
    version: int
    jobs: list[JobRow]


# --- doing


class BlockRange(Request, frozen=True, kw_only=True):
    start: Cursor
    end: Cursor

    def __post_init__(self) -> None:
        if self.start > self.end:
            raise ValueError("a range needs start <= end")


class TriggerRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """The unit: exactly one of `cursor`, `range` and `partition_key`."""

    cursor: Cursor | None = None
    range: BlockRange | None = None
    partition_key: ShortText | None = None
    output_index: Annotated[int, Meta(ge=0, le=63)] = 0
    """Of a source: which output's event."""
    input_index: Annotated[int, Meta(ge=0, le=63)] = 0
    """Of a PerUpdate job: which input the unit is of."""
    idempotency_key: ShortText | None = None
    """The same key again is the same trigger; without one every call is a new one."""

    def __post_init__(self) -> None:
        if sum(item is not None for item in (self.cursor, self.range, self.partition_key)) != 1:
            raise ValueError("give exactly one of cursor, range and partition_key")
        check_partition(self.partition_key, None, None)


class TriggerReply(Reply, frozen=True, kw_only=True):
    idempotency_key: str
    event_id: int | None = None
    """Of a source: the event that was emitted."""
    task_id: UUID | None = None
    """Of a reactive job: the task that was made."""
    tasks: list[UUID] = []
    """Of a source: the tasks that the event made at once (the first hundred)."""
    duplicate: bool = False
    kept: Literal["paused", "stopped"] | None = None
    """Of a source: the event makes its tasks later. A person paused the source, or a full queue downstream stops it."""


class RetryReply(Reply, frozen=True, kw_only=True):
    task_id: UUID
    status: str
    max_attempts: int | None = None
    duplicate: bool = False
    """It is queued or running already."""
    cancel_requested: bool = False
    """It runs, but was asked to stop: it can be retried once it is Canceled."""


class RebuildReply(Reply, frozen=True, kw_only=True):
    dag: str
    job: str
    because: str
    """The dataset whose rebuild made the job's outputs stale."""
    duplicate: bool = False
    """A rebuild was under way already."""


class SkipReply(Reply, frozen=True, kw_only=True):
    task_id: UUID
    status: str
    duplicate: bool = False


# --- seeing


class TaskRow(Reply, frozen=True, kw_only=True):
    task_id: UUID
    dag: str
    job: str
    operator: str
    status: TaskStatus
    attempt: int
    max_attempts: int | None = None
    held: bool = False
    cancel_requested: bool = False
    skipped: bool = False
    unit: Unit | None = None
    revision: str = ""
    created_at: datetime
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    next_retry_at: datetime | None = None
    error: str | None = None


class TasksPage(Reply, frozen=True, kw_only=True):
    tasks: list[TaskRow]
    next: str | None = None
    """Pass it as `cursor` for the following page; after a page that was asked for with `after`, as `after`."""
    settled: UUID | None = None
    """With `after`: nothing will appear any more up to here. When there is no `next`, pass it as `after` next time;
    tasks above it come again, and perhaps with others between them."""
    serving_since: datetime | None = None
    """With `after`: since when the Dispatcher that answers has been running."""


class TaskLookup(Request, frozen=True, kw_only=True):
    task_ids: Annotated[list[UUID], Meta(min_length=1, max_length=1000)]


class AttemptRow(Reply, frozen=True, kw_only=True):
    attempt: int
    outcome: str | None = None
    worker_id: str | None = None
    claimed_at: datetime | None = None
    error: str | None = None
    spark: dict[str, int] | None = None
    """What Spark did for it, where that was said: the figures of `SparkMetrics`, as far as they are not 0."""


class TaskDetail(Reply, frozen=True, kw_only=True):
    task: TaskRow
    runtime: str
    inputs: list[PayloadInput]
    outputs: list[JobOutputRow]
    result: Any = None
    """What the operator reported about its outputs."""
    attempts: list[AttemptRow]
    """Oldest first, the current one last."""
    events: list["EventRow"] = []


class CommitBatch(Reply, frozen=True, kw_only=True):
    """A batch that came into the table of a buffered dataset with a commit, and the task that wrote it."""

    publish_id: UUID
    task_id: UUID
    attempt: int
    dag: str
    job: str
    unit: Unit | None = None
    """Of the task."""
    record_count: int | None = None


class EventRow(Reply, frozen=True, kw_only=True):
    event_id: int
    dataset: str
    dataset_version: UUID
    cursor: int | None = None
    partition_key: str | None = None
    revision: str = ""
    state: Literal["Routed", "AwaitsCommit", "NotCurrent", "Outdated"]
    producer: str
    attempt: int | None = None
    invalidates: Any = None
    created_at: datetime
    batches: list[CommitBatch] = []
    """Of a commit of a buffered dataset: what came with it, the first ten."""
    batch_count: int | None = None
    """Of such a commit: how many there are."""


class EventsPage(Reply, frozen=True, kw_only=True):
    events: list[EventRow]
    next: str | None = None
    """Pass it as `cursor` for the following page; after a page that was asked for with `after`, as `after`."""
    settled: int | None = None
    """With `after`: no event will appear any more up to this id, and the pages hold none above it. When there is no
    `next`, pass the larger of the two as `after` next time."""
    serving_since: datetime | None = None
    """With `after`: since when the Dispatcher that answers has been running."""


class EventKey(Request, frozen=True, kw_only=True):
    dataset: Name
    event_id: Cursor


class EventLookup(Request, frozen=True, kw_only=True):
    events: Annotated[list[EventKey], Meta(min_length=1, max_length=1000)]


class StaleRow(Reply, frozen=True, kw_only=True):
    """Units of a dataset were made from a generation of another that is not current any more."""

    because: str
    """That dataset."""
    job: str
    """The job that reads it, as `dag/job`: `trace rebuild` makes its units again."""
    since: datetime
    rebuilding: bool = False


class DatasetRow(Reply, frozen=True, kw_only=True):
    name: str
    dataset_uuid: UUID
    storage: str
    published: bool
    dag: str | None = None
    job: str | None = None
    """Who makes it, if it is one job."""
    writers: list[str] = []
    """Every job of an active version that writes it, as `dag/job`."""
    current_version: UUID
    staged_version: UUID | None = None
    generations: int
    blocks: int | None = None
    """How many blocks the current generation's ranges cover."""
    max_cursor: int | None = None
    updated_at: datetime | None = None
    retired_after: int | None = None
    """No job of the active version writes it any more; this is the number of the last version that did."""
    waiting_batches: int | None = None
    """Of a buffered dataset: published and not in the table yet. Counted no further than 10,000."""
    dead_letters: int | None = None
    """Of a buffered dataset: batches that were refused and wait for a person. Counted no further than 10,000."""
    stale: StaleRow | None = None


class DatasetsReply(Reply, frozen=True, kw_only=True):
    datasets: list[DatasetRow]


class RunRow(Reply, frozen=True, kw_only=True):
    """Adjoining units of one size."""

    start: int
    end: int
    unit_size: int


class GenerationRow(Reply, frozen=True, kw_only=True):
    dataset_version: UUID
    state: Literal["current", "staged", "past"]
    config_hash: str | None = None
    schema_hash: str | None = None
    created_at: datetime
    max_cursor: int | None = None
    ranges: list[RunRow] = []
    """The first hundred."""
    range_count: int
    partition_keys: int
    commits: int
    """Of files, or of the table of a buffered dataset."""


class PointerRow(Reply, frozen=True, kw_only=True):
    dataset_version: UUID
    since: datetime
    dag_version: int | None = None


class ConsumerRow(Reply, frozen=True, kw_only=True):
    dag: str
    job: str
    edge: EdgeRow


class InvalidationRow(Reply, frozen=True, kw_only=True):
    invalidation_id: str
    start: int
    end: int
    reason: str
    producer: str
    created_at: datetime


class BufferedTableRow(Reply, frozen=True, kw_only=True):
    """The table of a buffered dataset."""

    on_conflict: Literal["update", "nothing"]
    max_queue_depth: int | None = None
    """Batches that may wait before its writers are stopped."""
    max_queue_age_seconds: int | None = None
    """How long the oldest of them may."""
    table: str
    view: str
    """By which people read it in Postgres data."""
    last_commit: int | None = None
    committed_at: datetime | None = None


class DatasetDetail(Reply, frozen=True, kw_only=True):
    dataset: DatasetRow
    table: BufferedTableRow | None = None
    schema: Any = None
    generations: list[GenerationRow]
    pointers: list[PointerRow]
    consumers: list[ConsumerRow]
    invalidations: list[InvalidationRow]


class LineageUnit(Reply, frozen=True, kw_only=True):
    """Which task made a unit, from which inputs. A unit that a source announced has a producer and no task."""

    unit: Unit
    revision: str = ""
    dataset_version: UUID
    at: datetime
    producer: str
    task_id: UUID | None = None
    attempt: int | None = None
    dag: str | None = None
    job: str | None = None
    inputs: list[PayloadInput] = []
    files: int | None = None
    batches: list[CommitBatch] = []
    """Of a commit of a buffered dataset: what came with it, the first ten. Each has a task of its own."""
    batch_count: int | None = None
    """Of such a commit: how many there are."""


class LineageEdge(Reply, frozen=True, kw_only=True):
    """`job` reads `from_dataset` and writes `to_dataset`; a source has no `from_dataset`, a job at the end no
    `to_dataset`."""

    from_dataset: str | None = None
    dag: str
    job: str
    to_dataset: str | None = None


class LineageReply(Reply, frozen=True, kw_only=True):
    dataset: str
    dataset_version: UUID
    upstream: list[LineageEdge]
    downstream: list[LineageEdge]
    units: list[LineageUnit]
    next: str | None = None


class AuditRow(Reply, frozen=True, kw_only=True):
    audit_id: int
    at: datetime
    subject: str
    action: str
    target: str
    details: Any = None


class AuditPage(Reply, frozen=True, kw_only=True):
    entries: list[AuditRow]
    next: str | None = None


DagName = Name

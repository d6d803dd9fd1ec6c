"""Datasets in the user API: events, generations, consumers, lineage."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.model.dag import OnChange, OnConflict, UnitGrid
from tracelake.wire.base import Cursor, Name, Reply, Request
from tracelake.wire.checks import CheckRow
from tracelake.wire.jobs import EdgeRow
from tracelake.wire.units import PayloadInput, Unit


class CommitBatch(Reply, frozen=True, kw_only=True):
    """A batch of a commit of a buffered dataset, and the task that wrote it."""

    publish_id: UUID
    task_id: UUID
    attempt: int
    dag: str
    job: str
    unit: Unit | None = None
    """The unit of the task."""
    record_count: int | None = None


EventState = Literal["Routed", "AwaitsCommit", "NotCurrent", "Outdated"]


class EventRow(Reply, frozen=True, kw_only=True):
    event_id: int
    """Identifies the event within its org. Ids have no order; the order is that of the list."""
    dataset: str
    dataset_version: UUID
    cursor: int | None = None
    partition_key: str | None = None
    window: str | None = None
    """The unit as a date, if it is a window of time."""
    revision: str = ""
    state: EventState
    producer: str
    attempt: int | None = None
    invalidates: Any = None
    created_at: datetime
    batches: list[CommitBatch] = []
    """Of a commit of a buffered dataset: its first ten batches."""
    batch_count: int | None = None
    """Of such a commit: the number of its batches."""


class EventsPage(Reply, frozen=True, kw_only=True):
    events: list[EventRow]
    next: str | None = None
    """Pass it as `cursor` for the next page, or as `after` if this page was requested with `after`."""
    settled: int | None = None
    """With `after`: the newest event that the pages can contain now, or `after` itself if there is none; no event will
    appear before it any more. If there is no `next`, pass it as `after` next time."""
    serving_since: datetime | None = None
    """With `after`: the start time of the Dispatcher that replies."""


class EventKey(Request, frozen=True, kw_only=True):
    dataset: Name
    event_id: Cursor


class EventLookup(Request, frozen=True, kw_only=True):
    events: Annotated[list[EventKey], Meta(min_length=1, max_length=1000)]


class StaleRow(Reply, frozen=True, kw_only=True):
    """Units of a dataset were made from a generation of another dataset that is no longer current."""

    because: str
    """The other dataset."""
    job: str
    """The job that reads it, as `dag/job`; `trace rebuild` makes its units again."""
    since: datetime
    rebuilding: bool = False


class DatasetRow(Reply, frozen=True, kw_only=True):
    name: str
    dataset_uuid: UUID
    storage: str
    published: bool
    dag: str | None = None
    job: str | None = None
    """The job that writes it, if there is only one."""
    writers: list[str] = []
    """Every job of an active version that writes it, as `dag/job`."""
    current_version: UUID
    staged_version: UUID | None = None
    generations: int
    blocks: int | None = None
    """The number of blocks that the ranges of the current generation cover; of seconds where units are windows of
    time."""
    of_deliveries: bool = False
    """It is made from deliveries of webhooks alone: its positions, `blocks` among them, are numbers of deliveries."""
    windows: str | None = None
    """The first and the last window as dates, where units are windows of time: `2026-03-01..2026-03-03`."""
    max_cursor: int | None = None
    updated_at: datetime | None = None
    retired_after: int | None = None
    """The number of the last version that wrote it, if no job of the active version does."""
    waiting_batches: int | None = None
    """Of a buffered dataset: published batches that are not in the table yet; counted up to 10,000."""
    dead_letters: int | None = None
    """Of a buffered dataset: refused batches; counted up to 10,000."""
    gap_count: int = 0
    """Ranges that no unit covers, between those that units do cover."""
    given_up_units: int = 0
    """Units that were skipped or canceled, and that no task has completed; counted up to 10,000."""
    stale: StaleRow | None = None


class DatasetsReply(Reply, frozen=True, kw_only=True):
    datasets: list[DatasetRow]


class RunRow(Reply, frozen=True, kw_only=True):
    """A run of adjacent units of one size."""

    start: int
    end: int
    window: str | None = None
    """The range as dates, if the units are windows of time."""
    unit_size: int


class GenerationRow(Reply, frozen=True, kw_only=True):
    dataset_version: UUID
    state: Literal["current", "staged", "past"]
    config_hash: str | None = None
    schema_hash: str | None = None
    created_at: datetime
    max_cursor: int | None = None
    ranges: list[RunRow] = []
    """The first hundred runs."""
    range_count: int
    partition_keys: int
    commits: int
    """The number of commits of files, or of the table of a buffered dataset."""


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
    window: str | None = None
    """The range as dates, if the units are windows of time."""
    reason: str
    producer: str
    created_at: datetime


class BufferedTableRow(Reply, frozen=True, kw_only=True):
    """The table of a buffered dataset."""

    on_conflict: OnConflict
    version_column: str | None = None
    """The column whose highest value stays under `newest`."""
    on_change: OnChange = "rebuild"
    """What becomes of the rows of a job that changes."""
    max_queue_depth: int | None = None
    """The number of waiting batches that stops its writers."""
    max_queue_age_seconds: int | None = None
    """The age of the oldest waiting batch that stops its writers."""
    table: str
    view: str
    """The view by which people read the table in Postgres data."""
    last_commit: int | None = None
    committed_at: datetime | None = None


class DatasetColumnRow(Reply, frozen=True, kw_only=True):
    name: str
    type: str
    """As Spark writes it, or as the schema of a buffered dataset declares it. `unknown`: not certain before it runs."""
    nullable: bool = True
    description: str = ""


class GapRow(Reply, frozen=True, kw_only=True):
    """Blocks that no unit covers, between blocks that units do cover; seconds where units are windows of time."""

    start: int
    end: int
    text: str
    """For people: the blocks, or the windows."""


class GivenUpUnit(Reply, frozen=True, kw_only=True):
    """A unit that somebody skipped or canceled, of the dataset or of what it is made from: nothing will fill this gap
    unless its task is retried."""

    job: str
    unit: str
    """For people: the blocks, the window, or the partition."""
    start: int | None = None
    end: int | None = None
    task_id: UUID
    state: Literal["skipped", "canceled"]
    at: datetime | None = None


class DatasetContent(Reply, frozen=True, kw_only=True):
    """What the current generation holds. Counting stops at 10,000 units."""

    units: int
    empty_units: int | None = None
    """Units that were computed and have no rows; absent where nobody reported rows. A unit that is missing is in
    `gaps`."""
    more: bool = False
    """There are more units; `rows` and `bytes` are those of the counted ones."""
    rows: int | None = None
    """Of files: as the tasks reported them; absent if one did not. Of tables: as they were counted last."""
    bytes: int | None = None
    estimated: bool = False
    """`rows` and `bytes` are those of a table, or of files and a table: about as many as there are."""
    first_block: int | None = None
    last_block: int | None = None
    windows: str = ""
    """For people: the first and the last window, where units are windows of time. Blocks are seconds then."""
    gap_count: int = 0
    gaps: list[GapRow] = []
    """The first five."""
    committed_at: datetime | None = None
    """The newest commit."""
    data_at: datetime | None = None
    """The time of the newest block, where commits record times."""


class DatasetDetail(Reply, frozen=True, kw_only=True):
    dataset: DatasetRow
    description: str = ""
    owner: str = ""
    columns: list[DatasetColumnRow] = []
    """As they were known when the DAG was deployed."""
    columns_complete: bool = False
    """False: there may be other columns, or none are known."""
    checks: list[CheckRow] = []
    units: UnitGrid | None = None
    """The windows that the units of the current generation are, if a job chose them."""
    content: DatasetContent | None = None
    given_up: list[GivenUpUnit] = []
    """The first twenty."""
    given_up_count: int = 0
    """Of the dataset and of what it is made from; counted up to 10,000."""
    table: BufferedTableRow | None = None
    boundary: int | None = None
    """Of a live dataset: up to this position its rows are in files, above it in a table. None: rows of the table are in
    no file yet."""
    schema: Any = None
    generations: list[GenerationRow]
    pointers: list[PointerRow]
    consumers: list[ConsumerRow]
    invalidations: list[InvalidationRow]


class ReadRange(Reply, frozen=True, kw_only=True):
    """Adjoining units of an input that a task has read, all in one revision."""

    input_index: int
    dataset: str
    start: int | None = None
    end: int | None = None
    """Absent for a generation that was published as a whole."""
    window: str | None = None
    """The range as dates, if the units are windows of time: `2026-03-03`, `2026-03-01..2026-03-03`."""
    revision: int
    units: int = 1
    as_of: datetime
    """The newest commit of the dataset when the attempt was claimed."""


class InputRead(Reply, frozen=True, kw_only=True):
    """What is known of the rows that a task has read of an input that is kept in files."""

    input_index: int
    dataset: str
    read_known: bool
    """False: the attempt has no record of it, or commits of that time were deleted since. True without a range: the
    task has read no file."""
    ranges: int = 0
    """All ranges; `read` has the first twenty."""
    deleted_units: int = 0
    """Units whose commits of that time were deleted: what was read of them is not known."""
    looked_to: int | None = None
    """Units above this position are left out: there are too many."""
    reads_table: bool = False
    """The task has read rows of the table of a live dataset, too."""
    table_above: int | None = None
    """Only those above this position; below it are files."""


class LineageUnit(Reply, frozen=True, kw_only=True):
    """The task that made a unit, and its inputs. A unit that a source announced has a producer and no task."""

    unit: Unit
    window: str | None = None
    """The unit as a date, if it is a window of time."""
    revision: str = ""
    dataset_version: UUID
    at: datetime
    producer: str
    task_id: UUID | None = None
    attempt: int | None = None
    dag: str | None = None
    job: str | None = None
    inputs: list[PayloadInput] = []
    read: list[ReadRange] = []
    """What the task has read of inputs that are kept in files: at most 20 ranges of each."""
    input_reads: list[InputRead] = []
    """How complete `read` is, for each of these inputs."""
    files: int | None = None
    batches: list[CommitBatch] = []
    """Of a commit of a buffered dataset: its first ten batches, each of a task of its own."""
    batch_count: int | None = None
    """Of such a commit: the number of its batches."""


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

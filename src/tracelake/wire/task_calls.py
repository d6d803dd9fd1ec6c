"""Task-scoped calls: `/v1/task/*`. Every body carries the fence `{task_id, attempt, lease_token}`."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.model.dag import CheckKind, CheckSeverity, ColumnType, Schema
from tracelake.wire.base import Cursor, Reply, Request, Sha256, ShortText, Uri
from tracelake.wire.direct import DirectTable
from tracelake.wire.head_progress import HeadProgress
from tracelake.wire.units import EventIn, check_block_time

FinalStatus = Literal["Completed", "Failed", "Canceled"]
ErrorCode = Literal["worker_stopping", "check_failed"]
"""`worker_stopping`: the worker stopped before the task ended. It is retried at once and costs no attempt.
`check_failed`: the rows failed a check of severity `error`. It is not retried: the same rows would fail again."""
MAX_CHECK_REPORTS = 400
MAX_SAMPLE_ROWS = 5
CallName = Literal["heartbeat", "complete", "events", "buffer-publish"]


class Fenced(Request, frozen=True, kw_only=True):
    task_id: UUID
    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    lease_token: UUID


class HeartbeatRequest(Fenced, frozen=True, kw_only=True, omit_defaults=True):
    progress: HeadProgress | None = None
    """Of an attempt that follows the head of a chain. Others have none."""


class HeartbeatReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    lease_expires_at: datetime
    cancel: bool
    pause: bool
    capability_token: str | None = None


class EventsRequest(Fenced, frozen=True, kw_only=True):
    events: Annotated[list[EventIn], Meta(min_length=1, max_length=1000)]


class EventAnswer(msgspec.Struct, frozen=True, kw_only=True):
    duplicate: bool
    routed: bool


class EventsReply(msgspec.Struct, frozen=True, kw_only=True):
    accepted: int
    duplicate: bool
    """True when every event of the call was already stored."""
    events: list[EventAnswer]


class ReportedColumn(Request, frozen=True, kw_only=True):
    """A column of an output, with its type in the words of whoever wrote it."""

    name: ShortText
    type: Annotated[str, Meta(min_length=1, max_length=1000)]


class OutputReport(Request, frozen=True, kw_only=True, omit_defaults=True):
    output_index: Cursor | None = None
    dataset_uuid: UUID
    dataset_version: UUID
    location: Uri | None = None
    cursor: Cursor | None = None
    row_count: Cursor | None = None
    size_bytes: Cursor | None = None
    file_count: Cursor | None = None
    columns: Annotated[list[ReportedColumn], Meta(max_length=10_000)] | None = None
    """Of the result of a batch query."""


class StorageRef(Request, frozen=True, kw_only=True):
    scheme: Literal["s3"]
    bucket: ShortText
    prefix: Uri
    glob: str


class DatasetPublished(Request, frozen=True, kw_only=True, omit_defaults=True):
    dataset_uuid: UUID
    dataset_version: UUID
    storage_ref: StorageRef
    config_hash: ShortText | None = None
    range_start: Cursor | None = None
    range_end: Cursor | None = None
    time_min: Cursor | None = None
    time_max: Cursor | None = None
    """Times of the first and the last block of the unit, in seconds since 1970. Without them, those of the units that
    the task reads are recorded. A genesis block with the timestamp 0 has no time."""
    table_start: Cursor | None = None
    """For files that hold rows of the table of a live dataset: the first position that the table ever had. The boundary
    of the dataset moves over them, and nothing is announced."""

    def __post_init__(self) -> None:
        check_range(self.range_start, self.range_end, "range_start", "range_end")
        check_range(self.time_min, self.time_max, "time_min", "time_max")
        check_block_time(self.time_max)


class SparkMetrics(Request, frozen=True, kw_only=True, omit_defaults=True):
    """What Spark did for an attempt, summed over its stages. Spark does not count the files that operators read and
    write themselves; rows and bytes of outputs are in `outputs`."""

    jobs: Cursor = 0
    stages: Cursor = 0
    """Stages that ran; skipped stages, whose result existed already, are not counted."""
    tasks: Cursor = 0
    failed_tasks: Cursor = 0
    """Tasks that were retried, or that caused a failure."""
    run_ms: Cursor = 0
    """Total time of all tasks in executors."""
    input_rows: Cursor = 0
    input_bytes: Cursor = 0
    shuffle_read_bytes: Cursor = 0
    shuffle_write_bytes: Cursor = 0
    spilled_memory_bytes: Cursor = 0
    """Size of spilled data in memory."""
    spilled_disk_bytes: Cursor = 0
    """Size of spilled data on disk."""


class CheckReport(Request, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a check of the rows of an output."""

    output_index: Cursor
    name: ShortText
    kind: CheckKind
    severity: CheckSeverity
    passed: bool
    rows: Cursor | None = None
    """That were checked."""
    offending_rows: Cursor | None = None
    """Absent if the check could not be evaluated."""
    message: Annotated[str, Meta(max_length=2_000)] = ""
    """What was expected, and what the rows are, if it did not pass."""
    sample: Annotated[list[dict[ShortText, Annotated[str, Meta(max_length=200)] | None]], Meta(max_length=5)] = []
    """Some of the offending rows: values as text, shortened."""


class CompleteRequest(Fenced, frozen=True, kw_only=True, omit_defaults=True):
    status: FinalStatus
    events: Annotated[list[EventIn], Meta(max_length=1000)] = []
    outputs: Annotated[list[OutputReport], Meta(max_length=1000)] = []
    datasets_published: Annotated[list[DatasetPublished], Meta(max_length=1000)] = []
    error_message: Annotated[str, Meta(max_length=20_000)] | None = None
    retryable: bool = True
    error_code: ErrorCode | None = None
    """Why it Failed, where the Dispatcher treats the reason differently."""
    spark: SparkMetrics | None = None
    """Absent if Spark reported nothing."""
    checks: Annotated[list[CheckReport], Meta(max_length=MAX_CHECK_REPORTS)] = []
    """Of a task that Completed, or that Failed because of one of them."""
    operator_package: ShortText | None = None
    """The installed package, with its version, that the operator comes from; absent for operators of Trace itself."""

    def __post_init__(self) -> None:
        if self.error_code == "worker_stopping" and not (self.status == "Failed" and self.retryable):
            raise ValueError("only a Failed, retryable task has the error_code worker_stopping")
        failed = any(not report.passed and report.severity == "error" for report in self.checks)
        if failed != (self.error_code == "check_failed"):
            raise ValueError("error_code check_failed goes together with a failed check of severity error")
        if self.error_code == "check_failed" and (self.status != "Failed" or self.retryable):
            raise ValueError("only a Failed task that is not retryable has the error_code check_failed")
        if self.checks and self.status == "Canceled":
            raise ValueError("a Canceled task has no checks")
        if self.status != "Completed" and (self.outputs or self.datasets_published):
            raise ValueError("only a Completed task has outputs or datasets_published")


class CompleteReply(Reply, frozen=True, kw_only=True):
    status: str
    duplicate: bool = False
    next_retry_at: datetime | None = None


class BufferPublishRequest(Fenced, frozen=True, kw_only=True, omit_defaults=True):
    """The target is named by `dataset_uuid` or by `dedupe_scope` (the dataset's name); both must agree."""

    batch_uri: Uri
    dataset_uuid: UUID | None = None
    dedupe_scope: ShortText | None = None
    dataset_version: UUID | None = None
    record_count: Cursor | None = None
    content_type: Literal["application/jsonl"] = "application/jsonl"
    batch_size_bytes: Cursor | None = None
    batch_sha256: Sha256 | None = None
    """SHA-256 of the content in hex; readers of the batch check it."""

    def __post_init__(self) -> None:
        if self.dataset_uuid is None and self.dedupe_scope is None:
            raise ValueError("the target needs a dataset_uuid or a dedupe_scope")


class BufferPublishReply(Reply, frozen=True, kw_only=True):
    publish_id: UUID
    publish_seq: int
    duplicate: bool = False


class FilesRequest(Fenced, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for the files of a dataset that the task reads, all or those of a range; for a buffered dataset that it
    writes, for the schema."""

    dataset_uuid: UUID
    dataset_version: UUID
    start: Cursor | None = None
    end: Cursor | None = None
    after: Cursor | None = None
    """`next` of the previous page."""
    as_of: datetime | None = None
    """`as_of` of the previous page: all pages show one moment."""

    def __post_init__(self) -> None:
        check_range(self.start, self.end)
        if self.as_of is not None and (self.after is None or self.as_of.tzinfo is None):
            raise ValueError("as_of goes together with after, and has a zone")


class TaskDeliveriesRequest(Fenced, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for the deliveries of the webhook source that the task reads: those of its own unit, in their order."""

    dataset_uuid: UUID
    dataset_version: UUID
    after: Cursor | None = None
    """`next` of the previous page."""


class TaskDelivery(Reply, frozen=True, kw_only=True):
    number: int
    delivery_id: str
    received_at: datetime
    content_type: str
    body: bytes
    """In Base64, as it came."""


class TaskDeliveriesReply(Reply, frozen=True, kw_only=True, omit_defaults=True):
    deliveries: list[TaskDelivery]
    next: int | None = None


def check_range(start: int | None, end: int | None, start_name: str = "start", end_name: str = "end") -> None:
    if (start is None) != (end is None):
        raise ValueError(f"{start_name} and {end_name} go together")
    if start is not None and end is not None and start > end:
        raise ValueError(f"a range needs {start_name} <= {end_name}")


class DataFile(Reply, frozen=True, kw_only=True):
    """A file as it was committed. A file with another ETag or other bytes is not this file."""

    uri: str
    size: int
    etag: str
    sha256: str | None = None
    """SHA-256 of the content in hex; readers check it. Absent if the file was committed without one."""


class FileUnit(Reply, frozen=True, kw_only=True):
    """A committed unit with its files. Without a range it is the whole generation."""

    start: int | None = None
    end: int | None = None
    revision: int
    files: list[DataFile]


class TableColumn(Reply, frozen=True, kw_only=True):
    """A column of a table as a reader gets it."""

    name: str
    type: ColumnType
    precision: int | None = None
    scale: int | None = None
    """Both for decimal only."""
    nested: str | None = None
    """For json only: the type of Spark of lists and structs, as which readers get it."""


class FilesReply(Reply, frozen=True, kw_only=True):
    units: list[FileUnit]
    next: int | None = None
    """Present if there are more files: repeat the call with this as `after`, and with `as_of`."""
    as_of: datetime | None = None
    """The moment that the pages show; present whenever `next` is."""
    columns: list[TableColumn] | None = None
    """The columns of a buffered dataset, which is a table and has no files, as a reader gets them; the table itself may
    have more columns, or wider ones."""
    schema: Schema | None = None
    """For a buffered dataset that the task writes: the schema that sinks check its rows against."""
    table: DirectTable | None = None
    """For a table that the task writes directly: how it keeps the table."""
    by_position: bool = False
    """The rows of the table have positions, such as blocks, and units are ranges of them; else of commits."""
    live: bool = False
    """The dataset is files and a table at once: `units` lists the files, `columns` are those of the table."""
    boundary: int | None = None
    """Of a live dataset: up to this position its rows are in the files, above it in the table. None: rows of the table
    are in no file yet, and both are read whole."""


class CredentialsRequest(Fenced, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for credentials of the object store; only code of users gets them."""

    locations: Annotated[list[Uri], Meta(min_length=1, max_length=256)] | None = None
    """Objects or prefixes that the credentials are for. Without it, all that the token grants."""


class ScopedCredentials(Reply, frozen=True, kw_only=True):
    """Keys that read and list below all of these prefixes, write below some, and do nothing else."""

    access_key_id: str
    secret_access_key: str
    session_token: str
    expires_at: datetime
    read_prefixes: list[str]
    """Read only."""
    write_prefixes: list[str]
    """Read and write."""


class CredentialsReply(Reply, frozen=True, kw_only=True):
    """A policy of credentials has a limited size, so a task with many inputs gets several sets. Use the one whose
    prefix contains the location."""

    endpoint: str | None = None
    """Of the object store, with path-style names. Absent: S3 in AWS."""
    region: str
    credentials: list[ScopedCredentials]


class BatchCall(Request, frozen=True, kw_only=True):
    call: CallName
    capability_token: str
    body: msgspec.Raw


class BatchRequest(Request, frozen=True, kw_only=True):
    """Items are decoded one by one, so that an invalid item does not fail the others."""

    calls: list[msgspec.Raw]

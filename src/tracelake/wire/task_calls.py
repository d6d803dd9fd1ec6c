"""Task-scoped calls: `/v1/task/*`. Every body carries the fence `{task_id, attempt, lease_token}`."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.model.dag import ColumnType, Schema
from tracelake.wire.base import Cursor, Reply, Request, Sha256, ShortText, Uri
from tracelake.wire.units import EventIn

FinalStatus = Literal["Completed", "Failed", "Canceled"]
ErrorCode = Literal["worker_stopping"]
"""`worker_stopping`: the worker was told to end before the task had. Tried again at once; no attempt is lost by it."""
CallName = Literal["heartbeat", "complete", "events", "buffer-publish"]


class Fenced(Request, frozen=True, kw_only=True):
    task_id: UUID
    attempt: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    lease_token: UUID


class HeartbeatRequest(Fenced, frozen=True, kw_only=True):
    pass


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


class OutputReport(Request, frozen=True, kw_only=True, omit_defaults=True):
    output_index: Cursor | None = None
    dataset_uuid: UUID
    dataset_version: UUID
    location: Uri | None = None
    cursor: Cursor | None = None
    row_count: Cursor | None = None
    size_bytes: Cursor | None = None
    file_count: Cursor | None = None


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

    def __post_init__(self) -> None:
        if (self.range_start is None) != (self.range_end is None):
            raise ValueError("range_start and range_end go together")
        if self.range_start is not None and self.range_end is not None and self.range_start > self.range_end:
            raise ValueError("a range needs range_start <= range_end")


class SparkMetrics(Request, frozen=True, kw_only=True, omit_defaults=True):
    """What Spark did for an attempt, added up over its stages. Reading and writing of files goes through the operators'
    own code where Spark does not count it; rows and bytes of outputs are in `outputs`."""

    jobs: Cursor = 0
    stages: Cursor = 0
    """That ran; stages whose result was there already are not among them."""
    tasks: Cursor = 0
    failed_tasks: Cursor = 0
    """Of the tasks that were tried again, or that were the reason of a failure."""
    run_ms: Cursor = 0
    """Time of all tasks in executors."""
    input_rows: Cursor = 0
    input_bytes: Cursor = 0
    shuffle_read_bytes: Cursor = 0
    shuffle_write_bytes: Cursor = 0
    spilled_memory_bytes: Cursor = 0
    """What was spilled, as large as it was in memory."""
    spilled_disk_bytes: Cursor = 0
    """What was spilled, as large as it was on disk."""


class CompleteRequest(Fenced, frozen=True, kw_only=True, omit_defaults=True):
    status: FinalStatus
    events: Annotated[list[EventIn], Meta(max_length=1000)] = []
    outputs: Annotated[list[OutputReport], Meta(max_length=1000)] = []
    datasets_published: Annotated[list[DatasetPublished], Meta(max_length=1000)] = []
    error_message: Annotated[str, Meta(max_length=20_000)] | None = None
    retryable: bool = True
    error_code: ErrorCode | None = None
    """Why it Failed, where that matters to what happens next."""
    spark: SparkMetrics | None = None
    """Where the worker's Spark says what it did."""

    def __post_init__(self) -> None:
        if self.error_code is not None and not (self.status == "Failed" and self.retryable):
            raise ValueError("only a Failed, retryable task has an error_code")
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
    """Of the content, in hex: whoever reads the batch checks it."""

    def __post_init__(self) -> None:
        if self.dataset_uuid is None and self.dedupe_scope is None:
            raise ValueError("the target needs a dataset_uuid or a dedupe_scope")


class BufferPublishReply(Reply, frozen=True, kw_only=True):
    publish_id: UUID
    publish_seq: int
    duplicate: bool = False


class FilesRequest(Fenced, frozen=True, kw_only=True, omit_defaults=True):
    """The files of a dataset that the task reads; of a range, or all of them. Of a buffered dataset that it writes: the
    schema."""

    dataset_uuid: UUID
    dataset_version: UUID
    start: Cursor | None = None
    end: Cursor | None = None
    after: Cursor | None = None
    """What `next` of the page before said."""
    as_of: datetime | None = None
    """What `as_of` of the page before said: all pages are of one moment."""

    def __post_init__(self) -> None:
        check_range(self.start, self.end)
        if self.as_of is not None and (self.after is None or self.as_of.tzinfo is None):
            raise ValueError("as_of goes together with after, and has a zone")


def check_range(start: int | None, end: int | None) -> None:
    if (start is None) != (end is None):
        raise ValueError("start and end go together")
    if start is not None and end is not None and start > end:
        raise ValueError("a range needs start <= end")


class DataFile(Reply, frozen=True, kw_only=True):
    """One file as it was committed. Another ETag is another file, and so are other bytes."""

    uri: str
    size: int
    etag: str
    sha256: str | None = None
    """Of the content, in hex; readers check it. Absent for what was committed without."""


class FileUnit(Reply, frozen=True, kw_only=True):
    """A committed unit with its files. Without a range it is all of the generation."""

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
    """Of decimal."""


class FilesReply(Reply, frozen=True, kw_only=True):
    units: list[FileUnit]
    next: int | None = None
    """There are more: ask again with this as `after`, and with `as_of`."""
    as_of: datetime | None = None
    """The moment that the pages are of; there whenever `next` is."""
    columns: list[TableColumn] | None = None
    """Of a buffered dataset, which is a table and has no files: as whoever reads it gets them, though the table may
    have more of them, or wider ones."""
    schema: Schema | None = None
    """Of a buffered dataset that the task writes: what its rows must fit, as sinks judge them now."""


class BatchCall(Request, frozen=True, kw_only=True):
    call: CallName
    capability_token: str
    body: msgspec.Raw


class BatchRequest(Request, frozen=True, kw_only=True):
    """Items are read one by one, so that one bad item never fails its neighbours."""

    calls: list[msgspec.Raw]

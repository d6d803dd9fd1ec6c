"""Calls of platform services: jobs, tasks, cancel, files of datasets, outbox."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.wire.base import Cursor, Name, Reply, Request, Runtime, Seconds, ShortText
from tracelake.wire.task_calls import FileUnit, TableColumn, check_range
from tracelake.wire.units import TaskInput, Unit

MAX_CONFIG_DEPTH = 64
MAX_INPUT_GENERATIONS = 100

StorageKind = Literal["s3", "postgres", "buffered", "live", "none"]


class DatasetSpec(Request, frozen=True, kw_only=True):
    """The dataset that an output writes; created on first use."""

    name: Name
    storage: StorageKind = "none"
    dataset_uuid: UUID | None = None
    dataset_version: UUID | None = None


class Limits(Request, frozen=True, kw_only=True):
    timeout_seconds: Seconds | None = None
    heartbeat_timeout_seconds: Seconds | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None


class JobRequest(Request, frozen=True, kw_only=True):
    """Idempotent: the same definition again answers with the same job."""

    org: Name
    dag: Name
    name: Name
    runtime: Runtime
    operator: ShortText
    config: dict[str, Any] = {}
    outputs: Annotated[list[DatasetSpec], Meta(max_length=64)] = []
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        # Everything that decodes it later (a claim, a worker, Postgres) recurses on a stack of its own.
        level: list[Any] = [self.config]
        for _ in range(MAX_CONFIG_DEPTH):
            level = [item for value in level for item in _children(value)]
        if level:
            raise ValueError(f"config nests deeper than {MAX_CONFIG_DEPTH} levels")


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


class OutputRef(msgspec.Struct, frozen=True, kw_only=True):
    output_index: int
    dataset_uuid: UUID
    dataset_version: UUID
    name: str


class JobReply(msgspec.Struct, frozen=True, kw_only=True):
    job_id: UUID
    org_id: UUID
    config_hash: str
    outputs: list[OutputRef]
    duplicate: bool


class TaskSpec(Request, frozen=True, kw_only=True, omit_defaults=True):
    """A caller that names `task_id` may repeat the call: the same task is made once."""

    job_id: UUID
    task_id: UUID | None = None
    inputs: Annotated[list[TaskInput], Meta(max_length=256)] = []
    unit: Unit | None = None

    def __post_init__(self) -> None:
        # The token names every generation it opens, and travels in a header.
        if len({(item.dataset_uuid, item.dataset_version) for item in self.inputs}) > MAX_INPUT_GENERATIONS:
            raise ValueError(f"a task reads at most {MAX_INPUT_GENERATIONS} dataset versions")


class TasksRequest(Request, frozen=True, kw_only=True):
    tasks: Annotated[list[TaskSpec], Meta(min_length=1, max_length=1000)]


class CreatedTask(Reply, frozen=True, kw_only=True):
    task_id: UUID
    status: str
    duplicate: bool = False


class TasksReply(Reply, frozen=True, kw_only=True):
    tasks: list[CreatedTask]


class CancelReply(Reply, frozen=True, kw_only=True):
    task_id: UUID
    status: str
    cancel_requested: bool = False
    duplicate: bool = False


class FilesPage(Request, frozen=True, kw_only=True):
    """Where a list continues: after that block, in the same generation, as of the moment when the list began."""

    dataset_version: UUID
    after: Cursor
    as_of: datetime
    boundary: Cursor | None = None
    """Of a live dataset, where its files ended at that moment."""

    def __post_init__(self) -> None:
        if self.as_of.tzinfo is None:
            raise ValueError("as_of needs its time zone")


class DatasetFilesRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Asks for the files of a dataset, all or those of a range. `dataset_uuid`, or `org` and `name`, name it."""

    dataset_uuid: UUID | None = None
    org: Name | None = None
    name: Name | None = None
    dataset_version: UUID | None = None
    """Defaults to the current generation."""
    start: Cursor | None = None
    end: Cursor | None = None
    page: FilesPage | None = None
    """`next` of the previous page."""
    count_rows: bool = False
    """Have each page say how many rows its units have."""

    def __post_init__(self) -> None:
        by_name = [self.org, self.name]
        if (self.dataset_uuid is None) == (by_name == [None, None]) or (self.org is None) != (self.name is None):
            raise ValueError("a dataset is named by dataset_uuid, or by org and name together")
        check_range(self.start, self.end)
        if self.page is not None and self.dataset_version not in (None, self.page.dataset_version):
            raise ValueError("the page is of another dataset_version")


class DatasetFilesReply(Reply, frozen=True, kw_only=True):
    """The committed files of a dataset. All pages of a list show one generation at one moment."""

    dataset_uuid: UUID
    dataset_version: UUID
    units: list[FileUnit]
    next: FilesPage | None = None
    """Present if there are more: repeat the call with this as `page`."""
    rows: int | None = None
    """With `count_rows`, the rows of all units of this page, as the tasks that wrote them report; absent if one of them
    does not, and of a live dataset."""
    columns: list[TableColumn] | None = None
    """The columns of a buffered dataset, which is a table and has no files, as a reader gets them; the table itself may
    have more columns, or wider ones."""
    live: bool = False
    """The dataset is files and a table at once: `units` lists the files, `columns` are those of the table."""
    boundary: int | None = None
    """Of a live dataset: up to this position its rows are in the files, above it in the table. None: rows of the table
    are in no file yet, and both are read whole."""


class OutboxRow(Reply, frozen=True, kw_only=True):
    outbox_id: int
    kind: str
    queue: str
    key: str
    status: str
    tries: int
    created_at: datetime
    next_try_at: datetime
    last_error: str | None = None


class OutboxReply(msgspec.Struct, frozen=True, kw_only=True):
    pending: int
    failed: int
    oldest_pending_seconds: float
    rows: list[OutboxRow]


class RequeueRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Without ids, every failed row is tried again."""

    outbox_ids: Annotated[list[Cursor], Meta(max_length=1000)] | None = None


class RequeueReply(Reply, frozen=True, kw_only=True):
    requeued: int


class DeadLetterRow(Reply, frozen=True, kw_only=True):
    """A message that was received too often; `key` is the task or publish that it was for."""

    message_id: str
    queue: str
    key: str
    receives: int
    reason: str
    published_at: datetime
    died_at: datetime


class DeadLettersReply(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    letters: list[DeadLetterRow]


class DropDeadLettersRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Without ids, every dead letter is dropped."""

    message_ids: Annotated[list[ShortText], Meta(max_length=1000)] | None = None


class DropDeadLettersReply(Reply, frozen=True, kw_only=True):
    dropped: int


class Health(Reply, frozen=True, kw_only=True):
    status: str
    checks: dict[str, str] = {}
    version: str | None = None


class WhoAmI(Reply, frozen=True, kw_only=True):
    subject: str
    org: str
    roles: list[str]
    dags: list[str] | None = None
    """The DAGs to which the token is limited; without it, to none."""
    read_dags: list[str] | None = None
    """The DAGs that a limited token may read besides these."""
    expires_at: datetime | None = None
    """When the token expires."""
    query_url: str | None = None
    """The Query Service for people. If its host is a loopback address, that of the public listener is meant: both are
    on one machine. Without it, the stack has none."""

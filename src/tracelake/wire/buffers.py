"""Calls between the Dispatcher and sinks: the buffered datasets, and what became of their batches."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.model.dag import OnChange, OnConflict, Schema
from tracelake.wire.base import Reply, Request
from tracelake.wire.units import Unit

MAX_PUBLISHES = 1000
MAX_GONE = 100


class Producer(msgspec.Struct, frozen=True, kw_only=True):
    task_id: UUID
    attempt: int


class BatchUnit(msgspec.Struct, frozen=True, kw_only=True):
    """The unit whose rows a batch holds."""

    node_id: UUID
    """The job that wrote it, with everything its rows depend on."""
    unit: str
    """The unit among those of the node."""
    batches: int
    """The number of batches that the attempt wrote for the unit: they become visible together."""


class BufferBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="buffer_batch"):
    """The message in a buffer queue: a pointer to a batch, with everything that a sink checks."""

    publish_id: UUID
    publish_seq: int
    org_id: UUID
    dataset_uuid: UUID
    dataset_version: UUID
    batch_uri: str
    size_bytes: int
    etag: str
    content_type: str
    producer: Producer
    record_count: int | None = None
    sha256: str | None = None
    unit: BatchUnit | None = None
    """None if the rows have no unit: nobody replaces them."""
    dropped: bool = False
    """A user dropped the batch: it is done without its rows."""
    again: bool = False
    """The message was sent before; an operator may have replayed or dropped the batch since."""

    @property
    def is_empty(self) -> bool:
        """There is nothing to fetch: its rows are dropped, or its unit has no rows any more."""
        return self.dropped or self.batch_uri == ""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Batches that are published and not in the table yet, without dead letters."""

    batches: int
    size_bytes: int
    oldest_seconds: float


class BufferedDataset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table that sinks maintain, with the newest deployed schema, which fits the rows of every generation."""

    dataset_uuid: UUID
    org: str
    name: str
    queue: str
    on_conflict: OnConflict
    version_column: str | None = None
    """The column whose highest value wins under `newest`."""
    schema: Schema
    revision: int = 0
    """Grows with every change: of two declarations of one table the one with the higher revision is valid."""
    backlog: Backlog | None = None
    on_change: OnChange = "keep"
    """`rebuild`: only rows of `writers` are visible. `keep`: those of earlier writers stay."""
    writers: list[UUID] = []
    """The nodes that write it in active versions; empty if none does any more, then its rows stay as they are."""
    retired: list[UUID] = []
    """Nodes that wrote it in versions that nobody can activate any more."""


class BuffersReply(Reply, frozen=True, kw_only=True):
    """The tables that sinks keep, and those of purged DAGs that they drop: of direct writes, too."""

    datasets: list[BufferedDataset]
    removed: list[UUID] = []


class TablesDroppedRequest(Request, frozen=True, kw_only=True):
    """Reports tables that a sink has dropped."""

    dataset_uuids: Annotated[list[UUID], Meta(min_length=1, max_length=MAX_PUBLISHES)]


class TablesDroppedReply(Reply, frozen=True, kw_only=True):
    recorded: int


MAX_TABLES = 10_000
"""Tables of one measurement."""


class TableSize(Request, frozen=True, kw_only=True):
    dataset_uuid: UUID
    rows: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """Counted, or of a large table estimated by Postgres."""
    bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """With its indexes."""


class TablesMeasuredRequest(Request, frozen=True, kw_only=True):
    """Reports how many rows tables have, of sinks and of direct writes."""

    tables: Annotated[list[TableSize], Meta(min_length=1, max_length=MAX_TABLES)]


class TablesMeasuredReply(Reply, frozen=True, kw_only=True):
    recorded: int
    """Tables whose numbers have changed."""


class BufferOpenRequest(Request, frozen=True, kw_only=True):
    """Asks which of these batches still wait; a sink has received a message of each before."""

    publish_ids: Annotated[list[UUID], Meta(min_length=1, max_length=MAX_PUBLISHES)]


class BufferOpenReply(Reply, frozen=True, kw_only=True):
    publish_ids: list[UUID]
    """The batches that still wait: neither committed nor dead letters."""
    dropped: list[UUID] = []
    """Those of them that a user dropped: they are committed without their rows."""


class GoneCommits(Request, frozen=True, kw_only=True):
    first: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    last: Annotated[int, Meta(ge=1, le=2**63 - 1)]


class BufferCommittedRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Reports one commit of a table. Idempotent."""

    dataset_uuid: UUID
    commit_seq: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    publish_ids: Annotated[list[UUID], Meta(max_length=MAX_PUBLISHES)]
    """Empty if the commit changed the writers whose rows are visible."""
    table_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """The size of the table with its indexes after the commit; it counts as stored bytes of the org."""
    dropped: Annotated[list[UUID], Meta(max_length=MAX_PUBLISHES)] = []
    """Those of the batches that were committed without their rows, since a user dropped them."""
    hidden: bool = False
    """No row became visible or went: there is nothing to read."""
    gone: Annotated[list[GoneCommits], Meta(max_length=MAX_GONE)] = []
    """Earlier commits whose rows went, because their unit was computed again or their writer changed."""


class BufferCommittedReply(Reply, frozen=True, kw_only=True):
    duplicate: bool
    """All batches were recorded as committed before."""


class BufferRejectedRequest(Request, frozen=True, kw_only=True):
    """Reports a batch that is refused and becomes a dead letter. Idempotent."""

    publish_id: UUID
    code: Annotated[str, Meta(min_length=1, max_length=64)]
    reason: Annotated[str, Meta(min_length=1, max_length=1000)]
    line: Annotated[int, Meta(ge=1)] | None = None
    excerpt: Annotated[str, Meta(max_length=1000)] = ""


class BufferRejectedReply(Reply, frozen=True, kw_only=True):
    status: Literal["dead", "committed"]
    """`committed` if the batch is in the table after all, so that nothing was rejected."""


# --- dead letters, for people


class DeadBatch(Reply, frozen=True, kw_only=True):
    """A batch that was refused, and why."""

    publish_id: UUID
    publish_seq: int
    dataset: str
    task_id: UUID
    attempt: int
    dag: str = ""
    job: str = ""
    unit: Unit | None = None
    """The unit of the task that wrote it."""
    code: str
    reason: str
    line: int | None = None
    excerpt: str = ""
    """The beginning of the line."""
    batch_uri: str
    size_bytes: int
    record_count: int | None = None
    published_at: datetime
    died_at: datetime


class DeadBatchesReply(Reply, frozen=True, kw_only=True):
    """Oldest first."""

    total: int
    """The number in the dataset, or in the org."""
    letters: list[DeadBatch]
    next: str | None = None
    buffered: bool = True
    """False: the named dataset is not buffered."""


class DeadBatchesRequest(Request, frozen=True, kw_only=True):
    """Names these dead letters, or all of a dataset."""

    publish_ids: Annotated[list[UUID], Meta(min_length=1, max_length=MAX_PUBLISHES)] | None = None
    dataset: str | None = None


class DeadBatchesChanged(Reply, frozen=True, kw_only=True):
    changed: int
    datasets: list[str] = []
    """The datasets that they belonged to."""

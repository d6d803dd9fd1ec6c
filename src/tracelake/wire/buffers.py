"""Buffered datasets between the Dispatcher and a sink: what there is to drain, what became of a batch."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from tracelake.model.dag import Schema
from tracelake.wire.base import Reply, Request
from tracelake.wire.units import Unit

OnConflict = Literal["update", "nothing"]
MAX_PUBLISHES = 1000


class Producer(msgspec.Struct, frozen=True, kw_only=True):
    task_id: UUID
    attempt: int


class BufferBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="buffer_batch"):
    """The message in a buffer queue: a pointer with everything a sink must check or compare."""

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
    again: bool = False
    """Sent before: a person may have said meanwhile what becomes of it."""


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Batches that were published and are not in the table yet; dead letters are not among them."""

    batches: int
    size_bytes: int
    oldest_seconds: float


class BufferedDataset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table that a sink keeps: the newest schema that was deployed, which holds the rows of every generation."""

    dataset_uuid: UUID
    org: str
    name: str
    queue: str
    on_conflict: OnConflict
    schema: Schema
    revision: int = 0
    """Grows with every change: of two words about one table the one with the higher counts."""
    backlog: Backlog | None = None


class BuffersReply(Reply, frozen=True, kw_only=True):
    datasets: list[BufferedDataset]


class BufferOpenRequest(Request, frozen=True, kw_only=True):
    """Batches of which a sink has more than one message, or one that came before."""

    publish_ids: Annotated[list[UUID], Meta(min_length=1, max_length=MAX_PUBLISHES)]


class BufferOpenReply(Reply, frozen=True, kw_only=True):
    publish_ids: list[UUID]
    """Those of them that still wait: neither in their table, nor dead letters, nor dropped."""


class BufferCommittedRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """One commit of a table. The same again changes nothing."""

    dataset_uuid: UUID
    commit_seq: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    publish_ids: Annotated[list[UUID], Meta(min_length=1, max_length=MAX_PUBLISHES)]
    table_bytes: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """What the table and its indexes take after it; they count as stored bytes of the org."""


class BufferCommittedReply(Reply, frozen=True, kw_only=True):
    duplicate: bool
    """Every one of them was known to be committed."""


class BufferRejectedRequest(Request, frozen=True, kw_only=True):
    """A batch that cannot be taken: it becomes a dead letter. The same again changes nothing."""

    publish_id: UUID
    code: Annotated[str, Meta(min_length=1, max_length=64)]
    reason: Annotated[str, Meta(min_length=1, max_length=1000)]
    line: Annotated[int, Meta(ge=1)] | None = None
    excerpt: Annotated[str, Meta(max_length=1000)] = ""


class BufferRejectedReply(Reply, frozen=True, kw_only=True):
    status: Literal["dead", "committed"]
    """`committed` if it is in the table all the same: then nothing was rejected."""


# --- dead letters, for people


class DeadBatch(Reply, frozen=True, kw_only=True):
    """A batch that could not be taken, with what was wrong with it."""

    publish_id: UUID
    publish_seq: int
    dataset: str
    task_id: UUID
    attempt: int
    dag: str = ""
    job: str = ""
    unit: Unit | None = None
    """Of the task that wrote it."""
    code: str
    reason: str
    line: int | None = None
    excerpt: str = ""
    """The beginning of that line."""
    batch_uri: str
    size_bytes: int
    record_count: int | None = None
    published_at: datetime
    died_at: datetime


class DeadBatchesReply(Reply, frozen=True, kw_only=True):
    """Oldest first."""

    total: int
    """Of the dataset, or of the org."""
    letters: list[DeadBatch]
    next: str | None = None
    buffered: bool = True
    """False: the dataset that was named is none of those that take batches."""


class DeadBatchesRequest(Request, frozen=True, kw_only=True):
    """These, or every one of a dataset."""

    publish_ids: Annotated[list[UUID], Meta(min_length=1, max_length=MAX_PUBLISHES)] | None = None
    dataset: str | None = None


class DeadBatchesChanged(Reply, frozen=True, kw_only=True):
    changed: int
    datasets: list[str] = []
    """Whose they were."""

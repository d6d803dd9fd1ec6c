"""Batch queries: what the Query Service tells people of them, and what it asks the Dispatcher."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.base import Cursor, Name, Reply, Request, Sha256, ShortText
from tracelake.wire.query import (
    ParameterName,
    ParameterValue,
    QueriedDataset,
    ResultColumn,
    ResultDownload,
    Sql,
)
from tracelake.wire.task_calls import DataFile

MAX_BATCH_SQL_CHARS = 20_000
MAX_RELATIONS = 64

BatchState = Literal["queued", "running", "retrying", "canceling", "done", "failed", "canceled"]
"""The last three are final."""
FINAL_STATES = frozenset({"done", "failed", "canceled"})


class QueryFailure(Reply, frozen=True, kw_only=True):
    """Why a query failed: an error of the catalogue."""

    code: str
    message: str


class BatchQueryReply(Reply, frozen=True, kw_only=True):
    """A batch query as far as it is."""

    query_id: UUID
    state: BatchState
    progress: str
    """In words, for people."""
    subject: str
    """Who submitted it."""
    submitted_at: datetime
    started_at: datetime | None = None
    """When its last attempt began."""
    ended_at: datetime | None = None
    expires_at: datetime | None = None
    """When a query that ended is removed, with its result."""
    attempt: int = 0
    datasets: list[QueriedDataset] = []
    input_bytes: int = 0
    """Size of the files of the datasets that it reads; buffered datasets are not counted."""
    error: QueryFailure | None = None
    columns: list[ResultColumn] = []
    """With Spark's names of types."""
    row_count: int | None = None
    size_bytes: int | None = None
    downloads: list[ResultDownload] = []
    """The result: Parquet files with the same columns, in the order of the rows."""
    duplicate: bool = False
    """The query had been submitted before, by an equal request with the same `query_id`."""


class BatchQueriesPage(Reply, frozen=True, kw_only=True):
    """The caller's own queries, newest first, without their results."""

    queries: list[BatchQueryReply]
    next: str | None = None


# What the Query Service asks the Dispatcher


class BatchSubmission(Request, frozen=True, kw_only=True, omit_defaults=True):
    """A query that passed the gate of Spark SQL."""

    org: Name
    subject: ShortText
    query_id: UUID
    sql: Sql
    parameters: Annotated[dict[ParameterName, ParameterValue], Meta(max_length=100)] = {}
    limit: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    relations: Annotated[list[Name], Meta(max_length=MAX_RELATIONS)]
    """The names that it reads."""
    blocks: Annotated[dict[Name, tuple[Cursor, Cursor]], Meta(max_length=MAX_RELATIONS)] = {}
    """The first and the last block that it needs of some of them; of the others it needs all."""
    sql_sha256: Sha256


class BatchQueryRef(Request, frozen=True, kw_only=True, omit_defaults=True):
    """A query, and who asks for it."""

    org: Name
    subject: ShortText
    admin: bool = False
    """The caller may see and cancel the queries of everybody in the org."""
    query_id: UUID


class BatchListRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    org: Name
    subject: ShortText
    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    cursor: UUID | None = None


class BatchQueryRecord(Reply, frozen=True, kw_only=True):
    query: BatchQueryReply
    files: list[DataFile] = []
    """Of the result."""


class BatchCanceled(Reply, frozen=True, kw_only=True):
    canceled: bool
    """False: it had ended before."""
    state: BatchState

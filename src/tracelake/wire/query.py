"""Queries: what people and tasks ask the Query Service, and what the service asks the Dispatcher."""

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from tracelake.wire.base import Cursor, Name, Reply, Request, Sha256, ShortText
from tracelake.wire.task_calls import Fenced, TableColumn
from tracelake.wire.units import Scalar, Unit

MAX_SQL_CHARS = 100_000
MAX_TIMEOUT_SECONDS = 3600

QueryMode = Literal["interactive", "batch"]
ResultFormat = Literal["json", "arrow", "csv", "parquet"]
MEDIA_TYPES: dict[str, str] = {
    "json": "application/json",
    "arrow": "application/vnd.apache.arrow.stream",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
SUMMARY_HEADER = "x-trace-query"
"""With a result that is not JSON: the reply without its rows, as JSON in ASCII characters."""

PlainParameter = str | int | float | bool | None
ParameterName = Annotated[str, Meta(pattern=r"^[a-z_][a-z0-9_]{0,62}\Z")]
Sql = Annotated[str, Meta(min_length=1, max_length=MAX_SQL_CHARS)]


class ParameterValue(Request, frozen=True, kw_only=True):
    """A named value. It is bound by the engine and never becomes a part of the SQL."""

    type: ShortText
    """A type of columns, such as `int64`, `uint256`, `text`, `bytes` or `timestamp`; with `[]` for a list of them."""
    value: str | int | float | bool | Annotated[list[PlainParameter], Meta(max_length=10_000)] | None
    """Integers beyond 64 bits and decimals as text, bytes as `0x` hex, times with their zone."""


class QueryRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    """One SELECT over the datasets that the caller may read."""

    sql: Sql
    parameters: Annotated[dict[ParameterName, ParameterValue], Meta(max_length=100)] = {}
    limit: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    """Rows of the result at most."""
    format: ResultFormat = "json"
    timeout_seconds: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_SECONDS)] | None = None
    query_id: UUID | None = None
    """Chosen by the caller, to cancel the query while it runs; otherwise the service chooses one."""
    mode: QueryMode = "interactive"
    """`batch`: the SQL is Spark's, and the reply is 202 with the `query_id` of a query that runs by itself."""


class TaskQueryRequest(Fenced, frozen=True, kw_only=True, omit_defaults=True):
    """The same for a task: it reads its inputs, each with its unit and its `where`."""

    sql: Sql
    parameters: Annotated[dict[ParameterName, ParameterValue], Meta(max_length=100)] = {}
    limit: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    format: ResultFormat = "json"
    timeout_seconds: Annotated[int, Meta(ge=1, le=MAX_TIMEOUT_SECONDS)] | None = None


class ResultColumn(Reply, frozen=True, kw_only=True):
    name: str
    type: str
    """A type of SQL, such as `BIGINT`, `DECIMAL(38,0)`, `BLOB` or `STRUCT(a INTEGER)`."""


class QueriedDataset(Reply, frozen=True, kw_only=True):
    """A dataset that the query read, and its generation."""

    name: str
    dataset_uuid: UUID
    dataset_version: UUID


class ResultDownload(Reply, frozen=True, kw_only=True):
    """The whole result as a Parquet file."""

    url: str
    """A GET without a credential. Whoever has the address can read the result until it expires."""
    expires_at: datetime
    size_bytes: int
    export_id: UUID | None = None
    """Of a query that was answered at once: names the file at the Query Service (`/v1/query-exports/`), which reads it
    for its caller alone, where the object store cannot be reached."""
    query_id: UUID | None = None
    """Of a batch query, for the same purpose (`/v1/query/{query_id}/content`), with `file`."""
    file: int = 0


class QueryReply(Reply, frozen=True, kw_only=True):
    query_id: UUID
    columns: list[ResultColumn]
    rows: list[list[Any]]
    """Decimals, and integers that a JSON number does not hold exactly, are text; bytes are `0x` hex; times have a
    zone."""
    row_count: int
    """Rows of the whole result."""
    truncated: bool = False
    """The reply has fewer rows than the result, which was exported."""
    output_location: str | None = None
    """Of a task: the exported result, below its scratch prefix."""
    download: ResultDownload | None = None
    """Of a person: where the exported result can be read."""
    datasets: list[QueriedDataset]
    bytes_read: int
    elapsed_ms: int


class CancelQueryReply(Reply, frozen=True, kw_only=True):
    query_id: UUID
    canceled: bool


class CatalogRelation(Reply, frozen=True, kw_only=True):
    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    storage: str
    """`s3`, `buffered`, `postgres`, `live` (files and a table as one), or `system` for a relation that is no dataset,
    whose ids are zero."""
    columns: list[ResultColumn]
    """As far as nothing of this generation has been committed yet, those that were known at deploy; perhaps none."""


class CatalogReply(Reply, frozen=True, kw_only=True):
    relations: list[CatalogRelation]


# What the Query Service asks the Dispatcher


class RelationsRequest(Request, frozen=True, kw_only=True, omit_defaults=True):
    org: Name
    dags: list[str] | None = None
    """Only datasets of these DAGs: the caller's token is limited to them."""


class ReadableRelation(Reply, frozen=True, kw_only=True):
    """A dataset that can be read, in the generation that is to be read."""

    name: str
    dataset_uuid: UUID
    dataset_version: UUID
    storage: Literal["s3", "buffered", "postgres", "live", "system"]
    """`system`: no dataset, but rows that the Query Service asks the Dispatcher for. Its ids are zero."""
    columns: list[TableColumn] | None = None
    """Of a dataset with a table: as its document declares them."""
    expected_columns: list[ResultColumn] = []
    """Of a dataset of files of which none is committed yet: those that were known at deploy."""


class RelationsReply(Reply, frozen=True, kw_only=True):
    """All of one moment."""

    relations: list[ReadableRelation]


class TaskInputsRequest(Fenced, frozen=True, kw_only=True):
    pass


class InputSelection(Reply, frozen=True, kw_only=True):
    """The rows of an input: those of its unit for which every field of `where` has one of its values."""

    unit: Unit
    where: dict[str, Scalar | list[Scalar]] | None = None


class InputRelation(ReadableRelation, frozen=True, kw_only=True):
    selections: list[InputSelection]
    """A row that one of them selects is there. They have the same `where`."""


class TaskInputsReply(Reply, frozen=True, kw_only=True):
    """What the current attempt of a task may read."""

    org: str
    relations: list[InputRelation]


class QueryAuditRecord(Request, frozen=True, kw_only=True, omit_defaults=True):
    """A query that ended. It has no text of the query and none of its values."""

    run_id: UUID
    """Made by the service for each run: the same record again is the same run."""
    query_id: UUID
    org: Name | None = None
    token_org_id: UUID | None = None
    """Instead of the name, where only the token of a task is known: its attempt was refused."""
    subject: ShortText
    """The user, or `task:` and the task's id."""
    datasets: Annotated[list[QueriedDataset], Meta(max_length=1000)] = []
    row_count: Cursor = 0
    bytes_read: Cursor = 0
    duration_ms: Cursor
    outcome: ShortText
    """`ok`, or the code of the error."""
    sql_sha256: Sha256
    """Hash of the normalised SQL: the same for queries that differ in spaces, comments and letter case of keywords."""


class QueryAuditReply(Reply, frozen=True, kw_only=True):
    duplicate: bool = False


class QueryAuditEntry(Reply, frozen=True, kw_only=True):
    query_id: UUID
    at: datetime
    subject: str
    outcome: str
    row_count: int
    bytes_read: int
    duration_ms: int
    sql_sha256: str
    datasets: list[QueriedDataset]


class QueryAuditPage(Reply, frozen=True, kw_only=True):
    entries: list[QueryAuditEntry]
    next: str | None = None

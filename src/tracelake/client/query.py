"""SQL over datasets, from Python.

    from tracelake.client import query

    table = query("SELECT token, count(*) AS transfers FROM transfers GROUP BY 1")    # a pyarrow.Table
    table.to_pandas()

A result that is too large for a reply is downloaded whole.
"""

import asyncio
import http.client
import io
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from tracelake.client.credentials import Credential
from tracelake.client.errors import DispatcherUnavailableError, decode
from tracelake.client.http import HttpClient, HttpReply
from tracelake.client.stack import NoStackError, Stack, find_stack
from tracelake.client.user import UserClient, user_credential
from tracelake.wire import routes
from tracelake.wire.batch_query import BatchQueriesPage, BatchQueryReply
from tracelake.wire.query import (
    CancelQueryReply,
    CatalogReply,
    ParameterValue,
    QueryMode,
    QueryReply,
    QueryRequest,
    ResultDownload,
)

if TYPE_CHECKING:
    import pyarrow as pa

_SLACK_SECONDS = 30.0
"""For admission, fetching and the reply, besides the query's own time limit."""
_MOST_SECONDS = 3600.0
_REPLY_BYTES = 64 * 1024 * 1024
_DOWNLOAD_SECONDS = 600.0
_DOWNLOAD_PART = 1024 * 1024

_replies = msgspec.json.Decoder(QueryReply)
_batch_replies = msgspec.json.Decoder(BatchQueryReply)

_INTEGERS = ("int64", "int256", "uint256")
PlainScalar = bool | int | float | str | bytes | Decimal | date | datetime | None
PlainValue = PlainScalar | Sequence[PlainScalar]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """A result as bytes of the requested format, and what the service says of it."""

    reply: QueryReply
    body: bytes
    source: "ResultSource | None" = None
    """Where a result that is not in the reply is read, if not at its address."""


@dataclass(frozen=True, slots=True)
class ResultSource:
    """The Query Service of a context. The object store of its stack need not be reachable from here."""

    stack: Stack
    token_file: Path | None = None
    credential: Credential | None = None
    """Instead of the file."""

    def read(self, download: ResultDownload, sink: IO[bytes]) -> None:
        async def copy() -> None:
            client = QueryClient(self.stack, self.token_file, credential=self.credential)
            try:
                offset = 0
                while offset < download.size_bytes:
                    piece = await client.read_piece(download, offset)
                    sink.write(piece)
                    offset += len(piece)
            finally:
                await client.close()

        with ThreadPoolExecutor(1) as thread:  # a notebook has an event loop of its own
            thread.submit(asyncio.run, copy()).result()


def find_source(stack: Stack, token_file: Path | None, credential: Credential | None = None) -> ResultSource | None:
    """None: results are read at their addresses, in the object store of this machine."""
    return None if stack.is_local else ResultSource(stack, token_file, credential)


class QueryClient:
    """Calls the Query Service of a stack as a user."""

    def __init__(self, stack: Stack, token_file: Path | None = None, *, credential: Credential | None = None) -> None:
        if stack.query_url is None:
            raise NoStackError(
                "this stack runs no Query Service; `trace up` says why when it starts, or `query_service` is off"
                if stack.context is None
                else f"the stack of the context {stack.context} had no Query Service at the last login; if it has one "
                "now, log in again with `trace login`"
            )
        connections = HttpClient(stack.query_url, stack.ca_file, timeout=_MOST_SECONDS, max_reply_bytes=_REPLY_BYTES)
        self._client = UserClient(connections, credential or user_credential(stack, token_file))
        self.source = find_source(stack, token_file, credential)

    async def close(self) -> None:
        await self._client.close()

    async def run(self, request: QueryRequest) -> QueryReply:
        """The result as JSON rows."""
        return await self._client.call(routes.QUERY, request)

    async def fetch(self, request: QueryRequest) -> QueryResult:
        """The result in a format other than JSON."""
        reply: HttpReply = await self._client.exchange(routes.QUERY, request)
        return QueryResult(decode(_replies, reply.summary or b""), reply.body, self.source)

    async def submit(self, request: QueryRequest) -> BatchQueryReply:
        """Submits a request whose mode is `batch`."""
        reply: HttpReply = await self._client.exchange(routes.QUERY, request)
        return decode(_batch_replies, reply.body)

    async def show(self, query_id: UUID) -> BatchQueryReply:
        """A batch query as far as it is."""
        return await self._client.call(routes.SHOW_QUERY, query_id=query_id)

    async def list_own(self, limit: int | None = None, cursor: UUID | None = None) -> BatchQueriesPage:
        return await self._client.call(routes.LIST_OWN_QUERIES, limit=limit, cursor=cursor)

    async def catalog(self) -> CatalogReply:
        return await self._client.call(routes.SHOW_CATALOG)

    async def read_piece(self, download: ResultDownload, offset: int) -> bytes:
        if download.query_id is None:
            return await self._client.call(routes.READ_EXPORT, export_id=download.export_id, offset=offset)
        return await self._client.call(
            routes.READ_RESULT, query_id=download.query_id, file=download.file, offset=offset
        )

    async def cancel(self, query_id: Any) -> CancelQueryReply:
        return await self._client.call(routes.CANCEL_QUERY, query_id=query_id)


def query(
    sql: str,
    parameters: Mapping[str, PlainValue | ParameterValue] | None = None,
    *,
    limit: int | None = None,
    timeout_seconds: int | None = None,
    mode: QueryMode = "interactive",
    home: Path | None = None,
    token_file: Path | None = None,
    context: str | None = None,
) -> "pa.Table":
    """Runs a query on a stack and returns the whole result.

    The stack is the running one of `home`, or that of the context; without both it is found as `client/stack.py` says.
    The token is that of the file, else that of the context, TRACE_TOKEN, or the stack's admin token. Works in a
    notebook, too: the event loop that runs there is not used. With `mode="batch"` the SQL is Spark's, and the call
    waits for the query to end.
    """
    if mode == "batch":
        from tracelake.client.batch_query import submit_query

        return submit_query(sql, parameters, limit=limit, home=home, token_file=token_file, context=context).table()
    request = QueryRequest(
        sql=sql,
        parameters=to_parameters(parameters or {}),
        limit=limit,
        format="arrow",
        timeout_seconds=timeout_seconds,
    )

    async def fetch() -> QueryResult:
        client = QueryClient(find_stack(home, context), token_file)
        try:
            return await client.fetch(request)
        finally:
            await client.close()

    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(asyncio.run, fetch()).result()
    return read_table(result)


def read_table(result: QueryResult) -> "pa.Table":
    """The rows of a result in the format `arrow`, whole: those that the reply does not have are downloaded."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if result.reply.truncated:
        content = io.BytesIO()
        download(result.reply, content, result.source)
        return pq.read_table(content)
    with pa.ipc.open_stream(result.body) as reader:
        return reader.read_all()


def download(reply: QueryReply, sink: IO[bytes], source: ResultSource | None = None) -> None:
    """Writes the exported result, a Parquet file, to `sink`; `source` is that of the `QueryResult`."""
    assert reply.download is not None
    if source is not None:
        source.read(reply.download, sink)
        return
    try:
        # S310: the address comes from the service, over TLS.
        with urllib.request.urlopen(reply.download.url, timeout=_DOWNLOAD_SECONDS) as body:  # noqa: S310
            while part := body.read(_DOWNLOAD_PART):
                sink.write(part)
    except (OSError, http.client.HTTPException) as error:
        raise DispatcherUnavailableError(
            f"the exported result could not be downloaded ({type(error).__name__}); run the query again"
        ) from error
    if sink.tell() != reply.download.size_bytes:
        raise DispatcherUnavailableError("the download of the exported result broke off; run the query again")


def to_parameters(values: Mapping[str, PlainValue | ParameterValue]) -> dict[str, ParameterValue]:
    return {name: _parameter(value) for name, value in values.items()}


def _parameter(value: PlainValue | ParameterValue) -> ParameterValue:
    match value:
        case ParameterValue():
            return value
        case None:
            return ParameterValue(type="text", value=None)
        case bool():
            return ParameterValue(type="bool", value=value)
        case int():
            if -(2**63) <= value < 2**63:
                return ParameterValue(type="int64", value=value)
            return ParameterValue(type="int256" if value < 2**255 else "uint256", value=str(value))
        case float():
            return ParameterValue(type="float64", value=value)
        case Decimal():
            return ParameterValue(type="decimal", value=format(value, "f"))
        case bytes():
            return ParameterValue(type="bytes", value="0x" + value.hex())
        case datetime():
            return ParameterValue(type="timestamp", value=value.isoformat())
        case date():
            return ParameterValue(type="date", value=value.isoformat())
        case str():
            return ParameterValue(type="text", value=value)
    return _list_parameter(value)


def _list_parameter(values: Sequence[PlainScalar]) -> ParameterValue:
    items = [_parameter(value) for value in values]
    types = {item.type for item, value in zip(items, values, strict=True) if value is not None} or {"text"}
    if types <= set(_INTEGERS):
        types = {max(types, key=_INTEGERS.index)}
    if len(types) > 1:
        raise ValueError(f"a list has items of one type; received {', '.join(sorted(types))}")
    return ParameterValue(
        type=f"{types.pop()}[]", value=[item.value for item in items if not isinstance(item.value, list)]
    )

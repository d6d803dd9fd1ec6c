"""Batch queries from Python: submitted, followed, and read when they are done.

    from tracelake.client import submit_query

    handle = submit_query("SELECT token, count(*) AS transfers FROM transfers GROUP BY token")
    handle.status().progress
    table = handle.table()    # waits; a pyarrow.Table

The SQL is Spark's. A handle can be made again from its `query_id`, in another process, while the result is kept.
"""

import asyncio
import io
import shutil
import time
import urllib.request
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar
from uuid import UUID, uuid4

from tracelake.client.errors import RemoteError
from tracelake.client.query import PlainValue, QueryClient, ResultSource, find_source, to_parameters
from tracelake.client.stack import find_stack
from tracelake.errors import TraceError
from tracelake.model.backoff import Backoff
from tracelake.wire.batch_query import FINAL_STATES, BatchQueryReply
from tracelake.wire.query import ParameterValue, QueryRequest, ResultDownload

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

_POLL = Backoff(0.2, 3.0)
_DOWNLOAD_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class BatchQuery:
    """A batch query of the stack of `home` or of `context` (`client/stack.py`)."""

    query_id: UUID
    home: Path | None = None
    token_file: Path | None = None
    context: str | None = None

    def status(self) -> BatchQueryReply:
        return self._ask(lambda client: client.show(self.query_id))

    def cancel(self) -> bool:
        """Whether the query will end without a result because of this call; False if it had ended before."""
        return self._ask(lambda client: client.cancel(self.query_id)).canceled

    def wait(
        self, seconds: float | None = None, on_progress: Callable[[BatchQueryReply], Any] = lambda _query: None
    ) -> BatchQueryReply:
        """Returns the query when it is done; raises the error of one that failed or was canceled, or TimeoutError."""
        return self._ask(lambda client: await_query(client, self.query_id, seconds, on_progress))

    def table(self) -> "pa.Table":
        """Waits, and returns the whole result."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        done = self.wait()
        source = find_source(find_stack(self.home, self.context), self.token_file)
        tables = []
        for download in done.downloads:
            content = io.BytesIO()
            _fetch(download, content, source)
            tables.append(pq.read_table(pa.BufferReader(content.getbuffer())))
        return pa.concat_tables(tables)

    def _ask(self, work: Callable[[QueryClient], Awaitable[T]]) -> T:
        return call_client(work, self.home, self.token_file, self.context)


def submit_query(
    sql: str,
    parameters: Mapping[str, PlainValue | ParameterValue] | None = None,
    *,
    limit: int | None = None,
    home: Path | None = None,
    token_file: Path | None = None,
    context: str | None = None,
) -> BatchQuery:
    """Submits a batch query and returns at once. The id is chosen here: a call that is repeated is the same query."""
    request = batch_request(sql, to_parameters(parameters or {}), limit)
    query_id = call_client(lambda client: client.submit(request), home, token_file, context).query_id
    return BatchQuery(query_id, home, token_file, context)


def batch_request(sql: str, parameters: dict[str, ParameterValue], limit: int | None) -> QueryRequest:
    return QueryRequest(sql=sql, parameters=parameters, limit=limit, mode="batch", query_id=uuid4())


async def await_query(
    client: QueryClient,
    query_id: UUID,
    seconds: float | None,
    on_progress: Callable[[BatchQueryReply], Any],
) -> BatchQueryReply:
    """Asks now and then until the query has ended. An outage of the service is waited for."""
    deadline = None if seconds is None else time.monotonic() + seconds
    tries = 0
    while True:
        tries += 1
        try:
            query = await client.show(query_id)
        except TraceError as error:
            if not error.retryable:
                raise
        else:
            on_progress(query)
            if query.state in FINAL_STATES:
                return check_done(query)
        if deadline is not None and time.monotonic() >= deadline:
            raise TimeoutError(f"the batch query {query_id} has not ended")
        await asyncio.sleep(_POLL.seconds(tries))


def check_done(query: BatchQueryReply) -> BatchQueryReply:
    """Raises the error of a query that has no result."""
    if query.error is None:
        return query
    raise RemoteError(query.error.code, 422, query.error.message)


def save(downloads: Sequence[ResultDownload], target: Path, source: ResultSource | None = None) -> None:
    """The files of a result as one Parquet file, which appears whole or not at all. `source`: as `find_source` says."""
    partial = target.with_name(f".{target.name}.{uuid4().hex}")
    try:
        if len(downloads) == 1:
            with partial.open("wb") as file:
                _fetch(downloads[0], file, source)
        else:
            _join(downloads, partial, source)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _fetch(download: ResultDownload, sink: BinaryIO, source: ResultSource | None) -> None:
    if source is not None:
        source.read(download, sink)
        return
    with urllib.request.urlopen(download.url, timeout=_DOWNLOAD_SECONDS) as body:  # noqa: S310 - of the service
        shutil.copyfileobj(body, sink, 2**20)


def _join(downloads: Sequence[ResultDownload], path: Path, source: ResultSource | None) -> None:
    """Row group by row group: a result may be larger than memory."""
    import pyarrow.parquet as pq

    part = path.with_name(f"{path.name}.part")
    writer = None
    try:
        for download in downloads:
            with part.open("wb") as target:
                _fetch(download, target, source)
            with pq.ParquetFile(part) as file:
                writer = writer or pq.ParquetWriter(path, file.schema_arrow, compression="zstd")
                for number in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(number))
    finally:
        if writer is not None:
            writer.close()
        part.unlink(missing_ok=True)


def call_client(
    work: Callable[[QueryClient], Awaitable[T]],
    home: Path | None,
    token_file: Path | None,
    context: str | None = None,
) -> T:
    """Runs calls to the end on an event loop of their own: a notebook's is not used."""

    async def run() -> T:
        client = QueryClient(find_stack(home, context), token_file)
        try:
            return await work(client)
        finally:
            await client.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, run()).result()

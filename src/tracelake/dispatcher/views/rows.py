"""Rows of the table of a dataset for its own org, streamed from Postgres data by a role that only reads.

The work is done by threads of their own, of which there are as many as streams: each holds one batch of rows at a time,
and makes the next when the caller has taken it. This is all that the Dispatcher has to do with tables.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import AsyncExitStack, suppress
from typing import Protocol
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.views.files import list_dataset_files
from tracelake.errors import TraceError
from tracelake.wire.content import LiveRows, RowsRequest
from tracelake.wire.platform import DatasetFilesRequest
from tracelake.wire.task_calls import TableColumn

STREAMS_AT_ONCE = 4
STREAMS_OF_ONE_ORG = 1
STREAMS_WAITING = 10
STREAM_SECONDS = 600.0
_PIECE = 256 * 1024


class TableRows(Protocol):
    """Where tables are. What it answers is read on any thread, one at a time."""

    def stream(
        self,
        dataset_uuid: UUID,
        columns: Sequence[TableColumn],
        head: int | None,
        seconds: float,
        live: LiveRows | None = None,
    ) -> Iterator[bytes]:
        """An Arrow stream of rows of one moment. No step takes longer than `seconds`. Raises StoreUnavailableError, and
        `boundary_moved` at the first step."""
        ...


async def find_table(
    connection: Connection, org: str, dataset: str, body: RowsRequest
) -> tuple[UUID, list[TableColumn]]:
    reply = await list_dataset_files(connection, DatasetFilesRequest(org=org, name=dataset))
    if reply.columns is None:
        message = "Expected a dataset with a table; this one is stored in files: list its files instead."
        raise TraceError("body_invalid", message, field="name")
    if reply.live and body.live is None:
        message = "The older rows of this dataset are in files: list these first, and send their `boundary` in `live`."
        raise TraceError("body_invalid", message, field="live")
    if body.live is not None and not reply.live:
        raise TraceError("body_invalid", "The dataset is a table without files: leave out `live`.", field="live")
    columns = {column.name: column for column in reply.columns}
    names = body.columns
    missing = [name for name in names or () if name not in columns]
    if missing:
        message = f"The dataset has no column {missing[0][:100]!r}."
        raise TraceError("body_invalid", message, field="columns")
    return reply.dataset_uuid, [columns[name] for name in names or columns]


class RowPieces:
    """The body of a reply. It owns `resources` (its slot) until it is closed."""

    def __init__(self, batches: Iterator[bytes], threads: Executor, resources: AsyncExitStack) -> None:
        self._batches = batches
        self._threads = threads
        self._resources = resources
        self._step: Future[bytes | None] | None = None
        self._first: bytes | None = None

    async def begin(self) -> None:
        """What goes wrong here is still told with a status."""
        self._first = await self._next()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        batch = self._first
        while batch is not None:
            view = memoryview(batch)
            for start in range(0, len(view), _PIECE):
                yield bytes(view[start : start + _PIECE])
            batch = await self._next()

    async def close(self) -> None:
        """The thread ends its step first: nobody else may touch the connection to the database meanwhile."""
        async with self._resources:
            if self._step is not None:
                with suppress(Exception):
                    await asyncio.wrap_future(self._step)
            await asyncio.wrap_future(self._threads.submit(_close, self._batches))

    async def _next(self) -> bytes | None:
        self._step = self._threads.submit(next, self._batches, None)
        return await asyncio.shield(asyncio.wrap_future(self._step))


def _close(batches: Iterator[bytes]) -> None:
    close = getattr(batches, "close", None)
    if close is not None:
        close()

"""Runs the queries of a person, one at a time. Ctrl-C cancels the query that runs, at the service.

All calls use one event loop, also those that go on while the person types. A stack that was started again is found
again: after a call without a reply, the next one looks its address up.
"""

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from tracelake.cli.session import Session
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.client.query import QueryClient, QueryResult
from tracelake.client.stack import NoStackError, chosen_context
from tracelake.errors import TraceError
from tracelake.wire.query import CatalogRelation, QueryRequest

T = TypeVar("T")

_CANCEL_SECONDS = 5.0
"""If the service does not confirm a cancellation in this time, closing the connection cancels the query as well."""


class QueryRunner:
    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop = asyncio.Runner()
        self._client: QueryClient | None = None

    def __enter__(self) -> "QueryRunner":
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run(self._forget_client())
        self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Goes on whenever this runner waits for something."""
        return self._loop.get_loop().create_task(work)

    def run(self, request: QueryRequest) -> QueryResult:
        """Rows of a result in JSON are in its reply. Raises TraceError; after Ctrl-C with the code `query_canceled`."""
        request = msgspec.structs.replace(request, query_id=uuid4())
        return self.wait(self._call(lambda client: _run_cancellable(client, request)))

    def catalog(self) -> list[CatalogRelation]:
        return self.wait(self.fetch_catalog())

    async def fetch_catalog(self) -> list[CatalogRelation]:
        return (await self._call(lambda client: client.catalog())).relations

    async def connect(self) -> QueryClient:
        """Raises NoStackError."""
        if self._client is None:
            self._client = self._make_client()
        return self._client

    async def _call(self, work: Callable[[QueryClient], Awaitable[T]]) -> T:
        client = await self.connect()
        try:
            return await work(client)
        except DispatcherUnavailableError as error:
            if self._client is client:
                await self._forget_client()
            raise DispatcherUnavailableError(
                f"The Query Service does not answer ({error.message}); {self._next_step()}."
            ) from error

    def _make_client(self) -> QueryClient:
        stack = self._session.stack
        try:
            return QueryClient(stack, self._session.token_file)
        except OSError:  # also when the file holds no certificate
            next_step = "run `trace status`" if stack.context is None else "log in again with `trace login`"
            raise NoStackError(f"{stack.ca_file} holds no CA certificate; {next_step}") from None

    def _next_step(self) -> str:
        context = chosen_context(self._session.home, self._session.context)
        if context is None:
            return "`trace status` shows which part is down"
        return f"if its address has changed, log in to {context} again with `trace login`"

    async def _forget_client(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


async def _run_cancellable(client: QueryClient, request: QueryRequest) -> QueryResult:
    query = asyncio.ensure_future(_run(client, request))
    interrupt = asyncio.Event()
    with _on_interrupt(interrupt.set):
        interrupted = asyncio.create_task(interrupt.wait())
        try:
            await asyncio.wait({query, interrupted}, return_when=asyncio.FIRST_COMPLETED)
            if not query.done():
                interrupt.clear()
                await _cancel(client, request, query, interrupt)
            return await query
        except asyncio.CancelledError:
            if not query.cancelled():
                raise
            raise TraceError("query_canceled") from None
        finally:
            interrupted.cancel()
            query.cancel()


async def _run(client: QueryClient, request: QueryRequest) -> QueryResult:
    if request.format == "json":
        return QueryResult(await client.run(request), b"", client.source)
    return await client.fetch(request)


async def _cancel(
    client: QueryClient, request: QueryRequest, query: "asyncio.Future[QueryResult]", interrupt: asyncio.Event
) -> None:
    """Tells the service; whoever cannot wait for its answer presses Ctrl-C again, which closes the connection."""

    async def tell() -> None:
        try:
            await client.cancel(request.query_id)
            await asyncio.wait({query})
        except TraceError:
            pass  # it has ended, or it has not begun

    steps = {asyncio.create_task(tell()), asyncio.create_task(interrupt.wait())}
    await asyncio.wait(steps, timeout=_CANCEL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    for step in steps:
        step.cancel()
    if not query.done():
        query.cancel()
        await asyncio.wait({query})


@contextmanager
def _on_interrupt(act: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals arrive elsewhere
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)

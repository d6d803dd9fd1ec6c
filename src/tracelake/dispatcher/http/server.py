"""The listeners: uvicorn on sockets that somebody else may have bound (and keeps bound over our restarts)."""

import asyncio
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tracelake.dispatcher.http.app import ListenerApp

MAX_HEAD_BYTES = 128 * 1024  # a capability token may have half of that
REQUEST_SECONDS = 60.0
"""A request that has not arrived as a whole by then is given up; who trickles bytes holds a connection no longer."""

UVICORN: dict[str, Any] = {
    "ws": "none",
    "lifespan": "off",
    "interface": "asgi3",
    "access_log": False,
    "log_config": None,
    "server_header": False,
    "date_header": False,
    "proxy_headers": False,
    "timeout_keep_alive": 75,
}
"""How every listener is served; a benchmark serves its peers in the same way."""


class _OneWrite:
    """A transport that sends head and body of a reply together: one TLS record and one system call instead of two."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._parts:
            parts, self._parts = self._parts, []
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Protocol(HttpToolsProtocol):
    """Bounded heads and bounded patience: the parser itself would collect an endless header, at any pace, for ever."""

    _head_bytes = 0.0
    _patience: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is larger than allowed.")

    def on_message_begin(self) -> None:
        self._head_bytes = 0.0
        self._start_patience()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = -math.inf  # bodies have a limit of their own
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._end_patience()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_patience()
        super().connection_lost(exc)

    def _start_patience(self) -> None:
        self._end_patience()
        self._patience = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _end_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", _OneWrite(transport, self.loop)))
        self._start_patience()  # who connects and says nothing does not stay either


class _Server(uvicorn.Server):
    """Signals belong to the process, not to one of its listeners."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ListenerServer:
    def __init__(self, app: ListenerApp, sock: socket.socket, *, certificate: Path, private_key: Path) -> None:
        self.name = app.name
        self.port: int = sock.getsockname()[1]
        self._socket = sock
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_Protocol,
                **UVICORN,
                timeout_graceful_shutdown=5,
                backlog=1024,
                ssl_certfile=str(certificate),
                ssl_keyfile=str(private_key),
            )
        )
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise RuntimeError(f"the {self.name} listener ended while starting")
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task

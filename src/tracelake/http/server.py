"""The listeners: uvicorn's HTTP on sockets that somebody else may have bound (and keeps bound over our restarts).

Connections are accepted by `accepting.Acceptor`, within the limits and deadlines of `connections`.
"""

import asyncio
import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tracelake.http.accepting import Acceptor
from tracelake.http.app import ListenerApp
from tracelake.http.connections import CONNECTION, ClientConnection, ConnectionTable, ListenerLimits, Stage
from tracelake.one_write import OneWrite

MAX_HEAD_BYTES = 128 * 1024  # a capability token may have half of that

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


class _Protocol(HttpToolsProtocol):
    """HTTP/1.1 with bounded heads, that records the stage of its connection; the sweep of the listener acts on it."""

    def __init__(self, record: ClientConnection, table: ConnectionTable, server: "_Server") -> None:
        super().__init__(server.config, server.server_state, server.lifespan.state)
        self._record = record
        self._table = table
        self._head_bytes = 0.0
        self._receiving = False
        """A request has begun and is not complete."""
        self._unanswered = 0
        """Requests whose headers are complete and whose reply is not."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._record.abort = transport.abort
        self._record.enter(Stage.HEAD, self.loop.time())
        super().connection_made(cast("asyncio.Transport", OneWrite(transport, self.loop)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.remove(self._record)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is larger than allowed.")

    def on_message_begin(self) -> None:
        self._head_bytes = 0.0
        if self._record.stage is Stage.IDLE:  # the first head has been awaited since the handshake
            self._record.enter(Stage.HEAD, self.loop.time())
        self._receiving = True
        super().on_message_begin()
        self.scope["state"][CONNECTION] = self._record

    def on_headers_complete(self) -> None:
        self._head_bytes = -math.inf  # bodies have a limit of their own
        self._unanswered += 1
        self._record.body_bytes = 0
        self._record.enter(Stage.BODY, self.loop.time())
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._record.body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._receiving = False
        super().on_message_complete()
        self._record.enter(Stage.HANDLING if self._unanswered else Stage.IDLE, self.loop.time())

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        if not self._unanswered and not self._receiving:  # else the rest of a refused body, or a pipelined request
            self._record.enter(Stage.IDLE, self.loop.time())
        super().on_response_complete()


class _Server(uvicorn.Server):
    """Signals belong to the process, not to one of its listeners; connections come from an acceptor of ours."""

    def __init__(self, config: uvicorn.Config, app: ListenerApp, limits: ListenerLimits) -> None:
        super().__init__(config)
        self._listener_app = app
        self._table = ConnectionTable(limits)
        self._acceptor: Acceptor | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        assert self.config.ssl is not None
        (listener,) = sockets
        self.servers = []
        name, metrics = self._listener_app.name, self._listener_app.metrics
        self._acceptor = Acceptor(name, listener, self._table, self._protocol, self.config.ssl, metrics)
        self._acceptor.start()
        self.started = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        await super().shutdown(sockets)

    def _protocol(self, record: ClientConnection, table: ConnectionTable) -> asyncio.Protocol:
        return _Protocol(record, table, self)


class ListenerServer:
    def __init__(
        self, app: ListenerApp, sock: socket.socket, *, certificate: Path, private_key: Path, limits: ListenerLimits
    ) -> None:
        self.name = app.name
        self.port: int = sock.getsockname()[1]
        self._socket = sock
        config = uvicorn.Config(
            app, **UVICORN, timeout_graceful_shutdown=5, ssl_certfile=str(certificate), ssl_keyfile=str(private_key)
        )
        self._server = _Server(config, app, limits)
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

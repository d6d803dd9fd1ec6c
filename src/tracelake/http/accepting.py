"""Accepting connections: every limit is checked here, before a byte of TLS is computed.

A new connection waits for its first byte outside of TLS, so that a silent one costs a descriptor and nothing else.
Only some handshakes run at once, and only some connections are accepted in a turn of the event loop: however many
arrive at one listener, the turn stays short, and the other listeners in this process get theirs.
"""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from tracelake.http.connections import ClientConnection, ConnectionTable, Stage, address_key
from tracelake.http.metrics import HttpMetrics

logger = logging.getLogger(__name__)

ACCEPTS_PER_TURN = 8
_SHUTDOWN_SECONDS = 2.0
"""A client that does not answer the end of TLS is not waited for."""
_SLOW_HANDSHAKE_SECONDS = 1.0
"""Older ones give way when others wait to begin theirs."""
_PAUSE_SECONDS = 0.1
_WARN_EVERY_SECONDS = 60.0
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

ProtocolFactory = Callable[[ClientConnection, ConnectionTable], asyncio.Protocol]


class Acceptor:
    def __init__(
        self,
        name: str,
        listener: socket.socket,
        table: ConnectionTable,
        make_protocol: ProtocolFactory,
        context: ssl.SSLContext,
        metrics: HttpMetrics,
    ) -> None:
        self._name = name
        self._listener = listener
        self._table = table
        self._make_protocol = make_protocol
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._closed = metrics.connections_closed
        self._open = metrics.connections.labels(name)
        self._open.set_function(lambda: len(table))
        self._silent: dict[ClientConnection, socket.socket] = {}
        self._ready: deque[ClientConnection] = deque()
        """They sent their first byte while all handshakes were taken."""
        self._handshakes: dict[ClientConnection, asyncio.Task[None]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._warned_at = -_WARN_EVERY_SECONDS
        self._accepts = False

    def start(self) -> None:
        self._listener.setblocking(False)
        self._resume()
        self._sweep()

    def close(self) -> None:
        """Accept nothing more, and drop whoever has no TLS session yet."""
        self._pause()
        for timer in self._timers.values():
            timer.cancel()
        for connection in [*self._silent, *self._handshakes]:
            connection.abort()

    def _resume(self) -> None:
        self._accepts = True
        self._loop.add_reader(self._listener.fileno(), self._accept_some)

    def _pause(self) -> None:
        if self._accepts:
            self._accepts = False
            self._loop.remove_reader(self._listener.fileno())

    def _accept_some(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                accepted, peer = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._relieve(error)
                    return
                continue  # this connection is gone already: the next one may be there
            self._admit(accepted, address_key(peer[0]))

    def _relieve(self, error: OSError) -> None:
        """No descriptor is left: give one up, and leave the others in the backlog for a moment."""
        victim = self._table.expendable()
        if victim is not None:
            self._drop(victim, "descriptors")
        self._pause()
        self._timers["resume"] = self._loop.call_later(_PAUSE_SECONDS, self._resume)
        if time.monotonic() - self._warned_at >= _WARN_EVERY_SECONDS:
            self._warned_at = time.monotonic()
            logger.warning(
                "no descriptor is left for a new connection; raise the limit of open files or lower the limits of "
                "connections",
                extra={"listener": self._name, "reason": errno.errorcode.get(error.errno or 0, "")},
            )

    def _admit(self, accepted: socket.socket, address: str) -> None:
        limit = self._table.reached_limit(address)
        if limit is not None:
            victim = self._table.expendable(address if limit == "address" else None)
            if victim is None:
                accepted.close()
                self._closed.labels(self._name, limit).inc()
                return
            self._drop(victim, limit)
        accepted.setblocking(False)
        connection = ClientConnection(address, self._loop.time(), lambda: self._forget(connection))
        self._table.add(connection)
        self._silent[connection] = accepted
        self._loop.add_reader(accepted.fileno(), self._on_first_byte, connection)

    def _forget(self, connection: ClientConnection) -> None:
        """End a connection that has no transport yet."""
        self._table.remove(connection)
        accepted = self._silent.pop(connection, None)
        if accepted is not None:
            self._loop.remove_reader(accepted.fileno())
            accepted.close()
        handshake = self._handshakes.get(connection)
        if handshake is not None:
            handshake.cancel()

    def _on_first_byte(self, connection: ClientConnection) -> None:
        self._loop.remove_reader(self._silent[connection].fileno())
        self._ready.append(connection)
        self._start_handshakes()

    def _start_handshakes(self) -> None:
        while self._ready and len(self._handshakes) < self._table.limits.handshakes:
            connection = self._ready.popleft()
            accepted = self._silent.pop(connection, None)
            if accepted is None:
                continue  # given up while it waited
            connection.enter(Stage.HANDSHAKE, connection.since)  # one deadline for both stages
            task = self._loop.create_task(self._shake_hands(connection, accepted))
            self._handshakes[connection] = task
            task.add_done_callback(partial(self._end_handshake, connection))

    async def _shake_hands(self, connection: ClientConnection, accepted: socket.socket) -> None:
        began = self._loop.time()
        try:
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(connection, self._table),
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=max(self._table.limits.handshake_seconds - (began - connection.since), 0.1),
                ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )
        except (OSError, TimeoutError, asyncio.CancelledError):
            self._table.remove(connection)
            accepted.close()

    def _end_handshake(self, connection: ClientConnection, _task: asyncio.Task[None]) -> None:
        del self._handshakes[connection]
        self._start_handshakes()

    def _drop(self, connection: ClientConnection, reason: str) -> None:
        self._closed.labels(self._name, reason).inc()
        self._table.remove(connection)
        connection.abort()

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in self._table.overdue(now):
            self._drop(connection, f"{connection.stage}_deadline")
        if self._ready:
            for connection in list(self._handshakes):
                if now - connection.since > _SLOW_HANDSHAKE_SECONDS:
                    self._drop(connection, "handshakes")
        every = min(1.0, self._table.limits.shortest_seconds / 4)
        self._timers["sweep"] = self._loop.call_later(every, self._sweep)

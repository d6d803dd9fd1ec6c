"""A listener with short deadlines against clients that trickle, stall or never speak; and one without descriptors."""

import asyncio
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import NoneType
from typing import Any, cast

import pytest
import uvloop

from tests.http.support import OpenGate
from tests.support.configs import listener_limits
from tracelake.dispatcher.metrics import Metrics
from tracelake.http.app import ListenerApp
from tracelake.http.connections import ListenerLimits
from tracelake.http.router import HttpRequest, RawReply, Router, answer
from tracelake.http.server import ListenerServer
from tracelake.stack.tls import TlsFiles, ensure_tls
from tracelake.wire.contract import Access, Listener, Principal, Route

DEADLINE = 30.0
"""Of a test that waits for a deadline of the listener: long after each of those."""
SHORT = listener_limits(
    connections=12,
    address_connections=8,
    handshakes=2,
    handshake_seconds=0.4,
    head_seconds=0.4,
    body_seconds=0.8,
    body_bytes_per_second=1000,
    idle_seconds=0.4,
)
GET = b"GET /ok HTTP/1.1\r\nhost: x\r\n\r\n"
LARGE = 32 * 1024 * 1024


class SlowClientListener:
    def __init__(self, tls: TlsFiles, limits: ListenerLimits) -> None:
        self.context = ssl.create_default_context(cafile=str(tls.ca))
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.socket.getsockname()[1]
        self.metrics = Metrics()
        self.handlers = 0
        """Requests to `/wait` that are being handled."""
        self.may_answer = asyncio.Event()
        anybody = Access((Listener.PUBLIC,), Principal.NOBODY)
        endpoints = [
            answer(Route(anybody, "GET", "/ok", "", NoneType, bytes), self._ok),
            answer(Route(anybody, "GET", "/large", "", NoneType, bytes), self._large),
            answer(Route(anybody, "GET", "/wait", "", NoneType, bytes), self._wait),
            answer(Route(anybody, "POST", "/body", "", bytes, bytes), self._ok),
        ]
        app = ListenerApp(
            "public",
            Router(endpoints),
            OpenGate(),
            self.metrics,
            body_max_bytes=LARGE,
            batch_body_max_bytes=LARGE,
            webhook_max_bytes=LARGE,
            anonymous_body_bytes=LARGE,
        )
        self.server = ListenerServer(app, self.socket, certificate=tls.certificate, private_key=tls.key, limits=limits)

    async def _ok(self, _request: HttpRequest[Any]) -> RawReply:
        return RawReply(b"done", "text/plain")

    async def _large(self, _request: HttpRequest[Any]) -> RawReply:
        return RawReply(b"x" * LARGE, "text/plain")

    async def _wait(self, _request: HttpRequest[Any]) -> RawReply:
        self.handlers += 1
        await self.may_answer.wait()
        return RawReply(b"done", "text/plain")

    @property
    def acceptor(self) -> Any:
        return cast(Any, self.server)._server._acceptor

    def held(self) -> Counter[str]:
        """How many connections of each address the listener holds."""
        return Counter(connection.address for connection in self.acceptor._table)

    def closed(self, reason: str) -> float:
        count: float = self.metrics.connections_closed.labels("public", reason)._value.get()
        return count

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)

    async def open_silent(self, address: str = "127.0.0.1") -> socket.socket:
        client = socket.socket()
        client.setblocking(False)
        client.bind((address, 0))
        await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.port))
        return client

    async def answers(self) -> None:
        """A new client is answered; a connection that was given up meanwhile is opened again, as clients do."""
        while True:
            try:
                reader, writer = await self.open()
                writer.write(GET)
                await reader.readuntil(b"done")
                writer.transport.abort()
                return
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return ensure_tls(Path(tmp_path_factory.mktemp("tls")), "127.0.0.1")


def run(
    tls: TlsFiles, work: Callable[[SlowClientListener], Coroutine[Any, Any, None]], limits: ListenerLimits = SHORT
) -> None:
    async def main() -> None:
        listener = SlowClientListener(tls, limits)
        await listener.server.start()
        try:
            await asyncio.wait_for(work(listener), DEADLINE)
        finally:
            await listener.server.stop()

    uvloop.run(main())


async def until(condition: Callable[[], bool]) -> None:
    """Bounded by the deadline of the test."""
    while not condition():
        await asyncio.sleep(0.005)


async def trickle(listener: SlowClientListener, first: bytes, drop: bytes) -> None:
    """Send a drop again and again until the listener hangs up."""
    _, writer = await listener.open()
    writer.write(first)
    try:
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.02)
    except OSError:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("first", "drop", "reason"),
    [
        (b"GET /ok HTTP/1.1\r\nx: ", b"a", "head_deadline"),
        (b"", b"\r\n", "head_deadline"),
        (b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n", b"a", "body_deadline"),
        (b"POST /body HTTP/1.1\r\nhost: x\r\ncontent-length: 9999999\r\n\r\n", b"a" * 1000, "body_deadline"),
        (b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 999999\r\n\r\n", b"a", "body_deadline"),
        (GET, b"\r\n", "idle_deadline"),
    ],
    ids=["head", "nothing but line ends", "body", "body that keeps the rate", "refused body", "after a request"],
)
def test_bytes_that_trickle_extend_no_deadline(tls: TlsFiles, first: bytes, drop: bytes, reason: str) -> None:
    async def work(listener: SlowClientListener) -> None:
        await trickle(listener, first, drop)
        assert listener.closed(reason) == 1

    run(tls, work)


def test_a_reply_that_nobody_reads_is_given_up(tls: TlsFiles) -> None:
    async def work(listener: SlowClientListener) -> None:
        _, writer = await listener.open()
        cast(asyncio.ReadTransport, writer.transport).pause_reading()
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        while not listener.closed("idle_deadline"):
            await asyncio.sleep(0.01)
        writer.transport.abort()

    run(tls, work)


def test_silent_connections_and_half_handshakes_end_in_time(tls: TlsFiles) -> None:
    async def work(listener: SlowClientListener) -> None:
        silent = [await listener.open_silent() for _ in range(4)]
        halves = [await listener.open_silent() for _ in range(4)]
        for half in halves:
            half.send(b"\x16\x03\x01")  # a TLS record begins, and that is all
        await listener.answers()
        loop = asyncio.get_running_loop()
        for client in (*silent, *halves):
            try:
                while await loop.sock_recv(client, 1024):
                    pass
            except ConnectionResetError:
                pass
            client.close()

    run(tls, work)


def test_a_newcomer_at_the_limit_is_let_in(tls: TlsFiles) -> None:
    """Far more silent connections than the limit, none of which ends by a deadline here."""

    async def work(listener: SlowClientListener) -> None:
        clients = [await listener.open_silent() for _ in range(40)]
        await listener.answers()
        assert listener.closed("address") >= 40 - limits.address_connections
        for client in clients:
            client.close()

    limits = listener_limits(connections=12, address_connections=8, handshakes=2)
    run(tls, work, limits)


def test_whoever_connects_most_gives_way_and_nobody_else(tls: TlsFiles) -> None:
    """At the limit of an address one of its own goes; at the listener's, one of the address that holds the most."""
    one, two, three = (f"127.0.0.{number}" for number in (2, 3, 4))
    limits = listener_limits(connections=7, address_connections=3)

    async def work(listener: SlowClientListener) -> None:
        async def connect(address: str, expected: dict[str, int], reason: str) -> None:
            before = listener.closed(reason)
            clients.append(await listener.open_silent(address))
            await until(lambda: listener.held() == expected and listener.closed(reason) > before)

        clients = [await listener.open_silent(address) for address in (one,) * 3 + (two,) * 3]
        await until(lambda: listener.held() == {one: 3, two: 3})
        await connect(two, {one: 3, two: 3}, "address")
        clients.append(await listener.open_silent(three))
        await until(lambda: listener.held() == {one: 3, two: 3, three: 1})
        await connect(three, {one: 2, two: 3, three: 2}, "listener")
        for client in clients:
            client.close()

    run(tls, work, limits)


def test_requests_that_are_handled_are_never_given_up(tls: TlsFiles) -> None:
    """With all places taken by them, a newcomer is refused."""

    async def work(listener: SlowClientListener) -> None:
        clients = [await listener.open() for _ in range(limits.address_connections)]
        for _, writer in clients:
            writer.write(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: listener.handlers == len(clients))
        newcomer = await listener.open_silent()
        assert await asyncio.get_running_loop().sock_recv(newcomer, 1) == b""
        newcomer.close()
        assert listener.closed("address") == 1
        listener.may_answer.set()
        for reader, writer in clients:
            await reader.readuntil(b"done")
            writer.transport.abort()

    limits = listener_limits(address_connections=2)
    run(tls, work, limits)


def test_handshakes_that_stall_let_others_in(tls: TlsFiles) -> None:
    """Only some run at once, and those that take long give way, long before their deadline."""

    async def work(listener: SlowClientListener) -> None:
        halves = [await listener.open_silent() for _ in range(3)]
        for half in halves:
            half.send(b"\x16\x03\x01")
        await until(lambda: len(listener.acceptor._ready) == len(halves) - limits.handshakes)
        assert len(listener.acceptor._handshakes) == limits.handshakes
        await listener.answers()
        assert listener.closed("handshakes") >= 1
        for half in halves:
            half.close()

    limits = listener_limits(handshakes=2, handshake_seconds=600)
    run(tls, work, limits)


def test_without_descriptors_one_connection_is_given_up(tls: TlsFiles) -> None:
    async def work(listener: SlowClientListener) -> None:
        client = await listener.open_silent()
        await until(lambda: len(listener.held()) == 1)
        listener.acceptor._relieve(OSError(errno.EMFILE, "too many open files"))
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        client.close()
        assert listener.closed("descriptors") == 1
        assert not listener.acceptor._accepts, "it waits a moment before it tries again"
        await listener.answers()

    run(tls, work, listener_limits())


def test_without_descriptors_the_listener_waits_and_goes_on(tls: TlsFiles) -> None:
    class ExhaustedSocket:
        """A listening socket that finds no descriptor for a while."""

        def __init__(self, real: socket.socket) -> None:
            self.real, self.left, self.tries = real, 3, 0

        def accept(self) -> tuple[socket.socket, Any]:
            self.tries += 1
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, "too many open files")
            return self.real.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    async def work(listener: SlowClientListener) -> None:
        acceptor = listener.acceptor
        exhausted = acceptor._listener = ExhaustedSocket(acceptor._listener)
        await listener.answers()
        assert listener.closed("descriptors") == 0, "there was nothing to give up"
        assert exhausted.tries < 20, "it does not spin"

    run(tls, work, listener_limits())

"""HTTP/1.1 towards the inside of a sandbox: strict, bounded, one request at a time on a connection.

A request reaches the handler only when it is complete, taken apart by the parser that every listener of the platform
uses; the handler gets its parts and never its bytes, so that nobody behind it can read the request differently.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools
import msgspec

logger = logging.getLogger(__name__)

_MAX_HEAD_BYTES = 128 * 1024
_MOST_HEADERS = 256
_MOST_CONNECTIONS = 64
_READ_BYTES = 16 * 1024
"""Taken from a connection at a time: between two reads the event loop serves others."""
_SHARE, _BURST_SECONDS, _REQUEST_SECONDS = 0.2, 0.05, 0.0004
"""The part of the event loop's time that one listener of a sandbox gets, what it may take at once, and what a request
costs beyond its parsing."""
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRequest:
    method: str
    target: str
    """As it was sent: a path with its query, or a whole address."""
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    body: bytes

    def header(self, name: str) -> str | None:
        """The value. Sent twice is as good as not at all."""
        values = [value for key, value in self.headers if key == name]
        return values[0] if len(values) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxReply:
    status: int
    body: bytes = b""
    headers: Sequence[tuple[str, str]] = ()
    length: int | None = None
    """Of a body that is streamed, or that a HEAD request does not get."""
    stream: AsyncGenerator[bytes] | None = None
    """The body part by part, instead of `body`; exactly `length` bytes."""


def json_reply(status: int, body: object) -> SandboxReply:
    return SandboxReply(status=status, body=msgspec.json.encode(body), headers=[("content-type", "application/json")])


def refuse(status: int, code: str, message: str) -> SandboxReply:
    return json_reply(status, {"error": {"code": code, "message": message, "details": {}}})


Handler = Callable[[SandboxRequest], Awaitable[SandboxReply]]


class LoopShare:
    """Divides the event loop's time: who has taken more than a share is read from later."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._used_seconds = 0.0
        self._since = now()

    def charge(self, seconds: float) -> float:
        """How long to pause."""
        now = self._now()
        self._used_seconds = max(0.0, self._used_seconds - (now - self._since) * _SHARE) + seconds
        self._since = now
        return max(0.0, self._used_seconds - _BURST_SECONDS) / _SHARE


@dataclass(eq=False, kw_only=True)
class ExchangeLimits:
    body_bytes: int
    requests: int
    """Over all connections."""
    pending_bytes: int = 64 * 1024 * 1024
    """Bodies that are held at the same time, over all connections."""
    on_refusal: Callable[[str], None] = lambda _reason: None
    """Gets the reason why a request was refused before it reached the handler."""
    connections: set["ExchangeProtocol"] = field(default_factory=set)
    pending: int = 0
    """Bytes of bodies that are held."""
    share: LoopShare = field(default_factory=LoopShare)


class ExchangeProtocol(asyncio.BufferedProtocol):
    def __init__(self, handler: Handler, limits: ExchangeLimits) -> None:
        self._handler = handler
        self._limits = limits
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._work: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._last = False
        """The caller has said that it sends no more."""
        self._buffer = bytearray(_READ_BYTES)
        self._body_bytes = 0
        """Bytes of the body of the current request, until it is answered."""
        self._begin()

    def _begin(self) -> None:
        self._target = bytearray()
        self._headers: list[tuple[str, str]] = []
        self._body = bytearray()
        self._head_bytes = 0
        self._head_complete = False
        self._release_body()
        self._problem: tuple[int, str] | None = None

    def _release_body(self) -> None:
        self._limits.pending -= self._body_bytes
        self._body_bytes = 0

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._limits.connections.add(self)
        if len(self._limits.connections) > _MOST_CONNECTIONS:
            self._limits.on_refusal("connections")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - the protocol's
        self._limits.connections.discard(self)
        self._release_body()
        self._writable.set()
        if self._work is not None:
            self._work.cancel()

    def eof_received(self) -> bool:
        """A caller that sends no more still gets its reply."""
        self._last = True
        return self._work is not None

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002 - the protocol's
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        began, requests = time.thread_time(), self._limits.requests
        self._receive(bytes(self._buffer[:nbytes]))
        cost = time.thread_time() - began + (requests - self._limits.requests) * _REQUEST_SECONDS
        pause = self._limits.share.charge(cost)
        if pause and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(pause, self._resume_reading)

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _receive(self, data: bytes) -> None:
        if self._work is not None:
            self._refuse("pipelined")  # a request before the reply to the last one
            return
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._answer_and_close(400, "upgrade")
            return
        except (httptools.HttpParserError, UnicodeDecodeError):
            self._answer_and_close(400, "malformed")
            return
        if self._problem is not None:
            self._answer_and_close(*self._problem)
        elif self._work is None and self._head_bytes - self._body_bytes > _MAX_HEAD_BYTES:
            self._answer_and_close(431, "head")

    # --- httptools callbacks

    def on_url(self, part: bytes) -> None:
        self._target += part

    def on_headers_complete(self) -> None:
        self._head_complete = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_complete:
            self._problem = (400, "trailer")  # the parser reports them as headers; others ignore them
            return
        if len(self._headers) == _MOST_HEADERS:
            self._problem = (431, "head")
            return
        self._headers.append((name.decode("ascii").lower(), value.decode("latin-1")))

    def on_body(self, part: bytes) -> None:
        if self._body_bytes + len(part) > self._limits.body_bytes:
            self._problem = (413, "body")
        elif self._limits.pending + len(part) > self._limits.pending_bytes:
            self._problem = (503, "bodies")
        else:
            self._body += part
            self._body_bytes += len(part)
            self._limits.pending += len(part)

    def on_message_begin(self) -> None:
        if self._work is not None:
            self._problem = (400, "pipelined")

    def on_message_complete(self) -> None:
        if self._problem is not None or self._work is not None:
            self._problem = self._problem or (400, "pipelined")
            return
        if len(self._target) + sum(len(name) + len(value) for name, value in self._headers) > _MAX_HEAD_BYTES:
            self._problem = (431, "head")
            return
        self._limits.requests -= 1
        if self._limits.requests < 0:
            self._problem = (429, "requests")
            return
        request = SandboxRequest(
            method=self._parser.get_method().decode("ascii"),
            target=bytes(self._target).decode("ascii"),
            headers=tuple(self._headers),
            body=bytes(self._body),
        )
        self._body = bytearray()
        self._work = asyncio.ensure_future(self._respond(request, keep=self._parser.should_keep_alive()))

    # --- replies

    async def _respond(self, request: SandboxRequest, *, keep: bool) -> None:
        try:
            reply = await self._handler(request)
        except Exception:
            logger.exception("a request of a sandbox failed")
            reply = refuse(500, "internal", "the request failed")
        assert self._transport is not None
        keep = keep and self._problem is None and not self._last
        self._transport.write(_encode(reply, keep=keep, head_only=request.method == "HEAD"))
        if reply.stream is not None:
            try:
                async with aclosing(reply.stream) as parts:
                    async for part in parts:
                        self._transport.write(part)
                        await self._writable.wait()
            except (OSError, EOFError):
                self._transport.abort()  # the caller sees that the body is not whole
                return
        await self._writable.wait()
        self._work = None
        self._begin()
        if not keep:
            self._transport.close()

    def _answer_and_close(self, status: int, reason: str) -> None:
        self._limits.on_refusal(reason)
        if self._transport is not None and not self._transport.is_closing():
            if self._work is None:
                self._transport.write(_encode(refuse(status, "request_refused", reason), keep=False, head_only=False))
            self._transport.close()

    def _refuse(self, reason: str) -> None:
        self._limits.on_refusal(reason)
        if self._transport is not None:
            self._transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def _encode(reply: SandboxReply, *, keep: bool, head_only: bool) -> bytes:
    length = len(reply.body) if reply.length is None else reply.length
    lines = [f"HTTP/1.1 {reply.status} {_PHRASES.get(reply.status, 'Unknown')}", f"content-length: {length}"]
    lines += [f"{name}: {value}" for name, value in reply.headers]
    if not keep:
        lines.append("connection: close")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head if head_only else head + reply.body


class ExchangeServer:
    """Serves one listening socket of one sandbox."""

    def __init__(self, handler: Handler, limits: ExchangeLimits) -> None:
        self._handler = handler
        self._limits = limits
        self._server: asyncio.Server | None = None

    async def start(self, listener: socket.socket) -> None:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: ExchangeProtocol(self._handler, self._limits), sock=listener
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._limits.connections):
            connection.abort()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

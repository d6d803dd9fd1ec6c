"""One HTTP/1.1 connection that carries one request at a time.

It is strict: a reply without a length, with trailing data, or larger than allowed is an error.
`ConnectionLost.untouched` tells whether the connection was lost before any of the reply was read.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

from tracelake.wire.query import SUMMARY_HEADER

MAX_HEAD_BYTES = 64 * 1024
_SUMMARY = SUMMARY_HEADER.encode()


class ConnectionLost(Exception):  # noqa: N818 - an event of the protocol, not the caller's error
    def __init__(self, reason: str, *, untouched: bool) -> None:
        super().__init__(reason)
        self.untouched = untouched


@dataclass(frozen=True, slots=True)
class HttpReply:
    status: int
    body: bytes
    retry_after: int | None = None
    """Whole seconds, if the server tells how long to wait."""
    summary: bytes | None = None
    """The header that describes the result of a query in the body."""


class Connection(asyncio.Protocol):
    def __init__(self, max_reply_bytes: int) -> None:
        self._max_reply_bytes = max_reply_bytes
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[HttpReply] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._read_bytes = 0
        self._in_body = False
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._reply: HttpReply | None = None
        self._trailing = False
        self._keep = False
        self._retry_after: int | None = None
        self._summary: bytes | None = None
        self._sink: Callable[[bytes], object] | None = None

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, sink: Callable[[bytes], object] | None = None) -> HttpReply:
        """Raises ConnectionLost; a cancellation closes the connection. `sink` gets the body of a 200 part by part,
        however long it is; the reply then has none."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionLost("the connection was closed", untouched=True)
        self._answer = asyncio.get_running_loop().create_future()
        self._read_bytes = 0
        self._sink = sink
        self._transport.write(request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.abort()
            raise
        finally:
            self._answer = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not subclasses

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        reason = "the connection was closed" if error is None else f"the connection broke: {type(error).__name__}"
        self._fail(reason)

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # data without a request
            return
        self._read_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse("the answer is not HTTP")
            return
        # The second bound limits everything but the body: chunk extensions, trailers, interim replies.
        if max(self._body_bytes, self._read_bytes - MAX_HEAD_BYTES) > self._max_reply_bytes and not self._sinks():
            self._refuse("the answer is larger than allowed")
        elif self._reply is not None:
            self._deliver(self._reply)
        elif not self._in_body and self._read_bytes > MAX_HEAD_BYTES:
            self._refuse("the head of the answer is larger than allowed")

    # --- httptools callbacks

    def on_message_begin(self) -> None:
        if self._reply is not None:
            self._trailing = True
        else:
            self._retry_after = self._summary = None

    def on_header(self, name: bytes, value: bytes) -> None:
        # The header may also be a date, but the Dispatcher sends seconds; nine digits are more than enough.
        if self._reply is None and name.lower() == b"retry-after" and value.isdigit() and len(value) < 10:
            self._retry_after = int(value)
        elif self._reply is None and name.lower() == _SUMMARY:
            self._summary = value

    def on_headers_complete(self) -> None:
        self._in_body = True

    def _sinks(self) -> bool:
        return self._sink is not None and self._in_body and self._parser.get_status_code() == 200

    def on_body(self, part: bytes) -> None:
        if self._sinks() and not self._trailing:
            assert self._sink is not None
            self._sink(part)
            return
        self._body_bytes += len(part)
        if self._body_bytes <= self._max_reply_bytes and not self._trailing:
            self._body.append(part)

    def on_message_complete(self) -> None:
        self._in_body = False
        status = self._parser.get_status_code()
        if status >= 200 and self._reply is None:
            self._reply = HttpReply(status, b"".join(self._body), self._retry_after, self._summary)
            self._keep = self._parser.should_keep_alive()  # the parser knows it only now

    # --- outcomes

    def _deliver(self, reply: HttpReply) -> None:
        assert self._answer is not None
        self._answer.set_result(reply)
        if self._trailing or not self._keep:
            self.abort()
            return
        self._reply = None
        self._body = []
        self._body_bytes = 0

    def _refuse(self, reason: str) -> None:
        self._read_bytes = max(self._read_bytes, 1)
        self._fail(reason)
        self.abort()

    def _fail(self, reason: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionLost(reason, untouched=self._read_bytes == 0))

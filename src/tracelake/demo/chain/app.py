"""The HTTP side: POST, JSON in and JSON out; a limit on bodies, gzip for who asks, a cap on the pace."""

import gzip
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tracelake.demo.chain.rpc import Rpc

MAX_BODY_BYTES = 8 * 1024 * 1024
GZIP_FROM_BYTES = 4096
GZIP_LEVEL = 1
LIVE_PATH = "/live"

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_JSON = (b"content-type", b"application/json")


class RequestPace:
    """Allows so many HTTP requests a second, with a burst of one second; `wait` returns how long the next must wait."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second)
        self._saved = self._most
        self._clock = clock
        self._updated_at = clock()

    def wait(self) -> float:
        now = self._clock()
        self._saved = min(self._most, self._saved + (now - self._updated_at) * self._per_second)
        self._updated_at = now
        if self._saved >= 1:
            self._saved -= 1
            return 0.0
        return (1 - self._saved) / self._per_second


class ChainApp:
    """An ASGI application. A request is answered in one step, without waiting for anything but its body."""

    def __init__(
        self, rpc: Rpc, *, live: Rpc | None = None, pace: RequestPace | None = None, compress: bool = True
    ) -> None:
        """`live`: answers at the path /live. Every other path is that of the recording."""
        self._rpc = rpc
        self._live = live
        self._pace = pace
        self._compress = compress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("only HTTP is served")
        if scope["method"] != "POST":
            await _plain(send, 405, "JSON-RPC calls are sent with POST.", (b"allow", b"POST"))
            return
        wait = self._pace.wait() if self._pace else 0.0
        if wait:
            retry = str(math.ceil(wait)).encode()
            await _plain(send, 429, "Too many requests; wait as Retry-After says.", (b"retry-after", retry))
            return
        body = await _body(receive)
        if body is None:
            await _plain(send, 413, f"A body has at most {MAX_BODY_BYTES} bytes.", (b"connection", b"close"))
            return
        rpc = self._live if self._live is not None and scope["path"] == LIVE_PATH else self._rpc
        answer = rpc.answer(body)
        if answer is None:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        if self._compress and len(answer) >= GZIP_FROM_BYTES and _takes_gzip(scope):
            packed = gzip.compress(answer, GZIP_LEVEL, mtime=0)
            await _send(send, 200, packed, _JSON, (b"content-encoding", b"gzip"), (b"vary", b"accept-encoding"))
            return
        await _send(send, 200, answer, _JSON)


async def _body(receive: Receive) -> bytes | None:
    """The whole body, or None if it is too large."""
    message = await receive()
    if not message.get("more_body"):
        body: bytes = message.get("body", b"")
        return body if len(body) <= MAX_BODY_BYTES else None
    parts, size = [message["body"]], len(message["body"])
    while message.get("more_body"):
        message = await receive()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            return None
    return b"".join(parts)


def _takes_gzip(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"accept-encoding":
            for choice in value.lower().split(b","):
                coding, _, weight = choice.partition(b";")
                if coding.strip() in (b"gzip", b"*"):
                    return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False


async def _plain(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    await _send(send, status, text.encode() + b"\n", (b"content-type", b"text/plain; charset=utf-8"), *headers)


async def _send(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})

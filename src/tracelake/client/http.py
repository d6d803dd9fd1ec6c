"""A small HTTP/1.1 client over TLS: a keep-alive pool for one base URL.

It supports bodies with a length, and no redirects, cookies, compression or proxies: the Dispatcher needs none of them.
The server's certificate is always verified against the given CA file, or against the CAs of the machine if its name is
empty. If an idle connection turns out to be closed, the
request is sent again on a new one, but only if none of the reply was read and the request is `repeatable`. Every
failure is a `DispatcherUnavailableError`.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from tracelake.client.connection import Connection, ConnectionLost, HttpReply
from tracelake.client.errors import DispatcherUnavailableError
from tracelake.errors import TraceError

__all__ = ["HttpClient", "HttpReply"]

Headers = Sequence[tuple[str, str]]


class HttpClient:
    """One instance serves one event loop. Raises OSError at once if the CA file cannot be read. An empty `ca_file`
    stands for the CAs of the machine."""

    def __init__(
        self,
        base_url: str,
        ca_file: Path | str,
        *,
        timeout: float = 30.0,
        connect_timeout: float | None = None,
        max_connections: int = 64,
        max_reply_bytes: int = 32 * 1024 * 1024,
    ) -> None:
        url = urlsplit(base_url)
        if url.scheme != "https" or not url.hostname or url.path not in ("", "/") or url.query:
            raise ValueError("a base URL is https://host[:port]")
        self._host, self._port = url.hostname, url.port or 443
        self._authority = url.netloc
        self._tls = ssl.create_default_context(cafile=str(ca_file) or None)
        self._timeout = timeout
        self._connect_timeout = connect_timeout
        """A hung process still accepts connections by its backlog, but never completes the handshake."""
        self._max_reply_bytes = max_reply_bytes
        self._slots = asyncio.Semaphore(max_connections)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Headers = (),
        timeout: float | None = None,
        repeatable: bool = True,
        content_type: str = "application/json",
        sink: Callable[[bytes], object] | None = None,
    ) -> HttpReply:
        """Returns the reply, whatever its status. Our calls are idempotent by contract, hence `repeatable`. `sink` gets
        the body of a 200 part by part, and the beginning of a reply that breaks off."""
        data = self._encode(method, path, body, headers, content_type)
        patience = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(patience), self._slots:
                return await self._send(data, sink, repeatable=repeatable)
        except TimeoutError as error:
            raise DispatcherUnavailableError(f"no answer within {patience:g} seconds") from error
        except ConnectionLost as error:
            raise DispatcherUnavailableError(str(error)) from error

    async def close(self) -> None:
        self._closed = True
        for connection in [*self._idle, *self._busy]:
            connection.abort()
        self._idle.clear()
        await asyncio.sleep(0)  # let the transports see it

    async def _send(self, data: bytes, sink: Callable[[bytes], object] | None, *, repeatable: bool) -> HttpReply:
        idle_connection = self._kept()
        if idle_connection is not None:
            try:
                return await self._exchange(idle_connection, data, sink)
            except ConnectionLost as lost:
                if not (lost.untouched and repeatable):
                    raise
        return await self._exchange(await self._connect(), data, sink)

    async def _exchange(self, connection: Connection, data: bytes, sink: Callable[[bytes], object] | None) -> HttpReply:
        self._busy.add(connection)
        try:
            reply = await connection.exchange(data, sink)
        finally:
            self._busy.discard(connection)
        if connection.usable and not self._closed:
            self._idle.append(connection)
        return reply

    def _kept(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self) -> Connection:
        if self._closed:
            raise DispatcherUnavailableError("the client is closed")
        patience = self._connect_timeout
        try:
            async with asyncio.timeout(patience) as limit:
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: Connection(self._max_reply_bytes), self._host, self._port, ssl=self._tls
                )
        except TimeoutError as error:  # also one of the operating system
            if patience is None or not limit.expired():
                raise DispatcherUnavailableError(f"no connection: {type(error).__name__}") from error
            raise DispatcherUnavailableError(f"no connection within {patience:g} seconds") from error
        except OSError as error:  # ssl.SSLError is one too
            raise DispatcherUnavailableError(f"no connection: {type(error).__name__}") from error
        return connection

    def _encode(self, method: str, path: str, body: bytes | None, headers: Headers, content_type: str) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"host: {self._authority}", "accept: application/json"]
        for name, value in headers:
            if not (value.isascii() and value.isprintable()):
                # A credential that came over the wire must not be able to write headers of its own.
                raise TraceError("credential_malformed", "The credential has characters that a header cannot hold.")
            lines.append(f"{name}: {value}")
        if body is not None:
            lines.append(f"content-type: {content_type}")
            lines.append(f"content-length: {len(body)}")
        head = "\r\n".join(lines).encode("ascii") + b"\r\n\r\n"
        return head if body is None else head + body

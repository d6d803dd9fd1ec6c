"""HTTP towards what lies behind the way out of a sandbox: one request on one connection, the reply streamed."""

import asyncio
import ssl
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

import httptools

_MAX_HEAD_BYTES = 64 * 1024
_CHUNK = 64 * 1024
_CONNECT_SECONDS = 10.0
_MOST_WITHOUT_LENGTH = 8 * 1024 * 1024


class UpstreamError(Exception):
    """No reply, or one that is not HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamReply:
    status: int
    headers: tuple[tuple[str, str], ...]
    """Names in lower case."""
    length: int
    body: AsyncGenerator[bytes]


class _ReplyParser:
    def __init__(self) -> None:
        self.headers: list[tuple[str, str]] = []
        self.parts: list[bytes] = []
        self.head_complete = False
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.head_complete:
            self.headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self.head_complete = True

    def on_body(self, part: bytes) -> None:
        self.parts.append(part)

    def on_message_complete(self) -> None:
        self.complete = True


class EgressTarget(Protocol):
    """What the way out of a sandbox leads to."""

    @property
    def authority(self) -> str:
        """Host and port, as in the header `Host`."""
        ...

    async def request(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes, *, seconds: float
    ) -> UpstreamReply:
        """`headers` have the host. Raises UpstreamError; the body of the reply may end with one too."""
        ...


class UpstreamService:
    """One service, by its address; nothing that a sandbox sends changes where a request goes."""

    def __init__(self, base_url: str, ca_file: str | None = None) -> None:
        url = urlsplit(base_url)
        assert url.hostname is not None
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self.authority = url.netloc
        self._tls = ssl.create_default_context(cafile=ca_file) if url.scheme == "https" else None

    async def request(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes, *, seconds: float
    ) -> UpstreamReply:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        try:
            async with asyncio.timeout(min(_CONNECT_SECONDS, seconds)):
                reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        except (OSError, TimeoutError) as error:
            raise UpstreamError(f"no connection: {type(error).__name__}") from None
        replies = _ReplyParser()
        parser = httptools.HttpResponseParser(replies)
        exchange = _Exchange(reader, writer, replies, parser, deadline)
        try:
            writer.write(_encode_head(method, target, headers, len(body)))
            writer.write(body)
            return await exchange.read_head(head_only=method == "HEAD")
        except BaseException:
            writer.close()
            raise


@dataclass(eq=False)
class _Exchange:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    reply: _ReplyParser
    parser: httptools.HttpResponseParser
    deadline: float

    async def read_head(self, *, head_only: bool) -> UpstreamReply:
        size = 0
        while not self.reply.head_complete:
            size += await self._feed()
            if size > _MAX_HEAD_BYTES + _CHUNK:
                raise UpstreamError("the head of the reply is too large")
        status = self.parser.get_status_code()
        declared = [value for name, value in self.reply.headers if name == "content-length"]
        if status < 200:
            raise UpstreamError("an interim reply")
        if head_only or status in (204, 304):
            self.writer.close()
            return self._reply(status, int(declared[0]) if declared else 0, _yield_once(b""))
        if len(declared) == 1 and declared[0].isdigit():
            return self._reply(status, int(declared[0]), self._stream(int(declared[0])))
        body = bytearray()
        while True:
            body += self._take()
            if len(body) > _MOST_WITHOUT_LENGTH:
                raise UpstreamError("the reply has no length and is too large")
            if self.reply.complete:
                break
            await self._feed()
        self.writer.close()
        return self._reply(status, len(body), _yield_once(bytes(body)))

    def _reply(self, status: int, length: int, body: AsyncGenerator[bytes]) -> UpstreamReply:
        return UpstreamReply(status=status, headers=tuple(self.reply.headers), length=length, body=body)

    async def _stream(self, length: int) -> AsyncGenerator[bytes]:
        try:
            left = length
            while True:
                part = self._take()
                left -= len(part)
                if left < 0:
                    raise EOFError("the reply is longer than it said")
                if part:
                    yield part
                if left == 0:
                    return
                await self._feed()
        except UpstreamError as error:
            raise EOFError(str(error)) from None
        finally:
            self.writer.close()

    def _take(self) -> bytes:
        part = b"".join(self.reply.parts)
        self.reply.parts.clear()
        return part

    async def _feed(self) -> int:
        try:
            async with asyncio.timeout_at(self.deadline):
                data = await self.reader.read(_CHUNK)
        except (OSError, TimeoutError) as error:
            raise UpstreamError(f"no reply: {type(error).__name__}") from None
        if not data:
            raise UpstreamError("the connection was closed")
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise UpstreamError("the reply is not HTTP") from None
        return len(data)


async def _yield_once(body: bytes) -> AsyncGenerator[bytes]:
    yield body


def _encode_head(method: str, target: str, headers: Sequence[tuple[str, str]], length: int) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers), "connection: close"]
    if length or method in ("PUT", "POST"):
        lines.append(f"content-length: {length}")
    if any("\r" in line or "\n" in line or "\0" in line for line in lines):
        raise UpstreamError("a header has a line break")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"

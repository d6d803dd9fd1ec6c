"""Leads requests of a sandbox to an application of this process, and notes what was refused."""

import asyncio
from collections.abc import AsyncGenerator, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tracelake.http.app import ListenerApp
from tracelake.runner.upstream import UpstreamError, UpstreamReply
from tracelake.wire.base import ErrorBody


class RefusedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the function that was not answered as it wished."""

    method: str
    target: str
    status: int
    code: str
    message: str


NoteRefusal = Callable[[RefusedRequest], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerUpstream:
    """A listener of the platform in this process."""

    app: ListenerApp
    note_refusal: NoteRefusal
    authority: str = "trace"

    async def request(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes, *, seconds: float
    ) -> UpstreamReply:
        path, _, query = target.partition("?")
        scope: MutableMapping[str, Any] = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [
                *((name.encode(), value.encode("latin-1")) for name, value in headers),
                (b"content-length", str(len(body)).encode()),
            ],
        }
        messages: list[MutableMapping[str, Any]] = []
        pending = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            if not pending:
                await asyncio.Event().wait()  # the caller stays until the reply
            return pending.pop()

        async def send(message: MutableMapping[str, Any]) -> None:
            messages.append(message)

        try:
            async with asyncio.timeout(seconds):
                await self.app(scope, receive, send)
        except TimeoutError:
            raise UpstreamError("no reply in time") from None
        start, *parts = messages
        data = b"".join(part.get("body", b"") for part in parts)
        status: int = start["status"]
        if status >= 400:
            self.note_refusal(describe_refusal(method, path, status, data))
        names = tuple((name.decode(), value.decode("latin-1")) for name, value in start["headers"])
        return UpstreamReply(status=status, headers=names, length=len(data), body=yield_once(data))


def describe_refusal(method: str, target: str, status: int, body: bytes) -> RefusedRequest:
    try:
        error = msgspec.json.decode(body, type=ErrorBody).error
        code, message = error.code, error.message
    except (msgspec.MsgspecError, UnicodeDecodeError):
        code, message = "refused", ""
    return RefusedRequest(method=method, target=target, status=status, code=code, message=message)


async def yield_once(data: bytes) -> AsyncGenerator[bytes]:
    yield data

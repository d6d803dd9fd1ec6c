"""Faults of the transport for tests/support/chain.py: each takes the right answer and sends something else."""

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from tracelake.demo.chain.app import ChainApp, Receive, Scope, Send


class Call(msgspec.Struct, frozen=True):
    """A JSON-RPC call as the server saw it."""

    method: str
    params: Any = None
    id: Any = None


def calls_of(body: bytes) -> list[Call]:
    try:
        given = json.loads(body)
    except ValueError:
        return []
    calls = given if isinstance(given, list) else [given]
    return [Call(str(one.get("method")), one.get("params"), one.get("id")) for one in calls if isinstance(one, dict)]


class Fault(Protocol):
    async def happen(self, app: ChainApp, scope: Scope, receive: Receive, send: Send) -> None: ...

    def release(self) -> None:
        """The test is over: wait for nothing any more."""


@dataclass(slots=True)
class Rule:
    fault: Fault
    times: int | None
    when: Callable[[list[Call]], bool] | None

    def holds(self, calls: list[Call]) -> bool:
        return self.times != 0 and (self.when is None or self.when(calls))

    def use(self) -> None:
        if self.times is not None:
            self.times -= 1


class _Base:
    def release(self) -> None:
        return


class Delay(_Base):
    """The answer comes after so many seconds, or when `until` is set."""

    def __init__(self, seconds: float = 0.0, *, until: threading.Event | None = None) -> None:
        self._seconds = seconds
        self._until = until

    async def happen(self, app: ChainApp, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(self._seconds)
        if self._until is not None:
            await asyncio.to_thread(self._until.wait, 60)
        await app(scope, receive, send)

    def release(self) -> None:
        if self._until is not None:
            self._until.set()


class Drop(_Base):
    """The connection ends without a word."""

    async def happen(self, app: ChainApp, scope: Scope, receive: Receive, send: Send) -> None:
        _transport(send).abort()
        await _gone()


class Truncate(_Base):
    """The head promises the whole body; after so many bytes of it the connection ends."""

    def __init__(self, after: int = 100) -> None:
        self._after = after

    async def happen(self, app: ChainApp, scope: Scope, receive: Receive, send: Send) -> None:
        start, body = await _right(app, scope, receive)
        await send(start)
        await send({"type": "http.response.body", "body": body[: min(self._after, len(body) - 1)], "more_body": True})
        _transport(send).close()
        await _gone()


class Status(_Base):
    """Another HTTP status, with Retry-After if one is given."""

    def __init__(self, status: int, *, retry_after: str | None = None, body: bytes = b"not now\n") -> None:
        self._status = status
        self._retry_after = retry_after
        self._body = body

    async def happen(self, app: ChainApp, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(self._body)).encode())]
        if self._retry_after is not None:
            headers.append((b"retry-after", self._retry_after.encode()))
        await send({"type": "http.response.start", "status": self._status, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


class _Changed(_Base):
    """A whole HTTP answer with another body."""

    def change(self, answer: Any) -> bytes:
        raise NotImplementedError

    async def happen(self, app: ChainApp, scope: Scope, receive: Receive, send: Send) -> None:
        _, body = await _right(app, scope, receive)
        changed = self.change(json.loads(body))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(changed)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": changed})


class NotJson(_Changed):
    def change(self, answer: Any) -> bytes:
        return b"<html>a proxy says hello</html>"


class PartialBatch(_Changed):
    """Only the first answers of a batch."""

    def __init__(self, keep: int) -> None:
        self._keep = keep

    def change(self, answer: Any) -> bytes:
        if isinstance(answer, dict):
            return json.dumps(answer if self._keep else []).encode()
        return json.dumps(answer[: self._keep]).encode()


class ShuffledBatch(_Changed):
    """All answers of a batch, last first. The protocol allows any order."""

    def change(self, answer: Any) -> bytes:
        return json.dumps(answer[::-1] if isinstance(answer, list) else answer).encode()


class WrongIds(_Changed):
    """Answers to calls that nobody made."""

    def change(self, answer: Any) -> bytes:
        answers = answer if isinstance(answer, list) else [answer]
        for number, one in enumerate(answers):
            one["id"] = f"nobody-{number}"
        return json.dumps(answer).encode()


class RpcErrors(_Changed):
    """A JSON-RPC error instead of each result, with status 200, as many providers say their limits."""

    def __init__(self, code: int, message: str) -> None:
        self._error = {"code": code, "message": message}

    def change(self, answer: Any) -> bytes:
        answers = answer if isinstance(answer, list) else [answer]
        for one in answers:
            one.pop("result", None)
            one["error"] = self._error
        return json.dumps(answer).encode()


async def _right(app: ChainApp, scope: Scope, receive: Receive) -> tuple[dict[str, Any], bytes]:
    sent: list[dict[str, Any]] = []

    async def collect(message: dict[str, Any]) -> None:
        sent.append(message)

    plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
    await app({**scope, "headers": plain}, receive, collect)
    return sent[0], b"".join(message.get("body", b"") for message in sent[1:])


def _transport(send: Send) -> Any:
    """The connection behind an answer: uvicorn's send is a method of what holds it."""
    return send.__self__.transport  # type: ignore[attr-defined]


async def _gone() -> None:
    """Until the server has noticed that the connection is no more; it would complain about a missing answer."""
    for _ in range(3):
        await asyncio.sleep(0)

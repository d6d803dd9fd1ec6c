"""A stand-in for the public listener: TLS and HTTP are real, the answers are what a test puts there.

`answers` maps `"GET /v1/dags"` (without the query) to a wire struct, a `TraceError`, bytes, or a function of the
request that gives one of these. A list is answered one after the other; its last entry stays.
"""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest

from tests.client.scripted_server import Certificates, Request, reply, serving
from tracelake.cli import session
from tracelake.client.stack import LocalStack, ObjectStoreAddress
from tracelake.errors import TraceError
from tracelake.wire.base import ErrorBody, ErrorInfo

TOKEN = "the-admin-token"


@dataclass(frozen=True)
class Call:
    method: str
    path: str
    query: dict[str, str]
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class FakeApi:
    home: Path
    answers: dict[str, Any] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def script(self, request: Request) -> bytes:
        method, target, _ = request.line.split(" ")
        url = urlsplit(target)
        call = Call(method, url.path, dict(parse_qsl(url.query)), request.body, request.headers)
        self.calls.append(call)
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return encoded(TraceError("credential_invalid"))
        answer = self.answers.get(f"{method} {url.path}", TraceError("route_not_found"))
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        return encoded(answer(call) if callable(answer) else answer)

    def asked(self, path: str) -> list[Call]:
        return [call for call in self.calls if call.path == path]


def encoded(answer: Any) -> bytes:
    if isinstance(answer, bytes):
        return reply(answer, 200, "content-type: application/yaml")
    if isinstance(answer, TraceError):
        info = ErrorInfo(code=answer.code, message=answer.message, details=answer.details)
        wait = answer.details.get("retry_after_seconds")
        headers = [] if wait is None else [f"retry-after: {wait}"]  # as the listener writes it
        return reply(msgspec.json.encode(ErrorBody(error=info)), answer.status, *headers)
    return reply(msgspec.json.encode(answer))


@contextmanager
def running(home: Path, certificates: Certificates) -> Iterator[FakeApi]:
    """The stand-in on a loop in a thread of its own, with the `stack.json` that leads to it."""
    api = FakeApi(home)
    ready = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stopping = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stopping))
        async with serving(api.script, certificates) as server:
            write_stack(home, server.url, certificates.ca_file)
            ready.set()
            await stopping.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert ready.wait(20)
    try:
        yield api
    finally:
        loop, stopping = loops[0]
        loop.call_soon_threadsafe(stopping.set)
        thread.join(20)


def write_stack(home: Path, url: str, ca_file: Path) -> None:
    token = home / "admin.token"
    token.write_text(TOKEN + "\n")
    unused = str(home / "unused")
    stack = LocalStack(
        pid=1,
        home=str(home),
        public_url=url,
        task_url=url,
        internal_url=url,
        ca_file=str(ca_file),
        worker_token_file=unused,
        service_token_file=unused,
        admin_token_file=str(token),
        queue_dsn_file=unused,
        data_dsn_file=unused,
        object_store=ObjectStoreAddress(endpoint=None, region="us-east-1", buckets={}),
    )
    (home / "stack.json").write_bytes(msgspec.json.encode(stack))


def end_after(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """Ctrl-C comes after so many looks."""
    left = looks

    async def pause() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt

    monkeypatch.setattr(session, "_pause", pause)

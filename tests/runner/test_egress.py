"""The way out of a sandbox: what passes, what is refused, and what the other side gets to read."""

import asyncio
import json
import socket
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from tracelake.runner.egress import Destinations, EgressProxy
from tracelake.runner.exchange import ExchangeLimits, ExchangeServer
from tracelake.runner.function import CountRefusal
from tracelake.runner.inside import PORTS
from tracelake.runner.object_paths import ObjectGrant
from tracelake.runner.upstream import UpstreamService

TASK = UUID("01890000-0000-7000-8000-000000000001")
OTHER = UUID("01890000-0000-7000-8000-000000000002")
GRANT = ObjectGrant(read=["s3://data/datasets/a/1/"], write=["s3://data/staging/a/1/t/1/", "s3://scratch/t/"])
OWN = f"127.0.0.1:{PORTS[1]}"


def make_token(task_id: UUID = TASK, attempt: int = 1) -> str:
    payload = json.dumps({"task_id": str(task_id), "attempt": attempt}).encode()
    return f"e30.{urlsafe_b64encode(payload).decode().rstrip('=')}.signature"


def call(path: str = "/v1/task/heartbeat", *, token: str | None = None, body: Any = None, more: str = "") -> bytes:
    data = json.dumps({"task_id": str(TASK), "attempt": 1} if body is None else body).encode()
    header = f"x-trace-task-capability: {make_token() if token is None else token}\r\n"
    head = f"POST {path} HTTP/1.1\r\nhost: {OWN}\r\n{header}content-length: {len(data)}\r\n{more}\r\n"
    return head.encode() + data


def get(target: str, *, method: str = "GET", host: str = OWN, more: str = "") -> bytes:
    return f"{method} {target} HTTP/1.1\r\nhost: {host}\r\n{more}\r\n".encode()


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\netag: x\r\nset-cookie: s\r\n\r\nok"


class RecordingService:
    """Whatever lies behind the way out: it records each connection's bytes and answers."""

    def __init__(self, reply: bytes = OK) -> None:
        self.requests: list[bytes] = []
        self._reply = reply

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.read(1 << 20))
        writer.write(self._reply)
        writer.close()


def exchange(
    *messages: bytes, service: RecordingService | None = None
) -> tuple[list[bytes], RecordingService, dict[str, int]]:
    """Sends each message on a connection of its own; the replies, what arrived behind, and the refusals."""
    service = service or RecordingService()
    refusals = CountRefusal()

    async def run() -> list[bytes]:
        behind = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        upstream = UpstreamService(f"http://127.0.0.1:{behind.sockets[0].getsockname()[1]}")
        proxy = EgressProxy(
            task_id=TASK,
            attempt=1,
            grant=GRANT,
            destinations=Destinations(tasks=upstream, queries=upstream, objects=upstream),
            count_refusal=refusals,
        )
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        server = ExchangeServer(proxy.handle, ExchangeLimits(body_bytes=1000, requests=50, on_refusal=refusals))
        await server.start(listener)
        replies = []
        for message in messages:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(message)
            writer.write_eof()
            async with asyncio.timeout(30):
                replies.append(await reader.read())
            writer.close()
        await server.close()
        behind.close()
        return replies

    return asyncio.run(run()), service, refusals.reasons


ALLOWED: dict[str, bytes] = {
    "a call of the task": call(),
    "a query": call("/v1/task/query"),
    "an input": get("/data/datasets/a/1/x.parquet", more="range: bytes=0-1\r\n"),
    "its own object": get("/data/staging/a/1/t/1/x", method="PUT", more="content-length: 0\r\n"),
    "a listing": get("/data?list-type=2&prefix=datasets/a/1/"),
    "an upload in parts": get("/scratch/t/x?uploads", method="POST", more="content-length: 0\r\n"),
    "a proxy's form": get(f"http://{OWN}/scratch/t/x"),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed(name: str) -> None:
    (reply,), service, refusals = exchange(ALLOWED[name])
    assert reply.startswith(b"HTTP/1.1 200 OK\r\n"), reply
    assert reply.endswith(b"\r\n\r\nok")
    assert b"set-cookie" not in reply
    assert len(service.requests) == 1
    assert refusals == {}


REFUSED: dict[str, tuple[bytes, str]] = {
    "another host": (get("/scratch/t/x", host="example.com"), "host"),
    "no host": (b"GET /scratch/t/x HTTP/1.1\r\n\r\n", "host"),
    "two hosts": (get("/scratch/t/x", more=f"host: {OWN}\r\n"), "host"),
    "another host in the target": (get("http://example.com/scratch/t/x", host="example.com"), "host"),
    "two hosts that differ": (get("http://example.com/scratch/t/x"), "host"),
    "a user in the target": (get(f"http://user@{OWN}/scratch/t/x"), "host"),
    "https": (get("https://example.com/"), "path"),
    "internal": (call("/internal/task-claim"), "path"),
    "public": (call("/v1/dags"), "path"),
    "batch": (call("/v1/task/batch"), "path"),
    "below a call": (call("/v1/task/heartbeat/../../internal/jobs"), "path"),
    "escaped": (call("/v1/task/%68eartbeat"), "path"),
    "with a query": (call("/v1/task/heartbeat?a=1"), "path"),
    "two slashes": (call("//v1/task/heartbeat"), "path"),
    "no token": (call(token=""), "token"),
    "no JWT": (call(token="a.b.c"), "token"),
    "another task's token": (call(token=make_token(OTHER)), "token"),
    "an older attempt's token": (call(token=make_token(attempt=2)), "token"),
    "two tokens": (call(more=f"x-trace-task-capability: {make_token()}\r\n"), "token"),
    "another task": (call(body={"task_id": str(OTHER), "attempt": 1}), "task"),
    "another attempt": (call(body={"task_id": str(TASK), "attempt": 2}), "task"),
    "no JSON": (call(body="x"), "body"),
    "another method": (get("/v1/task/heartbeat"), "method"),
    "another prefix": (get("/data/datasets/b/1/x"), "prefix"),
    "a sibling with the same beginning": (get("/data/datasets/a/12/x"), "prefix"),
    "another bucket": (get("/bundles/datasets/a/1/x"), "prefix"),
    "a climb": (get("/data/datasets/a/1/../../b/x"), "path"),
    "an escaped climb": (get("/data/datasets/a/1/%2e%2e/x"), "path"),
    "an escaped slash climb": (get("/data/datasets/a/1/..%2f..%2fb"), "path"),
    "a doubly escaped climb": (get("/data/datasets/a/1/%252e%252e/x"), "path"),
    "a backslash": (get("/data/datasets/a/1/..\\x"), "path"),
    "an empty segment": (get("/data/datasets/a/1//x"), "path"),
    "a NUL": (get("/data/datasets/a/1/%00"), "path"),
    "all buckets": (get("/"), "path"),
    "a whole bucket": (get("/data?list-type=2"), "parameter"),
    "a listing above": (get("/data?list-type=2&prefix=datasets/"), "prefix"),
    "a listing of a sibling": (get("/data?list-type=2&prefix=datasets/a/1"), "prefix"),
    "two prefixes": (get("/data?prefix=datasets/a/1/&prefix=datasets/"), "parameter"),
    "a policy": (get("/data?policy"), "parameter"),
    "an access list": (get("/data/datasets/a/1/x?acl"), "parameter"),
    "writing an input": (get("/data/datasets/a/1/x", method="PUT"), "prefix"),
    "deleting": (get("/scratch/t/x", method="DELETE"), "method"),
    "deleting many": (get("/scratch?delete", method="POST"), "method"),
    "patching": (get("/scratch/t/x", method="PATCH"), "method"),
    "a copy": (get("/scratch/t/x", method="PUT", more="x-amz-copy-source: /data/datasets/b/1/x\r\n"), "copy"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    message, reason = REFUSED[name]
    (reply,), service, refusals = exchange(message)
    assert reply.startswith(b"HTTP/1.1 403"), reply
    assert refusals == {reason: 1}
    assert service.requests == []


SMUGGLED = get("/internal/jobs")
SMUGGLING: dict[str, bytes] = {
    "length and chunks": call(more="transfer-encoding: chunked\r\n") + b"0\r\n\r\n" + SMUGGLED,
    "two lengths": call(more="content-length: 0\r\n") + SMUGGLED,
    "a folded header": get("/scratch/t/x", more="x-amz-meta: a\r\n b\r\n"),
    "a space before the colon": get("/scratch/t/x", more="content-length : 5\r\n"),
    "a bare line feed": b"GET /scratch/t/x HTTP/1.1\nhost: " + OWN.encode() + b"\n\n",
    "unknown encoding": call(more="transfer-encoding: chunked, x\r\n") + SMUGGLED,
    "a tunnel": get("example.com:443", method="CONNECT", host="example.com:443"),
    "a tunnel to itself": get(OWN, method="CONNECT"),
    "upgrade": get("/scratch/t/x", more="connection: upgrade\r\nupgrade: h2c\r\n"),
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "pipelined": get("/scratch/t/x") + SMUGGLED,
    "too large": call(body={"task_id": str(TASK), "attempt": 1, "x": "x" * 2000}),
    "an endless head": get("/scratch/t/x", more="x: " + "x" * 200_000 + "\r\n"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 100,
}


@pytest.mark.parametrize("name", SMUGGLING)
def test_requests_with_two_meanings_are_refused(name: str) -> None:
    """Nothing passes, or exactly the one request that both sides see."""
    _, service, refusals = exchange(SMUGGLING[name])
    assert sum(refusals.values()) >= 1 or len(service.requests) == 1
    for request in service.requests:
        assert request.count(b"HTTP/1.1\r\n") == 1
        assert b"internal" not in request
    (reply,), _, _ = exchange(ALLOWED["an input"])
    assert reply.startswith(b"HTTP/1.1 200"), "the next one is not affected"


def test_what_the_other_side_reads() -> None:
    """The token as it was sent, and no header that is not listed."""
    message = call(more="cookie: c\r\nx-trace-service-token: s\r\nx-forwarded-for: 1.1.1.1\r\nconnection: close\r\n")
    _, service, _ = exchange(message)
    head, _, body = service.requests[0].partition(b"\r\n\r\n")
    names = [line.split(b":")[0] for line in head.split(b"\r\n")[1:]]
    expected: Sequence[bytes] = [b"host", b"content-type", b"x-trace-task-capability", b"connection", b"content-length"]
    assert names == expected
    assert make_token().encode() in head
    assert json.loads(body) == {"task_id": str(TASK), "attempt": 1}


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nothing like HTTP",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
    ],
)
def test_replies_that_are_not_whole(reply: bytes) -> None:
    """The caller gets 503, or sees that the connection ends before the body does."""
    (answer,), _, _ = exchange(call(), service=RecordingService(reply))
    assert answer.startswith(b"HTTP/1.1 503") or b"content-length: 100" in answer


def test_requests_are_counted() -> None:
    replies, _, refusals = exchange(*[call()] * 52)
    assert [reply.split(b" ")[1] for reply in replies].count(b"200") == 50
    assert refusals == {"requests": 2}

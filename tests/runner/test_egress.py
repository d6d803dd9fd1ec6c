"""The way out of a sandbox: what passes, what is refused, and what the other side gets to read."""

import asyncio
import json
import socket
from collections.abc import Sequence

import pytest

from tests.runner.attacks.messages import OWN, TASK, call, get, make_token
from tests.runner.attacks.request_attacks import REFUSED, SMUGGLING
from tests.runner.attacks.service import RecordingService, open_proxy
from tracelake.runner.egress import EgressProxy
from tracelake.runner.exchange import ExchangeLimits, ExchangeServer
from tracelake.runner.function import CountRefusal


def exchange(
    *messages: bytes, service: RecordingService | None = None
) -> tuple[list[bytes], RecordingService, dict[str, int]]:
    """Sends each message on a connection of its own; the replies, what arrived behind, and the refusals."""
    service = service or RecordingService()
    refusals = CountRefusal()

    async def run() -> list[bytes]:
        async with open_proxy(service, refusals) as proxy:
            return await send(proxy)

    async def send(proxy: EgressProxy) -> list[bytes]:
        listener = socket.create_server(("127.0.0.1", 0))
        address = listener.getsockname()
        server = ExchangeServer(proxy.handle, ExchangeLimits(body_bytes=1000, requests=50, on_refusal=refusals))
        await server.start(listener)
        replies = []
        for message in messages:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(message)
            writer.write_eof()
            try:
                async with asyncio.timeout(30):
                    replies.append(await reader.read())
            except ConnectionResetError:  # refused before it was read to its end
                replies.append(b"")
            writer.close()
        await server.close()
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


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    message, reason = REFUSED[name]
    (reply,), service, refusals = exchange(message)
    assert reply.startswith(b"HTTP/1.1 403"), reply
    assert refusals == {reason: 1}
    assert service.requests == []


NO_REQUEST = ("nothing", "half of a request", "half of a body")


@pytest.mark.parametrize("name", SMUGGLING)
def test_requests_with_two_meanings_are_refused(name: str) -> None:
    """Nothing passes, or exactly the one request that both sides see."""
    _, service, refusals = exchange(SMUGGLING[name])
    requests = list(filter(None, service.requests))  # empty: given up before it was sent
    assert sum(refusals.values()) >= 1 or len(requests) == (name not in NO_REQUEST)
    for request in requests:
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

"""The HTTP client against a server that misbehaves: one declared exception, and never a wrong reply."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.scripted_server import (
    CLOSE,
    HANG,
    Certificates,
    Request,
    Script,
    ScriptedServer,
    make_certificates,
    reply,
    serving,
)
from tracelake.client import DispatcherUnavailableError, HttpClient
from tracelake.errors import TraceError

CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def run(
    script: Script,
    certificates: Certificates,
    test: Callable[[HttpClient, ScriptedServer], Awaitable[None]],
    *,
    timeout: float = 20.0,
    max_reply_bytes: int = 1 << 20,
    max_connections: int = 8,
) -> None:
    async def main() -> None:
        async with serving(script, certificates) as server:
            client = HttpClient(
                server.url,
                certificates.ca_file,
                timeout=timeout,
                max_reply_bytes=max_reply_bytes,
                max_connections=max_connections,
            )
            try:
                await test(client, server)
            finally:
                await client.close()

    asyncio.run(main())


def fails(raw: bytes, certificates: Certificates, message: str, timeout: float = 20.0) -> None:
    async def test(client: HttpClient, server: ScriptedServer) -> None:
        with pytest.raises(DispatcherUnavailableError, match=message) as caught:
            await client.request("POST", "/x", body=b"{}")
        assert caught.value.retryable
        assert len(server.requests) == 1

    run(lambda _: raw, certificates, test, timeout=timeout, max_reply_bytes=100_000)


def test_request_and_reply(certificates: Certificates) -> None:
    async def test(client: HttpClient, server: ScriptedServer) -> None:
        answer = await client.request("POST", "/a?b=c", body=b'{"x":1}', headers=[("X-Token", "secret")])
        assert (answer.status, answer.body) == (201, b"hello")
        request = server.requests[0]
        assert request.line == "POST /a?b=c HTTP/1.1"
        assert request.headers["x-token"] == "secret"
        assert request.headers["content-type"] == "application/json"
        assert request.body == b'{"x":1}'

    run(lambda _: reply(b"hello", 201), certificates, test)


def test_connections_are_kept_and_never_shared(certificates: Certificates) -> None:
    gate = asyncio.Event()

    async def script(request: Request) -> bytes:
        if request.body == b"wait":
            await gate.wait()
        return reply(request.body)

    async def test(client: HttpClient, server: ScriptedServer) -> None:
        for _ in range(5):
            await client.request("POST", "/", body=b"one")
        assert server.connections == 1
        waiting = [asyncio.create_task(client.request("POST", "/", body=b"wait")) for _ in range(3)]
        while len(server.requests) < 8:
            await asyncio.sleep(0.001)
        assert (await client.request("POST", "/", body=b"two")).body == b"two"
        gate.set()
        assert [answer.body for answer in await asyncio.gather(*waiting)] == [b"wait"] * 3
        assert server.connections == 4

    run(script, certificates, test)


def test_the_pool_is_bounded(certificates: Certificates) -> None:
    async def test(client: HttpClient, server: ScriptedServer) -> None:
        bodies = [str(number).encode() for number in range(50)]
        answers = await asyncio.gather(*(client.request("POST", "/", body=body) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        assert server.connections <= 2

    run(lambda request: reply(request.body), certificates, test, max_connections=2)


def test_chunked_interim_and_empty_replies(certificates: Certificates) -> None:
    replies = iter(
        [
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n3\r\n yo\r\n0\r\n\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n" + reply(b"after"),
            b"HTTP/1.1 204 No Content\r\n\r\n",
            reply(b"last"),
        ]
    )

    async def test(client: HttpClient, server: ScriptedServer) -> None:
        bodies = [(await client.request("GET", "/")).body for _ in range(4)]
        assert bodies == [b"hi yo", b"after", b"", b"last"]
        assert server.connections == 1

    run(lambda _: next(replies), certificates, test)


def test_connection_close_is_honoured(certificates: Certificates) -> None:
    async def test(client: HttpClient, server: ScriptedServer) -> None:
        for _ in range(3):
            assert (await client.request("GET", "/")).body == b"bye"
        assert server.connections == 3

    run(lambda _: reply(b"bye", 200, "connection: close") + CLOSE, certificates, test)


@pytest.mark.parametrize(
    "raw",
    [
        CLOSE,
        b"HTTP/1.1 200 OK\r\ncontent-le" + CLOSE,
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf" + CLOSE,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhal" + CLOSE,
        b"HTTP/1.1 200 OK\r\n\r\nno length at all" + CLOSE,
    ],
)
def test_truncated_replies(raw: bytes, certificates: Certificates) -> None:
    fails(raw, certificates, "connection")


@pytest.mark.parametrize(
    "raw",
    [
        b"not http at all" + HANG,
        b"HTTP/1.1 abc OK\r\n\r\n" + HANG,
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n" + HANG,
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx" + HANG,
        b"HTTP/1.1 101 Switch\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n" + HANG,
    ],
)
def test_garbage(raw: bytes, certificates: Certificates) -> None:
    fails(raw, certificates, "not HTTP")


@pytest.mark.parametrize(
    "raw",
    [
        reply(b"x" * 100_001) + HANG,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + (b"4000\r\n" + b"x" * 0x4000 + b"\r\n") * 8 + HANG,
        CHUNKED + b"1;" + b"x" * 200_000 + HANG,
        b"HTTP/1.1 200 OK\r\n" + b"x-long: " + b"y" * 80_000 + HANG,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000 + HANG,
    ],
)
def test_oversize(raw: bytes, certificates: Certificates) -> None:
    fails(raw, certificates, "larger than allowed")


@pytest.mark.parametrize("raw", [HANG, b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf" + HANG])
def test_a_slow_reply_times_out_and_its_connection_is_not_used_again(raw: bytes, certificates: Certificates) -> None:
    replies = iter([raw, reply(b"fine")])

    async def test(client: HttpClient, server: ScriptedServer) -> None:
        with pytest.raises(DispatcherUnavailableError, match="no answer within"):
            await client.request("GET", "/", timeout=0.05)
        assert (await client.request("GET", "/")).body == b"fine"
        assert server.connections == 2

    run(lambda _: next(replies), certificates, test)


def test_a_cancelled_caller_leaves_no_stale_reply(certificates: Certificates) -> None:
    gate = asyncio.Event()

    async def script(request: Request) -> bytes:
        if request.body == b"slow":
            await gate.wait()
        return reply(request.body)

    async def test(client: HttpClient, server: ScriptedServer) -> None:
        task = asyncio.create_task(client.request("POST", "/", body=b"slow"))
        while not server.requests:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        assert (await client.request("POST", "/", body=b"next")).body == b"next"

    run(script, certificates, test)


def test_closed_keep_alive_is_replaced(certificates: Certificates) -> None:
    """The server closes right after a reply that promised to keep the connection."""

    async def test(client: HttpClient, server: ScriptedServer) -> None:
        for _ in range(20):
            assert (await client.request("POST", "/", body=b"again")).body == b"again"

    run(lambda request: reply(request.body) + CLOSE, certificates, test)


def test_a_lost_request_is_repeated_only_when_that_is_safe(certificates: Certificates) -> None:
    """The kept connection dies after the request was read and before anything of a reply was sent."""
    replies = iter([reply(b"1"), CLOSE, reply(b"2"), CLOSE, reply(b"unasked")])

    async def test(client: HttpClient, server: ScriptedServer) -> None:
        assert (await client.request("POST", "/", body=b"")).body == b"1"
        assert (await client.request("POST", "/", body=b"")).body == b"2"
        assert len(server.requests) == 3
        with pytest.raises(DispatcherUnavailableError):
            await client.request("POST", "/", body=b"", repeatable=False)
        assert len(server.requests) == 4

    run(lambda _: next(replies), certificates, test)


def test_a_begun_reply_is_never_repeated(certificates: Certificates) -> None:
    replies = iter([reply(b"1"), b"HTTP/1.1 200 OK\r\n" + CLOSE, reply(b"unasked")])

    async def test(client: HttpClient, server: ScriptedServer) -> None:
        await client.request("GET", "/")
        with pytest.raises(DispatcherUnavailableError):
            await client.request("GET", "/")
        assert len(server.requests) == 2

    run(lambda _: next(replies), certificates, test)


def test_bytes_behind_a_reply_never_become_the_next_reply(certificates: Certificates) -> None:
    replies = iter([reply(b"mine") + reply(b"smuggled"), reply(b"next")])

    async def test(client: HttpClient, server: ScriptedServer) -> None:
        assert (await client.request("GET", "/")).body == b"mine"
        assert (await client.request("GET", "/")).body == b"next"
        assert server.connections == 2

    run(lambda _: next(replies), certificates, test)


def test_a_server_that_stands_still_is_known_by_its_handshake(certificates: Certificates) -> None:
    async def main() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()  # connections are taken, and nobody speaks
            port = listener.getsockname()[1]
            client = HttpClient(f"https://127.0.0.1:{port}", certificates.ca_file, connect_timeout=0.05)
            with pytest.raises(DispatcherUnavailableError, match=r"no connection within 0\.05 seconds"):
                await client.request("GET", "/")
            await client.close()

    asyncio.run(main())


def test_nobody_listens(certificates: Certificates) -> None:
    async def main() -> None:
        async with serving(lambda _: reply(b""), certificates) as server:
            url = server.url
        client = HttpClient(url, certificates.ca_file)
        with pytest.raises(DispatcherUnavailableError, match="no connection"):
            await client.request("GET", "/")
        await client.close()

    asyncio.run(main())


def test_a_server_with_another_ca_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    other = make_certificates(tmp_path)

    async def main() -> None:
        async with serving(lambda _: reply(b"trust me"), other) as server:
            client = HttpClient(server.url, certificates.ca_file)
            with pytest.raises(DispatcherUnavailableError, match="SSLCertVerificationError"):
                await client.request("GET", "/")
            await client.close()
            assert not server.requests

    asyncio.run(main())


def test_a_name_the_certificate_does_not_hold_is_refused(certificates: Certificates) -> None:
    async def main() -> None:
        async with serving(lambda _: reply(b"trust me"), certificates) as server:
            client = HttpClient(server.url.replace("127.0.0.1", "localhost"), certificates.ca_file)
            with pytest.raises(DispatcherUnavailableError):
                await client.request("GET", "/")
            await client.close()
            assert not server.requests

    asyncio.run(main())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://", "https://h/path", "https://h?q=1", "x"])
def test_only_https_base_urls(url: str, certificates: Certificates) -> None:
    with pytest.raises(ValueError, match="https://host"):
        HttpClient(url, certificates.ca_file)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00b", "é"])
def test_header_values_cannot_write_headers(value: str, certificates: Certificates) -> None:
    async def test(client: HttpClient, server: ScriptedServer) -> None:
        with pytest.raises(TraceError) as caught:
            await client.request("GET", "/", headers=[("X-Token", value)])
        assert caught.value.code == "credential_malformed"
        assert not server.requests

    run(lambda _: reply(b""), certificates, test)


def test_a_closed_client_says_so(certificates: Certificates) -> None:
    async def test(client: HttpClient, server: ScriptedServer) -> None:
        await client.close()
        with pytest.raises(DispatcherUnavailableError, match="closed"):
            await client.request("GET", "/")

    run(lambda _: reply(b""), certificates, test)


_pieces = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 503 X\r\n",
        b"HTTP/1.0 200 OK\r\n",
        b"content-length: 2\r\n",
        b"content-length: 99\r\n",
        b"transfer-encoding: chunked\r\n",
        b"connection: close\r\n",
        b"\r\n",
        b"2\r\nhi\r\n",
        b"0\r\n\r\n",
        b"hi",
        b'{"error":',
    ]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.one_of(_pieces, st.binary(max_size=40)), max_size=8))
def test_fuzzed_replies(parts: list[bytes], certificates: Certificates) -> None:
    raw = b"".join(parts).replace(CLOSE, b"").replace(HANG, b"")

    async def test(client: HttpClient, server: ScriptedServer) -> None:
        for _ in range(2):
            try:
                answer = await client.request("POST", "/", body=b"{}")
            except DispatcherUnavailableError:
                continue
            assert 200 <= answer.status <= 999

    run(lambda _: raw + CLOSE, certificates, test)

"""Requests against a real server with faults: sizes, seconds, redirects, names that change, repeats."""

import contextlib
import gzip
import ipaddress
import socket
import ssl
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.feeds.support import FeedServer, reply
from tracelake.catalogue.feeds.addresses import parse_address
from tracelake.feeds.errors import FeedError, FeedRefusedError
from tracelake.feeds.exchange import FeedClient, FeedLimits, FeedReply, FeedRequest
from tracelake.feeds.hosts import FeedHosts
from tracelake.feeds.networks import IpAddress
from tracelake.feeds.retrying import PatientClient
from tracelake.stack.tls import ensure_tls

LIMITS = FeedLimits(max_bytes=10_000, max_redirects=3, request_seconds=20.0)
SECRET = {"X-Key": "key-abcdef"}


@pytest.fixture
def client(hosts: FeedHosts) -> FeedClient:
    return FeedClient(hosts)


def ask(client: FeedClient, url: str, limits: FeedLimits = LIMITS, **options: Any) -> FeedReply:
    request = FeedRequest(parse_address(url), headers=SECRET, **options)
    return client.ask(request, limits, client.clock() + 60)


def test_an_answer(server: FeedServer, client: FeedClient) -> None:
    server.on("/a", reply(b"body", headers={"content-type": "text/csv", "link": "<x>"}))
    found = ask(client, f"{server.url}/a?b=c")
    assert (found.status, found.body, found.content_type, found.link) == (200, b"body", "text/csv", "<x>")
    (call,) = server.calls
    assert call.headers["host"] == f"127.0.0.1:{server.port}"
    assert (call.method, call.target, call.headers["x-key"]) == ("GET", "/a?b=c", "key-abcdef")


def chunked(*parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    body = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + body + end


GZIP = {"content-encoding": "gzip"}
DEFLATED = zlib.compressobj(9, wbits=31)
BOMB = DEFLATED.compress(b"0" * 50_000_000) + DEFLATED.flush()


def test_compressed_and_chunked_answers(server: FeedServer, client: FeedClient) -> None:
    server.on("/gzip", reply(gzip.compress(b"one ") + gzip.compress(b"two"), headers=GZIP))
    server.on("/chunks", chunked(b"one ", b"two"))
    assert ask(client, f"{server.url}/gzip").body == ask(client, f"{server.url}/chunks").body == b"one two"


@pytest.mark.parametrize(
    ("answer", "reason", "final"),
    [
        (reply(b"x" * 10_001), "more than 10,000 bytes", True),
        (reply(b"x", length=10_001), "more than 10,000 bytes", True),
        (chunked(*[b"x" * 1000] * 11), "more than 10,000 bytes", True),
        (reply(BOMB[:9_000], headers=GZIP), "more than 10,000 bytes", True),
        (reply(gzip.compress(b"\x1f", mtime=0) * 200, headers=GZIP), "many members", None),
        (reply(b"x", length=2), "cut short", False),
        (chunked(b"one", end=b""), "cut short", False),
        (chunked(b"one", end=b"5\r\nab"), "cut short", False),
        (reply(gzip.compress(b"x" * 100, mtime=0)[:-4], headers=GZIP), "cut short", False),
        (reply(gzip.compress(b"x", mtime=0) + b"rest", headers=GZIP), "not gzip", False),
        (reply(b"plain", headers=GZIP), "not gzip", False),
        (reply(b"x", headers={"content-encoding": "br"}), "nobody asked for", True),
        (b"HTTP/1.1 200 OK\r\n\r\nno length", "neither its length nor its end", False),
        (b"", "the connection was lost", False),
        (b"SSH-2.0-OpenSSH\r\n", "not HTTP", False),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n", "not HTTP", False),
        (b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000 + b"\r\n\r\n", "not HTTP", False),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", "cut short", False),
    ],
)
def test_answers_that_are_none(
    server: FeedServer, client: FeedClient, answer: bytes, reason: str, final: bool | None
) -> None:
    server.on("/x", answer)
    if final is None:
        assert len(ask(client, f"{server.url}/x").body) == 200
        return
    with pytest.raises(FeedError, match=reason) as error:
        ask(client, f"{server.url}/x")
    assert error.value.final is final
    assert "abcdef" not in str(error.value)


class Clock:
    """Seconds pass when a byte is sent, not by themselves. `reads` lets one be sent each time somebody looks at it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = threading.Semaphore(0)

    def __call__(self) -> float:
        self.reads.release()
        return self.now


@pytest.mark.parametrize("part", [b"HTTP/1.1 200 OK\r\na: ", b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n"])
def test_an_answer_that_drips(server: FeedServer, hosts: FeedHosts, part: bytes) -> None:
    clock = Clock()
    client = FeedClient(hosts, clock=clock)

    def drip(connection: socket.socket) -> None:
        connection.sendall(part)
        for _ in range(5000):
            while not clock.reads.acquire(timeout=0.1):
                if server.stopped.is_set():
                    return
            clock.now += 1.0
            connection.sendall(b"x")

    server.on("/x", drip)
    with pytest.raises(FeedError, match="no answer in time"):
        ask(client, f"{server.url}/x")
    assert clock.now < 5000


# --- redirects


def to(location: str, status: int = 302) -> bytes:
    return reply(b"", status, {"location": location})


def test_redirects_are_followed_within_the_host(server: FeedServer, client: FeedClient) -> None:
    server.on("/a", to("/b?c=d"))
    server.on("/b", to("c", 307))
    server.on("/c", reply(b"end"))
    assert ask(client, f"{server.url}/a").body == b"end"
    assert [call.headers.get("x-key") for call in server.calls] == ["key-abcdef"] * 3


def test_another_host_gets_no_header_of_the_config(server: FeedServer, hosts: FeedHosts) -> None:
    with FeedServer().running() as other:
        private = {("127.0.0.1", server.port), ("127.0.0.1", other.port)}
        client = FeedClient(replace_private(hosts, private))
        server.on("/a", to(f"{other.url}/b"))
        other.on("/b", to(f"{server.url}/c"))
        server.on("/c", reply(b"end"))
        assert ask(client, f"{server.url}/a").body == b"end"
        assert [call.headers.get("x-key") for call in [*server.calls, *other.calls]] == ["key-abcdef", None, None]


def replace_private(hosts: FeedHosts, private: set[tuple[str, int]]) -> FeedHosts:
    return FeedHosts(public=hosts.public, private=frozenset(private))


@pytest.mark.parametrize(
    "location",
    [
        *(
            "http://127.0.0.1:5432/",
            "http://127.0.0.1/",
            "http://10.0.0.1/",
            "http://169.254.169.254/latest/meta-data/",
        ),
        *("http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://0.0.0.0/", "http://localhost/", "http://2130706433/"),
        *(
            "file:///etc/passwd",
            "ftp://a.example/",
            "//user@127.0.0.1/",
            "javascript:x",
            "http://a b/",
            "http://127.1/",
        ),
        *("//[::1", "http://192.168.0.1\\@a.example/", "data:text/plain,x", "http://a.example:22/"),
    ],
)
def test_redirects_that_lead_elsewhere(server: FeedServer, client: FeedClient, location: str) -> None:
    server.on("/a", to(location))
    with pytest.raises(FeedRefusedError):
        ask(client, f"{server.url}/a")
    assert len(server.calls) == 1


def test_redirects_have_an_end(server: FeedServer, client: FeedClient) -> None:
    server.on("/a", to("/a"))
    with pytest.raises(FeedError, match="more than 3 redirects") as error:
        ask(client, f"{server.url}/a")
    assert error.value.final
    assert len(server.calls) == 4
    server.on("/a", reply(b"", 302))
    with pytest.raises(FeedError, match="redirects to nowhere"):
        ask(client, f"{server.url}/a")


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_body_is_not_sent_again(server: FeedServer, client: FeedClient, status: int) -> None:
    server.on("/a", to("/b", status))
    with pytest.raises(FeedRefusedError, match="redirects a POST"):
        ask(client, f"{server.url}/a", method="POST", body=b"{}")
    server.on("/a", to("/b", 308))
    server.on("/b", reply(b"end"))
    assert ask(client, f"{server.url}/a", method="POST", body=b"{}").body == b"end"
    assert server.calls[-1].body == b"{}"


# --- names


class ChangingNames:
    """A resolver, of the type of the real one, whose answers change."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = [[ipaddress.ip_address(text) for text in answer] for answer in answers]
        self.asked: list[str] = []

    def __call__(self, host: str, _port: int, _seconds: float) -> Sequence[IpAddress]:
        self.asked.append(host)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_the_connection_goes_to_the_address_that_was_checked(server: FeedServer) -> None:
    """The name is asked for once: what it answers next has no effect."""
    names = ChangingNames(["127.0.0.1"], ["10.0.0.1"])
    client = FeedClient(FeedHosts(private=frozenset({("feed.internal", server.port)})), names)
    server.on("/a", reply(b"end"))
    assert ask(client, f"http://feed.internal:{server.port}/a").body == b"end"
    assert names.asked == ["feed.internal"]
    assert server.calls[0].headers["host"] == f"feed.internal:{server.port}"


def test_each_hop_is_resolved_and_checked_again(server: FeedServer) -> None:
    names = ChangingNames(["127.0.0.1"], ["169.254.169.254"])
    client = FeedClient(FeedHosts(private=frozenset({("feed.internal", server.port)})), names)
    server.on("/a", to("/b"))
    with pytest.raises(FeedRefusedError, match="never a host's"):
        ask(client, f"http://feed.internal:{server.port}/a")
    assert names.asked == ["feed.internal"] * 2
    assert len(server.calls) == 1


def test_a_public_name_with_a_private_address(server: FeedServer) -> None:
    client = FeedClient(FeedHosts(ports=(80, server.port)), ChangingNames(["1.1.1.1", "127.0.0.1"]))
    with pytest.raises(FeedRefusedError, match="of the machine itself"):
        ask(client, f"http://rebind.example:{server.port}/a")
    assert not server.calls


def test_a_certificate_is_verified(tmp_path: Path) -> None:
    files = ensure_tls(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)

    def answer(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            wrapped.recv(1000)
            wrapped.sendall(reply(b"end"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = FeedClient(FeedHosts(private=frozenset({("127.0.0.1", port), ("localhost", port)})))
        for host, trusted, text in (("127.0.0.1", False, "certificate cannot be trusted"), ("localhost", True, "")):
            accept_once(listener, answer)
            if trusted:
                client = FeedClient(client.hosts)
                client.tls.load_verify_locations(files.ca)
                assert ask(client, f"https://{host}:{port}/").body == b"end"
            else:
                with pytest.raises(FeedError, match=text):
                    ask(client, f"https://{host}:{port}/")


def accept_once(listener: socket.socket, answer: Callable[[socket.socket], None]) -> None:
    def serve() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            answer(connection)

    threading.Thread(target=serve, daemon=True).start()


# --- repeats


def patient(hosts: FeedHosts, waits: list[float], seconds: float = 100.0) -> PatientClient:
    clock = Clock()

    def wait(pause: float) -> None:
        waits.append(pause)
        clock.now += pause

    client = FeedClient(hosts, clock=clock)
    return PatientClient(client, replace(LIMITS), seconds, 1000.0, wait)


def test_a_server_that_asks_to_wait(server: FeedServer, hosts: FeedHosts) -> None:
    server.on(
        "/x",
        reply(b"", 429, {"retry-after": "7"}),
        reply(b"", 503),
        reply(b"", 500),
        b"",
        reply(b"x", length=9),
        reply(b"ok"),
    )
    waits: list[float] = []
    client = patient(hosts, waits)
    assert client.fetch(FeedRequest(parse_address(f"{server.url}/x"))).body == b"ok"
    assert waits[0] == 7.0
    assert (len(waits), client.retries, len(server.calls)) == (5, 5, 6)


def test_patience_ends(server: FeedServer, hosts: FeedHosts) -> None:
    server.on("/x", reply(b"", 429, {"retry-after": "60"}))
    waits: list[float] = []
    with pytest.raises(FeedError, match=r"answered 429 \(tried 2 times\)") as error:
        patient(hosts, waits).fetch(FeedRequest(parse_address(f"{server.url}/x")))
    assert (waits, error.value.final) == ([60.0], False)


@pytest.mark.parametrize("status", [404, 503])
def test_a_refusal_names_the_address_without_its_query(server: FeedServer, hosts: FeedHosts, status: int) -> None:
    server.on("/prices?key=hidden", reply(b"", status))
    with pytest.raises(FeedError) as error:
        patient(hosts, [], 0.0).fetch(FeedRequest(parse_address(f"{server.url}/prices?key=hidden")))
    assert f"{server.url}/prices answered {status}" in str(error.value)
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    ("status", "advice"),
    [(400, "url"), (401, "secret"), (403, "secret"), (404, "url"), (206, ""), (304, ""), (418, "")],
)
def test_refusals_that_do_not_pass(server: FeedServer, hosts: FeedHosts, status: int, advice: str) -> None:
    server.on("/x", reply(b"key-abcdef", status))
    with pytest.raises(FeedError, match=f"answered {status}.*{advice}") as error:
        patient(hosts, []).fetch(FeedRequest(parse_address(f"{server.url}/x"), headers=SECRET))
    assert error.value.final
    assert "abcdef" not in str(error.value)
    assert len(server.calls) == 1

"""How fast one user may ask."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.support import User
from tests.http.support import head_of, raw_request
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tracelake.errors import TraceError
from tracelake.http.rates import RateLimiter


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(limiter: RateLimiter, user: str = "a") -> int | None:
    """None when allowed, else the seconds to wait."""
    try:
        limiter.take(user)
    except TraceError as refused:
        seconds: int = refused.details["retry_after_seconds"]
        return seconds
    return None


def test_a_burst_then_a_steady_rate() -> None:
    clock = Clock()
    limiter = RateLimiter(2, 5, monotonic=clock)
    assert [taken(limiter) for _ in range(7)] == [None] * 5 + [1, 1]
    clock.now += 0.5
    assert [taken(limiter), taken(limiter)] == [None, 1]
    clock.now += 3600
    assert [taken(limiter) for _ in range(6)] == [None] * 5 + [1], "what nobody used does not add up"


def test_users_do_not_share() -> None:
    limiter = RateLimiter(1, 1, monotonic=Clock())
    assert [taken(limiter, "a"), taken(limiter, "b"), taken(limiter, "a")] == [None, None, 1]


def test_waiting_as_long_as_told_is_enough() -> None:
    clock = Clock()
    limiter = RateLimiter(0.1, 1, monotonic=clock)
    assert taken(limiter) is None
    wait = taken(limiter)
    assert wait == 10
    clock.now += wait
    assert taken(limiter) is None


@given(st.lists(st.floats(0, 5), max_size=60), st.integers(1, 5), st.integers(1, 5))
def test_never_more_than_burst_and_rate_allow(waits: list[float], rate: int, burst: int) -> None:
    clock = Clock()
    limiter = RateLimiter(rate, burst, monotonic=clock)
    start, allowed = clock.now, 0
    for wait in waits:
        clock.now += wait
        allowed += taken(limiter) is None
        assert allowed <= burst + (clock.now - start) * rate + 1e-6


def test_memory_is_bounded() -> None:
    limiter = RateLimiter(1, 1, monotonic=Clock(), buckets=3)
    for number in range(100):
        taken(limiter, str(number))
    assert len(limiter._buckets) == 3


@pytest.fixture
def slow(state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[DispatcherHarness]:
    config = dispatcher_config(user_rate_per_second=1, user_rate_burst=3)
    running = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, config)
    try:
        yield running
    finally:
        running.stop()


def test_the_public_listener_says_when_to_come_again(slow: DispatcherHarness) -> None:
    user = User(slow, "acme", "reader", "eager")
    headers = user.headers
    replies = [slow.call("public", "GET", "/v1/whoami", None, headers) for _ in range(30)]
    refused = [reply for reply in replies if reply.status != 200]
    assert refused
    assert {(reply.status, reply.code) for reply in refused} == {(429, "rate_limited")}
    assert refused[0].body["error"]["details"] == {"retry_after_seconds": 1}
    # Whoever has another subject, or another org, is somebody else; a wrong role costs as much as a right one.
    for other in (User(slow, "acme", "reader", "calm"), User(slow, "other", "reader", "eager")):
        assert other.call("GET", "/v1/whoami").status == 200
    nosy = User(slow, "acme", "reader", "nosy").headers
    assert 429 in [slow.call("public", "GET", "/v1/audit", None, nosy).status for _ in range(30)]
    head = head_of("GET", "/v1/whoami", headers)
    answers = [_raw(slow, head) for _ in range(5)]
    assert b"retry-after: 1\r\n" in next(answer for answer in answers if answer.startswith(b"HTTP/1.1 429"))
    metrics = slow.call("internal", "GET", "/metrics").body.decode()
    assert float(metrics.partition("\ntrace_rate_limited_total ")[2].split("\n")[0]) >= len(refused)
    # The other listeners are not limited.
    assert {slow.call("internal", "GET", "/healthz").status for _ in range(30)} == {200}
    assert {slow.service("GET", "/internal/outbox").status for _ in range(30)} == {200}


def _raw(harness: DispatcherHarness, head: str) -> bytes:
    """The whole answer, with its head."""
    import socket
    import ssl

    client = harness.clients["public"]
    context = ssl.create_default_context(cafile=str(harness.tls.ca))
    with (
        socket.create_connection((client._host, client._port), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=client._host) as tls,
    ):
        tls.sendall(head.replace("\n", "\r\n").encode() + b"\r\nconnection: close\r\n\r\n")
        answer = b""
        while chunk := tls.recv(65536):
            answer += chunk
    return answer


def test_who_is_not_let_in_costs_nobody_anything(slow: DispatcherHarness) -> None:
    user = User(slow, "acme", "reader", "victim")
    for _ in range(20):
        assert slow.call("public", "GET", "/v1/whoami", None, {"authorization": "Bearer x.y.z"}).status == 401
    assert user.call("GET", "/v1/whoami").status == 200
    assert raw_request(slow, "public", head_of("GET", "/v1/whoami", {}))[0] == 401

"""Nobody sends a large body before a credential was seen; and metrics are open on loopback alone."""

import asyncio
import socket
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.http.support import CAPABILITY, SERVICE, claimed, head_of, raw_reply
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.assembly import Ports
from tracelake.dispatcher.clock import StoreClock
from tracelake.dispatcher.http.credentials import Gatekeeper
from tracelake.dispatcher.metrics import Metrics
from tracelake.errors import TraceError
from tracelake.http.bodies import ADDRESS_SHARE, ANONYMOUS_BATCH_BYTES
from tracelake.http.rates import RateLimiter
from tracelake.http.router import HttpRequest
from tracelake.processes import dispatcher as dispatcher_process
from tracelake.settings import Settings
from tracelake.wire.contract import Listener
from tracelake.wire.routes import ROUTES

BATCH = "/v1/task/batch"


def batch_of(size: int, token: str, body: Any) -> bytes:
    item = {"call": "heartbeat", "capability_token": token, "body": body}
    text = msgspec.json.encode({"calls": [item]})
    return text + b" " * (size - len(text))


@pytest.mark.parametrize("token", [None, "rubbish"])
def test_a_large_batch_is_refused_before_its_body(harness: DispatcherHarness, token: str | None) -> None:
    """Only the head is sent: the answer comes without the body."""
    head = head_of("POST", BATCH, {CAPABILITY: token} if token else {})
    reply = raw_reply(harness, "task", f"{head}\ncontent-length: {ANONYMOUS_BATCH_BYTES + 1}", b"{")
    assert (reply.status, reply.code) == (401, "credential_missing")
    assert reply.body["error"]["details"] == {"header": CAPABILITY}
    chunk = b"%x\r\n" % (ANONYMOUS_BATCH_BYTES + 1) + b" " * (ANONYMOUS_BATCH_BYTES + 1)
    reply = raw_reply(harness, "task", f"{head}\ntransfer-encoding: chunked", chunk)
    assert (reply.status, reply.code) == (401, "credential_missing")


def test_a_small_batch_needs_no_header_and_opens_the_connection(harness: DispatcherHarness) -> None:
    task = claimed(harness)
    small, large = (batch_of(size, task.token, task.body()) for size in (1000, ANONYMOUS_BATCH_BYTES + 1))
    for headers, body in (
        ({CAPABILITY: task.token}, large),
        ({}, small),
        ({}, large),
        ({CAPABILITY: "rubbish"}, large),
    ):
        # The client keeps its connection: after the first one a credential was seen on it.
        reply = harness.call("task", "POST", BATCH, body, headers)
        assert (reply.status, reply.body["answers"][0]["status"]) == (200, 200)


@pytest.mark.parametrize(
    ("method", "path", "listener"),
    [
        ("POST", "/v1/task/complete", "task"),
        ("POST", "/internal/tasks", "internal"),
        ("PUT", "/v1/dags/a/active", "public"),
    ],
)
def test_credentials_are_checked_before_bodies(
    harness: DispatcherHarness, method: str, path: str, listener: str
) -> None:
    """The body never comes, and the answer is there all the same."""
    reply = raw_reply(harness, listener, f"{head_of(method, path, {})}\ncontent-length: 1000000", b"{")
    assert (reply.status, reply.code) == (401, "credential_missing")


def test_bodies_of_unknown_callers_share_a_budget(harness: DispatcherHarness) -> None:
    budget = harness.dispatcher.apps[Listener.TASK]._anonymous
    head = f"{head_of('POST', BATCH, {})}\ncontent-length: 13"
    with budget.reserve("127.0.0.1", budget._most // ADDRESS_SHARE, TraceError("listener_busy")):
        reply = raw_reply(harness, "task", head, b'{"calls": []}')
        assert (reply.status, reply.code) == (503, "listener_busy")
    assert raw_reply(harness, "task", head, b'{"calls": []}').status != 503


# --- metrics


class OneToken:
    def __init__(self, token: str) -> None:
        self.token = token

    def matches(self, token: str, now: datetime) -> bool:
        return token == self.token


def admit_metrics(headers: Mapping[str, str], monitoring: OneToken | None) -> str | None:
    """The code of the refusal, if it is refused."""
    unused: Any = None
    gatekeeper = Gatekeeper(
        tasks=unused,
        users=unused,
        revocations=unused,
        worker=OneToken("worker"),
        service=OneToken("service"),
        monitoring=monitoring,
        rates=RateLimiter(1, 1),
        clock=StoreClock(),
        metrics=Metrics(),
    )
    route = next(route for route in ROUTES if route.path == "/metrics")
    try:
        asyncio.run(gatekeeper.admit(HttpRequest(route), headers.get))
    except TraceError as refusal:
        return refusal.code
    return None


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "credential_missing"),
        ({"authorization": "Bearer metrics"}, None),
        ({"authorization": "bearer metrics"}, None),
        ({SERVICE: "service"}, None),
        ({"authorization": "Bearer service"}, "credential_invalid"),
        ({"authorization": "Basic metrics"}, "credential_invalid"),
        ({SERVICE: "worker"}, "credential_invalid"),
        ({SERVICE: "metrics"}, "credential_invalid"),
    ],
)
def test_metrics_beyond_loopback_need_a_token(headers: Mapping[str, str], code: str | None) -> None:
    assert admit_metrics(headers, OneToken("metrics")) == code


def test_metrics_on_loopback_need_none() -> None:
    assert admit_metrics({}, None) is None


class BoundSocket(socket.socket):
    """Claims to be bound to an address that this machine may not have."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address = address

    def getsockname(self) -> tuple[str, int]:
        return self.address, 4711


@pytest.mark.parametrize(
    ("address", "is_open"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("192.0.2.7", False)],
)
def test_the_internal_listeners_address_decides_about_metrics(
    address: str, is_open: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class AssembledError(Exception):
        pass

    def assemble(ports: Ports, _config: object) -> None:
        raise AssembledError(ports.metrics_secret is None)

    async def prepare(*_: object) -> bool:
        return True

    monkeypatch.setattr(dispatcher_process, "_prepare_stores", prepare)
    monkeypatch.setattr(dispatcher_process, "Dispatcher", assemble)
    environment = {"TRACE_STATE_DSN": "postgres://state", "TRACE_QUEUE_DSN": "postgres://queue"}
    settings = Settings.load({"home": tmp_path}, environ=environment | {"TRACE_S3_ENDPOINT": "http://127.0.0.1:1"})
    sockets = {"public": BoundSocket("127.0.0.1"), "task": BoundSocket("127.0.0.1"), "internal": BoundSocket(address)}
    with pytest.raises(AssembledError) as assembled:
        asyncio.run(dispatcher_process.serve(settings, sockets, asyncio.Event()))
    assert assembled.value.args == (is_open,)

"""Random and mutated bytes at the two addresses of a sandbox: nothing breaks, and nobody reads a request differently.

The runner's parser is compared with another one, h11, on what arrives and on what is sent on.
"""

# ruff: noqa: E501 - lists of pieces

import asyncio
import json
import posixpath
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast
from unittest.mock import MagicMock
from urllib.parse import unquote, unquote_to_bytes

import h11
import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.runner.attacks.messages import GRANT, OTHER, OWN, TASK, call, get, make_token, post
from tests.runner.attacks.request_attacks import FORGED, REFUSED, SMUGGLING
from tracelake.runner.egress import Destinations, EgressProxy
from tracelake.runner.exchange import ExchangeLimits, ExchangeProtocol, LoopShare, SandboxReply, SandboxRequest
from tracelake.runner.outcome import RunEnding, RunResult, describe, final_report
from tracelake.runner.runtime_api import RuntimeApi
from tracelake.runner.upstream import UpstreamReply, UpstreamService, _encode_head

EXAMPLES = settings(max_examples=200)
RUNNER = asyncio.Runner()
SEEDS = [
    *(message for message, _ in REFUSED.values()),
    *(message for message in SMUGGLING.values() if len(message) < 4000),
    *(message for message, _ in FORGED.values() if len(message) < 10_000),
    call(),
    call("/v1/task/query"),
    get("/data/datasets/a/1/x.parquet", more="range: bytes=0-1\r\n"),
    get("/scratch/t/x?partNumber=1&uploadId=u", method="PUT", more="transfer-encoding: chunked\r\n")
    + b"3\r\nabc\r\n0\r\n\r\n",
    get("/data?list-type=2&prefix=datasets/a/1/"),
    get(f"http://{OWN}/scratch/t/x"),
]
PIECES = [
    b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b";", b"%", b"%2e%2e", b"..", b"/", b"//", b"\\", b"?", b"#", b"@", b"[", b"\xff",
    b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"host: x\r\n", b"0\r\n\r\n", b"HTTP/1.1", b"HTTP/1.0", b"x-amz-copy-source: /b\r\n",
    b"expect: 100-continue\r\n", b"connection: upgrade\r\n", b"GET /internal/jobs HTTP/1.1\r\n\r\n",
]  # fmt: skip


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A known request with bytes removed, replaced and inserted, or two of them spliced."""
    message = draw(st.sampled_from(SEEDS))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(message)))
        end = draw(st.integers(place, min(len(message), place + 8)))
        message = message[:place] + draw(st.sampled_from(PIECES) | st.binary(max_size=4)) + message[end:]
    if draw(st.booleans()):
        return message
    other = draw(st.sampled_from(SEEDS))
    return message[: draw(st.integers(0, len(message)))] + other[draw(st.integers(0, len(other))) :]


def receive(message: bytes, sizes: Sequence[int]) -> list[SandboxRequest]:
    """The requests that reach the handler, if the bytes arrive in parts of these sizes."""
    requests: list[SandboxRequest] = []

    async def handle(request: SandboxRequest) -> SandboxReply:
        requests.append(request)
        return SandboxReply(status=200)

    async def run() -> None:
        protocol = ExchangeProtocol(handle, ExchangeLimits(body_bytes=4096, requests=100))
        transport = MagicMock()
        transport.is_closing.return_value = False
        closed = []
        transport.close.side_effect = transport.abort.side_effect = lambda: closed.append(1)
        protocol.connection_made(transport)
        rest, turn = message, 0
        while rest and not closed:
            size = sizes[turn % len(sizes)]
            part, rest = rest[:size], rest[size:]
            protocol.get_buffer(-1)[: len(part)] = part
            protocol.buffer_updated(len(part))
            turn += 1
            for _ in range(4):
                await asyncio.sleep(0)
        protocol.connection_lost(None)
        assert protocol._limits.pending == 0

    RUNNER.run(run())
    return requests


def read_strictly(message: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes] | None:
    """The first request as another parser reads it: method, target, headers, body; None: it is no request."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    body, request = b"", None
    try:
        connection.receive_data(message)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                return request.method, request.target, list(request.headers), body
            else:
                return None
    except h11.RemoteProtocolError:
        return None


@example(message=SMUGGLING["a header after the body"], sizes=[4096])
@given(message=mutated() | st.binary(max_size=300), sizes=st.lists(st.integers(1, 4096), min_size=1, max_size=4))
@EXAMPLES
def test_a_request_is_what_another_parser_reads(message: bytes, sizes: list[int]) -> None:
    """However its bytes arrive. The other parser may refuse more; what both take is equal."""
    requests = receive(message, sizes)
    reading = read_strictly(message)
    if not requests or reading is None:
        return
    first = requests[0]
    method, target, headers, body = reading
    assert (first.method, first.target, first.body) == (method.decode(), target.decode("latin-1"), body)
    framing = {"transfer-encoding", "content-length"}
    own = [(name, value.strip(" \t")) for name, value in first.headers if name not in framing]
    theirs = [(name.decode(), value.decode("latin-1")) for name, value in headers]
    assert own == [(name, value) for name, value in theirs if name not in framing]


class _Recorder(UpstreamService):
    """Encodes requests as they are sent, and answers."""

    def __init__(self) -> None:
        super().__init__("http://store.example:1")
        self.sent: list[bytes] = []

    async def request(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes, *, seconds: float
    ) -> UpstreamReply:
        self.sent.append(_encode_head(method, target, headers, len(body)) + body)
        return UpstreamReply(status=200, headers=(), length=0, body=_nothing())


async def _nothing() -> Any:
    yield b""


def forward(request: SandboxRequest) -> tuple[SandboxReply, list[bytes]]:
    recorder = _Recorder()
    refusals: list[str] = []
    destinations = Destinations(tasks=recorder, queries=recorder, objects=recorder)
    proxy = EgressProxy(task_id=TASK, attempt=1, grant=GRANT, destinations=destinations, count_refusal=refusals.append)
    return RUNNER.run(cast(Any, proxy.handle(request))), recorder.sent


def check_sent(request: SandboxRequest, message: bytes) -> None:
    """One request, whole, with the parts that were received, to a place of the grant."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    connection.receive_data(message)
    head = connection.next_event()
    assert isinstance(head, h11.Request), message
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    assert isinstance(event, h11.EndOfMessage)
    assert connection.trailing_data[0] == b""
    assert (head.method.decode(), body) == (request.method, request.body)
    names = [name for name, _ in head.headers]
    assert names.count(b"host") == 1
    assert not {b"transfer-encoding", b"x-amz-copy-source", b"x-trace-service-token", b"cookie"} & set(names)
    target = head.target.decode("ascii")
    if target.startswith("/v1/task/"):
        assert target.removeprefix("/v1/task/").replace("-", "").isalpha()
        assert json.loads(body)["task_id"] == str(TASK)
    else:
        check_place(target)


def check_place(target: str) -> None:
    path, _, query = target.partition("?")
    parameters = [item.partition("=") for item in query.split("&")] if query else []
    prefixes = [prefix.removeprefix("s3:/") for prefix in (*GRANT.read, *GRANT.write)]
    if path.count("/") == 1 or path.endswith("/"):
        prefix = [unquote(value) for name, _, value in parameters if unquote(name) == "prefix"]
        assert len(prefix) == 1
        path = f"{path.rstrip('/')}/{prefix[0]}"
    for decoded in (path, unquote(path), unquote(unquote(path))):
        place = posixpath.normpath(decoded.replace("\\", "/"))
        assert any(f"{place}/".startswith(prefix) for prefix in prefixes), target
    assert not {"acl", "policy", "delete", "tagging", "versions", "versionId"} & {
        unquote(name) for name, _, _ in parameters
    }


@given(message=mutated(), sizes=st.lists(st.integers(1, 4096), min_size=1, max_size=4))
@EXAMPLES
def test_what_is_sent_on_is_what_was_received(message: bytes, sizes: list[int]) -> None:
    for request in receive(message, sizes):
        reply, sent = forward(request)
        assert (reply.status, len(sent)) in ((200, 1), (403, 0), (503, 0)), reply
        for item in sent:
            check_sent(request, item)


WORDS = [
    "data", "scratch", "datasets", "staging", "a", "1", "12", "t", "u", "x", "..", ".", "", "%2e", "%2e%2e", "%2E.", "%252e", "%2f", "%5c",
    "\\", "%00", "%", "%zz", "*", "?", "#", "%3f", "%23", "é", "%c3%a9", "%c0%ae", "+", "%2b", "prefix=", "list-type=2", "&", ";", "=", "acl",
    "uploads", "uploadId=1", "policy", "prefix=datasets/a/1/", "prefix=datasets%2Fa%2F1%2F..%2F", "X-Amz-Signature=1", "versionId=1", "/data/datasets/a/1/",
]  # fmt: skip
METHODS = ["GET", "HEAD", "PUT", "POST", "DELETE", "PATCH", "LIST", "get"]


@given(
    method=st.sampled_from(METHODS),
    path=st.lists(st.sampled_from(WORDS), max_size=8).map("/".join),
    query=st.lists(st.sampled_from(WORDS), max_size=6).map("&".join),
)
@settings(max_examples=400)
def test_an_allowed_object_is_below_a_prefix(method: str, path: str, query: str) -> None:
    problem = GRANT.problem(method, path, query)
    if problem is None:
        assert method in METHODS[:5]
        check_place(f"{path}?{query}" if query else path)
        assert unquote_to_bytes(path).decode("utf-8").isprintable()


@given(
    token=st.sampled_from([make_token(), make_token(OTHER), "e30.e30.x", "..", ""]) | st.text(max_size=40),
    body=st.binary(max_size=60) | st.just(msgspec.json.encode({"task_id": TASK, "attempt": 1})),
    path=st.sampled_from(["/v1/task/heartbeat", "/v1/task/query", "/v1/task/", "/v1/task/a/b", "/internal/x"]),
)
@EXAMPLES
def test_a_call_is_of_the_attempt(token: str, body: bytes, path: str) -> None:
    headers = (("host", OWN), ("x-trace-task-capability", token.encode("latin-1", "replace").decode("latin-1")))
    reply, sent = forward(SandboxRequest(method="POST", target=path, headers=headers, body=body))
    assert reply.status in (200, 403, 503)
    if sent:
        assert reply.status == 200
        assert json.loads(body)["task_id"] == str(TASK)


ERRORS = [
    b"{}",
    b'{"errorType": null}',
    b'{"stackTrace": ' + b"[" * 500 + b"]" * 500 + b"}",
    b'{"stackTrace": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}",
    b'{"stackTrace": [' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"]}",
    b'{"stackTrace": [1e999, -0, ' + b"9" * 5000 + b"]}",
    b'{"errorMessage": "\\ud800"}',
    b'{"errorMessage": "\\u0000\\u202e"}',
    b'{"errorMessage": "' + b"x" * 1_000_000 + b'"}',
    b"\xff\xfe",
]


@given(
    messages=st.lists(
        st.sampled_from([post("/init/error", body) for body in ERRORS])
        | st.sampled_from(
            [post(f"/invocation/request-1/{kind}", body) for kind in ("error", "response") for body in ERRORS]
        )
        | st.sampled_from([get("/2018-06-01/runtime/invocation/next"), post("/invocation/request-2/response")]),
        min_size=1,
        max_size=5,
    )
)
@EXAMPLES
def test_the_first_answer_is_the_outcome(messages: list[bytes]) -> None:
    """Whatever is sent, and in whatever order: nothing breaks, and what was answered can be reported."""

    async def run() -> RuntimeApi:
        api = RuntimeApi(request_id="request-1", event=b"{}", deadline_ms=0, function_name="job")
        outcome: tuple[Any, Any] = (None, None)
        for message in messages:
            head, _, body = message.partition(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
            if method == "GET" and api.delivered:
                continue  # it would wait
            before = api.answered.is_set()
            reply = await api.handle(SandboxRequest(method=method, target=target, headers=(), body=body))
            assert reply.status == (200 if method == "GET" else reply.status)
            assert (reply.status == 202) == (api.answered.is_set() and not before)
            if before:
                assert (api.response, api.error) == outcome
            outcome = (api.response, api.error)
        return api

    api = RUNNER.run(run())
    if api.error is not None:
        text = describe(RunResult(ending=RunEnding.ERROR, error=api.error), ())
        assert len(text) <= 20_000
        text.encode()


def on_a_deeper_stack(frames: int, action: Callable[[], Any]) -> Any:
    return action() if frames == 0 else on_a_deeper_stack(frames - 1, action)


def test_what_is_nested_as_deep_as_possible_can_be_reported() -> None:
    """An answer is read on one stack, and reported on another."""
    invocation = MagicMock(task_id=TASK, attempt=1, lease_token=OTHER, inputs=[], outputs=[])
    for depth in range(sys.getrecursionlimit() - 100, sys.getrecursionlimit()):
        nested = b"[" * depth + b"]" * depth
        api = RuntimeApi(request_id="request-1", event=b"", deadline_ms=0, function_name="job")
        api._fail(b'{"stackTrace": [' + nested + b"]}")
        failure = RunResult(ending=RunEnding.ERROR, error=api.error)
        success = RunResult(ending=RunEnding.COMPLETED, response=nested)
        for result in (failure, success):
            report = on_a_deeper_stack(40, partial(final_report, invocation, result, ()))
            assert report.status in ("Failed", "Completed")


def test_a_listener_takes_its_share_of_the_loop() -> None:
    now = 100.0
    share = LoopShare(lambda: now)
    assert share.charge(0.05) == 0, "a burst"
    assert share.charge(0.02) == pytest.approx(0.1)
    now += 0.1
    assert share.charge(0.0) == pytest.approx(0)
    now += 10
    assert share.charge(0.04) == 0
    assert share.charge(0.11) == pytest.approx(0.5)

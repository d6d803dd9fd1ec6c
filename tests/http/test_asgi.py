"""The applications on arbitrary ASGI input, without a server in between: an answer below 500, or none to who left."""

import asyncio
from collections.abc import MutableMapping
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.http.support import CAPABILITY, SERVICE, WORKER, Claimed, check_leaks, claimed, content, user_token
from tests.support.dispatcher import DispatcherHarness
from tracelake.errors import CATALOGUE
from tracelake.wire.contract import DISPATCHER_LISTENERS, Listener
from tracelake.wire.routes import ROUTES

Message = MutableMapping[str, Any]

PATHS = sorted({route.path for route in ROUTES})
HEADER_NAMES = [b"content-length", b"content-type", b"authorization", b"host", b"transfer-encoding", b"x-other"]
FRAGMENTS = [
    b"",
    b"{",
    b"}",
    b"{}",
    b"[]",
    b"null",
    b'{"task_id":',
    b'"x"',
    b"\xff",
    b"\x00",
    b'"\\u0000"',
    b"1e999",
    b" ",
]


def run_app(
    harness: DispatcherHarness, listener: Listener, scope: dict[str, Any], messages: list[Message]
) -> list[Message]:
    sent: list[Message] = []
    waiting = iter(messages)

    async def receive() -> Message:
        return next(waiting, {"type": "http.disconnect"})

    async def send(message: Message) -> None:
        sent.append(message)

    async def call() -> None:
        await harness.dispatcher.apps[listener](scope, receive, send)

    harness.run(call())
    return sent


def scope_of(method: str, path: str, headers: list[tuple[bytes, bytes]], query: bytes = b"") -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "headers": headers, "query_string": query}


def check_answer(sent: list[Message]) -> int:
    start, body = sent
    assert [start["type"], body["type"]] == ["http.response.start", "http.response.body"]
    status: int = start["status"]
    assert status < 500, body
    headers = dict(start["headers"])
    assert int(headers[b"content-length"]) == len(body["body"])
    assert headers[b"cache-control"] == b"no-store"
    if status >= 400:
        error = msgspec.json.decode(body["body"])["error"]
        assert CATALOGUE[error["code"]].status == status
        check_leaks(error)
    return status


@pytest.fixture(scope="module")
def task(harness: DispatcherHarness) -> Claimed:
    return claimed(harness)


def credentials(task: Claimed) -> list[tuple[bytes, bytes]]:
    return [
        (CAPABILITY.encode(), task.token.encode()),
        (WORKER.encode(), task.harness.worker_token.encode()),
        (SERVICE.encode(), task.harness.service_token.encode()),
        (b"authorization", b"Bearer " + user_token(task.harness).encode()),
    ]


def test_arbitrary_requests_never_fail(task: Claimed) -> None:
    known = credentials(task)

    @settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(
        listener=st.sampled_from(DISPATCHER_LISTENERS),
        method=st.sampled_from(["GET", "POST", "PUT", "get", "", "\u00e9"]),
        path=st.one_of(
            st.sampled_from(PATHS),
            st.text(max_size=30),
            st.text(max_size=9).map(lambda t: f"/internal/tasks/{t}/cancel"),
        ),
        admitted=st.booleans(),
        headers=st.lists(st.tuples(st.sampled_from(HEADER_NAMES), st.binary(max_size=12)), max_size=4),
        query=st.one_of(st.binary(max_size=30), st.sampled_from([b"limit=%B2", b"task_id=%", b"limit=" + b"9" * 4400])),
        chunks=st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.binary(max_size=10)), max_size=5),
        leaves=st.booleans(),
    )
    @example(Listener.INTERNAL, "POST", "/internal/tasks", True, [(b"content-length", b"\xb2")], b"", [b"{}"], False)
    @example(Listener.INTERNAL, "POST", "/internal/tasks", True, [(b"content-length", b"9" * 5000)], b"", [b""], False)
    def check(
        listener: Listener,
        method: str,
        path: str,
        admitted: bool,
        headers: list[tuple[bytes, bytes]],
        query: bytes,
        chunks: list[bytes],
        leaves: bool,
    ) -> None:
        messages: list[Message] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
        messages.append({"type": "http.disconnect"} if leaves else {"type": "http.request"})
        scope = scope_of(method, path, [*(known if admitted else []), *headers], query)
        sent = run_app(task.harness, listener, scope, messages)
        if sent or not leaves:
            check_answer(sent)

    check()


def test_who_leaves_in_the_middle_has_done_nothing(task: Claimed) -> None:
    """The body was whole but for its end: nobody knows what was meant, so nothing happens."""
    before = content(task.harness)
    body = msgspec.json.encode(task.body(status="Completed"))
    gone: list[list[Message]] = [
        [],
        [{"type": "http.disconnect"}],
        [{"type": "http.request", "body": body, "more_body": True}, {"type": "http.disconnect"}],
        [{"type": "http.request", "body": part, "more_body": True} for part in (body[:9], body[9:])],
    ]
    for messages in gone:
        scope = scope_of("POST", "/v1/task/complete", credentials(task))
        assert run_app(task.harness, Listener.TASK, scope, messages) == []
    assert content(task.harness) == before


def test_other_protocols_are_ignored(harness: DispatcherHarness) -> None:
    for kind in ("lifespan", "websocket"):
        assert run_app(harness, Listener.TASK, {"type": kind, "path": "/v1/task/heartbeat"}, []) == []


def test_a_failure_inside_is_a_500_without_a_word_about_it(
    harness: DispatcherHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_: object) -> Any:
        raise RuntimeError("SELECT secret FROM /home/somebody")

    monkeypatch.setattr(harness.dispatcher.service, "fetch", broken)
    monkeypatch.setattr(harness.dispatcher.service, "claim", broken)
    nowhere = "00000000-0000-4000-8000-000000000000"
    reply = harness.worker("GET", f"/internal/task-fetch?task_id={nowhere}")
    assert (reply.status, reply.body["error"]["code"]) == (500, "internal")
    check_leaks(reply.body)
    # In a batch it is the item's own.
    items = [{"task_id": nowhere, "worker_id": "w"}, {}]
    batch = harness.worker("POST", "/internal/task-claim-batch", {"claims": items})
    assert [answer["status"] for answer in batch.body["answers"]] == [500, 422]
    check_leaks(batch.body)


def test_fuzzing_reached_the_handlers(task: Claimed) -> None:
    """A fuzzer that is always turned away at the door proves nothing: its credentials are good."""
    body = msgspec.json.encode(task.body())
    scope = scope_of("POST", "/v1/task/heartbeat", credentials(task))
    assert check_answer(run_app(task.harness, Listener.TASK, scope, [{"type": "http.request", "body": body}])) == 200
    for listener, path in ((Listener.INTERNAL, "/internal/outbox"), (Listener.PUBLIC, "/v1/whoami")):
        assert check_answer(run_app(task.harness, listener, scope_of("GET", path, credentials(task)), [])) == 200
    assert asyncio.iscoroutinefunction(task.harness.dispatcher.service.fetch)

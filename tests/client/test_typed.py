"""The typed clients: headers, error bodies, batches, rotating credentials, and replies that make no sense."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.client.scripted_server import Certificates, Request, Script, ScriptedServer, reply, serving
from tracelake.client import (
    DispatcherUnavailableError,
    FileCredential,
    HttpClient,
    InternalClient,
    RemoteError,
    TaskCall,
    TaskClient,
)
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.claims import ClaimReply, ClaimRequest, IntrospectRequest, TokenRequest
from tracelake.wire.platform import JobRequest, RequeueRequest, TaskSpec, TasksRequest
from tracelake.wire.task_calls import (
    BufferPublishRequest,
    CompleteReply,
    CompleteRequest,
    EventsRequest,
    HeartbeatReply,
    HeartbeatRequest,
)
from tracelake.wire.units import EventIn

TASK = UUID("01890000-0000-7000-8000-000000000001")
LEASE = UUID("01890000-0000-7000-8000-000000000002")
HEARTBEAT = HeartbeatRequest(task_id=TASK, attempt=1, lease_token=LEASE)
COMPLETE = CompleteRequest(task_id=TASK, attempt=1, lease_token=LEASE, status="Completed")
CLAIM = ClaimRequest(task_id=TASK, worker_id="w")
AT = "2026-11-15T12:00:00Z"


def as_json(value: Any, status: int = 200) -> bytes:
    return reply(json.dumps(value).encode(), status)


def error_body(code: str, /, **details: Any) -> dict[str, Any]:
    return {"error": {"code": code, "message": "told so", "details": details}}


def run(
    script: Script,
    certificates: Certificates,
    directory: Path,
    test: Callable[[InternalClient, TaskClient, ScriptedServer], Awaitable[None]],
) -> None:
    async def main() -> None:
        (directory / "worker.token").write_text("worker-1\n")
        (directory / "service.token").write_text("service-1\n")
        async with serving(script, certificates) as server:
            http = HttpClient(server.url, certificates.ca_file)
            internal = InternalClient(
                http,
                worker=FileCredential(directory / "worker.token"),
                service=FileCredential(directory / "service.token"),
            )
            await test(internal, TaskClient(http), server)
            await http.close()

    asyncio.run(main())


def test_every_call_goes_to_its_path_with_its_own_credential(certificates: Certificates, tmp_path: Path) -> None:
    task = {
        "task_id": str(TASK),
        "attempt": 1,
        "job": {"dag_name": "d", "name": "j"},
        "operator": "noop",
        "config": {},
        "inputs": [],
        "outputs": [],
    }
    answers: dict[str, Any] = {
        "POST /internal/task-claim": {"status": "NotClaimed", "reason": "NotFound"},
        f"GET /internal/task-fetch?task_id={TASK}": {"status": "Queued", "task": task},
        "POST /internal/task-token": {"capability_token": "t"},
        "POST /internal/task-introspect": {"current": True, "status": "Running"},
        "POST /internal/jobs": {
            "job_id": str(TASK),
            "org_id": str(TASK),
            "config_hash": "h",
            "outputs": [],
            "duplicate": False,
        },
        "POST /internal/tasks": {"tasks": [{"task_id": str(TASK), "status": "Queued"}]},
        f"POST /internal/tasks/{TASK}/cancel": {"task_id": str(TASK), "status": "Canceled"},
        "GET /internal/outbox?status=failed&limit=7": {
            "pending": 0,
            "failed": 0,
            "oldest_pending_seconds": 0,
            "rows": [],
        },
        "POST /internal/outbox/requeue": {"requeued": 3},
        "GET /internal/sources?kind=cron": {"now": AT, "sources": []},
        f"POST /internal/sources/{TASK}/fire": {"slot": AT, "events": 1},
        "POST /v1/task/heartbeat": {"lease_expires_at": AT, "cancel": False, "pause": False},
        "POST /v1/task/complete": {"status": "Completed"},
        "POST /v1/task/events": {"accepted": 0, "duplicate": True, "events": []},
        "POST /v1/task/buffer-publish": {"publish_id": str(TASK), "publish_seq": 1},
    }

    async def test(internal: InternalClient, task_client: TaskClient, server: ScriptedServer) -> None:
        assert (await internal.call(routes.CLAIM_TASK, CLAIM)).reason == "NotFound"
        assert (await internal.call(routes.FETCH_TASK, task_id=TASK)).task.operator == "noop"
        token_request = TokenRequest(task_id=TASK, attempt=1, lease_token=LEASE)
        assert (await internal.token(token_request)).capability_token == "t"
        assert (await internal.call(routes.INTROSPECT_TASK, IntrospectRequest(task_id=TASK, attempt=1))).current
        job = JobRequest(org="o", dag="d", name="j", runtime="ecs_platform", operator="noop")
        assert (await internal.call(routes.REGISTER_JOB, job)).config_hash == "h"
        created = await internal.call(routes.CREATE_TASKS, TasksRequest(tasks=[TaskSpec(job_id=TASK)]))
        assert created.tasks[0].task_id == TASK
        assert (await internal.call(routes.CANCEL_TASK_FOR_SERVICE, task_id=TASK)).status == "Canceled"
        assert (await internal.call(routes.LIST_OUTBOX, status="failed", limit=7)).rows == []
        assert (await internal.call(routes.REQUEUE_OUTBOX, RequeueRequest(outbox_ids=[1, 2, 3]))).requeued == 3
        assert (await internal.cron_sources()).sources == []
        assert (await internal.fire_cron(TASK, datetime.now(UTC))).events == 1
        assert not (await task_client.call(routes.HEARTBEAT, "cap", HEARTBEAT)).cancel
        assert (await task_client.complete("cap", COMPLETE)).status == "Completed"
        event = EventIn(dataset_uuid=TASK, dataset_version=TASK, cursor=1)
        events = EventsRequest(task_id=TASK, attempt=1, lease_token=LEASE, events=[event])
        assert (await task_client.call(routes.ANNOUNCE_EVENTS, "cap", events)).duplicate
        publish = BufferPublishRequest(
            task_id=TASK, attempt=1, lease_token=LEASE, batch_uri="s3://b/x", dataset_uuid=TASK
        )
        assert (await task_client.buffer_publish("cap", publish)).publish_seq == 1
        assert len(server.requests) == len(answers)
        for request in server.requests:
            sent = {name: value for name, value in request.headers.items() if name.startswith("x-trace-")}
            path = request.line.split(" ")[1]
            if path.startswith("/v1/task/"):
                assert sent == {"x-trace-task-capability": "cap"}
            elif path.split("?")[0] in (
                "/internal/task-claim",
                "/internal/task-fetch",
                "/internal/task-token",
            ):
                assert sent == {"x-trace-worker-token": "worker-1"}
            else:
                assert sent == {"x-trace-service-token": "service-1"}

    run(lambda request: as_json(answers[request.line.rsplit(" ", 1)[0]]), certificates, tmp_path, test)


def test_a_call_without_its_credential_is_not_sent(certificates: Certificates) -> None:
    async def main() -> None:
        async with serving(lambda _: as_json({}), certificates) as server:
            http = HttpClient(server.url, certificates.ca_file)
            with pytest.raises(ValueError, match="x-trace-worker-token"):
                await InternalClient(http).call(routes.CLAIM_TASK, CLAIM)
            await http.close()
            assert not server.requests

    asyncio.run(main())


def test_error_bodies_become_errors(certificates: Certificates, tmp_path: Path) -> None:
    replies = iter(
        [
            as_json(error_body("fenced", attempt=2, status="Running", code="x", message="y"), 409),
            as_json(error_body("store_unavailable"), 503),
            as_json(error_body("from_the_future", hint=1), 422),
            as_json(error_body("fenced"), 400),
            reply(b"<html>bad gateway</html>", 502),
            reply(b"nope", 404),
        ]
    )

    async def test(_: InternalClient, client: TaskClient, server: ScriptedServer) -> None:
        async def failing() -> TraceError:
            with pytest.raises(TraceError) as caught:
                await client.call(routes.HEARTBEAT, "cap", HEARTBEAT)
            return caught.value

        fenced = await failing()
        assert (fenced.code, fenced.status, fenced.message, fenced.retryable) == (
            "fenced",
            409,
            "told so",
            False,
        )
        assert fenced.details == {"attempt": 2, "status": "Running", "code": "x", "message": "y"}
        assert (await failing()).retryable
        future = await failing()
        assert isinstance(future, RemoteError)
        assert (future.code, future.status, future.details) == ("from_the_future", 422, {"hint": 1})
        assert (await failing()).status == 400
        assert isinstance(await failing(), DispatcherUnavailableError)
        unreadable = await failing()
        assert (unreadable.status, unreadable.retryable) == (404, False)

    run(lambda _: next(replies), certificates, tmp_path, test)


def test_batches_answer_item_by_item(certificates: Certificates, tmp_path: Path) -> None:
    def script(request: Request) -> bytes:
        body = json.loads(request.body)
        if request.line.startswith("POST /internal/task-claim-batch"):
            assert [claim["task_id"] for claim in body["claims"]] == [str(TASK)] * 3
            return as_json(
                {
                    "answers": [
                        {"status": 200, "body": {"status": "NotClaimed", "reason": "Completed"}},
                        {"status": 422, "body": error_body("body_invalid", field="worker_id")},
                        {"status": 200, "body": {"not": "a claim"}},
                    ]
                }
            )
        assert [item["call"] for item in body["calls"]] == ["heartbeat", "complete"]
        assert [item["capability_token"] for item in body["calls"]] == ["one", "two"]
        assert request.headers["x-trace-task-capability"] == "one"
        return as_json(
            {
                "answers": [
                    {"status": 200, "body": {"lease_expires_at": AT, "cancel": True, "pause": False}},
                    {"status": 200, "body": {"status": "Completed", "duplicate": True}},
                ]
            }
        )

    async def test(internal: InternalClient, client: TaskClient, server: ScriptedServer) -> None:
        first, second, third = await internal.claim_batch([CLAIM] * 3)
        assert isinstance(first, ClaimReply)
        assert first.reason == "Completed"
        assert isinstance(second, TraceError)
        assert second.details == {"field": "worker_id"}
        assert isinstance(third, DispatcherUnavailableError)
        beat, done = await client.batch([TaskCall("one", HEARTBEAT), TaskCall("two", COMPLETE)])
        assert isinstance(beat, HeartbeatReply)
        assert beat.cancel
        assert isinstance(done, CompleteReply)
        assert done.duplicate

    run(script, certificates, tmp_path, test)


def test_a_batch_answer_of_another_length_is_no_answer(certificates: Certificates, tmp_path: Path) -> None:
    async def test(internal: InternalClient, client: TaskClient, server: ScriptedServer) -> None:
        with pytest.raises(DispatcherUnavailableError, match="length"):
            await internal.claim_batch([CLAIM])
        with pytest.raises(DispatcherUnavailableError, match="length"):
            await client.batch([TaskCall("one", HEARTBEAT)])

    run(lambda _: as_json({"answers": []}), certificates, tmp_path, test)


def test_a_rotated_token_is_read_again_once(certificates: Certificates, tmp_path: Path) -> None:
    accepted = {"worker-1"}

    def script(request: Request) -> bytes:
        if request.headers["x-trace-worker-token"] not in accepted:
            return as_json(error_body("credential_invalid"), 401)
        return as_json({"status": "NotClaimed", "reason": "NotFound"})

    async def test(internal: InternalClient, _: TaskClient, server: ScriptedServer) -> None:
        await internal.call(routes.CLAIM_TASK, CLAIM)
        accepted.clear()
        accepted.add("worker-2")
        with pytest.raises(TraceError, match="credential_invalid"):
            await internal.call(routes.CLAIM_TASK, CLAIM)
        assert len(server.requests) == 2, "the same token is not sent again"
        (tmp_path / "worker.token").write_text("worker-2\n")
        await asyncio.gather(*(internal.call(routes.CLAIM_TASK, CLAIM) for _ in range(10)))
        (tmp_path / "worker.token").write_text("worker-3\n")
        accepted.clear()
        seen = len(server.requests)
        with pytest.raises(TraceError, match="credential_invalid"):
            await internal.call(routes.CLAIM_TASK, CLAIM)
        assert len(server.requests) == seen + 2
        (tmp_path / "worker.token").unlink()
        with pytest.raises(DispatcherUnavailableError, match="credential file"):
            await internal.call(routes.CLAIM_TASK, CLAIM)

    run(script, certificates, tmp_path, test)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["answers", "status", "body", "error", "code", "message", "details", "reason", "task"])
            | st.text(max_size=5),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_bodies = st.one_of(st.binary(max_size=60), _json.map(lambda value: json.dumps(value).encode()))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=_bodies, status=st.sampled_from([200, 201, 204, 301, 400, 401, 409, 422, 500, 503]))
def test_replies_that_make_no_sense(body: bytes, status: int, certificates: Certificates, tmp_path: Path) -> None:
    raw = reply(b"" if status == 204 else body, status)

    async def test(internal: InternalClient, client: TaskClient, server: ScriptedServer) -> None:
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: internal.call(routes.CLAIM_TASK, CLAIM),
            lambda: internal.claim_batch([CLAIM]),
            lambda: internal.call(routes.CANCEL_TASK_FOR_SERVICE, task_id=uuid4()),
            lambda: client.call(routes.HEARTBEAT, "cap", HEARTBEAT),
            lambda: client.batch([TaskCall("cap", COMPLETE)]),
        ]
        for call in calls:
            with contextlib.suppress(TraceError):
                await call()

    run(lambda _: raw, certificates, tmp_path, test)

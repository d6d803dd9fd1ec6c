"""The typed client of the user API: paths, credentials, waiting when told to, names that cannot be, odd answers."""

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli import samples
from tests.cli.fake_api import write_stack
from tests.client.scripted_server import Certificates, Request, Script, ScriptedServer, reply, serving
from tracelake.client import DispatcherUnavailableError, FileCredential, HttpClient
from tracelake.client.stack import find_stack
from tracelake.client.user import TextCredential, UserClient, user_credential
from tracelake.errors import TraceError
from tracelake.wire import routes
from tracelake.wire.contract import Route
from tracelake.wire.dags import ActivateRequest
from tracelake.wire.jobs import BlockRange, TriggerReply, TriggerRequest
from tracelake.wire.platform import CancelReply, WhoAmI
from tracelake.wire.tasks import RetryReply, SkipReply

TASK = UUID("01890000-0000-7000-8000-000000000001")


def as_json(value: Any, status: int = 200, *headers: str) -> bytes:
    return reply(msgspec.json.encode(value), status, *headers)


def error(code: str, status: int, *headers: str) -> bytes:
    return as_json({"error": {"code": code, "message": "told so", "details": {}}}, status, *headers)


def run(
    script: Script,
    certificates: Certificates,
    directory: Path,
    test: Callable[[UserClient, ScriptedServer], Awaitable[None]],
    waits: list[float] | None = None,
) -> None:
    """The waits are noted and not made."""

    async def sleep(seconds: float) -> None:
        if waits is not None:
            waits.append(seconds)

    async def main() -> None:
        (directory / "token").write_text("one\n")
        async with serving(script, certificates) as server:
            http = HttpClient(server.url, certificates.ca_file)
            await test(UserClient(http, FileCredential(directory / "token"), sleep=sleep), server)
            await http.close()

    asyncio.run(main())


def test_every_call_goes_to_its_path(certificates: Certificates, tmp_path: Path) -> None:
    at = datetime(2026, 1, 31, 13, tzinfo=timezone(timedelta(hours=1)))
    trigger = TriggerRequest(range=BlockRange(start=1, end=2), idempotency_key="k")
    cancelled = CancelReply(task_id=TASK, status="Canceled")
    calls: list[tuple[str, Any, Callable[[UserClient], Awaitable[Any]]]] = [
        ("GET /v1/whoami", WhoAmI(subject="ann", org="acme", roles=["admin"]), lambda c: c.call(routes.WHOAMI)),
        ("GET /v1/dags", samples.dags(), lambda c: c.call(routes.LIST_DAGS)),
        (
            "POST /v1/dags/pools/versions?activate=true",
            samples.deployed(),
            lambda c: c.call(routes.DEPLOY, b"name: pools", dag="pools", activate=True),
        ),
        (
            "POST /v1/dags/pools/versions?dry_run=true&activate=false",
            samples.deployed(),
            lambda c: c.call(routes.DEPLOY, b"name: pools", dag="pools", dry_run=True, activate=False),
        ),
        ("GET /v1/dags/pools/versions", samples.versions(), lambda c: c.call(routes.LIST_VERSIONS, dag="pools")),
        (
            "PUT /v1/dags/pools/active",
            samples.deployed(),
            lambda c: c.call(routes.ACTIVATE, ActivateRequest(version="previous"), dag="pools"),
        ),
        ("GET /v1/dags/pools/jobs", samples.jobs(), lambda c: c.call(routes.LIST_JOBS, dag="pools")),
        (
            "GET /v1/dags/pools/jobs?version=2",
            samples.jobs(),
            lambda c: c.call(routes.LIST_JOBS, dag="pools", version=2),
        ),
        (
            "POST /v1/dags/pools/jobs/blocks/trigger",
            TriggerReply(idempotency_key="k", event_id=7),
            lambda c: c.call(routes.TRIGGER, trigger, dag="pools", job="blocks"),
        ),
        ("GET /v1/sources", samples.sources(), lambda c: c.call(routes.LIST_SOURCES)),
        (
            "POST /v1/dags/pools/jobs/head/pause",
            samples.paused(),
            lambda c: c.call(routes.PAUSE_SOURCE, dag="pools", job="head"),
        ),
        (
            "POST /v1/dags/pools/jobs/head/resume",
            samples.paused(paused=False),
            lambda c: c.call(routes.RESUME_SOURCE, dag="pools", job="head"),
        ),
        (
            "GET /v1/tasks?dag=pools&job=prices&status=Failed&since=2026-01-31T12%3A00%3A00Z&limit=7&cursor=a%26b",
            samples.TASKS,
            lambda c: c.call(
                routes.LIST_TASKS, dag="pools", job="prices", status="Failed", since=at, limit=7, cursor="a&b"
            ),
        ),
        (f"GET /v1/tasks/{TASK}", samples.detail(), lambda c: c.call(routes.SHOW_TASK, task_id=TASK)),
        (f"POST /v1/tasks/{TASK}/cancel", cancelled, lambda c: c.call(routes.CANCEL_TASK, task_id=TASK)),
        (
            f"POST /v1/tasks/{TASK}/retry",
            RetryReply(task_id=TASK, status="Queued"),
            lambda c: c.call(routes.RETRY_TASK, task_id=TASK),
        ),
        (
            f"POST /v1/tasks/{TASK}/skip",
            SkipReply(task_id=TASK, status="Failed"),
            lambda c: c.call(routes.SKIP_TASK, task_id=TASK),
        ),
        (
            "GET /v1/events?dataset=blocks&state=Routed&limit=3",
            samples.EVENTS,
            lambda c: c.call(routes.LIST_EVENTS, dataset="blocks", state="Routed", limit=3),
        ),
        ("GET /v1/datasets", samples.DATASETS, lambda c: c.call(routes.LIST_DATASETS)),
        ("GET /v1/datasets/prices_out", samples.dataset(), lambda c: c.call(routes.SHOW_DATASET, name="prices_out")),
        (
            "GET /v1/datasets/prices_out/lineage?unit=a%2Fb&start=0&end=9&limit=5",
            samples.lineage(),
            lambda c: c.call(routes.SHOW_LINEAGE, name="prices_out", unit="a/b", start=0, end=9, limit=5),
        ),
        ("GET /v1/audit?limit=9&cursor=x", samples.AUDIT, lambda c: c.call(routes.LIST_AUDIT_LOG, limit=9, cursor="x")),
    ]
    answers = {line: answer for line, answer, _ in calls}

    async def test(client: UserClient, server: ScriptedServer) -> None:
        for line, answer, call in calls:
            assert await call(client) == answer, line
        for request in server.requests:
            assert request.headers["authorization"] == "Bearer one"
        bodies = {request.line.rsplit(" ", 1)[0]: request for request in server.requests}
        deploy = bodies["POST /v1/dags/pools/versions?activate=true"]
        assert (deploy.headers["content-type"], deploy.body) == ("application/yaml", b"name: pools")
        assert json.loads(bodies["PUT /v1/dags/pools/active"].body) == {"version": "previous"}
        triggered = json.loads(bodies["POST /v1/dags/pools/jobs/blocks/trigger"].body)
        assert triggered == {"range": {"start": 1, "end": 2}, "idempotency_key": "k"}

    run(lambda request: as_json(answers[request.line.rsplit(" ", 1)[0]]), certificates, tmp_path, test)


def test_the_source_of_a_version_comes_byte_by_byte(certificates: Certificates, tmp_path: Path) -> None:
    text = "name: pools # ä\r\n".encode()

    async def test(client: UserClient, server: ScriptedServer) -> None:
        assert await client.call(routes.READ_DOCUMENT, dag="pools", number=3) == text
        assert server.requests[0].line == "GET /v1/dags/pools/versions/3 HTTP/1.1"

    run(lambda _: reply(text), certificates, tmp_path, test)


def test_every_trigger_has_a_key_and_its_own(certificates: Certificates, tmp_path: Path) -> None:
    async def test(client: UserClient, server: ScriptedServer) -> None:
        for _ in range(2):
            await client.call(routes.TRIGGER, TriggerRequest(cursor=5), dag="pools", job="blocks")
        keys = {json.loads(request.body)["idempotency_key"] for request in server.requests}
        assert len(keys) == 2

    run(lambda _: as_json(TriggerReply(idempotency_key="k")), certificates, tmp_path, test)


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a/b", "a%2fb", "a?b", "a\r\nx: y", "ä", "1a", "a" * 129])
def test_a_name_that_cannot_be_is_not_found_and_not_sent(name: str, certificates: Certificates, tmp_path: Path) -> None:
    async def test(client: UserClient, server: ScriptedServer) -> None:
        calls: list[tuple[str, Callable[[], Awaitable[Any]]]] = [
            ("dag_not_found", lambda: client.call(routes.LIST_VERSIONS, dag=name)),
            ("dag_not_found", lambda: client.call(routes.READ_DOCUMENT, dag=name, number=1)),
            ("dag_not_found", lambda: client.call(routes.DEPLOY, b"", dag=name, activate=True)),
            ("dag_not_found", lambda: client.call(routes.ACTIVATE, ActivateRequest(version=1), dag=name)),
            ("dag_not_found", lambda: client.call(routes.LIST_JOBS, dag=name)),
            ("dag_not_found", lambda: client.call(routes.PAUSE_SOURCE, dag=name, job="head")),
            ("job_not_found", lambda: client.call(routes.RESUME_SOURCE, dag="pools", job=name)),
            ("dag_not_found", lambda: client.call(routes.TRIGGER, TriggerRequest(cursor=1), dag=name, job="x")),
            ("job_not_found", lambda: client.call(routes.TRIGGER, TriggerRequest(cursor=1), dag="x", job=name)),
            ("dataset_not_found", lambda: client.call(routes.SHOW_DATASET, name=name)),
            ("dataset_not_found", lambda: client.call(routes.SHOW_LINEAGE, name=name)),
        ]
        for code, call in calls:
            with pytest.raises(TraceError) as caught:
                await call()
            assert caught.value.code == code
        assert not server.requests

    run(lambda _: as_json({}), certificates, tmp_path, test)


def test_too_many_requests_are_waited_for(certificates: Certificates, tmp_path: Path) -> None:
    limited = error("rate_limited", 429, "Retry-After: 7")
    answers = [limited, error("rate_limited", 429), as_json(samples.dags())]
    waits: list[float] = []

    async def test(client: UserClient, server: ScriptedServer) -> None:
        assert await client.call(routes.LIST_DAGS) == samples.dags()
        assert waits == [7, 1]

    run(lambda _: answers.pop(0), certificates, tmp_path, test, waits)


@pytest.mark.parametrize(
    ("header", "tries", "waits"),
    [("Retry-After: 2", 5, [2] * 4), ("Retry-After: 31", 1, []), ("Retry-After: x", 5, [1] * 4)],
)
def test_waiting_has_bounds(
    header: str, tries: int, waits: list[float], certificates: Certificates, tmp_path: Path
) -> None:
    waited: list[float] = []

    async def test(client: UserClient, server: ScriptedServer) -> None:
        with pytest.raises(TraceError, match="rate_limited"):
            await client.call(routes.LIST_DAGS)
        assert len(server.requests) == tries
        assert waited == waits

    run(lambda _: error("rate_limited", 429, header), certificates, tmp_path, test, waited)


def test_an_earlier_wait_is_not_taken_for_a_later_answer(certificates: Certificates, tmp_path: Path) -> None:
    """Both answers come over one connection."""
    answers = [error("rate_limited", 429, "retry-after: 9"), error("rate_limited", 429), as_json(samples.dags())]
    waits: list[float] = []

    async def test(client: UserClient, server: ScriptedServer) -> None:
        await client.call(routes.LIST_DAGS)
        assert server.connections == 1
        assert waits == [9, 1]

    run(lambda _: answers.pop(0), certificates, tmp_path, test, waits)


def test_a_rotated_token_is_read_again_once(certificates: Certificates, tmp_path: Path) -> None:
    accepted = {"Bearer one"}

    def script(request: Request) -> bytes:
        good = request.headers["authorization"] in accepted
        return as_json(samples.dags()) if good else error("credential_invalid", 401)

    async def test(client: UserClient, server: ScriptedServer) -> None:
        await client.call(routes.LIST_DAGS)
        accepted.clear()
        accepted.add("Bearer two")
        with pytest.raises(TraceError, match="credential_invalid"):
            await client.call(routes.LIST_DAGS)
        assert len(server.requests) == 2, "the same token is not sent again"
        (tmp_path / "token").write_text("two\n")
        await client.call(routes.LIST_DAGS)
        (tmp_path / "token").write_text("three\n")
        accepted.clear()
        seen = len(server.requests)
        with pytest.raises(TraceError, match="credential_invalid"):
            await client.call(routes.LIST_DAGS)
        assert len(server.requests) == seen + 2

    run(script, certificates, tmp_path, test)


def test_where_the_token_comes_from(certificates: Certificates, tmp_path: Path) -> None:
    write_stack(tmp_path, "https://127.0.0.1:1", certificates.ca_file)
    (tmp_path / "mine").write_text("from-the-file\n")
    stack = find_stack(tmp_path)
    variable = {"TRACE_TOKEN": " from-the-variable\n"}
    assert user_credential(stack, tmp_path / "mine", variable).current() == "from-the-file"
    assert user_credential(stack, None, variable).current() == "from-the-variable"
    assert user_credential(stack, None, {}).current() == "the-admin-token"
    with pytest.raises(TraceError, match="TRACE_TOKEN is set, but empty"):
        user_credential(stack, None, {"TRACE_TOKEN": " "})
    with pytest.raises(DispatcherUnavailableError, match="credential file"):
        user_credential(stack, tmp_path / "missing", {}).current()


def test_a_token_cannot_write_headers(certificates: Certificates, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(lambda _: as_json({}), certificates) as server:
            http = HttpClient(server.url, certificates.ca_file)
            with pytest.raises(TraceError, match="credential_malformed"):
                await UserClient(http, TextCredential("x\r\nX-Other: y")).call(routes.LIST_DAGS)
            await http.close()
            assert not server.requests

    asyncio.run(main())


def test_times_are_sent_in_utc(certificates: Certificates, tmp_path: Path) -> None:
    async def test(client: UserClient, server: ScriptedServer) -> None:
        await client.call(routes.LIST_TASKS, since=datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC))
        assert server.requests[0].line == "GET /v1/tasks?since=2026-01-31T12%3A00%3A00.000005Z HTTP/1.1"

    run(lambda _: as_json(samples.TASKS), certificates, tmp_path, test)


_bodies = st.binary(max_size=60) | st.sampled_from(
    [b"{}", b"[]", b'{"dags": 1}', b'{"dags": [{"name": "x"}]}', b'{"tasks": [], "next": 5}', b'{"error": {"code": 1}}']
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=_bodies, status=st.sampled_from([200, 204, 301, 400, 401, 404, 422, 429, 500, 503]))
def test_replies_that_make_no_sense(body: bytes, status: int, certificates: Certificates, tmp_path: Path) -> None:
    async def test(client: UserClient, server: ScriptedServer) -> None:
        read: tuple[Route[None, Any], ...] = (
            routes.LIST_DAGS,
            routes.LIST_TASKS,
            routes.LIST_AUDIT_LOG,
            routes.SHOW_QUOTA,
        )
        for route in read:
            with contextlib.suppress(TraceError):
                await client.call(route)

    run(lambda _: reply(b"" if status == 204 else body, status), certificates, tmp_path, test)

"""Logs never hold a credential: not after failures, not in tracebacks, not when a module logs one by mistake."""

import asyncio
import io
import json
import logging
import secrets
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.http.support import CAPABILITY, NOWHERE, SERVICE, WORKER, claimed, user_token
from tests.support.dispatcher import DispatcherHarness
from tracelake.model.redaction import scrub
from tracelake.stack.logs import JsonFormatter
from tracelake.tokens import jws
from tracelake.wire.task_calls import HeartbeatRequest


@pytest.fixture
def logs() -> Iterator[io.StringIO]:
    """Everything logged while the test runs, as a process would write it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter("dispatcher"))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        root.removeHandler(handler)
        root.setLevel(before)


def lines(logs: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in logs.getvalue().splitlines()]


def test_a_run_with_failures(harness: DispatcherHarness, logs: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    task = claimed(harness)
    user, password = user_token(harness), harness.state_dsn.split(":", 2)[2].split("@")[0]
    known = {
        "worker": harness.worker_token,
        "service": harness.service_token,
        "capability": task.token,
        "signature": task.token.split(".")[2],
        "user": user,
        "lease": task.lease["lease_token"],
        "password": password,
    }
    assert all(len(secret) >= 20 for secret in known.values())
    headers = {
        WORKER: known["worker"],
        SERVICE: known["service"],
        CAPABILITY: task.token,
        "authorization": f"Bearer {user}",
    }

    def everything_fails() -> None:
        """Each call a caller can make, with every credential it has."""
        for path, listener in (("heartbeat", "task"), ("complete", "task"), ("batch", "task")):
            item = {"call": "heartbeat", "capability_token": task.token, "body": task.body()}
            body = (
                {"calls": [item]}
                if path == "batch"
                else task.body(status="Completed")
                if path == "complete"
                else task.body()
            )
            harness.call(listener, "POST", f"/v1/task/{path}", body, headers)
        harness.call("internal", "POST", "/internal/task-token", task.body(), headers)
        harness.call("internal", "GET", f"/internal/task-fetch?task_id={task.task_id}", None, headers)
        harness.call("public", "GET", "/v1/whoami", None, headers)

    # A statement that fails on the task's own row: Postgres quotes the row, lease token and all.
    harness.sql("ALTER TABLE tasks ADD CONSTRAINT broken CHECK (worker_id <> 'test') NOT VALID")
    everything_fails()
    harness.sql("ALTER TABLE tasks DROP CONSTRAINT broken")
    assert any("violates check constraint" in line.get("error", "") for line in lines(logs)), "the failure was logged"

    # An argument that the driver cannot send: it quotes the argument.
    async def bad_argument(*_: object) -> Any:
        await harness._sql("SELECT $1::int", [UUID(known["lease"]), harness.state_dsn])

    monkeypatch.setattr(harness.dispatcher.service, "_read", bad_argument)
    everything_fails()
    monkeypatch.undo()
    assert any("query argument" in line.get("error", "") for line in lines(logs))

    # The store goes away; the credentials are in the headers and the DSN in the pool.
    async def away(*_: object) -> Any:
        raise asyncpg.CannotConnectNowError(f"could not connect to {harness.state_dsn}")

    monkeypatch.setattr(harness.dispatcher.service, "_read", away)
    everything_fails()
    monkeypatch.undo()
    forged = f"{task.token[:-4]}AAAA"
    for token in (forged, "rubbish", f"{task.token}x"):
        harness.task("heartbeat", token, task.body())
    text = logs.getvalue()
    assert len(lines(logs)) >= 5
    found = [name for name, secret in known.items() if secret in text]
    assert found == []


def test_whoever_logs_a_secret_by_mistake(logs: io.StringIO) -> None:
    logger = logging.getLogger("tests.mistakes")
    shared, lease = secrets.token_urlsafe(32), uuid4()
    capability = jws.encode(b'{"sub": "task:x"}', "kid", lambda message: secrets.token_bytes(64))
    password = "correct-horse-battery"
    dsn = f"postgresql://trace:{password}@/state?host=/run"
    body = HeartbeatRequest(task_id=UUID(NOWHERE), attempt=1, lease_token=lease)
    logger.info("token %s", shared)
    logger.info("token=%s, next", shared)
    logger.info("headers %s", [(b"x-trace-worker-token", shared.encode()), (b"authorization", f"Bearer {capability}")])
    logger.info("headers %s", {"x-trace-service-token": shared, "X-Trace-Task-Capability": capability})
    logger.info("authorization: Bearer %s", shared)
    logger.info("body %s", body)
    logger.info("body %r", {"lease_token": lease, "capability_token": capability})
    logger.info("body %s", json.dumps({"lease_token": str(lease), "password": password}))
    logger.info("twice encoded %s", json.dumps(json.dumps({"lease_token": str(lease)})))
    logger.info("connecting to %s", dsn)
    logger.info("connecting with password=%s user=x", password)
    logger.info("extra", extra={"dsn": dsn, "lease_token": lease, "deep": {"a": [{"lease_token": lease}, (shared,)]}})
    logger.info("extra", extra={"body": body, "data": shared.encode(), "nested": {capability: 1}})
    try:
        raise ValueError(f"cannot use {capability} with {dsn} and lease_token={lease}")
    except ValueError:
        logger.exception("failed")
    text = logs.getvalue()
    assert len(lines(logs)) == 14, "each line is one JSON document"
    for secret in (shared, str(lease), lease.hex, capability, capability.split(".")[2], password):
        assert secret not in text


def test_what_is_no_secret_stays(logs: io.StringIO) -> None:
    message = f"task {NOWHERE} of sha256:{'ab' * 32} ran in tracelake.dispatcher.engine.file_publications.Registry"
    logging.getLogger("tests").info(message, extra={"task_id": NOWHERE, "size": 3, "ok": True, "none": None})
    (line,) = lines(logs)
    assert line["message"] == message
    assert (line["task_id"], line["size"], line["ok"], line["none"]) == (NOWHERE, 3, True, None)


def test_a_line_is_written_whatever_is_in_it(logs: io.StringIO) -> None:
    logging.getLogger("tests").info("half \ud800 a pair", extra={"bytes": b"\xff", "set": {1}, "when": asyncio.Event})
    (line,) = lines(logs)
    assert line["message"] == "half ? a pair"


PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=20)
FRAMES = st.sampled_from(
    [
        "{}",
        "token {}",
        "Bearer {}",
        "x-trace-worker-token: {}",
        "'x-trace-service-token', b'{}'",
        '{{"t": "{}"}}',
        "({})",
        "<{}>",
    ]
)


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(before=PLAIN, frame=FRAMES, raw=st.binary(min_size=32, max_size=32), after=PLAIN)
def test_no_token_survives_scrubbing(before: str, frame: str, raw: bytes, after: str) -> None:
    shared = jws.b64(raw)
    mixed = any(char.isupper() for char in shared) and any(char.islower() for char in shared)
    capability = jws.encode(raw, "kid", lambda message: raw + raw)
    for secret in (shared, capability) if mixed else (capability,):
        text = f"{before} {frame.format(secret)} {after}"
        assert secret not in scrub(text)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(before=PLAIN, lease=st.uuids(), label=st.sampled_from(["lease_token", "LEASE_TOKEN"]), after=PLAIN)
@example("", UUID(NOWHERE), "lease_token", "'")
def test_no_lease_token_survives_its_label(before: str, lease: UUID, label: str, after: str) -> None:
    for shown in (f"{label}={lease}", f"{label}={lease!r}", f"{{'{label}': '{lease}'}}", f'{{"{label}":"{lease}"}}'):
        assert str(lease) not in scrub(f"{before} {shown} {after}")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.text("abcdefghijklmnop-_.~ABC123", min_size=12, max_size=30),
    st.sampled_from(["postgresql", "postgres", "https"]),
)
def test_no_password_survives_in_a_dsn(password: str, scheme: str) -> None:
    password = f"pw-{password}"
    assert password not in scrub(f"cannot reach {scheme}://trace_state:{password}@host:5432/state?sslmode=x")
    assert password not in scrub(f"host=x password={password} dbname=y")

"""Bodies that are not what they should be, at every endpoint that takes one: refused, named, without a trace."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.http.support import (
    CAPABILITY,
    NOWHERE,
    SERVICE,
    WORKER,
    Claimed,
    Refusals,
    claimed,
    content,
    fresh,
    head_of,
    raw_reply,
    raw_request,
    user_token,
)
from tests.support.dispatcher import DispatcherHarness, Reply
from tests.support.postgres import wait_until
from tracelake.http.server import MAX_HEAD_BYTES
from tracelake.wire.contract import DISPATCHER_LISTENERS
from tracelake.wire.platform import MAX_CONFIG_DEPTH
from tracelake.wire.routes import ROUTES, routes_of

USER = "authorization"


@dataclass(frozen=True)
class Endpoint:
    """`body` is one that would be accepted, or refused only by what it names."""

    listener: str
    path: str
    body: Callable[[Claimed], dict[str, Any]]
    header: str | None
    batch: bool = False
    method: str = "POST"
    optional: tuple[str, ...] = ()
    """Fields that may be absent, or one of which must be there."""

    @property
    def url(self) -> str:
        return re.sub(r"\{\w+\}", "nowhere", re.sub(r"\{(job|bundle)_id\}", NOWHERE, self.path))

    def headers(self, task: Claimed) -> dict[str, str]:
        tokens = {
            CAPABILITY: task.token,
            WORKER: task.harness.worker_token,
            SERVICE: task.harness.service_token,
            USER: f"Bearer {user_token(task.harness)}",
        }
        return {} if self.header is None else {self.header: tokens[self.header]}

    def send(self, task: Claimed, body: Any) -> Reply:
        return task.harness.call(self.listener, self.method, self.url, body, self.headers(task))


def batch_call(task: Claimed) -> dict[str, Any]:
    return {"call": "heartbeat", "capability_token": task.token, "body": task.body()}


ENDPOINTS = [
    Endpoint("task", "/v1/task/heartbeat", lambda t: t.body(), CAPABILITY),
    Endpoint("task", "/v1/task/complete", lambda t: t.body(status="Failed"), CAPABILITY),
    Endpoint("task", "/v1/task/events", lambda t: t.body(events=[t.output("none") | {"cursor": 1}]), CAPABILITY),
    Endpoint(
        "task",
        "/v1/task/buffer-publish",
        lambda t: t.body(batch_uri="s3://bucket/a", dedupe_scope="buffered_set"),
        CAPABILITY,
        optional=("dedupe_scope",),
    ),
    Endpoint("task", "/v1/task/files", lambda t: t.body(**t.output("s3")), CAPABILITY),
    Endpoint("task", "/v1/task/deliveries", lambda t: t.body(**t.output("none")), CAPABILITY),
    Endpoint(
        "task",
        "/v1/task/credentials",
        lambda t: t.body(locations=["s3://bucket/a/"]),
        CAPABILITY,
        optional=("locations",),
    ),
    Endpoint("task", "/v1/task/batch", lambda t: {"calls": [batch_call(t)]}, None, batch=True),
    Endpoint("internal", "/internal/task-claim", lambda t: {"task_id": NOWHERE, "worker_id": "w"}, WORKER),
    Endpoint(
        "internal",
        "/internal/task-claim-batch",
        lambda t: {"claims": [{"task_id": NOWHERE, "worker_id": "w"}]},
        WORKER,
        batch=True,
    ),
    Endpoint("internal", "/internal/task-token", lambda t: t.body(), WORKER),
    Endpoint(
        "internal",
        "/internal/task-logs",
        lambda t: {"worker_id": "w", "logs": [{"task_id": t.task_id, "attempt": 1}]},
        WORKER,
    ),
    Endpoint("internal", "/internal/task-introspect", lambda t: {"task_id": t.task_id, "attempt": 1}, SERVICE),
    Endpoint(
        "internal",
        "/internal/jobs",
        lambda t: {"org": "new_org", "dag": "dag", "name": "job", "runtime": "ecs_platform", "operator": "noop"},
        SERVICE,
    ),
    Endpoint("internal", "/internal/tasks", lambda t: {"tasks": [{"job_id": t.job["job_id"]}]}, SERVICE),
    Endpoint(
        "internal",
        "/internal/dataset-files",
        lambda t: {"org": "nobody", "name": "nothing"},
        SERVICE,
        optional=("org", "name"),
    ),
    Endpoint("internal", "/internal/query-relations", lambda t: {"org": "nobody"}, SERVICE),
    Endpoint("internal", "/internal/task-inputs", lambda t: t.body(), SERVICE),
    Endpoint(
        "internal",
        "/internal/batch-query-submit",
        lambda t: {
            "org": "nobody",
            "subject": "user",
            "query_id": NOWHERE,
            "sql": "SELECT 1 AS n",
            "relations": [],
            "sql_sha256": "0" * 64,
        },
        SERVICE,
    ),
    *(
        Endpoint(
            "internal",
            f"/internal/batch-query-{what}",
            lambda t: {"org": "nobody", "subject": "user", "query_id": NOWHERE},
            SERVICE,
        )
        for what in ("show", "cancel")
    ),
    Endpoint("internal", "/internal/batch-query-list", lambda t: {"org": "nobody", "subject": "user"}, SERVICE),
    Endpoint(
        "internal",
        "/internal/query-audit",
        lambda t: {
            "run_id": NOWHERE,
            "query_id": NOWHERE,
            "org": "nobody",
            "subject": "user",
            "duration_ms": 1,
            "outcome": "ok",
            "sql_sha256": "0" * 64,
        },
        SERVICE,
    ),
    Endpoint("internal", "/internal/check-results", lambda t: {"org": "nobody"}, SERVICE),
    Endpoint("internal", "/internal/buffer-open", lambda t: {"publish_ids": [NOWHERE]}, SERVICE),
    Endpoint(
        "internal",
        "/internal/buffer-committed",
        lambda t: {"dataset_uuid": NOWHERE, "commit_seq": 1, "publish_ids": [NOWHERE]},
        SERVICE,
    ),
    Endpoint(
        "internal",
        "/internal/buffer-rejected",
        lambda t: {"publish_id": NOWHERE, "code": "row_invalid", "reason": "no"},
        SERVICE,
    ),
    Endpoint("internal", "/internal/tables-dropped", lambda t: {"dataset_uuids": [NOWHERE]}, SERVICE),
    Endpoint(
        "internal",
        "/internal/tables-measured",
        lambda t: {"tables": [{"dataset_uuid": NOWHERE, "rows": 1, "bytes": 1}]},
        SERVICE,
    ),
    Endpoint("public", "/v1/dlq-replay", lambda t: {"publish_ids": [NOWHERE]}, USER, optional=("publish_ids",)),
    Endpoint("public", "/v1/dlq-drop", lambda t: {"publish_ids": [NOWHERE]}, USER, optional=("publish_ids",)),
    Endpoint(
        "internal",
        "/internal/quotas",
        lambda t: {"org": "nobody", "values": {"weight": 2}, "defaults": ["queued_tasks"]},
        SERVICE,
        optional=("values", "defaults"),
    ),
    Endpoint("internal", "/internal/outbox/requeue", lambda t: {"outbox_ids": [1]}, SERVICE, optional=("outbox_ids",)),
    Endpoint(
        "internal",
        "/internal/dead-letters/drop",
        lambda t: {"message_ids": ["1"]},
        SERVICE,
        optional=("message_ids",),
    ),
    Endpoint("internal", "/internal/sources/{job_id}/fire", lambda t: {"slot": "2026-01-31T12:00:00Z"}, SERVICE),
    Endpoint("public", "/v1/udf/bundles", lambda t: {"size_bytes": 100}, USER),
    Endpoint(
        "public",
        "/v1/udf/bundles/{bundle_id}/finalize",
        lambda t: {"sha256": "0" * 64, "language": "python", "entrypoint": "main.handler"},
        USER,
        optional=("entrypoint",),
    ),
    Endpoint("public", "/v1/dags/{dag}/active", lambda t: {"version": 1}, USER, method="PUT"),
    Endpoint("public", "/v1/tokens", lambda t: {"subject": "x", "role": "reader"}, USER),
    Endpoint("public", "/v1/token-revocations", lambda t: {"subject": "x"}, USER, optional=("subject",)),
    Endpoint(
        "public",
        "/v1/task-actions",
        lambda t: {"action": "skip", "tasks": [{"task_id": NOWHERE, "attempt": 1}]},
        USER,
    ),
    Endpoint("public", "/v1/task-lookup", lambda t: {"task_ids": [NOWHERE]}, USER),
    Endpoint("public", "/v1/event-lookup", lambda t: {"events": [{"dataset": "none", "event_id": 1}]}, USER),
    Endpoint("public", "/v1/datasets/{name}/files", lambda t: {"start": 0}, USER, optional=("start",)),
    Endpoint("public", "/v1/datasets/{name}/rows", lambda t: {"head": 1}, USER, optional=("head",)),
    Endpoint("public", "/v1/dags/{dag}/jobs/{job}/repair", lambda t: {"from_block": 1}, USER, optional=("from_block",)),
    Endpoint("public", "/v1/dags/{dag}/jobs/{job}/trigger", lambda t: {"cursor": 1}, USER, optional=("cursor",)),
]
EVERY = pytest.mark.parametrize("endpoint", ENDPOINTS, ids=[endpoint.path for endpoint in ENDPOINTS])


@pytest.fixture(scope="module")
def task(harness: DispatcherHarness) -> Claimed:
    return claimed(harness)


def test_every_route_with_a_body_is_here() -> None:
    routes = [route for listener in DISPATCHER_LISTENERS for route in routes_of(listener)]
    assert {route.path for route in routes if route.decoder is not None} == {e.path for e in ENDPOINTS}


@EVERY
def test_what_is_not_json(task: Claimed, endpoint: Endpoint) -> None:
    good = msgspec.json.encode(endpoint.body(task))
    with Refusals(task.harness) as refusals:
        for body in (
            b"",
            b" ",
            b"{",
            good[:-1],
            good + b"x",
            good + good,
            b"\xef\xbb\xbf" + good,
            b"{'a': 1}",
            b"<xml/>",
            b"\x00",
            b"\xff\xfe",
            good[:-1] + b',"note": NaN}',
            b"[" * 200_000,
            good.decode().encode("utf-16"),
        ):
            refusals.check(endpoint.send(task, body), 400, "body_malformed")


@EVERY
def test_json_of_another_shape(task: Claimed, endpoint: Endpoint) -> None:
    with Refusals(task.harness) as refusals:
        for body in (b"[]", b"7", b'"text"', b"null", b"true", b"[{}]", b"9" * 5000):
            refusals.check(endpoint.send(task, body), 422, "body_invalid", field="")
        if not endpoint.optional:
            refusals.check(endpoint.send(task, b"{}"), 422, "body_invalid", field=next(iter(endpoint.body(task))))


@EVERY
def test_unknown_fields(task: Claimed, endpoint: Endpoint) -> None:
    with Refusals(task.harness) as refusals:
        for name in ("extra", "Task_id", "org_id", "__class__", "$ref", ""):
            error = refusals.check(endpoint.send(task, endpoint.body(task) | {name: 1}), 422, "body_invalid", name)
            assert f"`{name}`" in error["message"]


@EVERY
def test_fields_of_another_type(task: Claimed, endpoint: Endpoint) -> None:
    good = endpoint.body(task)
    with Refusals(task.harness) as refusals:
        for name, value in good.items():
            wrong: list[Any] = [{"a": 1}, 1.5, True, [[]]] + ([7, ""] if isinstance(value, str) else ["7"])
            for other in wrong:
                reply = endpoint.send(task, good | {name: other})
                if endpoint.batch and isinstance(other, list):
                    assert [answer["status"] for answer in reply.body["answers"]] == [422]
                    continue
                error = refusals.check(reply, 422, "body_invalid")
                assert error["details"]["field"].startswith(name)
            if name not in endpoint.optional:
                refusals.check(endpoint.send(task, good | {name: None}), 422, "body_invalid", field=name)
                missing = {key: item for key, item in good.items() if key != name}
                refusals.check(endpoint.send(task, missing), 422, "body_invalid", field=name)


@EVERY
def test_bad_uuids(task: Claimed, endpoint: Endpoint) -> None:
    good = endpoint.body(task)
    with Refusals(task.harness) as refusals:
        for name in ("task_id", "lease_token"):
            for bad in (
                "",
                "x",
                NOWHERE[:-1],
                NOWHERE + "0",
                "{" + NOWHERE + "}",
                f"urn:uuid:{NOWHERE}",
                NOWHERE[:-1] + "g",
            ):
                if name in good:
                    refusals.check(endpoint.send(task, good | {name: bad}), 422, "body_invalid", field=name)


@EVERY
def test_bad_text(task: Claimed, endpoint: Endpoint) -> None:
    """Half a surrogate pair, bytes that are no UTF-8, and the one character Postgres cannot store."""
    good = msgspec.json.encode(endpoint.body(task))
    marker = b'{"pad": "%s",'
    with Refusals(task.harness) as refusals:
        for text in (b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\\ud800", b"\\udc00\\ud800", b"a\x00b", b"tab\there"):
            # Not JSON, although the decoder could stop earlier, at the unknown field.
            refusals.check(endpoint.send(task, good.replace(b"{", marker % text, 1)), 400, "body_malformed")
        if not endpoint.batch:
            for text in (b"\\u0000", b"\\\\\\u0000"):
                reply = endpoint.send(task, good.replace(b"{", marker % text, 1))
                error = refusals.check(reply, 422, "body_invalid")
                assert "U+0000" in error["message"]


def test_characters_in_values(task: Claimed) -> None:
    harness = task.harness
    claim = b'{"task_id": "%s", "worker_id": "%s"}'
    headers = {WORKER: harness.worker_token}

    def send(text: bytes) -> Reply:
        body = claim % (NOWHERE.encode(), text)
        return harness.call("internal", "POST", "/internal/task-claim", body, headers)

    with Refusals(harness) as refusals:
        for text in (b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\x00", b"\x1f", b"\n"):
            refusals.check(send(text), 400, "body_malformed")
        refusals.check(send(b"a\\u0000b"), 422, "body_invalid")
        # An escaped backslash before u0000 is plain text.
        assert send(b"a\\\\u0000b").body["reason"] == "NotFound"
        assert send("ünïcode \U0001f600 \\n".encode()).body["reason"] == "NotFound"


@EVERY
def test_oversized_bodies(task: Claimed, endpoint: Endpoint) -> None:
    """Refused on the declared length without reading, and by count when nothing was declared."""
    harness = task.harness
    large = next(route.large for route in ROUTES if route.path == endpoint.path)
    limit = harness.config.batch_body_max_bytes if large else harness.config.body_max_bytes
    # A batch as large as that needs a credential in the header too.
    head = head_of(endpoint.method, endpoint.url, endpoint.headers(task) or {CAPABILITY: task.token})
    with Refusals(harness) as refusals:
        for declared in (str(limit + 1), str(10**15)):
            reply = raw_reply(harness, endpoint.listener, f"{head}\ncontent-length: {declared}", b"{")
            error = refusals.check(reply, 413, "body_too_large")
            assert error["details"] == {"limit_bytes": limit}
        # Nothing behind the first byte too many: what a server leaves unread can cost the client the answer.
        chunk = b"%x\r\n" % (limit + 1) + b" " * (limit + 1)
        reply = raw_reply(harness, endpoint.listener, f"{head}\ntransfer-encoding: chunked", chunk)
        refusals.check(reply, 413, "body_too_large")


@EVERY
def test_truncated_bodies(task: Claimed, endpoint: Endpoint) -> None:
    """A caller that hangs up in the middle is not answered and has done nothing."""
    harness = task.harness
    body = msgspec.json.encode(endpoint.body(task))
    head = head_of(endpoint.method, endpoint.url, endpoint.headers(task))
    seen = harness.dispatcher.metrics.requests
    before = content(harness)
    raw_request(harness, endpoint.listener, f"{head}\ncontent-length: {len(body) + 1}", body, hang_up=True)
    chunked = b"%x\r\n" % len(body) + body + b"\r\n"
    raw_request(harness, endpoint.listener, f"{head}\ntransfer-encoding: chunked", chunked, hang_up=True)
    # The listener goes on, and by the time it answers the next caller nothing was counted as served.
    assert harness.call(endpoint.listener, "GET", "/nothing").status == 404
    assert content(harness) == before
    assert seen.labels(endpoint.listener, endpoint.path, "500")._value.get() == 0


def test_chunked_bodies_are_fine(harness: DispatcherHarness) -> None:
    head = head_of("POST", "/internal/task-claim", {WORKER: harness.worker_token})
    body = msgspec.json.encode({"task_id": NOWHERE, "worker_id": "w"})
    chunks = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in body) + b"0\r\n\r\n"
    reply = raw_reply(harness, "internal", f"{head}\ntransfer-encoding: chunked", chunks)
    assert reply.body == {"status": "NotClaimed", "reason": "NotFound"}


def test_no_length_and_no_body(harness: DispatcherHarness) -> None:
    head = head_of("POST", "/internal/task-claim", {WORKER: harness.worker_token})
    assert raw_reply(harness, "internal", head).code == "body_malformed"


def test_bad_path_and_query_parameters(harness: DispatcherHarness) -> None:
    worker, service = {WORKER: harness.worker_token}, {SERVICE: harness.service_token}
    bad = ("x", NOWHERE[:-1], NOWHERE.replace("-", ""), "%7B" + NOWHERE + "%7D", NOWHERE[:-1] + "_", "%C3%28", "%00")
    with Refusals(harness) as refusals:
        for text in ("", *bad):
            reply = harness.call("internal", "GET", f"/internal/task-fetch?task_id={text}", None, worker)
            refusals.check(reply, 422, "body_invalid")
        for text in bad:
            reply = harness.call("internal", "POST", f"/internal/tasks/{text}/cancel", None, service)
            if "%" in text:  # no path of ours has an escape
                refusals.check(reply, 404, "route_not_found")
            else:
                refusals.check(reply, 422, "body_invalid", field="task_id")
        for query in ("", "?task_id", "?other=1"):
            reply = harness.call("internal", "GET", f"/internal/task-fetch{query}", None, worker)
            refusals.check(reply, 422, "body_invalid", field="task_id")
        for limit in ("0", "-1", "1001", "1.5", "", "x", "000001" + "0" * 30, "9" * 5000, "%C2%B2"):
            reply = harness.call("internal", "GET", f"/internal/outbox?limit={limit}", None, service)
            refusals.check(reply, 422, "body_invalid")
        reply = harness.call("internal", "GET", "/internal/outbox?status=Pending", None, service)
        refusals.check(reply, 422, "body_invalid", field="status")
        many = "&".join(f"a{n}=1" for n in range(40))
        refusals.check(harness.call("internal", "GET", f"/internal/outbox?{many}", None, service), 422, "body_invalid")
        unknown = harness.call("internal", "GET", f"/internal/task-fetch?task_id={NOWHERE}", None, worker)
        refusals.check(unknown, 404, "task_not_found")
        reply = harness.call("internal", "POST", f"/internal/tasks/{NOWHERE}/cancel", None, service)
        refusals.check(reply, 404, "task_not_found")
        requeue = harness.service("POST", "/internal/outbox/requeue", {"outbox_ids": [2**63 - 1]})
        refusals.check(requeue, 404, "outbox_row_not_found")


def test_bad_jobs(harness: DispatcherHarness) -> None:
    org = fresh()
    known = harness.make_job(org=org, outputs=[{"name": "a", "storage": "s3"}])
    stranger = harness.make_job(org=fresh(), outputs=[{"name": "b", "storage": "s3"}])["outputs"][0]["dataset_uuid"]
    good = {"org": org, "dag": "dag", "name": "job", "runtime": "ecs_platform", "operator": "noop"}
    names: list[Any] = ["", "A", "1a", "a-b", "a b", "a\n", "ä", "a" * 129, "a/../b", "a\u2028"]

    with Refusals(harness) as refusals:

        def refused(fields: dict[str, Any], code: str, field: str) -> None:
            refusals.check(harness.service("POST", "/internal/jobs", good | fields), 422, code, field)

        for name in names:
            for key in ("org", "dag", "name"):
                refused({key: name}, "body_invalid", key)
            refused({"outputs": [{"name": name}]}, "body_invalid", "outputs[0].name")
        for runtime in ("", "a,b", "*", "a\n", "a" * 65, "ä"):
            refused({"runtime": runtime}, "body_invalid", "runtime")
        refused({"operator": ""}, "body_invalid", "operator")
        refused({"outputs": [{"name": "a", "storage": "disk"}]}, "body_invalid", "outputs[0].storage")
        refused({"outputs": [{"name": f"a{n}"} for n in range(65)]}, "body_invalid", "outputs")
        refused({"outputs": [{"name": "a"}, {"name": "a"}]}, "job_invalid", "outputs")
        refused({"outputs": [{"name": "a", "storage": "none"}]}, "job_invalid", "outputs[0].storage")
        other = {"name": "a", "storage": "s3", "dataset_uuid": NOWHERE}
        refused({"outputs": [other]}, "job_invalid", "outputs[0].dataset_uuid")
        taken = {"name": "mine", "storage": "s3", "dataset_uuid": stranger}
        refused({"outputs": [taken]}, "job_invalid", "outputs[0].dataset_uuid")
        for limits, field in (
            ({"timeout_seconds": 0}, "limits.timeout_seconds"),
            ({"timeout_seconds": -5}, "limits.timeout_seconds"),
            ({"timeout_seconds": 2**31}, "limits.timeout_seconds"),
            ({"heartbeat_timeout_seconds": 0}, "limits.heartbeat_timeout_seconds"),
            ({"max_attempts": 0}, "limits.max_attempts"),
            ({"max_attempts": 10**20}, "limits.max_attempts"),
            ({"unknown": 1}, "limits.unknown"),
        ):
            refused({"limits": limits}, "body_invalid", field)
        refused({"runtime": "lambda", "limits": {"timeout_seconds": 901}}, "job_invalid", "limits.timeout_seconds")
        assert known["duplicate"] is False


def test_configs_that_nest_too_deep(harness: DispatcherHarness) -> None:
    """What is accepted can be handed out again: no depth lies between what we read and what we can write."""
    org = fresh()

    def register(depth: int) -> Reply:
        config = b'{"a":' * (depth - 1) + b"{}" + b"}" * (depth - 1)
        body = b'{"org":"%s","dag":"d","name":"n","runtime":"lambda","operator":"x","config":%s}' % (
            org.encode(),
            config,
        )
        return harness.call("internal", "POST", "/internal/jobs", body, {SERVICE: harness.service_token})

    for depth in (1, MAX_CONFIG_DEPTH):
        reply = register(depth)
        assert reply.status == 200
        lease = harness.claim(harness.make_task(reply.body["job_id"])).body
        assert str(lease["task"]["config"]).count("{") == depth
    with Refusals(harness) as refusals:
        for depth in (MAX_CONFIG_DEPTH + 1, 500, 900):
            refusals.check(register(depth), 422, "body_invalid", field="")
        for depth in (1500, 50_000):
            # How deep the decoder itself can go differs between versions of Python; past that it is no JSON to us.
            reply = register(depth)
            refusals.check(reply, *((422, "body_invalid") if reply.status == 422 else (400, "body_malformed")))


def test_endless_heads_are_cut_off(harness: DispatcherHarness) -> None:
    """The limit is exact to one read of the socket, so what is to be refused is many times that."""
    line = "x-long: " + "a" * MAX_HEAD_BYTES
    many = "\n".join([line] * 32)
    for head in (f"GET /healthz HTTP/1.1\n{many}", f"GET /healthz?{'a' * 32 * MAX_HEAD_BYTES} HTTP/1.1"):
        status, _ = raw_request(harness, "internal", head)
        assert status in (0, 400), "refused, or hung up on before all of it was sent"
    assert raw_request(harness, "internal", f"GET /healthz HTTP/1.1\nx-long: {'a' * 70_000}")[0] == 200


def test_the_listener_survives_what_is_not_http(harness: DispatcherHarness) -> None:
    for head in ("NONSENSE", "GET / HTTP/9.9", "POST /internal/task-claim HTTP/1.1\ncontent-length: -1"):
        status, _ = raw_request(harness, "internal", head)
        assert status in (0, 400)
    wait_until(lambda: harness.call("internal", "GET", "/healthz").status == 200, "the listener to answer")

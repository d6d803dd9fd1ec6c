"""Who may call what: the real routers of the three listeners against one table, with every credential there is."""

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.http.support import (
    CAPABILITY,
    SERVICE,
    WORKER,
    Refusals,
    claimed,
    raw_reply,
    user_token,
)
from tests.security.test_capability_tokens import resigned
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.http.routing import Listener, Principal
from tracelake.stack.credentials import user_token as make_token
from tracelake.wire.webhooks import DELIVERY_HEADER, SIGNATURE_HEADER, signature_header

ROLES = {
    ("GET", "/v1/whoami"): None,
    ("GET", "/v1/dlq"): "reader",
    ("GET", "/v1/dlq/{publish_id}"): "reader",
    ("POST", "/v1/dlq-replay"): "writer",
    ("POST", "/v1/dlq-drop"): "writer",
    ("GET", "/v1/quota"): "reader",
    ("GET", "/v1/dags"): "reader",
    ("POST", "/v1/dags/{dag}/versions"): "reader",
    ("GET", "/v1/dags/{dag}/versions"): "reader",
    ("GET", "/v1/dags/{dag}/versions/{number}"): "reader",
    ("PUT", "/v1/dags/{dag}/active"): "writer",
    ("GET", "/v1/dags/{dag}/jobs"): "reader",
    ("POST", "/v1/dags/{dag}/jobs/{job}/trigger"): "writer",
    ("POST", "/v1/dags/{dag}/jobs/{job}/rebuild"): "writer",
    ("GET", "/v1/dags/{dag}/jobs/{job}/webhook"): "admin",
    ("POST", "/v1/dags/{dag}/jobs/{job}/webhook/rotate"): "admin",
    ("GET", "/v1/dags/{dag}/jobs/{job}/deliveries"): "reader",
    ("GET", "/v1/dags/{dag}/jobs/{job}/deliveries/{delivery_id}"): "writer",
    ("GET", "/v1/sources"): "reader",
    ("POST", "/v1/dags/{dag}/jobs/{job}/pause"): "writer",
    ("POST", "/v1/dags/{dag}/jobs/{job}/resume"): "writer",
    ("GET", "/v1/tasks"): "reader",
    ("POST", "/v1/task-lookup"): "reader",
    ("GET", "/v1/tasks/{task_id}"): "reader",
    ("POST", "/v1/tasks/{task_id}/cancel"): "writer",
    ("POST", "/v1/tasks/{task_id}/retry"): "writer",
    ("POST", "/v1/tasks/{task_id}/skip"): "writer",
    ("GET", "/v1/events"): "reader",
    ("POST", "/v1/event-lookup"): "reader",
    ("GET", "/v1/datasets"): "reader",
    ("GET", "/v1/datasets/{name}"): "reader",
    ("GET", "/v1/datasets/{name}/lineage"): "reader",
    ("POST", "/v1/datasets/{name}/files"): "reader",
    ("GET", "/v1/datasets/{name}/content"): "reader",
    ("GET", "/v1/overview"): "reader",
    ("GET", "/v1/pressure"): "reader",
    ("GET", "/v1/why/task/{task_id}"): "reader",
    ("GET", "/v1/why/job/{dag}/{job}"): "reader",
    ("GET", "/v1/why/dataset/{name}"): "reader",
    ("GET", "/v1/audit"): "admin",
}
"""The least role of each route of people; each role includes the ones before it."""
DEPLOY = ("POST", "/v1/dags/{dag}/versions")
"""A reader may only ask for the plan."""

TABLE = {
    *(("public", method, path, "user") for method, path in ROLES),
    ("public", "POST", "/v1/webhooks/{path}", "signature"),
    ("task", "POST", "/v1/task/heartbeat", "task"),
    ("task", "POST", "/v1/task/complete", "task"),
    ("task", "POST", "/v1/task/events", "task"),
    ("task", "POST", "/v1/task/files", "task"),
    ("task", "POST", "/v1/task/buffer-publish", "task"),
    ("task", "POST", "/v1/task/batch", "per item"),
    ("task", "GET", "/internal/jwks/task", "none"),
    ("internal", "GET", "/internal/jwks/task", "none"),
    ("internal", "POST", "/internal/task-claim", "worker"),
    ("internal", "POST", "/internal/task-claim-batch", "worker"),
    ("internal", "GET", "/internal/task-fetch", "worker"),
    ("internal", "POST", "/internal/task-token", "worker"),
    ("internal", "POST", "/internal/task-introspect", "service"),
    ("internal", "POST", "/internal/jobs", "service"),
    ("internal", "POST", "/internal/tasks", "service"),
    ("internal", "POST", "/internal/tasks/{task_id}/cancel", "service"),
    ("internal", "POST", "/internal/dataset-files", "service"),
    ("internal", "GET", "/internal/buffers", "service"),
    ("internal", "POST", "/internal/buffer-open", "service"),
    ("internal", "POST", "/internal/buffer-committed", "service"),
    ("internal", "POST", "/internal/buffer-rejected", "service"),
    ("internal", "GET", "/internal/outbox", "service"),
    ("internal", "POST", "/internal/outbox/requeue", "service"),
    ("internal", "GET", "/internal/dead-letters", "service"),
    ("internal", "POST", "/internal/dead-letters/drop", "service"),
    ("internal", "GET", "/internal/gc", "service"),
    ("internal", "POST", "/internal/gc", "service"),
    ("internal", "GET", "/internal/quotas", "service"),
    ("internal", "POST", "/internal/quotas", "service"),
    ("internal", "GET", "/internal/sources", "service"),
    ("internal", "POST", "/internal/sources/{job_id}/fire", "service"),
    ("internal", "GET", "/healthz", "none"),
    ("internal", "GET", "/readyz", "none"),
    ("internal", "GET", "/metrics", "metrics"),
}
HEADERS = {
    "user": "authorization",
    "task": CAPABILITY,
    "worker": WORKER,
    "service": SERVICE,
    "signature": SIGNATURE_HEADER,
}
GUARDED = sorted(row for row in TABLE if row[3] in HEADERS)
PATHS = sorted({path for _, _, path, _ in TABLE})


def path_of(path: str) -> str:
    nobody = "00000000-0000-4000-8000-000000000000"
    values = {"task_id": nobody, "job_id": nobody, "number": "1"}
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], "nowhere"), path)


@pytest.fixture(scope="module")
def secrets(harness: DispatcherHarness) -> dict[str, str]:
    return {
        "user": user_token(harness),
        "task": claimed(harness).token,
        "worker": harness.worker_token,
        "service": harness.service_token,
        "signature": signature_header(["nobody's"], 1, "one", b"{}"),
    }


@pytest.fixture(scope="module")
def spoilt(harness: DispatcherHarness, secrets: dict[str, str]) -> dict[str, list[str]]:
    """Of each principal what nearly is a credential of its own: over, of another issuer, cut, longer, or nonsense."""
    now = harness.sql("SELECT trace_now() AS now")[0]["now"]
    before, day = now - timedelta(days=2), timedelta(days=1)
    keys, rules = harness.credentials.user_keys, harness.config.user_tokens
    person: dict[str, Any] = {"subject": "admin", "org": "acme", "roles": ["admin"]}
    expired = make_token(keys, rules, **person, now=before, life=day)
    elsewhere = make_token(keys, replace(rules, issuer="elsewhere"), **person, now=now)
    for_others = make_token(keys, replace(rules, audience="others"), **person, now=now)
    task = claimed(harness)
    own = {
        "user": [expired, elsewhere, for_others],
        "task": [resigned(task, exp=int(before.timestamp())), resigned(task, iss="elsewhere")],
    }
    nonsense = ["x", "x" * 43, "null", "a.b.c", "*"]
    near = {kind: [token[:-1], f"{token}x", token.swapcase(), f"{token},{token}"] for kind, token in secrets.items()}
    return {kind: [*own.get(kind, []), *near[kind], *nonsense] for kind in HEADERS}


def as_sent(header_of: str, token: str) -> dict[str, str]:
    headers = {HEADERS[header_of]: f"Bearer {token}" if header_of == "user" else token}
    return headers | ({DELIVERY_HEADER: "one"} if header_of == "signature" else {})


def test_the_routers_hold_exactly_this_table(harness: DispatcherHarness) -> None:
    real = {
        (listener.value, route.method, route.path, route.principal.value)
        for listener in Listener
        for route in harness.dispatcher.apps[listener].router.routes
    }
    assert real == TABLE
    assert {principal.value for principal in Principal} == {principal for _, _, _, principal in TABLE}
    roles = {
        (route.method, route.path): route.role and route.role.value
        for route in harness.dispatcher.apps[Listener.PUBLIC].router.routes
        if route.principal is Principal.USER
    }
    assert roles == ROLES


@pytest.mark.parametrize(("method", "path"), sorted(ROLES))
def test_a_role_opens_its_routes_and_those_below_it(harness: DispatcherHarness, method: str, path: str) -> None:
    order = ["reader", "writer", "admin"]
    needed = ROLES[method, path]
    held: list[list[str]] = [[], ["owner"], ["Admin"], *([role] for role in order), ["reader", "owner"], order]
    with Refusals(harness) as refusals:
        for roles in held:
            headers = {"authorization": f"Bearer {user_token(harness, roles=roles)}"}
            # A body that no route takes: whoever gets that far is told so, and changes nothing.
            target = path_of(path) + ("?dry_run=true" if (method, path) == DEPLOY else "")
            reply = harness.call("public", method, target, None if method == "GET" else b"{", headers)
            highest = max((order.index(role) for role in roles if role in order), default=-1)
            if needed is not None and highest < order.index(needed):
                error = refusals.check(reply, 403, "role_forbidden")
                assert error["details"] == {"needed_role": needed}
                known = ", ".join(role for role in order if role in roles) or "none"
                assert error["message"] == f"This needs the role {needed}; your token has {known}."
            else:
                assert reply.status != 403


def test_a_reader_may_plan_but_not_deploy(harness: DispatcherHarness) -> None:
    method, path = DEPLOY
    with Refusals(harness) as refusals:
        for query in ("", "?dry_run=false", "?activate=true"):
            headers = {"authorization": f"Bearer {user_token(harness, roles=['reader'])}"}
            error = refusals.check(
                harness.call("public", method, path_of(path) + query, b"{", headers), 403, "role_forbidden"
            )
            assert error["details"] == {"needed_role": "writer"}


@pytest.mark.parametrize(("listener", "method", "path", "principal"), GUARDED)
def test_a_route_takes_its_own_credential_and_no_other(
    harness: DispatcherHarness,
    secrets: dict[str, str],
    spoilt: dict[str, list[str]],
    listener: str,
    method: str,
    path: str,
    principal: str,
) -> None:
    def call(headers: dict[str, str]) -> int:
        reply = harness.call(listener, method, path_of(path), None if method == "GET" else {}, headers)
        if reply.status == 401:
            refusals.check(reply, 401, reply.code)
        return reply.status

    others = {kind: token for kind, token in secrets.items() if kind != principal}
    with Refusals(harness) as refusals:
        assert call({}) == 401
        assert call(as_sent(principal, "")) == 401
        everything: dict[str, str] = {}
        for kind, token in others.items():
            assert call(as_sent(kind, token)) == 401, f"{kind} in its own header"
            assert call(as_sent(principal, token)) == 401, f"{kind} in the header of {principal}"
            everything |= as_sent(kind, token)
        assert call(everything) == 401
        for token in spoilt[principal]:
            assert call(as_sent(principal, token)) == 401, token
        if principal != "signature":  # a webhook that is not there answers like one with another secret
            assert call(as_sent(principal, secrets[principal])) != 401
        if principal == "user":
            assert call({"authorization": secrets["user"]}) == 401
            assert call({"authorization": f"Basic {secrets['user']}"}) == 401


@pytest.mark.parametrize(("listener", "method", "path", "principal"), GUARDED)
def test_nothing_is_judged_before_the_credential(
    harness: DispatcherHarness, listener: str, method: str, path: str, principal: str
) -> None:
    """Whoever has none hears the same whatever else is wrong: names, parameters and bodies are not looked at."""
    answers = [
        harness.call(listener, method, target, body)
        for target in (path_of(path), re.sub(r"\{\w+\}", "~", path), path_of(path) + "?limit=x&nothing=1&limit=")
        for body in ([None] if method == "GET" else [None, b"{", b'{"task_id": 1}', b"\xff" * 100])
    ]
    assert {answer.code for answer in answers} == {"credential_missing"}
    assert all(answer == answers[0] for answer in answers)


def test_a_missing_credential_is_named(harness: DispatcherHarness) -> None:
    for listener, method, path, principal in GUARDED:
        reply = harness.call(listener, method, path_of(path), None)
        assert (reply.code, reply.body["error"]["details"]) == ("credential_missing", {"header": HEADERS[principal]})


def test_a_credential_sent_twice_is_none(harness: DispatcherHarness, secrets: dict[str, str]) -> None:
    for listener, method, path, principal in GUARDED:
        line = "\n".join(f"{name}: {value}" for name, value in as_sent(principal, secrets[principal]).items())
        head = f"{method} {path_of(path)} HTTP/1.1\nhost: localhost\ncontent-length: 0\n{line}\n{line}"
        reply = raw_reply(harness, listener, head)
        assert (reply.status, reply.code) == (401, "credential_missing")


def test_batches_take_a_credential_per_item_alone(harness: DispatcherHarness, secrets: dict[str, str]) -> None:
    headers = {name: secrets[kind] for kind, name in HEADERS.items()}
    with Refusals(harness):
        calls = [{"call": "heartbeat", "capability_token": secrets[kind], "body": {}} for kind in HEADERS]
        reply = harness.call("task", "POST", "/v1/task/batch", {"calls": calls}, headers)
        assert reply.status == 200
        statuses = dict(zip(HEADERS, (answer["status"] for answer in reply.body["answers"]), strict=True))
        assert statuses == {"user": 401, "task": 422, "worker": 401, "service": 401, "signature": 401}


@pytest.mark.parametrize("listener", ["public", "task", "internal"])
def test_paths_of_another_listener_are_plain_404(
    harness: DispatcherHarness, secrets: dict[str, str], listener: str
) -> None:
    mine = {path for where, _, path, _ in TABLE if where == listener}
    headers = {name: secrets[kind] for kind, name in HEADERS.items()} | as_sent("user", secrets["user"])
    with Refusals(harness) as refusals:
        for path in PATHS:
            for method in ("GET", "POST"):
                if path not in mine:
                    reply = harness.call(listener, method, path_of(path), None, headers)
                    refusals.check(reply, 404, "route_not_found")
        for path in ("/", "", "/v1", "/v1/task", "/v1/task/", "/internal", "/internal/", "/docs", "/openapi.json"):
            refusals.check(harness.call(listener, "GET", path or "/", None, headers), 404, "route_not_found")


@pytest.mark.parametrize("listener", ["public", "task", "internal"])
def test_other_spellings_of_a_path_are_404(harness: DispatcherHarness, secrets: dict[str, str], listener: str) -> None:
    headers = {name: secrets[kind] for kind, name in HEADERS.items()}
    for _, method, path, _ in sorted(row for row in TABLE if row[0] == listener):
        real = path_of(path)
        spellings = [real + "/", "/" + real, real.upper(), real + ";x", real + "%00", real.replace("/", "/./", 1)]
        if path.endswith("}"):
            spellings.remove(real + ";x")  # a parameter's value; which ones are refused is another test's matter
        if path.endswith(("{path}", "{delivery_id}")):
            spellings.remove(real + "/")  # likewise: these may hold slashes
        for spelling in spellings:
            reply = harness.call(listener, method, spelling, None, headers)
            assert (reply.status, reply.code) == (404, "route_not_found"), spelling


@pytest.mark.parametrize("listener", ["public", "task", "internal"])
def test_another_method_is_405_and_names_the_right_one(harness: DispatcherHarness, listener: str) -> None:
    with Refusals(harness) as refusals:
        for path in sorted({path for where, _, path, _ in TABLE if where == listener}):
            allowed = sorted(method for where, method, same, _ in TABLE if (where, same) == (listener, path))
            for wrong in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} - {*allowed}:
                error = refusals.check(harness.call(listener, wrong, path_of(path)), 405, "method_not_allowed")
                assert error["details"] == {"allowed": allowed}


def test_the_keys_are_open_on_task_and_internal(harness: DispatcherHarness) -> None:
    documents = [harness.call(listener, "GET", "/internal/jwks/task") for listener in ("task", "internal")]
    assert documents[0] == documents[1]
    assert documents[0].status == 200
    (key,) = documents[0].body["keys"]
    assert set(key) == {"kty", "crv", "alg", "use", "kid", "x", "y"}
    assert harness.call("public", "GET", "/internal/jwks/task").code == "route_not_found"


def test_probes_need_no_credential(harness: DispatcherHarness) -> None:
    assert harness.call("internal", "GET", "/healthz").body["status"] == "ok"
    assert harness.call("internal", "GET", "/readyz").body["checks"] == {
        "state": "ok",
        "queue": "ok",
        "lifecycle": "ok",
    }
    assert b"trace_http_requests_total" in harness.call("internal", "GET", "/metrics").body
    harness.call("internal", "POST", "/internal/task-claim")
    refused = harness.call("internal", "GET", "/metrics").body.decode()
    assert 'trace_token_failures_total{kind="worker",reason="credential_missing"}' in refused

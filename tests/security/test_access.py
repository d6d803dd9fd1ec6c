"""Who may call what: the real routers of the three listeners and the table of routes, with every credential."""

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
from tracelake.stack.credentials import user_token as make_token
from tracelake.wire.contract import DISPATCHER_LISTENERS, Principal
from tracelake.wire.routes import ROUTES, routes_of
from tracelake.wire.webhooks import DELIVERY_HEADER, SIGNATURE_HEADER, signature_header

USER_ROUTES = [
    route for listener in DISPATCHER_LISTENERS for route in routes_of(listener) if route.principal is Principal.USER
]

ROLES = {(route.method, route.path): route.role and route.role.value for route in USER_ROUTES}
"""The least role of each route of people; each role includes the ones before it."""
DEPLOY = ("POST", "/v1/dags/{dag}/versions")
"""A reader may only ask for the plan."""
READER_POSTS = {
    DEPLOY,
    ("POST", "/v1/task-lookup"),
    ("POST", "/v1/event-lookup"),
    ("POST", "/v1/datasets/{name}/files"),
    ("POST", "/v1/datasets/{name}/rows"),
}
"""They change nothing, though they have a body."""
ADMIN_ONLY = {
    "/v1/audit",
    "/v1/query-audit",
    "/v1/tokens",
    "/v1/tokens/{token_id}",
    "/v1/token-revocations",
    "/v1/dags/{dag}/purge",
    "/v1/dags/{dag}/jobs/{job}/webhook",
    "/v1/dags/{dag}/jobs/{job}/webhook/rotate",
}

TABLE = {
    (listener.value, route.method, route.path, route.principal.value)
    for route in ROUTES
    for listener in route.listeners
    if listener in DISPATCHER_LISTENERS
}
"""Of the Dispatcher; `tests/query` compares the routers of the Query Service."""
WORKER_PATHS = {
    "/internal/task-claim",
    "/internal/task-claim-batch",
    "/internal/task-fetch",
    "/internal/task-token",
    "/internal/task-logs",
}
WITHOUT_CREDENTIAL = {
    ("internal", "/healthz", "none"),
    ("internal", "/readyz", "none"),
    ("internal", "/metrics", "metrics"),
    ("internal", "/internal/jwks/task", "none"),
    ("task", "/internal/jwks/task", "none"),
    ("task", "/v1/task/batch", "per item"),
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
    values = {"task_id": nobody, "job_id": nobody, "bundle_id": nobody, "number": "1"}
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


def test_the_routers_hold_exactly_the_table(harness: DispatcherHarness) -> None:
    for listener in DISPATCHER_LISTENERS:
        router = harness.dispatcher.apps[listener].router
        assert len(router.routes) == len(set(router.routes))
        assert set(router.routes) == {route for route in ROUTES if listener in route.listeners}


def test_a_route_asks_for_the_credential_of_its_listener_and_path() -> None:
    """What the table may say: a slip in it opens no route to somebody else."""
    unguarded = set()
    for listener, _, path, principal in TABLE:
        if principal not in HEADERS:
            unguarded.add((listener, path, principal))
        elif listener == "public":
            assert principal == ("signature" if path.startswith("/v1/webhooks/") else "user"), path
        elif listener == "task":
            assert (principal, path.startswith("/v1/task/")) == ("task", True), path
        else:
            assert principal == ("worker" if path in WORKER_PATHS else "service"), path
            assert path.startswith("/internal/")
    assert unguarded == WITHOUT_CREDENTIAL


def test_what_changes_something_needs_a_writer() -> None:
    for (method, path), role in ROLES.items():
        if path == "/v1/whoami":
            assert role is None
        elif path in ADMIN_ONLY:
            assert role == "admin", path
        elif method == "GET" and not path.endswith("/{delivery_id}"):  # what a stranger sent is for writers
            assert role == "reader", path
        else:
            assert role == ("reader" if (method, path) in READER_POSTS else "writer"), path


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

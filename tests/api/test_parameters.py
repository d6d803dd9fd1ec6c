"""Parameters of people's routes: one spelling each, and no unknown one."""

import pytest

from tests.api.support import Seed, User
from tests.http.support import Refusals
from tests.support.dispatcher import DispatcherHarness
from tracelake.wire.contract import Listener, Principal
from tracelake.wire.routes import routes_of

NOWHERE = "00000000-0000-4000-8000-000000000000"
BAD = {
    "limit": ["0", "501", "-1", "1.0", "", "x", "%2B1", "01", "1e2", "9" * 5000, "%C2%B2", "%D9%A1", "true"],
    "status": ["queued", "", "Queued,Running", "Held"],
    "state": ["routed", "", "Waiting"],
    "dag": ["", "Chain", "1a", "a-b", "a" * 129, "a%00", "a%0A", "%C3%A4"],
    "job": ["", "Fetch", "a%20b"],
    "dataset": ["", "Blocks", "a.b"],
    "check": ["", "Not_null", "a.b"],
    "failed": ["", "1", "True"],
    "since": ["", "yesterday", "2026-01-01", "2026-01-01T00:00:00", "1767225600", "2026-13-01T00:00:00Z",
              "2026-01-01t00:00:00z", "2026-01-01T00:00:00%2B99:99", "0001-01-01T00:00:00%2B14:00",
              "9999-12-31T23:59:59-14:00"],
    "until": ["2026-02-30T00:00:00Z", "2026-01-01%2000:00:00Z"],
    "start": ["", "-1", str(2**63), "1-2"],
    "end": ["x"],
    "unit": ["", "a" * 513, "%00"],
    "version": ["0", "-1", "x", str(2**31)],
    "dry_run": ["", "1", "True", "yes"],
    "activate": ["", "1", "FALSE"],
    "bundle_id": ["", "x", NOWHERE[:-1], "1"],
    "key": ["", "a" * 201, "%00"],
    "across": ["", "1", "True"],
    "current": ["", "1", "True"],
}  # fmt: skip
_BAD_UUIDS = ["", "x", NOWHERE[:-1], "{" + NOWHERE + "}", "1"]
BAD_CURSORS = dict.fromkeys(("/v1/tasks", "/v1/query-audit", "/v1/udf/bundles", "/v1/tokens"), _BAD_UUIDS)
REQUIRED = {"/v1/datasets/{name}/content": (f"version={NOWHERE}", "revision=1"), "/v1/triggers": ("key=k",)}
"""Good values, beside those that are looked at."""
ROUTES = [route for route in routes_of(Listener.PUBLIC) if route.principal is Principal.USER]


@pytest.fixture(scope="module")
def user(harness: DispatcherHarness) -> User:
    return Seed(harness).user("admin")


def url(path: str) -> str:
    names = {"dag": "nowhere", "job": "nothing", "name": "none_such", "number": 1, "delivery_id": "x"}
    return path.format(**names, task_id=NOWHERE, publish_id=NOWHERE, bundle_id=NOWHERE, token_id=NOWHERE)


CASES = [(route.method, route.path, item.name) for route in ROUTES for item in route.query]


@pytest.mark.parametrize(("method", "path", "name"), CASES)
def test_bad_values_are_refused_by_name(user: User, method: str, path: str, name: str) -> None:
    required = REQUIRED.get(path, ())
    bad = BAD.get(name) or BAD_CURSORS.get(path, ["", "-1", "x", str(2**63), NOWHERE])
    with Refusals(user.harness) as refusals:
        for text in bad:
            query = "&".join([f"{name}={text}", *(item for item in required if not item.startswith(f"{name}="))])
            reply = user.call(method, f"{url(path)}?{query}", None if method == "GET" else b"")
            refusals.check(reply, 422, "body_invalid", field=name)


@pytest.mark.parametrize(("method", "path"), [(route.method, route.path) for route in ROUTES])
def test_unknown_and_repeated_names_are_refused(user: User, method: str, path: str) -> None:
    body = None if method == "GET" else b"{}"
    with Refusals(user.harness) as refusals:
        for name in ("limits", "Limit", "page", "a%20b", "x" * 500):
            reply = user.call(method, f"{url(path)}?{name}=1", body)
            shown = name.replace("%20", " ")[:100]
            refusals.check(reply, 422, "body_invalid", field=shown)
        for route_name in {item.name for route in ROUTES if route.path == path for item in route.query}:
            value = {"limit": "1", "start": "1", "end": "1", "version": "1"}.get(route_name, "a")
            reply = user.call(method, f"{url(path)}?{route_name}={value}&{route_name}={value}", body)
            refusals.check(reply, 422, "body_invalid", field=route_name)


@pytest.mark.parametrize(("method", "path"), [(route.method, route.path) for route in ROUTES if route.path_parameters])
def test_bad_paths(user: User, method: str, path: str) -> None:
    good = {
        "dag": "nowhere",
        "job": "nothing",
        "name": "none_such",
        "number": "1",
        "task_id": NOWHERE,
        "delivery_id": "x",
    }
    bad = {
        "dag": ["Nowhere", "a-b", "a" * 129, ".", "..", "a;b", "1a"],
        "job": ["Nothing", "a.b"],
        "name": ["None", "a+b"],
        "number": ["0", "x", "-1", "01", "1.0", str(2**31), "9" * 400],
        "delivery_id": ["x" * 201],
        "task_id": ["x", NOWHERE[:-1], NOWHERE.replace("-", ""), "{" + NOWHERE + "}"],
    }
    names = [name for name in good if "{" + name + "}" in path]
    with Refusals(user.harness) as refusals:
        for name in names:
            for text in bad[name]:
                reply = user.call(method, path.format(**(good | {name: text})), None if method == "GET" else b"{}")
                refusals.check(reply, 422, "body_invalid", field=name)
            for text in ("%41", "a%2Fb", "%00"):
                reply = user.call(method, path.format(**(good | {name: text})), None)
                refusals.check(reply, 404, "route_not_found")


def test_too_many_parameters(user: User) -> None:
    reply = user.call("GET", "/v1/tasks?" + "&".join(f"a{number}=1" for number in range(40)))
    assert (reply.status, reply.code) == (422, "body_invalid")

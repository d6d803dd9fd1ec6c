"""Another org's things are not there: the same status and the same body as for things that nobody has."""

from typing import Any

import pytest

from tests.api.support import Seed, User, World
from tests.http.support import Refusals, check_leaks
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.dispatcher.http.openapi import declared_routes
from tracelake.dispatcher.http.routing import Listener
from tracelake.dispatcher.http.table import routes_of
from tracelake.model.ids import new_id

NAMED: list[tuple[str, str, Any]] = [
    ("GET", "/v1/dags/{dag}/versions", None),
    ("GET", "/v1/dags/{dag}/versions/{number}", None),
    ("PUT", "/v1/dags/{dag}/active", {"version": 1}),
    ("GET", "/v1/dags/{dag}/jobs", None),
    ("POST", "/v1/dags/{dag}/jobs/{job}/trigger", {"cursor": 1}),
    ("POST", "/v1/dags/{dag}/jobs/{job}/rebuild", None),
    ("POST", "/v1/dags/{dag}/jobs/{job}/pause", None),
    ("POST", "/v1/dags/{dag}/jobs/{job}/resume", None),
    ("GET", "/v1/tasks/{task_id}", None),
    ("POST", "/v1/tasks/{task_id}/cancel", None),
    ("POST", "/v1/tasks/{task_id}/retry", None),
    ("POST", "/v1/tasks/{task_id}/skip", None),
    ("GET", "/v1/datasets/{name}", None),
    ("GET", "/v1/datasets/{name}/lineage", None),
    ("GET", "/v1/why/task/{task_id}", None),
    ("GET", "/v1/why/job/{dag}/{job}", None),
    ("GET", "/v1/why/dataset/{name}", None),
]
LISTS = ["/v1/dags", "/v1/sources", "/v1/tasks", "/v1/events", "/v1/datasets", "/v1/audit"]
OWN = {("GET", "/v1/whoami"), ("POST", "/v1/dags/{dag}/versions")}
"""About the caller alone: a deploy makes a DAG of the caller's own org, whatever others call theirs."""
TWO_LISTS = {("GET", "/v1/pressure"), ("GET", "/v1/overview")}
"""In one answer: `tests/why` and `test_overview` look at these."""
LOOKUPS = {("POST", "/v1/task-lookup"), ("POST", "/v1/event-lookup")}
"""Of what one has seen before: `test_follow` looks at these."""

DEAD_LETTERS = {
    ("GET", "/v1/dlq"),
    ("GET", "/v1/dlq/{publish_id}"),
    ("POST", "/v1/dlq-replay"),
    ("POST", "/v1/dlq-drop"),
}
"""They need a batch that a sink refused: `tests/sink` looks at these."""
WEBHOOKS = {
    ("POST", "/v1/webhooks/{path}"),
    ("GET", "/v1/dags/{dag}/jobs/{job}/webhook"),
    ("POST", "/v1/dags/{dag}/jobs/{job}/webhook/rotate"),
    ("GET", "/v1/dags/{dag}/jobs/{job}/deliveries"),
    ("GET", "/v1/dags/{dag}/jobs/{job}/deliveries/{delivery_id}"),
}
"""They need a webhook that is deployed: `tests/sources` looks at these."""


@pytest.fixture(scope="module")
def owner(harness: DispatcherHarness) -> World:
    world = World(harness)
    for state in ("Queued", "Running", "Failed", "Completed"):
        world.task(world.fetch, state)
    world.event(world.ticks, 1)
    world.sql(
        "INSERT INTO audit_log (org_id, subject, action, target) VALUES ($1, 'me', 'dag.deploy', 'chain')", world.org_id
    )
    return world


@pytest.fixture(scope="module", params=["an org with things of its own", "an org that is not there yet"])
def stranger(harness: DispatcherHarness, owner: World, request: pytest.FixtureRequest) -> User:
    if request.param == "an org that is not there yet":
        return User(harness, f"{owner.org}_unknown", "admin")
    other = Seed(harness)
    other.dataset("mine")
    return User(harness, other.org, "admin")


def test_every_route_is_looked_at() -> None:
    routes = {(route.method, route.path) for route in routes_of(declared_routes(), Listener.PUBLIC)}
    assert (
        routes
        == {(method, path) for method, path, _ in NAMED}
        | {("GET", path) for path in LISTS}
        | OWN
        | WEBHOOKS
        | TWO_LISTS
        | LOOKUPS
        | DEAD_LETTERS
    )


def ask(user: User, method: str, path: str, body: Any, names: dict[str, Any]) -> Reply:
    return user.call(method, path.format(**names), body)


@pytest.mark.parametrize(("method", "path", "body"), NAMED, ids=[f"{method} {path}" for method, path, _ in NAMED])
def test_a_thing_of_another_org_is_not_there(owner: World, stranger: User, method: str, path: str, body: Any) -> None:
    real = {"dag": "chain", "job": "fetch", "name": "blocks", "number": 1}
    unreal = {"dag": "nowhere", "job": "nothing", "name": "none_such", "number": 1, "task_id": new_id()}
    tasks = [row["task_id"] for row in owner.sql("SELECT task_id FROM tasks WHERE org_id = $1", owner.org_id)]
    with Refusals(owner.harness):
        for task_id in tasks:
            theirs = ask(stranger, method, path, body, real | {"task_id": task_id})
            nobodys = ask(stranger, method, path, body, unreal)
            assert theirs.status == 404, theirs
            assert theirs == nobodys, "nothing tells the two apart"
            check_leaks(theirs.body)
    mine = ask(User(owner.harness, owner.org, "admin"), method, path, body, real | {"task_id": tasks[0]})
    assert mine.status != 404, "or the answers above prove nothing"


def rows_of(reply: dict[str, Any]) -> list[Any]:
    """The list of an answer; beside it there may be a time."""
    (rows,) = [value for value in reply.values() if isinstance(value, list)]
    return rows


@pytest.mark.parametrize("path", LISTS)
def test_lists_hold_nothing_of_another_org(owner: World, stranger: User, path: str) -> None:
    assert [row for row in rows_of(stranger.get(path)) if row.get("name") != "mine"] == []
    assert rows_of(User(owner.harness, owner.org, "admin").get(path)), "or the list above proves nothing"


@pytest.mark.parametrize(
    ("query", "code"),
    [("/v1/tasks?dag=chain", "dag_not_found"), ("/v1/tasks?job=fetch", "job_not_found"),
     ("/v1/events?dataset=blocks", "dataset_not_found")],
)  # fmt: skip
def test_names_of_another_org_are_not_there(owner: World, stranger: User, query: str, code: str) -> None:
    theirs = stranger.call("GET", query)
    assert (theirs.status, theirs.code) == (404, code)
    assert theirs == stranger.call("GET", f"{query}_too"), "nothing tells it from a name that nobody has"
    assert User(owner.harness, owner.org, "admin").call("GET", query).status == 200


@pytest.mark.parametrize("query", ["/v1/tasks?status=Completed", "/v1/events?state=Routed"])
def test_filters_by_state_find_nothing_of_another_org(owner: World, stranger: User, query: str) -> None:
    (rows,) = stranger.get(query).values()
    assert rows == []


def test_a_cursor_of_another_org_opens_nothing(owner: World, stranger: User) -> None:
    newest = max(row["task_id"] for row in owner.sql("SELECT task_id FROM tasks"))
    assert stranger.get(f"/v1/tasks?cursor={newest}") == {"tasks": []}
    assert stranger.get(f"/v1/events?cursor={2**62}") == {"events": []}
    assert stranger.get(f"/v1/audit?cursor={2**62}") == {"entries": []}

"""Another org's things are not there: the same status and the same body as for things that nobody has.

Every route of the public listener stands in one of the lists below; a new one without an entry fails.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.api.support import Seed, User, World
from tests.bundles.uploading import push
from tests.http.support import Refusals, check_leaks
from tests.sink.flow import BufferFlow
from tests.sources.webhook_support import Hook
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.dispatcher.run_logs.rows import log_uris
from tracelake.model.ids import new_id
from tracelake.wire.contract import Listener
from tracelake.wire.routes import routes_of

_JOB, _HOOK = "/v1/dags/{dag}/jobs/{job}", "/v1/dags/{hook_dag}/jobs/{hook}"
NAMED: list[tuple[str, str, Any]] = [
    ("GET", "/v1/dags/{dag}/versions", None),
    ("GET", "/v1/dags/{dag}/versions/{number}", None),
    ("PUT", "/v1/dags/{dag}/active", {"version": 1}),
    ("GET", "/v1/dags/{dag}/removal", None),
    ("POST", "/v1/dags/{dag}/remove", None),
    ("POST", "/v1/dags/{dag}/restore", None),
    ("POST", "/v1/dags/{dag}/purge", None),
    ("GET", "/v1/dags/{dag}/jobs", None),
    ("GET", "/v1/dags/{dag}/jobs?version={number}", None),
    ("POST", f"{_JOB}/trigger", {"cursor": 1}),
    ("POST", f"{_JOB}/rebuild", None),
    ("POST", f"{_JOB}/pause", None),
    ("POST", f"{_JOB}/resume", None),
    ("POST", f"{_JOB}/repair", {"from_block": 1}),
    ("GET", f"{_HOOK}/webhook", None),
    ("POST", f"{_HOOK}/webhook/rotate", None),
    ("GET", f"{_HOOK}/deliveries", None),
    ("GET", f"{_HOOK}/deliveries/{{delivery_id}}", None),
    ("GET", "/v1/tasks?dag={dag}", None),
    ("GET", "/v1/tasks?job={job}", None),
    ("GET", "/v1/task-failures?dag={dag}", None),
    ("GET", "/v1/task-failures?job={job}", None),
    ("GET", "/v1/triggers?key={key}", None),
    ("GET", "/v1/tasks/{task_id}", None),
    ("GET", "/v1/tasks/{task_id}/log", None),
    ("POST", "/v1/tasks/{task_id}/cancel", None),
    ("POST", "/v1/tasks/{task_id}/retry", None),
    ("POST", "/v1/tasks/{task_id}/skip", None),
    ("GET", "/v1/events?dataset={name}", None),
    ("GET", "/v1/datasets/{name}", None),
    ("GET", "/v1/checks?dataset={name}", None),
    ("GET", "/v1/datasets/{name}/check-results", None),
    ("GET", "/v1/datasets/{name}/lineage", None),
    ("POST", "/v1/datasets/{name}/files", {}),
    ("POST", "/v1/datasets/{name}/rows", {}),
    ("GET", "/v1/dlq?dataset={table}", None),
    ("GET", "/v1/dlq/{publish_id}", None),
    ("POST", "/v1/dlq-replay", {"publish_ids": ["{publish_id}"]}),
    ("POST", "/v1/dlq-replay", {"dataset": "{table}"}),
    ("POST", "/v1/dlq-drop", {"publish_ids": ["{publish_id}"]}),
    ("POST", "/v1/dlq-drop", {"dataset": "{table}"}),
    ("GET", "/v1/udf/bundles/{bundle_id}", None),
    ("POST", "/v1/udf/bundles/{bundle_id}/pieces", {"piece": "any"}),
    ("POST", "/v1/udf/bundles/{bundle_id}/finalize", {"sha256": "0" * 64, "language": "rust"}),
    ("POST", "/v1/udf/bundles/{bundle_id}/disable", None),
    ("GET", "/v1/dags/{dag}/jobs/{job}/runs", None),
    ("GET", "/v1/udf/runs?bundle_id={bundle_id}", None),
    ("GET", "/v1/udf/runs?dag={dag}", None),
    ("GET", "/v1/udf/runs?job={job}&dag={dag}", None),
    ("GET", "/v1/overview?dag={dag}", None),
    ("DELETE", "/v1/tokens/{token_id}", None),
    ("GET", "/v1/why/task/{task_id}", None),
    ("GET", "/v1/why/job/{dag}/{job}", None),
    ("GET", "/v1/why/dataset/{name}", None),
]
LOOKUPS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/task-lookup", {"task_ids": ["{task_id}"]}),
    ("POST", "/v1/event-lookup", {"events": [{"dataset": "{ticks}", "event_id": "{event_id}"}]}),
]
"""They leave out what is not there, instead of 404."""
LISTS = [
    "/v1/dags",
    "/v1/removed-dags",
    "/v1/sources",
    "/v1/tasks",
    "/v1/events",
    "/v1/checks",
    "/v1/datasets",
    "/v1/dlq",
    "/v1/audit",
    "/v1/query-audit",
    "/v1/udf/bundles",
    "/v1/tokens",
]
OWN = {
    ("GET", "/v1/whoami"),
    ("GET", "/v1/quota"),
    ("GET", "/v1/operators"),
    ("POST", "/v1/dags/{dag}/versions"),
    ("POST", "/v1/udf/bundles"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/token-revocations"),
}
"""About the caller alone, or the same for every org. A deploy makes a DAG of the caller's own org, whatever others call
theirs; a revocation names tokens of it, which `tests/security/test_revocation.py` looks at."""
ACTIONS = {("POST", "/v1/task-actions")}
"""On many tasks, each with an outcome of its own: `tests/api/test_many_tasks.py` looks at those of another org."""
TWO_LISTS = {("GET", "/v1/pressure"), ("GET", "/v1/overview")}
"""In one answer: `tests/why` and `test_overview` look at these."""
CONTENT = {("GET", "/v1/datasets/{name}/content")}
"""Of files, which this owner has none of: `tests/cli/test_reading.py` looks at it."""
SIGNED = {("POST", "/v1/webhooks/{path}")}
"""Opened by a secret, which belongs to one webhook: `tests/sources` looks at it."""
NAMES = {"dag", "job", "dataset"}
"""Parameters of a query that name a thing."""


@dataclass(frozen=True)
class Owner:
    world: World
    flow: BufferFlow
    task_ids: list[str]
    event_id: int
    bundle_id: str
    token_id: str

    @property
    def user(self) -> User:
        return User(self.world.harness, self.world.org, "admin")

    def bury_batch(self) -> str:
        """A dead letter; its owner may replay or drop it."""
        publish_id: str = self.flow.publish([{"key": "x"}])["publish_id"]
        self.flow.reject(publish_id)
        return publish_id

    def names(self, path: str) -> dict[str, Any]:
        publish_id = self.bury_batch() if path.startswith("/v1/dlq") else ""
        ids = {"task_id": self.task_ids[0], "event_id": self.event_id, "delivery_id": "one", "publish_id": publish_id}
        ids |= {"bundle_id": self.bundle_id, "token_id": self.token_id}
        hook = {"hook_dag": "alerts", "hook": "hook"}
        datasets = {"name": "blocks", "ticks": "chain__clock_0", "table": "large"}
        return {"dag": "chain", "job": "fetch", "number": 1, "key": "owned"} | hook | datasets | ids


@pytest.fixture(scope="module")
def owner(harness: DispatcherHarness) -> Owner:
    world = World(harness)
    Hook(harness, world.org).deploy().sent()
    Hook(harness, world.org, dag="gone", path=f"{world.org}/gone".replace("_", "-")).deploy()
    assert User(harness, world.org, "admin").call("POST", "/v1/dags/gone/remove").status == 200
    checks = '{"checks": [{"name": "freshness", "kind": "freshness", "max_age_seconds": 60}]}'
    harness.sql("UPDATE jobs SET document = $2::json WHERE job_id = $1", world.fetch, checks)
    flow = BufferFlow(harness, "postgresql://nowhere", world.org)
    task_ids = [str(world.task(world.fetch, state)) for state in ("Queued", "Running", "Failed", "Completed")]
    world.commit(world.blocks, (0, 9), UUID(task_ids[-1]))
    query = {"run_id": str(new_id()), "query_id": str(new_id()), "org": world.org, "subject": "somebody"}
    record = query | {"duration_ms": 1, "outcome": "ok", "sql_sha256": "0" * 64}
    assert harness.service("POST", "/internal/query-audit", record).status == 200
    harness.sql(
        """INSERT INTO triggers
           SELECT $1, 'owned', '', json_build_object('idempotency_key', 'owned', 'node_id', node_id)
           FROM nodes WHERE org_id = $1 AND dag_name = 'chain' LIMIT 1""",
        world.org_id,
    )
    bundle_id = push(User(harness, world.org, "admin"))
    row = "SELECT task_id, 1, org_id, job_id, $2, trace_now() FROM tasks WHERE task_id = $1"
    columns = "(task_id, attempt, org_id, job_id, bundle_id, writable_until)"
    (log,) = harness.sql(f"INSERT INTO run_logs {columns} {row} RETURNING org_id", task_ids[0], bundle_id)
    place = log_uris(harness.config.bundle_bucket, log["org_id"], UUID(task_ids[0]), 1)[0]
    harness.run(harness.objects.put(place, b"{}"))
    token = User(harness, world.org, "admin").call("POST", "/v1/tokens", {"subject": "ann", "role": "reader"})
    return Owner(world, flow, task_ids, world.event(world.ticks, 1), bundle_id, token.body["row"]["token_id"])


@pytest.fixture(scope="module", params=["an org with things of its own", "an org that is not there yet"])
def stranger(harness: DispatcherHarness, owner: Owner, request: pytest.FixtureRequest) -> User:
    if request.param == "an org that is not there yet":
        return User(harness, f"{owner.world.org}_unknown", "admin")
    other = Seed(harness)
    other.dataset("mine")
    return User(harness, other.org, "admin")


def test_every_route_and_every_name_in_a_query_is_looked_at() -> None:
    routes = routes_of(Listener.PUBLIC)
    rows = [*NAMED, *LOOKUPS, *(("GET", path, None) for path in LISTS)]
    plain = [(method, path.replace("{hook_dag}", "{dag}").replace("{hook}", "{job}")) for method, path, _ in rows]
    looked_at = {(method, path.partition("?")[0]) for method, path in plain}
    assert {(route.method, route.path) for route in routes} == looked_at | OWN | ACTIONS | TWO_LISTS | CONTENT | SIGNED
    queries = {path.partition("=")[0] for _, path in plain if "?" in path}
    named = {f"{route.path}?{item.name}" for route in routes for item in route.query if item.name in NAMES}
    assert named == {query for query in queries if query.rpartition("?")[2] in NAMES}


def ask(user: User, method: str, path: str, body: Any, names: dict[str, Any]) -> Reply:
    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item) for item in value]
        return names[value[1:-1]] if isinstance(value, str) and value.startswith("{") else value

    return user.call(method, path.format(**names), fill(body))


def unknown_names(task_id: str) -> dict[str, Any]:
    names = dict.fromkeys(("dag", "job", "hook_dag", "hook", "name", "ticks", "table", "key"), "none_such")
    return (
        names
        | {"number": 1, "task_id": task_id, "event_id": 2**40, "publish_id": task_id, "delivery_id": "two"}
        | {"bundle_id": task_id, "token_id": task_id}
    )


def ids(rows: list[tuple[str, str, Any]]) -> list[str]:
    return [f"{method} {path} {msgspec.json.encode(body).decode()}" for method, path, body in rows]


@pytest.mark.parametrize(("method", "path", "body"), NAMED, ids=ids(NAMED))
def test_a_thing_of_another_org_is_not_there(owner: Owner, stranger: User, method: str, path: str, body: Any) -> None:
    names = owner.names(path)
    with Refusals(owner.world.harness):
        nobodys = ask(stranger, method, path, body, unknown_names(str(new_id())))
        for task_id in owner.task_ids if "task_id" in path else owner.task_ids[:1]:
            theirs = ask(stranger, method, path, body, names | {"task_id": task_id})
            assert theirs.status == 404, theirs
            assert theirs == nobodys, "nothing tells the two apart"
            check_leaks(theirs.body)
    mine = ask(owner.user, method, path, body, names)
    assert mine.status != 404, "or the answers above prove nothing"


@pytest.mark.parametrize(("method", "path", "body"), LOOKUPS, ids=ids(LOOKUPS))
def test_a_lookup_leaves_out_what_another_org_has(
    owner: Owner, stranger: User, method: str, path: str, body: Any
) -> None:
    theirs = ask(stranger, method, path, body, owner.names(path))
    assert theirs == ask(stranger, method, path, body, unknown_names(str(new_id())))
    assert rows_of(theirs.body) == []
    assert rows_of(ask(owner.user, method, path, body, owner.names(path)).body), "or it proves nothing"


def rows_of(reply: dict[str, Any]) -> list[Any]:
    """The list of an answer; beside it there may be a time."""
    (rows,) = [value for value in reply.values() if isinstance(value, list)]
    return rows


@pytest.mark.parametrize("path", LISTS)
def test_lists_hold_nothing_of_another_org(owner: Owner, stranger: User, path: str) -> None:
    if path == "/v1/dlq":
        owner.bury_batch()
    assert [row for row in rows_of(stranger.get(path)) if row.get("name") != "mine"] == []
    assert rows_of(owner.user.get(path)), "or the list above proves nothing"


def test_a_quota_is_told_of_the_callers_org(owner: Owner, stranger: User) -> None:
    for user in (owner.user, stranger):
        assert user.get("/v1/quota")["org"] == user.org


@pytest.mark.parametrize("query", ["/v1/tasks?status=Completed", "/v1/events?state=Routed"])
def test_filters_by_state_find_nothing_of_another_org(owner: Owner, stranger: User, query: str) -> None:
    (rows,) = stranger.get(query).values()
    assert rows == []


def test_a_cursor_of_another_org_opens_nothing(owner: Owner, stranger: User) -> None:
    newest = max(row["task_id"] for row in owner.world.sql("SELECT task_id FROM tasks"))
    assert stranger.get(f"/v1/tasks?cursor={newest}") == {"tasks": []}
    assert stranger.get(f"/v1/events?cursor={2**62}") == {"events": []}
    assert stranger.get(f"/v1/audit?cursor={2**62}") == {"entries": []}

"""Tokens that are limited to DAGs: every route has a rule, and things of other DAGs are refused or not there."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.api.issuer import refused, signed, verify
from tests.api.support import User, World
from tests.http.support import Refusals, fresh
from tests.security.test_tenants import LISTS, LOOKUPS, NAMED, Owner, ask, ids, owner, rows_of, unknown_names
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.dispatcher.access.dag_rules import RULES
from tracelake.model.ids import new_id
from tracelake.stack.credentials import user_token
from tracelake.tokens.users import UserClaims
from tracelake.wire.contract import Listener, Principal, Role
from tracelake.wire.routes import routes_of

__all__ = ["owner"]

OF_THE_ORG = "/v1/udf/bundles"
"""Bundles belong to no DAG: they are seen, and not taken away."""
READ_BY_POST = {"/v1/datasets/{name}/files", "/v1/datasets/{name}/rows"}
FOR_NO_LIMITED_TOKEN = {
    "/v1/audit",
    "/v1/query-audit",
    "/v1/tokens",
    "/v1/tokens/{token_id}",
    "/v1/dags/{dag}/purge",
    "/v1/dags/{hook_dag}/jobs/{hook}/webhook",
    "/v1/dags/{hook_dag}/jobs/{hook}/webhook/rotate",
    "/v1/udf/bundles/{bundle_id}/disable",
}


@dataclass(frozen=True)
class LimitedUser(User):
    dags: tuple[str, ...] = ()
    read_dags: tuple[str, ...] | None = None

    @property
    def headers(self) -> dict[str, str]:
        now = self.harness.sql("SELECT trace_now() AS now")[0]["now"]
        keys, rules = self.harness.credentials.user_keys, self.harness.config.user_tokens
        token = user_token(
            keys,
            rules,
            subject=self.subject,
            org=self.org,
            roles=[self.role],
            now=now,
            dags=self.dags,
            read_dags=self.read_dags,
        )
        return {"authorization": f"Bearer {token}"}


def limited(owner: Owner, *dags: str, role: str = "writer") -> LimitedUser:
    return LimitedUser(owner.world.harness, owner.world.org, role, dags=dags)


def everything(owner: Owner) -> LimitedUser:
    rows = owner.world.sql("SELECT DISTINCT dag_name FROM dags WHERE org_id = $1", owner.world.org_id)
    return limited(owner, *(row["dag_name"] for row in rows))


def test_every_route_of_people_has_a_rule() -> None:
    of_people = {route for route in routes_of(Listener.PUBLIC) if route.principal is Principal.USER}
    assert of_people == RULES.keys(), "a route without a rule is refused to limited tokens: give it one"


@pytest.mark.parametrize(("method", "path", "body"), NAMED, ids=ids(NAMED))
def test_a_thing_of_another_dag_is_refused_or_not_there(owner: Owner, method: str, path: str, body: Any) -> None:
    names, stranger = owner.names(path), limited(owner, "elsewhere")
    plain = path.partition("?")[0]
    with Refusals(owner.world.harness):
        theirs = ask(stranger, method, path, body, names)
        nobodys = ask(stranger, method, path, body, unknown_names(str(new_id())))
        if plain.startswith(OF_THE_ORG) and plain not in FOR_NO_LIMITED_TOKEN:
            return
        if path == "/v1/tasks?job={job}":
            assert (theirs.status, theirs.body["error"]["code"]) == (404, "job_not_found")
        if path.startswith("/v1/udf/runs?bundle_id"):
            assert theirs.body == {"runs": []}
            return
        assert theirs.status in (403, 404), theirs
        assert theirs == nobodys, "nothing tells the two apart"
    allowed = ask(everything(owner), method, path, body, names)
    expected = 403 if plain in FOR_NO_LIMITED_TOKEN else None
    assert allowed.status == expected or (expected is None and allowed.status not in (403, 404)), allowed


def only_reading(owner: Owner) -> LimitedUser:
    """Changes nothing of the owner, and may see everything."""
    return replace(limited(owner, "elsewhere"), read_dags=everything(owner).dags)


@pytest.mark.parametrize(("method", "path", "body"), NAMED, ids=ids(NAMED))
def test_a_thing_of_a_dag_to_read_is_read_and_not_changed(owner: Owner, method: str, path: str, body: Any) -> None:
    names, reader, plain = owner.names(path), only_reading(owner), path.partition("?")[0]
    if plain in FOR_NO_LIMITED_TOKEN or plain.startswith(OF_THE_ORG):
        return
    if method == "GET" or plain in READ_BY_POST:
        theirs = ask(reader, method, path, body, names)
        assert theirs.status == ask(everything(owner), method, path, body, names).status not in (403, 404), theirs
        return
    with Refusals(owner.world.harness):
        assert ask(reader, method, path, body, names).status in (403, 404)


def without_age(row: Any) -> Any:
    """A row without what changes from second to second."""
    return {key: value for key, value in row.items() if key != "age_seconds"} if isinstance(row, dict) else row


@pytest.mark.parametrize("path", LISTS)
def test_lists_hold_what_may_be_read(owner: Owner, path: str) -> None:
    if path in FOR_NO_LIMITED_TOKEN:
        return
    readable, whole = [rows_of(user.get(path)) for user in (only_reading(owner), everything(owner))]
    assert [without_age(row) for row in readable] == [without_age(row) for row in whole]


@pytest.mark.parametrize(("method", "path", "body"), LOOKUPS, ids=ids(LOOKUPS))
def test_a_lookup_leaves_out_other_dags(owner: Owner, method: str, path: str, body: Any) -> None:
    names = owner.names(path)
    assert rows_of(ask(limited(owner, "elsewhere"), method, path, body, names).body) == []
    assert rows_of(ask(limited(owner, "chain"), method, path, body, names).body)


@pytest.mark.parametrize("path", LISTS)
def test_lists_hold_nothing_of_other_dags(owner: Owner, path: str) -> None:
    if path == "/v1/dlq":
        owner.bury_batch()
    stranger = limited(owner, "elsewhere")
    if path in FOR_NO_LIMITED_TOKEN:
        assert stranger.call("GET", path).status == 403
        return
    whole = rows_of(owner.user.get(path))
    assert whole, "or it proves nothing"
    if not path.startswith(OF_THE_ORG):
        assert rows_of(stranger.get(path)) == []
    assert len(rows_of(everything(owner).get(path))) == len(whole)


@pytest.mark.parametrize("path", ["/v1/overview", "/v1/pressure"])
def test_replies_with_several_lists_hold_nothing_of_other_dags(owner: Owner, path: str) -> None:
    reply = limited(owner, "elsewhere").get(path)
    assert not any(value for value in reply.values() if isinstance(value, list))


def test_lists_with_pages_hold_those_of_the_token(harness: DispatcherHarness) -> None:
    world = World(harness, fresh("paged"))
    theirs = [str(world.task(world.fetch)) for _ in range(7)]
    own = sorted(str(world.task(world.alert)) for _ in range(3))
    for number in range(7):
        world.event(world.blocks, number)
    own_events = [world.event(world.alerts, number) for number in range(3)]
    user = LimitedUser(harness, world.org, "reader", dags=("alarm",))
    assert [row["task_id"] for row in user.pages("/v1/tasks?limit=2", "tasks")] == own[::-1]
    assert [row["event_id"] for row in user.pages("/v1/events?limit=2", "events")] == own_events[::-1]
    following = user.get("/v1/tasks?after=00000000-0000-0000-0000-000000000000")["tasks"]
    assert not {*theirs} & {row["task_id"] for row in following}
    assert [row["name"] for row in user.get("/v1/dags")["dags"]] == ["alarm"]
    assert [row["name"] for row in user.get("/v1/datasets")["datasets"]] == ["alerts"]
    both = LimitedUser(harness, world.org, "reader", dags=("alarm", "chain"))
    assert len(both.pages("/v1/tasks?limit=4", "tasks")) == 10
    consumers = LimitedUser(harness, world.org, "reader", dags=("chain",)).get("/v1/datasets/blocks")["consumers"]
    assert (consumers, len(both.get("/v1/datasets/blocks")["consumers"])) == ([], 1)


OPEN_DAG = """
name: open_dag
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: copy, activation: reactive, runtime: ecs_platform, operator: noop, inputs: [{from: {job: src}}]}
publish:
  copies: {from: {job: copy}, storage: none}
"""
READING = """
name: open_dag
jobs:
  - {name: copy, activation: reactive, runtime: ecs_platform, operator: noop, inputs: [{from: {dataset: closed_data}}]}
publish:
  copies: {from: {job: copy}, storage: none}
"""
CLOSED = OPEN_DAG.replace("open_dag", "closed").replace("copies", "closed_data")


def deploy(user: User, dag: str, text: str, query: str = "") -> Reply:
    return user.harness.call("public", "POST", f"/v1/dags/{dag}/versions{query}", text.encode(), user.headers)


def test_a_writer_deploys_its_dags_and_reads_no_others(harness: DispatcherHarness) -> None:
    org = fresh("deploys")
    writer, user = User(harness, org, "writer"), LimitedUser(harness, org, "writer", dags=("open_dag",))
    assert deploy(writer, "closed", CLOSED, "?activate=true").status == 200
    with Refusals(harness) as refusals:
        refusals.check(deploy(user, "closed", CLOSED), 403, "dag_forbidden")
        for query in ("", "?dry_run=true"):
            refused = refusals.check(deploy(user, "open_dag", READING, query), 422, "dag_invalid")
            unknown = READING.replace("closed_data", "no_such_data")
            other = refusals.check(deploy(user, "open_dag", unknown, query), 422, "dag_invalid")
            texts = [str(item).replace("closed_data", "X").replace("no_such_data", "X") for item in (refused, other)]
            assert texts[0] == texts[1], "a dataset of another DAG is as unknown as one that nobody has"
        taken = OPEN_DAG.replace("copies", "closed_data")
        refusals.check(deploy(user, "open_dag", taken), 403, "dag_forbidden")
    assert deploy(writer, "open_dag", READING, "?dry_run=true").status == 200, "or it proves nothing"
    assert deploy(user, "open_dag", OPEN_DAG, "?activate=true").status == 200
    assert user.call("POST", "/v1/dags/open_dag/jobs/src/trigger", {"cursor": 1}).status == 200
    assert user.call("POST", "/v1/dags/closed/jobs/src/trigger", {"cursor": 1}).status == 403


def test_a_writer_deploys_its_dag_over_one_that_it_reads(harness: DispatcherHarness) -> None:
    org = fresh("reads")
    writer = User(harness, org, "writer")
    user = LimitedUser(harness, org, "writer", dags=("open_dag",), read_dags=("closed",))
    assert deploy(writer, "closed", CLOSED, "?activate=true").status == 200
    assert deploy(user, "open_dag", READING, "?activate=true").status == 200
    assert {"closed_data", "copies"} <= {row["name"] for row in user.get("/v1/datasets")["datasets"]}
    with Refusals(harness) as refusals:
        refusals.check(deploy(user, "closed", CLOSED), 403, "dag_forbidden")
        refusals.check(deploy(user, "open_dag", OPEN_DAG.replace("copies", "closed_data")), 422, "dag_invalid")
        refusals.check(user.call("POST", "/v1/dags/closed/jobs/src/trigger", {"cursor": 1}), 403, "dag_forbidden")


def test_a_removal_names_no_reader_of_another_dag(harness: DispatcherHarness) -> None:
    org = fresh("removes")
    writer, user = User(harness, org, "writer"), LimitedUser(harness, org, "writer", dags=("closed",))
    assert deploy(writer, "closed", CLOSED, "?activate=true").status == 200
    assert deploy(writer, "open_dag", READING, "?activate=true").status == 200
    plan = user.get("/v1/dags/closed/removal")
    assert (plan["readers"], plan["more_readers"]) == ([], 1)
    with Refusals(harness) as refusals:
        error = refusals.check(user.call("POST", "/v1/dags/closed/remove"), 422, "dag_in_use")
        assert "1 job that your token does not reach" in error["message"]
        assert "open_dag" not in str(error)
        assert "open_dag/copy" in str(writer.call("POST", "/v1/dags/closed/remove").body)


def test_a_plan_names_no_reader_of_another_dag(harness: DispatcherHarness) -> None:
    org = fresh("readers")
    writer, user = User(harness, org, "writer"), LimitedUser(harness, org, "writer", dags=("closed",))
    assert deploy(writer, "closed", CLOSED, "?activate=true").status == 200
    assert deploy(writer, "open_dag", READING, "?activate=true").status == 200
    changed = CLOSED.replace("inputs:", "bootstrap: {reset_outputs: true}, inputs:")
    for query in ("?dry_run=true", "?activate=true"):
        full = deploy(writer, "closed", changed, "?dry_run=true").body["plan"]
        plan = deploy(user, "closed", changed, query).body["plan"]
        assert full.get("subscribers") == ["open_dag/copy"], "or it proves nothing"
        assert "open_dag" not in str(plan)


def test_no_limited_token_is_an_admins() -> None:
    claims = UserClaims(sub="a", org="b", roles=["admin"], exp=0, dags=())
    assert (claims.may(Role.ADMIN), claims.may(Role.WRITER)) == (False, True)


@pytest.mark.parametrize("dags", [None, "all", 7, [1], {"a": 1}])
def test_a_limit_that_cannot_be_read_opens_nothing(dags: Any) -> None:
    assert refused(signed(dags=dags)) == "credential_malformed"


def test_the_limit_of_another_issuer_counts() -> None:
    assert verify(signed()).dags is None
    assert verify(signed(dags=["b", "a", "b"])).dags == ("a", "b")
    assert verify(signed(dags=[])).dags == ()


def test_dags_to_read_are_a_limit_too() -> None:
    both = verify(signed(dags=["a"], read_dags=["c", "b", "c"]))
    assert (both.dags, both.read_dags, both.readable_dags) == (("a",), ("b", "c"), ("a", "b", "c"))
    alone = verify(signed(read_dags=["b"]))
    assert (alone.dags, alone.readable_dags) == ((), ("b",))
    assert (verify(signed()).read_dags, verify(signed()).readable_dags) == ((), None)
    assert refused(signed(dags=["a"], read_dags=None)) == "credential_malformed"

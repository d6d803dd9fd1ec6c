"""Numbers that sequences give out over all orgs stay inside: nothing of them reaches an org, and no org's activity.

The sequences are moved to numbers that can be recognised anywhere in an answer.
"""

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.api.support import User, World
from tests.bundles.uploading import push
from tests.routing.support import Flow
from tests.sink.flow import BufferFlow
from tests.sources.webhook_support import Hook
from tests.support.dispatcher import DispatcherHarness
from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.contract import Listener
from tracelake.wire.routes import routes_of

_FIRST = 600_000_000_000
_RECOGNISED = re.compile(r"(?<!\d)6000000\d{5}(?!\d)")
_MOVE = "SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, $1) FROM pg_sequences"
_FEED = """
name: feed
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: feeder, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: each, activation: reactive, operator: noop, inputs: [{from: {job: feeder}}]}
"""
_PAGED = ["/v1/events?", "/v1/audit?", "/v1/dlq?", "/v1/tasks?", "/v1/datasets/feed__feeder_0/lineage?"]
_UNPAGED = [
    "/v1/dags", "/v1/dags/feed/versions", "/v1/dags/feed/jobs", "/v1/sources", "/v1/datasets", "/v1/quota",
    "/v1/query-audit", "/v1/udf/bundles", "/v1/udf/bundles/{bundle_id}", "/v1/udf/runs?bundle_id={bundle_id}",
    "/v1/tokens", "/v1/whoami", "/v1/overview", "/v1/pressure", "/v1/datasets/feed__feeder_0", "/v1/datasets/large",
    "/v1/dags/alerts/jobs/hook/webhook", "/v1/dags/alerts/jobs/hook/deliveries", "/v1/dlq/{publish_id}",
    "/v1/tasks/{task_id}", "/v1/why/task/{task_id}", "/v1/why/task/{queued}", "/v1/why/job/feed/each",
    "/v1/task-failures", "/v1/triggers?key=key%201", "/v1/dags/feed/jobs/feeder/runs", "/v1/operators",
    "/v1/dags/feed/removal", "/v1/removed-dags",
    "/v1/why/dataset/feed__feeder_0", "/v1/checks", "/v1/datasets/feed__feeder_0/check-results",
]  # fmt: skip
_BODIES = {"/v1/dags/{dag}/versions/{number}", "/v1/dags/{dag}/jobs/{job}/deliveries/{delivery_id}",
           "/v1/datasets/{name}/content", "/v1/tasks/{task_id}/log"}  # fmt: skip
"""What users wrote, as they wrote it."""


@dataclass(frozen=True)
class Tenant:
    """An org in which everything has happened that is numbered."""

    user: User
    replies: list[Any]
    """Of calls that changed something, by people and by tasks."""
    names: dict[str, str]


@pytest.fixture(scope="module")
def tenant(harness: DispatcherHarness) -> Tenant:
    harness.sql(_MOVE, _FIRST)
    buffered = BufferFlow(harness, "postgresql://nowhere", "numbered")
    flow, hook = Flow(harness, "numbered"), Hook(harness, "numbered").deploy()
    flow.deploy(_FEED)
    user = User(harness, "numbered", "admin")
    replies = [hook.sent(delivery=str(number)) for number in range(3)]
    trigger = "/v1/dags/feed/jobs/src/trigger"
    for number in (1, 1, 2):
        body = {"cursor": number, "idempotency_key": f"key {number}"}
        replies.append(user.call("POST", trigger, body).body)
    for number in range(2):  # batches that a sink refused
        task_id, lease = buffered.attempt("left")
        reply = buffered.try_publish(task_id, lease, [{"key": number}], dedupe_scope="large")
        buffered.flow.complete(task_id, lease)
        replies += [lease["task"], reply.body]
        buffered.reject(reply.body["publish_id"])
    feeder = flow.tasks("feeder")[0]["task_id"]
    lease = flow.claim(feeder)
    wrong = {"start": 0, "end": 9, "reason": "reorg"}
    for fields in ({"cursor": 1}, {"cursor": 2}, {"cursor": 3, "invalidates": wrong}):
        replies.append(flow.say(feeder, lease, flow.event("feed", "feeder", **fields)))
    flow.complete(feeder, lease)
    again = next(task for task in flow.tasks("each") if task["revision"])
    replies.append(flow.claim(again["task_id"])["task"])
    queued = flow.tasks("feeder", "Queued")[0]["task_id"]
    names = {"task_id": str(again["task_id"]), "queued": str(queued), "publish_id": reply.body["publish_id"]}
    names["bundle_id"] = push(user)
    return Tenant(user, replies, names)


def pages(user: User, path: str) -> list[Any]:
    """Page by page of one row each."""
    found, cursor = [], ""
    while True:
        found.append(user.get(f"{path}limit=1{cursor}"))
        if "next" not in found[-1]:
            return found
        cursor = f"&cursor={found[-1]['next']}"


def test_no_number_of_a_shared_sequence_leaves(tenant: Tenant) -> None:
    given = {
        row["sequencename"]: row["last_value"]
        for row in tenant.user.harness.sql("SELECT sequencename::text, last_value FROM pg_sequences")
    }
    for name in ("events_event_id_seq", "events_routed_seq", "audit_log_audit_id_seq"):
        assert given[name] > _FIRST + 3, "or the answers below prove nothing"
    answers = [*tenant.replies, *(tenant.user.get(path.format(**tenant.names)) for path in _UNPAGED)]
    for path in _PAGED:
        listed = pages(tenant.user, path)
        assert len(listed) > 1, path
        answers += listed
    events = tenant.user.get("/v1/events?after=0&limit=500")
    keys = [{"dataset": row["dataset"], "event_id": row["event_id"]} for row in events["events"]]
    lookup = tenant.user.call("POST", "/v1/event-lookup", {"events": keys}).body
    assert len(lookup["events"]) == len(keys) > 5
    for answer in [*answers, events, lookup]:
        assert not _RECOGNISED.findall(msgspec.json.encode(answer).decode()), answer


def test_every_list_of_people_was_looked_at() -> None:
    read = {route.path for route in routes_of(Listener.PUBLIC) if route.method == "GET"}
    shapes = [re.compile(re.sub(r"\{\w+\}", "[^/]+", path)) for path in sorted(read - _BODIES)]
    looked_at = [path.partition("?")[0] for path in _PAGED + _UNPAGED]
    assert [shape.pattern for shape in shapes if not any(map(shape.fullmatch, looked_at))] == []


def test_pages_hold_each_row_once(tenant: Tenant) -> None:
    for path, rows, key in (("/v1/events?", "events", "event_id"), ("/v1/audit?", "entries", "audit_id")):
        listed = [row[key] for page in pages(tenant.user, path) for row in page[rows]]
        assert listed == [row[key] for row in tenant.user.get(f"{path}limit=500")[rows]]
        assert len(set(listed)) == len(listed)


def look(world: World, position: int) -> tuple[list[int], int]:
    """The ids of all that comes behind a position, page by page, and where to go on."""
    found: list[int] = []
    while True:
        page = world.user().get(f"/v1/events?after={position}&limit=2")
        found += [row["event_id"] for row in page["events"]]
        if "next" not in page:
            return found, page["settled"]
        position = int(page["next"])


def test_another_orgs_activity_shows_nowhere(harness: DispatcherHarness) -> None:
    mine, theirs = World(harness), World(harness)
    mine.event(mine.ticks, 0)

    def view() -> list[Any]:
        user = mine.user("admin")
        return [user.get(path) for path in ("/v1/events", f"/v1/events?after={MAX_CURSOR}", "/v1/audit")]

    before = view()
    for number in range(20):
        theirs.event(theirs.ticks, number)
        assert view() == before, "not even that there was any"


def test_a_follower_gets_its_own_events_once_between_those_of_others(harness: DispatcherHarness) -> None:
    mine, theirs = World(harness), World(harness)
    made, followed = [], []
    _, position = look(mine, MAX_CURSOR)
    for number in range(6):
        for cursor in range(number + 1):
            theirs.event(theirs.ticks, 10 * number + cursor)
            made.append(mine.event(mine.ticks if cursor % 2 else mine.blocks, 10 * number + cursor))
        found, position = look(mine, position)
        followed += found
        assert look(mine, position) == ([], position)
    assert followed == made
    assert look(mine, 0)[0] == made
    assert made != sorted(made), "the order is the list's and not that of ids"


def test_an_id_of_another_org_is_no_place_to_follow_from(harness: DispatcherHarness) -> None:
    mine, theirs = World(harness), World(harness)
    event_id = theirs.event(theirs.ticks, 1)
    assert look(theirs, event_id) == ([], event_id)
    reply = mine.user().call("GET", f"/v1/events?after={event_id}")
    assert (reply.status, reply.code) == (422, "body_invalid")
    raw = harness.sql("SELECT max(event_id) AS id FROM events")[0]["id"]
    assert theirs.user().call("GET", f"/v1/events?after={raw}").code == "body_invalid"

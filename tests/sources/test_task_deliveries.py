"""Deliveries as tasks get them: those of their own unit, whole and in order, for the one operator that reads them."""

import base64
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.api.support import User
from tests.routing.support import Flow
from tests.sources.webhook_support import Hook
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness, Reply
from tracelake.dispatcher.views import deliveries as view
from tracelake.errors import TraceError

DAY = 86400
_ROWS = """\
  - name: rows
    activation: reactive
    runtime: ecs_platform
    operator: webhook_rows
    inputs: [{ from: { job: hook } }]
    config: { columns: { price: int64 } }
"""


@pytest.fixture
def hook(harness: DispatcherHarness) -> Hook:
    return deploy(Hook(harness, org="acme"), _ROWS)


def deploy(hook: Hook, more: str = "") -> Hook:
    source = f"{{ kind: webhook, webhook_path: {hook.path}, unit: delivery }}"
    dags.deploy(hook.harness, hook.text(source=source) + more, hook.org)
    return hook


def flow_of(hook: Hook) -> Flow:
    return Flow(hook.harness, hook.org)


def test_deliveries_are_not_triggered(hook: Hook) -> None:
    """A number that no delivery has yet would be taken from those that come."""
    flow = flow_of(hook)
    with pytest.raises(TraceError) as refused:
        flow.trigger(hook.dag, "hook", cursor=9)
    assert (refused.value.code, refused.value.details["field"]) == ("trigger_invalid", "job")
    assert flow.tasks("rows") == []


class Reading:
    """A claimed task that asks for its deliveries."""

    def __init__(self, hook: Hook, task_id: Any) -> None:
        self.hook, self.task_id = hook, UUID(str(task_id))
        self.lease = flow_of(hook).claim(task_id)
        self.item = self.lease["task"]["inputs"][0]

    def ask(self, **fields: Any) -> Reply:
        body = {
            "task_id": str(self.task_id),
            "attempt": self.lease["attempt"],
            "lease_token": self.lease["lease_token"],
            "dataset_uuid": self.item["dataset_uuid"],
            "dataset_version": self.item["dataset_version"],
        } | fields
        token = {"x-trace-task-capability": self.lease["capability_token"]}
        return self.hook.harness.call("task", "POST", "/v1/task/deliveries", body, token)

    def all(self) -> list[tuple[int, str, bytes]]:
        deliveries, after = [], None
        while True:
            reply = self.ask(**({} if after is None else {"after": after}))
            assert reply.status == 200, reply
            deliveries += reply.body["deliveries"]
            after = reply.body.get("next")
            if after is None:
                return [(item["number"], item["delivery_id"], base64.b64decode(item["body"])) for item in deliveries]


def readings(hook: Hook, job: str = "rows") -> list[Reading]:
    return [Reading(hook, task["task_id"]) for task in flow_of(hook).tasks(job)]


def test_each_delivery_is_the_unit_of_one_task(hook: Hook) -> None:
    bodies = [b'{"price": 1}', b'{"cursor": 1000000}', b'{"partition_key": "x"}', b"\xff\x00"]
    for number, body in enumerate(bodies):
        hook.sent(body, delivery=f"d-{number}")
    hook.sent(bodies[0], delivery="d-0")
    assert [reading.all() for reading in readings(hook)] == [
        [(number + 1, f"d-{number}", body)] for number, body in enumerate(bodies)
    ]


def test_a_reader_that_comes_later_gets_what_is_kept(harness: DispatcherHarness) -> None:
    hook = deploy(Hook(harness, org="acme"))
    for number in range(3):
        hook.sent(b"x" * number, delivery=f"d-{number}")
    deploy(hook, _ROWS)
    flow_of(hook).drain()
    deliveries = sorted(delivery for reading in readings(hook) for delivery in reading.all())
    assert deliveries == [(1, "d-0", b""), (2, "d-1", b"x"), (3, "d-2", b"xx")]


def test_pages_are_bounded_by_bytes(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "PAGE_BYTES", 10)
    for number in range(3):
        hook.sent(b"123456", delivery=f"d-{number}")
    flow = flow_of(hook)
    for task in flow.tasks("rows"):
        flow.person("cancel", task["task_id"])
    (reading,) = widened(hook, 0, 4)
    assert [number for number, _, _ in reading.all()] == [1, 2, 3, 4]
    assert len(reading.ask().body["deliveries"]) == 1


def widened(hook: Hook, after: int, to: int) -> list[Reading]:
    """The next delivery's task, as if it were the first of its job and its unit were several."""
    harness = hook.harness
    for task in flow_of(hook).tasks("rows"):
        harness.sql("DELETE FROM tasks WHERE task_id = $1", task["task_id"])
    hook.sent(b"last", delivery="wide")
    (task,) = flow_of(hook).tasks("rows", "Queued")
    harness.sql(
        """UPDATE tasks SET unit_start = $2::bigint, unit_end = $3::bigint, unit_key = 'c:' || $3::bigint,
               inputs = jsonb_set(inputs::jsonb, '{0,unit,cursor}',
                                  jsonb_build_object('after', $2::bigint - 1, 'to', $3::bigint))::json
           WHERE task_id = $1""",
        task["task_id"],
        after + 1,
        to,
    )
    return [Reading(hook, task["task_id"])]


def test_deliveries_that_are_gone_are_an_error_and_no_gap(hook: Hook) -> None:
    for number in range(4):
        hook.sent(delivery=f"d-{number}")
    tasks = readings(hook)
    hook.harness.sql("DELETE FROM webhook_deliveries WHERE number = 3")
    replies = {reading.item["unit"]["cursor"]["to"]: reading.ask() for reading in tasks}
    assert {number: reply.status for number, reply in replies.items()} == {1: 200, 2: 200, 3: 422, 4: 200}
    assert replies[3].code == "deliveries_deleted"
    assert "Delivery 3" in replies[3].body["error"]["message"]


def test_a_delivery_is_kept_while_any_task_reads_it(hook: Hook) -> None:
    for number in range(3):
        hook.sent(delivery=f"d-{number}")
    flow = flow_of(hook)
    for job in ("work", "rows"):
        for task in flow.tasks(job):
            flow.person("cancel", task["task_id"])
    (reading,) = widened(hook, 0, 4)
    for task in flow.tasks("work", "Queued"):
        flow.person("cancel", task["task_id"])
    hook.harness.advance(31 * DAY)
    prune = hook.harness.dispatcher.pruner.run_once
    assert hook.harness.run(prune()) == 0, "the task reads all four"
    flow.person("cancel", reading.task_id)
    hook.harness.advance(1000)
    hook.harness.reap()
    hook.harness.advance(1000)
    hook.harness.reap()
    assert hook.harness.run(prune()) == 4


def test_who_may_not_ask(hook: Hook) -> None:
    hook.sent(delivery="a")
    (reading,) = readings(hook)
    (other,) = readings(hook, "work")
    assert other.ask().code == "dataset_forbidden", "noop reads no deliveries"
    assert reading.ask(dataset_uuid=str(uuid4())).code == "dataset_forbidden"
    assert reading.ask(dataset_version=str(uuid4())).code == "dataset_forbidden"
    assert reading.ask(lease_token=str(uuid4())).status == 409
    assert reading.ask(attempt=2).code == "token_mismatch"
    assert other.ask(task_id=str(reading.task_id), lease_token=reading.lease["lease_token"]).code == "token_mismatch"
    assert reading.ask(unit="x").status == 422
    flow_of(hook).person("cancel", reading.task_id)
    assert reading.ask().status in (200, 409)


def test_a_dataset_of_deliveries_says_so(hook: Hook) -> None:
    rows = User(hook.harness, hook.org).get("/v1/datasets")["datasets"]
    assert {row["name"].rpartition("__")[2] for row in rows if row.get("of_deliveries")} == {
        "hook_0",
        "rows_0",
        "work_0",
    }


def test_a_dataset_of_units_that_bodies_name_is_not_of_deliveries(harness: DispatcherHarness) -> None:
    hook = Hook(harness, org="bodies")
    dags.deploy(harness, hook.text(source=f"{{ kind: webhook, webhook_path: {hook.path} }}"), hook.org)
    assert not any(row.get("of_deliveries") for row in User(harness, hook.org).get("/v1/datasets")["datasets"])

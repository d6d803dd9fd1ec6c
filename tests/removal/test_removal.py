"""A removed DAG does nothing and is not found; restored, it goes on where it stopped."""

from typing import Any

import pytest

from tests.api.support import User
from tests.removal.support import Removal
from tests.routing.support import Flow
from tests.support import dags
from tests.support.dispatcher import fence
from tracelake.errors import TraceError

PIPE = """
name: pipe
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: step, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: tail, activation: reactive, operator: noop, inputs: [{from: {dataset: steps}}]}
publish:
  steps: {from: {job: step}, storage: postgres}
"""

READER = """
name: reader
defaults: {runtime: ecs_platform}
jobs:
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {dataset: steps}}]}
publish:
  read_steps: {from: {job: read}, storage: postgres}
"""

WITHOUT = """
name: reader
defaults: {runtime: ecs_platform}
jobs:
  - {name: tick, activation: source, source: {kind: manual}}
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {job: tick}}]}
publish:
  read_steps: {from: {job: read}, storage: postgres}
"""


def refused(flow: Flow, method: str, path: str, body: Any = None) -> str:
    reply = User(flow.harness, flow.org, "admin").call(method, path, body)
    assert reply.status >= 400, reply
    code: str = reply.body["error"]["code"]
    return code


def test_its_tasks_are_cancelled_and_it_gets_no_more(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    for cursor in (1, 2, 3):
        flow.trigger("pipe", "src", cursor=cursor)
    running, *_ = flow.tasks("step", "Queued")
    lease = flow.claim(running["task_id"])
    reply = removal.remove("pipe")
    assert (reply.state, reply.duplicate) == ("removed", False)
    assert [task["status"] for task in flow.tasks("step")] == ["Running", "Canceled", "Canceled"]
    beat = flow.harness.task("heartbeat", lease["capability_token"], fence(str(running["task_id"]), lease))
    assert beat.body["cancel"] is True, beat
    waiting = flow.tasks("step", "Canceled")[0]["task_id"]
    assert flow.harness.claim(str(waiting)).body["status"] != "Claimed"
    assert refused(flow, "POST", f"/v1/tasks/{waiting}/retry") == "task_finished"
    assert refused(flow, "POST", "/v1/dags/pipe/jobs/src/trigger", {"cursor": 4}) == "dag_removed"
    with pytest.raises(TraceError, match="dag_removed"):
        flow.deploy(PIPE)
    with pytest.raises(TraceError, match="dag_removed"):
        flow.deploy(PIPE, dry_run=True)
    with pytest.raises(TraceError, match="dag_removed"):
        dags.activate(flow.harness, "pipe", 1)
    flow.drain()
    assert not flow.tasks("step", "Queued")


def test_it_is_in_no_list_and_its_names_say_that_it_was_removed(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    flow.trigger("pipe", "src", cursor=1)
    flow.run_all("step", "tail")
    user = User(flow.harness, flow.org, "admin")
    assert [row["name"] for row in user.call("GET", "/v1/dags").body["dags"]] == ["pipe"]
    removal.remove("pipe")
    for path, field in (
        ("/v1/dags", "dags"),
        ("/v1/datasets", "datasets"),
        ("/v1/sources", "sources"),
        ("/v1/tasks", "tasks"),
        ("/v1/events", "events"),
    ):
        assert user.call("GET", path).body[field] == [], path
    for method, path, code in (
        ("GET", "/v1/dags/pipe/versions", "dag_removed"),
        ("GET", "/v1/dags/pipe/versions/1", "dag_removed"),
        ("GET", "/v1/dags/pipe/jobs", "dag_removed"),
        ("GET", "/v1/dags/pipe/removal", "dag_removed"),
        ("GET", "/v1/tasks?dag=pipe", "dag_removed"),
        ("GET", "/v1/overview?dag=pipe", "dag_removed"),
        ("GET", "/v1/why/job/pipe/step", "dag_removed"),
        ("POST", "/v1/dags/pipe/jobs/src/pause", "dag_removed"),
        ("GET", "/v1/datasets/steps", "dataset_removed"),
        ("GET", "/v1/datasets/steps/lineage", "dataset_removed"),
        ("POST", "/v1/datasets/steps/files", "dataset_removed"),
        ("GET", "/v1/why/dataset/steps", "dataset_removed"),
        ("GET", "/v1/events?dataset=steps", "dataset_removed"),
        ("GET", "/v1/checks?dataset=steps", "dataset_removed"),
    ):
        assert refused(flow, method, path, {} if path.endswith("/files") else None) == code, path
    error = user.call("GET", "/v1/datasets/steps").body["error"]
    assert "removed with the DAG pipe on" in error["message"]
    assert "`trace remove --undo pipe` until" in error["message"]
    assert error["details"]["removed_by"] == "tester"
    (listed,) = user.call("GET", "/v1/removed-dags").body["dags"]
    assert (listed["dag"], listed["state"], listed["removed_by"]) == ("pipe", "removed", "tester")
    relations = flow.harness.service("POST", "/internal/query-relations", {"org": flow.org}).body["relations"]
    assert relations == []


def test_restored_it_goes_on_with_what_waited_and_what_came_meanwhile(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    for cursor in (1, 2, 3):
        flow.trigger("pipe", "src", cursor=cursor)
    running, *_ = flow.tasks("step", "Queued")
    lease = flow.claim(running["task_id"])
    removal.remove("pipe")
    # A late report of the attempt is accepted or refused as after every cancel; here it obeys.
    flow.complete(running["task_id"], lease, status="Canceled")
    reply = removal.restore("pipe")
    assert (reply.state, reply.version, reply.duplicate) == ("restored", 1, False)
    dags.run_builds(flow.harness)
    flow.drain()
    assert flow.run_all("step", "tail") == 6
    assert flow.units("tail") == [("c:1", ""), ("c:2", ""), ("c:3", "")]
    flow.trigger("pipe", "src", cursor=4)
    assert flow.run_all("step", "tail") == 2
    user = User(flow.harness, flow.org, "reader")
    assert [row["name"] for row in user.call("GET", "/v1/datasets").body["datasets"] if row["published"]] == ["steps"]


def test_everything_may_be_repeated(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    assert removal.restore("pipe").duplicate
    first = removal.remove("pipe")
    second = removal.remove("pipe")
    assert second.duplicate
    assert (second.removed_at, second.restorable_until) == (first.removed_at, first.restorable_until)
    assert not removal.restore("pipe").duplicate
    assert removal.restore("pipe").duplicate
    with pytest.raises(TraceError, match="dag_not_removed"):
        removal.purge("pipe")
    removal.remove("pipe")
    assert [removal.purge("pipe").duplicate for _ in range(2)] == [False, True]
    assert removal.remove("pipe").state == "purging"
    with pytest.raises(TraceError, match="dag_purged"):
        removal.restore("pipe")
    removal.delete_all()
    for verb in (removal.remove, removal.restore, removal.purge):
        with pytest.raises(TraceError, match="dag_not_found"):
            verb("pipe")
    actions = [row["action"] for row in flow.harness.sql("SELECT action FROM audit_log ORDER BY audit_id")]
    assert actions == [
        "dag.deploy",
        "dag.remove",
        "dag.restore",
        "dag.remove",
        "dag.purge",
        "dag.purged",
    ]


def test_it_stays_while_another_dag_reads_it(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    flow.deploy(READER)
    with pytest.raises(TraceError, match="reader/read reads steps") as refusal:
        removal.remove("pipe")
    assert refusal.value.code == "dag_in_use"
    assert "remove them first" not in refusal.value.message, "that is the remedy of the code"
    plan = User(flow.harness, flow.org, "reader").call("GET", "/v1/dags/pipe/removal").body
    assert plan["readers"] == [{"dataset": "steps", "dag": "reader", "job": "read", "how": "reads"}]
    flow.deploy(WITHOUT)
    assert removal.remove("pipe").state == "removed"
    with pytest.raises(TraceError, match=r"needs the dataset steps.* restore that first") as refusal:
        dags.activate(flow.harness, "reader", 1, now=True)
    assert refusal.value.code == "dataset_removed"
    with pytest.raises(TraceError, match="dag_invalid"):
        flow.deploy(READER)
    removal.restore("pipe")
    assert dags.activate(flow.harness, "reader", 1, now=True).state == "Active"


def test_it_is_not_restored_before_what_it_reads(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    flow.deploy(READER)
    removal.remove("reader")
    removal.remove("pipe")
    with pytest.raises(TraceError, match="trace remove --undo pipe"):
        removal.restore("reader")
    error = User(flow.harness, flow.org, "admin").call("POST", "/v1/dags/reader/restore").body["error"]
    assert (error["code"], error["details"]["datasets"]) == ("dataset_removed", ["steps"])
    assert "trace remove --undo pipe" in error["message"]
    assert "--undo reader" not in error["message"], "that was the call"
    removal.restore("pipe")
    flow.trigger("pipe", "src", cursor=5)
    flow.run_all("step")
    removal.restore("reader")
    flow.drain()
    assert flow.units("read") == [("c:5", "")]


def test_its_names_are_taken_until_it_is_purged(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    removal.remove("pipe")
    other = PIPE.replace("name: pipe", "name: other")
    with pytest.raises(TraceError, match="dag_invalid") as refusal:
        flow.deploy(other)
    (problem,) = refusal.value.details["problems"]
    assert "which was removed" in problem.message
    removal.purge("pipe")
    removal.delete_all()
    assert flow.deploy(other).plan.version == 1
    removal.remove("other")
    removal.purge("other")
    removal.delete_all()
    again = flow.deploy(PIPE)
    assert (again.plan.version, again.duplicate) == (1, False)
    flow.trigger("pipe", "src", cursor=1)
    assert flow.run_all("step", "tail") == 2


def test_another_org_sees_nothing_of_it(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    Flow(flow.harness, "other").deploy(PIPE)
    stranger = User(flow.harness, "other", "admin")
    removal.remove("pipe")
    assert stranger.call("GET", "/v1/removed-dags").body["dags"] == []
    assert [row["name"] for row in stranger.call("GET", "/v1/dags").body["dags"]] == ["pipe"]
    assert stranger.call("GET", "/v1/datasets/steps").status == 200
    nobody = User(flow.harness, "nobody", "admin")
    for verb in ("remove", "restore", "purge"):
        assert nobody.call("POST", f"/v1/dags/pipe/{verb}").status == 404
    removal.purge("pipe")
    removal.delete_all()
    Flow(flow.harness, "other").trigger("pipe", "src", cursor=1)
    assert Flow(flow.harness, "other").run_all("step", "tail") == 2


def test_writers_remove_and_only_admins_purge(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    reader, writer = User(flow.harness, flow.org, "reader"), User(flow.harness, flow.org, "writer")
    assert reader.call("GET", "/v1/dags/pipe/removal").status == 200
    assert reader.call("POST", "/v1/dags/pipe/remove").status == 403
    assert writer.call("POST", "/v1/dags/pipe/remove").status == 200
    assert writer.call("POST", "/v1/dags/pipe/purge").status == 403
    assert writer.call("POST", "/v1/dags/pipe/restore").status == 200
    removal.remove("pipe")
    assert User(flow.harness, flow.org, "admin").call("POST", "/v1/dags/pipe/purge").status == 200


def test_a_build_beside_it_ends_with_it(flow: Flow, removal: Removal) -> None:
    flow.deploy(PIPE)
    flow.trigger("pipe", "src", cursor=1)
    flow.run_all("step", "tail")
    flow.deploy(
        PIPE.replace(
            "operator: noop, inputs: [{from: {job: src}}]",
            "operator: sleep, config: {seconds: 1}, inputs: [{from: {job: src}}]",
        )
    )
    flow.drain()
    assert flow.tasks("step", "Queued")
    removal.remove("pipe")
    dags.run_builds(flow.harness)
    assert not flow.tasks("step", "Queued")
    states = [row["state"] for row in flow.harness.sql("SELECT state FROM activations ORDER BY activation_id")]
    assert states == ["Superseded", "Abandoned"]
    assert removal.restore("pipe").version == 1
    assert dags.activate(flow.harness, "pipe", 2).state == "Building"

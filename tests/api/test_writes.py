"""A DAG's life through the API alone: deploy, look, trigger, act, roll back; and what the views say of it."""

import itertools
from datetime import UTC, datetime

import pytest

from tests.api.support import User
from tests.http.support import Refusals, check_leaks
from tests.support.dispatcher import DispatcherHarness

DAG = """\
name: pipeline
jobs:
  - name: start   # by hand
    activation: source
    source: { kind: manual }
  - name: work
    activation: reactive
    runtime: ecs_platform
    operator: noop
    inputs: [{ from: { job: start } }]
    timeout_seconds: 60
publish:
  worked:
    from: { job: work }
    storage: postgres
    schema: { columns: { block_number: int64 } }
"""
_orgs = itertools.count()


@pytest.fixture
def writer(harness: DispatcherHarness) -> User:
    return User(harness, f"writes_{next(_orgs)}", "writer", "ada")


def deploy(user: User, text: str = DAG, query: str = "?activate=true", dag: str = "pipeline") -> dict[str, object]:
    reply = user.call("POST", f"/v1/dags/{dag}/versions{query}", text.encode())
    assert reply.status == 200, reply
    body: dict[str, object] = reply.body
    return body


def test_a_dry_run_changes_nothing(writer: User) -> None:
    with Refusals(writer.harness):
        reply = deploy(writer, query="?dry_run=true&activate=true")
    assert reply["plan"]["version"] == 1  # type: ignore[index]
    assert reply.get("state", "Planned") == "Planned"
    assert writer.get("/v1/dags") == {"dags": []}


def test_a_version_is_kept_and_counts_when_asked_to(writer: User) -> None:
    assert deploy(writer, query="")["state"] == "Created"
    (row,) = writer.get("/v1/dags")["dags"]
    assert "active_version" not in row
    assert deploy(writer, query="")["duplicate"] is True
    activated = writer.call("PUT", "/v1/dags/pipeline/active", {"version": 1})
    assert (activated.status, activated.body["state"]) == (200, "Active")
    (row,) = writer.get("/v1/dags")["dags"]
    assert (row["active_version"], row["versions"], row["jobs"]) == (1, 1, 2)
    assert writer.get("/v1/dags/pipeline/versions/1") == DAG.encode()


def test_from_a_trigger_to_lineage(writer: User) -> None:
    deploy(writer)
    start, work = writer.get("/v1/dags/pipeline/jobs")["jobs"]
    assert (start["name"], start["source"], start["activation"]) == ("start", "manual", "source")
    assert (work["operator"], work["runtime"]) == ("noop", "ecs_platform")
    assert work["inputs"][0]["state"] == "live"
    trigger = {"cursor": 7, "idempotency_key": "once"}
    first = writer.call("POST", "/v1/dags/pipeline/jobs/start/trigger", trigger).body
    again = writer.call("POST", "/v1/dags/pipeline/jobs/start/trigger", trigger).body
    assert again == first | {"duplicate": True}
    (task_id,) = first["tasks"]
    (row,) = writer.get("/v1/tasks?dag=pipeline&job=work&status=Queued")["tasks"]
    assert (row["task_id"], row["unit"]) == (task_id, {"cursor": {"after": -1, "to": 7}})
    (event,) = writer.get("/v1/events")["events"]
    assert (event["event_id"], event["producer"], event["cursor"]) == (first["event_id"], "manual:once", 7)
    (unit,) = writer.get(f"/v1/datasets/{event['dataset']}/lineage")["units"]
    assert unit["producer"] == "manual:once"
    lineage = writer.get("/v1/datasets/worked/lineage")
    assert [(edge["job"], edge["to_dataset"]) for edge in lineage["upstream"]] == [
        ("work", "worked"),
        ("start", event["dataset"]),
    ]
    canceled = writer.call("POST", f"/v1/tasks/{task_id}/cancel")
    assert (canceled.status, canceled.body["status"]) == (200, "Canceled")
    assert writer.get(f"/v1/tasks/{task_id}")["task"]["status"] == "Canceled"
    skipped = writer.call("POST", f"/v1/tasks/{task_id}/skip")
    assert (skipped.status, skipped.code) == (422, "task_not_failed")
    retried = writer.call("POST", f"/v1/tasks/{task_id}/retry")
    assert (retried.status, retried.body["status"]) == (200, "Queued")
    (job,) = (job for job in writer.get("/v1/dags/pipeline/jobs")["jobs"] if job["name"] == "work")
    assert job["inputs"][0]["routed_cursor"] == 7


def test_what_was_changed_is_in_the_log_with_who_did_it(writer: User) -> None:
    deploy(writer)
    trigger = writer.call("POST", "/v1/dags/pipeline/jobs/start/trigger", {"cursor": 1}).body
    writer.call("POST", f"/v1/tasks/{trigger['tasks'][0]}/cancel")
    entries = User(writer.harness, writer.org, "admin").get("/v1/audit")["entries"]
    assert {entry["subject"] for entry in entries} == {"ada"}
    assert [entry["action"] for entry in reversed(entries)] == ["dag.deploy", "job.trigger", "task.cancel"]
    with Refusals(writer.harness):
        deploy(writer, query="?dry_run=true")


def test_back_to_the_version_before(writer: User) -> None:
    deploy(writer)
    changed = deploy(writer, DAG.replace("timeout_seconds: 60", "timeout_seconds: 90"))
    (work,) = (job for job in changed["plan"]["jobs"] if job["job"] == "work")  # type: ignore[index]
    assert work["change"] == "limits"
    assert writer.get("/v1/dags/pipeline/jobs")["version"] == 2
    back = writer.call("PUT", "/v1/dags/pipeline/active", {"version": "previous"})
    assert back.status == 200, back
    assert writer.get("/v1/dags/pipeline/jobs")["version"] == 1
    states = {row["number"]: row["state"] for row in writer.get("/v1/dags/pipeline/versions")["versions"]}
    assert states == {2: "Inactive", 1: "Active"}


@pytest.mark.parametrize(
    "text",
    [b"", b"name: [", b"\xff\xfe", b"name: pipeline\n", b"{}", b"\x00", DAG.replace("noop", "nothing").encode(),
     DAG.replace("name: pipeline", "name: other").encode(), b"- " * 10_000, b"&a [*a]"],
)  # fmt: skip
def test_a_document_that_is_wrong_is_refused_with_its_problems(writer: User, text: bytes) -> None:
    with Refusals(writer.harness) as refusals:
        for query in ("", "?dry_run=true", "?activate=true"):
            reply = writer.call("POST", f"/v1/dags/pipeline/versions{query}", text)
            assert (reply.status, reply.code) == (422, "dag_invalid"), reply
            problems = reply.body["error"]["details"]["problems"]
            assert problems
            assert all(problem["line"] >= 1 and problem["message"] for problem in problems)
            check_leaks(reply.body)
        large = writer.call("POST", "/v1/dags/pipeline/versions", b"#" * (writer.harness.config.body_max_bytes + 1))
        refusals.check(large, 413, "body_too_large")


def test_versions_that_are_not_there(writer: User) -> None:
    deploy(writer)
    with Refusals(writer.harness) as refusals:
        reply = writer.call("PUT", "/v1/dags/pipeline/active", {"version": 9})
        refusals.check(reply, 404, "dag_version_not_found")
        refusals.check(writer.call("PUT", "/v1/dags/nothing/active", {"version": 1}), 404, "dag_not_found")
        trigger = writer.call("POST", "/v1/dags/pipeline/jobs/nothing/trigger", {"cursor": 1})
        refusals.check(trigger, 404, "job_not_found")


SOURCES = """
name: sources
defaults: {runtime: ecs_platform}
jobs:
  - {name: hourly, activation: source, source: {kind: cron, schedule: "0 * * * *"}}
  - {name: head, activation: source, source: {kind: always_on}, operator: ticker, config: {seconds: 10}}
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {job: hourly}}]}
  - {name: follow, activation: reactive, operator: noop, inputs: [{from: {job: head}}]}
"""


def test_a_cron_source_takes_no_cursor_that_would_silence_it(harness: DispatcherHarness, writer: User) -> None:
    deploy(writer, SOURCES, dag="sources")
    path, now = "/v1/dags/sources/jobs/hourly/trigger", int(datetime.now(UTC).timestamp())
    with Refusals(harness) as refusals:
        refused = writer.call("POST", path, {"cursor": 99_999_999_999})
        refusals.check(refused, 422, "trigger_invalid")
        assert refused.body["error"]["details"] == {"field": "cursor"}
        assert "received 99999999999: until then no slot would create a task" in str(refused.body)
        refusals.check(writer.call("POST", path, {"cursor": now + 90_000}), 422, "trigger_invalid")
    assert len(writer.call("POST", path, {"cursor": now + 80_000}).body["tasks"]) == 1


def test_a_source_that_speaks_for_itself_says_what_to_trigger(harness: DispatcherHarness, writer: User) -> None:
    deploy(writer, SOURCES, dag="sources")
    with Refusals(harness) as refusals:
        refused = writer.call("POST", "/v1/dags/sources/jobs/head/trigger", {"cursor": 7})
        refusals.check(refused, 422, "trigger_invalid")
        assert "trigger a job that reads the source" in refused.body["error"]["message"]

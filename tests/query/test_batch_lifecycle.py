"""Batch queries against a real Dispatcher, with workers that a test plays: every way in which one can begin and end."""

from typing import Any

import pytest

from tests.api.support import User
from tests.query.batch_support import COLUMNS, Person, claimed, fresh_flow, report, write_result
from tests.routing.test_files import FILES, write
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.errors import TraceError
from tracelake.model.ids import new_id

DAY = 24 * 3600


@pytest.fixture
def ann(harness: DispatcherHarness) -> Person:
    flow = fresh_flow(harness)
    flow.deploy(FILES)
    write(flow, 0, 9, "blocks_0_9.parquet")
    return Person(flow)


def files(person: Person, task: str, lease: Any) -> Any:
    item = lease["task"]["inputs"][0]
    body = {"dataset_uuid": item["dataset_uuid"], "dataset_version": item["dataset_version"]}
    return person.harness.task("files", lease["capability_token"], fence(task, lease, **body))


def test_from_submission_to_result(ann: Person) -> None:
    query, task = ann.submitted(parameters={"low": {"type": "int64", "value": 5}}, limit=100)
    assert ann.state(query) == "queued"
    lease = claimed(ann, task)
    assert ann.state(query) == "running"
    config = lease["task"]["config"]
    assert (config["query"], config["limit"], config["inputs"]) == (ann.sql, 100, {"blocks": 0})
    assert config["parameters"] == {"low": {"type": "int64", "value": 5}}
    fetched = ann.harness.worker("GET", f"/internal/task-fetch?task_id={task}").body["task"]["config"]
    assert fetched == config
    assert write_result(ann, task, lease).status == 200
    record = ann.show(query).body
    assert record["query"]["state"] == "done"
    assert (record["query"]["row_count"], record["query"]["columns"]) == (7, COLUMNS)
    assert [dataset["name"] for dataset in record["query"]["datasets"]] == ["blocks"]
    assert [file["uri"].rsplit("/", 1)[1] for file in record["files"]] == ["_query_results_0_0.abc.parquet"]
    assert ann.outcomes() == ["submitted", "ok"]
    row = ann.harness.sql("SELECT config FROM batch_queries WHERE query_id = $1", query)[0]
    assert row["config"] is None, "the text goes with the end of the query"
    assert ann.harness.sql("SELECT FROM batch_query_inputs WHERE task_id = $1", task) == []


def test_a_repeated_submission_is_the_same_query_and_another_one_is_refused(ann: Person) -> None:
    query_id = str(new_id())
    first, again = ann.submit(query_id), ann.submit(query_id)
    assert (first.status, again.status) == (200, 200)
    assert again.body["query"]["duplicate"] is True
    assert len(ann.harness.sql("SELECT FROM batch_queries WHERE query_id = $1", query_id)) == 1
    assert ann.submit(query_id, sql="SELECT 1 AS n", relations=[]).code == "query_id_taken"
    assert Person(ann.flow, "bob").submit(query_id).code == "query_id_taken"
    assert ann.outcomes() == ["submitted"]


def test_a_lost_worker_is_followed_by_another_attempt_and_its_late_report_is_fenced(ann: Person) -> None:
    query, task = ann.submitted()
    lost = claimed(ann, task)
    for _ in range(2):  # a reaper waits one lease first
        ann.harness.advance(200)
        ann.harness.reap()
    assert ann.state(query) == "retrying"
    ann.harness.advance(900)
    ann.harness.requeue_due()
    assert ann.state(query) == "queued"
    lease = claimed(ann, task)
    assert lease["attempt"] == 2
    assert write_result(ann, task, lost).code == "fenced", "an attempt that was replaced writes no result"
    assert ann.state(query) == "running"
    assert write_result(ann, task, lease).status == 200
    (file,) = ann.show(query).body["files"]
    assert f"/{task}/2/" in file["uri"]


def test_attempts_end_and_the_outcome_that_was_recorded_is_final(ann: Person) -> None:
    query, task = ann.submitted()
    ann.harness.sql("UPDATE tasks SET max_attempts = 1 WHERE task_id = $1", task)
    lease = claimed(ann, task)
    ann.harness.sql("UPDATE tasks SET lease_expires_at = trace_now() - interval '1 s' WHERE task_id = $1", task)
    ann.harness.advance(200)
    ann.harness.reap()
    ann.harness.advance(200)
    ann.harness.reap()
    record = ann.show(query).body["query"]
    assert (record["state"], record["error"]["code"]) == ("failed", "query_timeout")
    assert files(ann, task, lease).status == 409, "nothing is pinned for it any more"
    assert write_result(ann, task, lease).status == 200, "a late reply of the last attempt is its own"
    assert ann.state(query) == "failed"
    assert ann.outcomes() == ["submitted", "query_timeout"]


@pytest.mark.parametrize("kind", ["", "NonRetryableError: "], ids=["now", "of a worker of an earlier release"])
def test_a_failure_has_its_code_and_waits_for_nobody(ann: Person, kind: str) -> None:
    query, task = ann.submitted()
    message = f"{kind}query_unknown_column: The query names a column that does not exist: `a`."
    report(ann, task, claimed(ann, task), "Failed", error_message=message, retryable=False)
    record = ann.show(query).body["query"]
    assert record["state"] == "failed"
    assert record["error"] == {
        "code": "query_unknown_column",
        "message": "The query names a column that does not exist: `a`.",
    }
    assert ann.harness.row(task)["skipped_at"] is not None
    assert ann.outcomes() == ["submitted", "query_unknown_column"]


def test_cancel_before_during_and_after_the_run_and_twice(ann: Person) -> None:
    waiting, task = ann.submitted()
    assert ann.cancel(waiting) == {"canceled": True, "state": "canceled"}
    assert ann.cancel(waiting) == {"canceled": False, "state": "canceled"}
    assert ann.harness.claim(task).body["reason"] == "Canceled"

    running, task = ann.submitted()
    lease = claimed(ann, task)
    assert ann.cancel(running) == {"canceled": True, "state": "canceling"}
    assert ann.cancel(running) == {"canceled": True, "state": "canceling"}
    beat = ann.harness.task("heartbeat", lease["capability_token"], fence(task, lease))
    assert beat.body["cancel"] is True
    assert write_result(ann, task, lease).code == "cancel_requested"
    report(ann, task, lease, "Canceled")
    assert ann.state(running) == "canceled"

    done, task = ann.submitted()
    write_result(ann, task, claimed(ann, task))
    assert ann.cancel(done) == {"canceled": False, "state": "done"}
    assert sorted(ann.outcomes()) == ["ok", "query_canceled", "query_canceled", *["submitted"] * 3]


def test_a_query_reads_what_was_committed_when_it_was_submitted(ann: Person) -> None:
    _, task = ann.submitted()
    write(ann.flow, 10, 19, "blocks_10_19.parquet")
    lease = claimed(ann, task)
    names = [file["uri"].rsplit("/", 1)[1] for unit in files(ann, task, lease).body["units"] for file in unit["files"]]
    assert names == ["blocks_0_9.parquet"]
    granted = {grant["dataset_uuid"] for grant in lease["task"]["inputs"]}
    assert len(granted) == 1


def test_files_of_other_blocks_are_not_read(ann: Person) -> None:
    for start in (10, 20, 30):
        write(ann.flow, start, start + 9, f"blocks_{start}_{start + 9}.parquet")

    def read(*blocks: int) -> tuple[list[str], int]:
        query, task = ann.submitted(blocks={"blocks": list(blocks)})
        lease = claimed(ann, task)
        unit = lease["task"]["inputs"][0]["unit"]
        span = {"start": unit["start"], "end": unit["end"]} if "start" in unit else {}
        item = lease["task"]["inputs"][0]
        body = {"dataset_uuid": item["dataset_uuid"], "dataset_version": item["dataset_version"]} | span
        units = ann.harness.task("files", lease["capability_token"], fence(task, lease, **body)).body["units"]
        size = ann.show(query).body["query"]["input_bytes"]
        report(ann, task, lease, "Failed", retryable=False)
        return [f"{unit['start']}-{unit['end']}" for unit in units], size

    everything = ["0-9", "10-19", "20-29", "30-39"]
    assert read(15, 25) == (["10-19", "20-29"], len("blocks_10_19.parquet") * 2)
    assert read(20, 2**63 - 1)[0] == ["20-29", "30-39"]
    assert read(0, 2**63 - 1)[0] == everything
    assert read(100, 200)[0] == everything, "the columns of a relation are those of its files"


def test_what_is_not_published_in_the_org_cannot_be_read(ann: Person, harness: DispatcherHarness) -> None:
    assert ann.submit(relations=["nothing"]).code == "query_unknown_relation"
    stranger = Person(fresh_flow(harness))
    assert stranger.submit().code == "query_unknown_relation"
    stranger.flow.deploy(FILES)
    assert stranger.submit().code == "dataset_not_committed"
    assert harness.sql("SELECT FROM batch_queries q JOIN orgs USING (org_id) WHERE name = $1", stranger.flow.org) == []


def test_queries_are_of_their_owner_and_of_admins_of_the_org(ann: Person, harness: DispatcherHarness) -> None:
    query, task = ann.submitted()
    bob, admin = Person(ann.flow, "bob"), Person(ann.flow, "eve", admin=True)
    foreign_admin = Person(fresh_flow(harness), "ann", admin=True)
    for what in ("show", "cancel"):
        assert bob.call(what, query_id=query).code == "query_forbidden"
        assert foreign_admin.call(what, query_id=query, admin=True).code == "query_not_found"
    assert admin.state(query) == "queued"
    assert [item["query_id"] for item in ann.call("list").body["queries"]] == [query]
    assert bob.call("list").body["queries"] == foreign_admin.call("list").body["queries"] == []
    assert admin.cancel(query)["canceled"] is True
    assert harness.row(task)["status"] == "Canceled"


def test_lists_have_pages_newest_first(ann: Person) -> None:
    queries = [ann.submitted()[0] for _ in range(5)]
    pages, cursor = [], None
    while True:
        page = ann.call("list", limit=2, **({} if cursor is None else {"cursor": cursor})).body
        pages.append([item["query_id"] for item in page["queries"]])
        cursor = page.get("next")
        if cursor is None:
            break
    assert pages == [queries[:2:-1], queries[2:0:-1], queries[:1]]


def test_limits_of_a_person_and_one_running_query_of_an_org(ann: Person) -> None:
    tasks = [ann.submitted()[1] for _ in range(ann.harness.config.query_batch_user_open)]
    refused = ann.submit()
    assert (refused.status, refused.code) == (429, "rate_limited")
    bob = Person(ann.flow, "bob")
    _, other = bob.submitted()
    assert [ann.harness.row(task)["held"] for task in (*tasks, other)] == [False, *[True] * len(tasks)]
    write_result(ann, tasks[0], claimed(ann, tasks[0]))
    assert ann.harness.row(tasks[1])["held"] is False, "its place goes to the next one"
    ann.submitted()


def test_a_query_expires_with_its_result_and_everything_of_it(ann: Person) -> None:
    query, task = ann.submitted()
    write_result(ann, task, claimed(ann, task))
    (file,) = ann.show(query).body["files"]
    outcomes = ann.harness.dispatcher.query_outcomes
    ann.harness.advance(6 * DAY)
    ann.harness.run(outcomes.run_once())
    assert ann.state(query) == "done"
    ann.harness.advance(1 * DAY + 60)
    ann.harness.run(outcomes.run_once())
    assert ann.show(query).code == "query_not_found"
    for table in ("tasks", "manifests", "batch_queries"):
        assert ann.harness.sql(f"SELECT FROM {table} WHERE task_id = $1", task) == []
    ann.harness.run(ann.harness.dispatcher.retention.run_round())
    assert ann.harness.run(ann.harness.objects.list(file["uri"].rpartition("/")[0] + "/")) == []
    assert ann.outcomes() == ["submitted", "ok"], "the audit has a retention of its own"


def test_the_loop_records_what_nobody_asks_for(ann: Person) -> None:
    query, task = ann.submitted()
    write_result(ann, task, claimed(ann, task))
    assert ann.outcomes() == ["submitted"]
    for _ in range(2):
        ann.harness.run(ann.harness.dispatcher.query_outcomes.run_once())
        assert ann.outcomes() == ["submitted", "ok"]
    assert ann.state(query) == "done"
    assert ann.outcomes() == ["submitted", "ok"]


def test_a_person_retries_no_query_that_ended(ann: Person) -> None:
    _, task = ann.submitted()
    report(ann, task, claimed(ann, task), "Failed", error_message="no", retryable=False)
    with pytest.raises(TraceError, match="submit it again"):
        ann.flow.person("retry", ann.harness.row(task)["task_id"])


def test_a_result_is_reached_through_its_query_alone(ann: Person) -> None:
    _, task = ann.submitted()
    write_result(ann, task, claimed(ann, task))
    admin = User(ann.harness, ann.flow.org, "admin")
    assert "_query_results" not in [dataset["name"] for dataset in admin.get("/v1/datasets")["datasets"]]
    body = {"start": 0, "end": 2**62}
    for method, path in (
        ("GET", "/v1/datasets/_query_results"),
        ("POST", "/v1/datasets/_query_results/files"),
        ("POST", "/v1/datasets/_query_results/rows"),
        ("GET", f"/v1/datasets/_query_results/content?version={new_id()}&revision=1"),
    ):
        assert admin.call(method, path, body if method == "POST" else None).status in (404, 422)
    document = FILES.replace("{from: {job: write}}", "{from: {dataset: _query_results}}", 1)
    with pytest.raises(TraceError, match="dag_invalid"):
        ann.flow.deploy(document.replace("name: files", "name: thief"))
    detail = admin.get(f"/v1/tasks/{task}")
    assert ann.sql not in str(detail)

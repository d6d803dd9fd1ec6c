"""What people are told of buffered datasets: who wrote a commit, what became of batches, how the table is kept."""

import itertools
from typing import Any

import pytest

from tests.api.support import User
from tests.sink.flow import DAG, BufferFlow
from tests.support.dispatcher import DispatcherHarness
from tracelake.storage import table_ddl

_orgs = itertools.count()

# One that reads what feeds the writers, and leads nowhere.
BESIDE = """\
  - name: beside
    activation: reactive
    runtime: ecs_platform
    operator: noop
    inputs: [{{ from: {{ job: head }} }}]
"""


@pytest.fixture
def flow(harness: DispatcherHarness) -> BufferFlow:
    return BufferFlow(harness, "postgresql://nowhere", f"told_{next(_orgs)}")


@pytest.fixture
def user(flow: BufferFlow) -> User:
    return User(flow.harness, flow.org, "admin")


def commit(flow: BufferFlow, number: int, *batches: Any) -> None:
    body = {
        "dataset_uuid": str(flow.dataset.dataset_uuid),
        "commit_seq": number,
        "publish_ids": [batch["publish_id"] for batch in batches],
    }
    assert flow.harness.service("POST", "/internal/buffer-committed", body).status == 200


def writers(row: Any) -> list[tuple[str, str, str, str]]:
    return [(item["task_id"], item["dag"], item["job"], item["unit"]["partition_key"]) for item in row["batches"]]


def test_a_commit_names_the_tasks_that_wrote_its_batches(flow: BufferFlow, user: User) -> None:
    one, two, three = (flow.publish([{"key": 1}], job) for job in ("left", "right", "left"))
    commit(flow, 1, two, one)
    commit(flow, 2, three)
    first = [(one["task_id"], "transfers", "left", "1-1"), (two["task_id"], "transfers", "right", "2-2")]
    second = [(three["task_id"], "transfers", "left", "3-3")]
    units = user.get("/v1/datasets/large/lineage")["units"]
    assert [writers(row) for row in units] == [second, first]
    assert [row["batch_count"] for row in units] == [1, 2]
    assert [row["publish_id"] for row in units[1]["batches"]] == [one["publish_id"], two["publish_id"]]
    assert [writers(row) for row in user.get("/v1/datasets/large/lineage?unit=1")["units"]] == [first]
    events = user.get("/v1/events?dataset=large")["events"]
    assert [writers(row) for row in events] == [second, first]
    assert [writers(row) for row in user.get("/v1/events?dataset=large&after=0")["events"]] == [first, second]
    keys = [{"dataset": "large", "event_id": row["event_id"]} for row in events]
    again = user.call("POST", "/v1/event-lookup", {"events": keys}).body["events"]
    assert [writers(row) for row in again] == [first, second]
    assert "batches" not in user.get("/v1/events?dataset=transfers__head_0")["events"][0]


def test_a_large_commit_shows_some_and_says_how_many(flow: BufferFlow, user: User) -> None:
    task_id, lease = flow.attempt("left")
    prefix = lease["task"]["outputs"][0]["storage"]["buffer_prefix"]
    batches = []
    for number in range(12):
        uri = f"{prefix}{number}.jsonl"
        flow.harness.run(flow.harness.objects.put(uri, b'{"key": 1}\n'))
        batches.append(flow.publish_by(task_id, lease, None, batch_uri=uri))
    commit(flow, 1, *batches)
    (unit,) = user.get("/v1/datasets/large/lineage")["units"]
    assert (len(unit["batches"]), unit["batch_count"]) == (10, 12)


def test_nobody_learns_of_the_batches_of_another_org(flow: BufferFlow, user: User, harness: DispatcherHarness) -> None:
    commit(flow, 1, flow.publish([{"key": 1}]))
    other = BufferFlow(harness, "postgresql://nowhere", f"told_{next(_orgs)}")
    assert User(harness, other.org).get("/v1/datasets/large/lineage")["units"] == []


def test_a_dead_letter_names_its_writer(flow: BufferFlow, user: User) -> None:
    dead = flow.publish([{"key": "x"}], "right")
    flow.reject(dead["publish_id"], "the column key: a text", line=1)
    (listed,) = user.get("/v1/dlq?dataset=large")["letters"]
    assert listed == user.get(f"/v1/dlq/{dead['publish_id']}")
    assert (listed["dag"], listed["job"], listed["unit"]["partition_key"]) == ("transfers", "right", "1-1")
    reply = user.call("POST", "/v1/dlq-replay", {"publish_ids": [dead["publish_id"]]}).body
    assert reply == {"changed": 1, "datasets": ["large"]}
    assert user.call("POST", "/v1/dlq-drop", {"dataset": "large"}).body == {"changed": 0}


def test_a_dataset_without_batches_has_no_dead_letters_and_says_why(flow: BufferFlow, user: User) -> None:
    assert user.get("/v1/dlq?dataset=transfers__head_0") == {"total": 0, "letters": [], "buffered": False}
    assert "buffered" not in user.get("/v1/dlq?dataset=large")
    for verb in ("replay", "drop"):
        refused = user.call("POST", f"/v1/dlq-{verb}", {"dataset": "transfers__head_0"})
        assert (refused.status, refused.code) == (404, "publish_not_found")
        assert "transfers__head_0 is not a buffered dataset" in refused.body["error"]["message"]


def test_a_dataset_tells_how_its_table_is_kept(flow: BufferFlow, user: User) -> None:
    assert user.get("/v1/datasets/large")["table"] == {
        "on_conflict": "update",
        "table": f"dataset_{flow.dataset.dataset_uuid}",
        "view": f"org_{flow.org}.large",
    }
    flow.deploy(limits="max_queue_depth: 50\n    max_queue_age: 2m")
    for number in (1, 2, 3):
        commit(flow, number, flow.publish([{"key": number}]))
    detail = user.get("/v1/datasets/large")
    table = detail["table"]
    assert (table["max_queue_depth"], table["max_queue_age_seconds"], table["last_commit"]) == (50, 120, 3)
    assert "committed_at" in table
    assert table["view"] == table_ddl.view_name(flow.dataset).replace('"', "")
    assert detail["dataset"]["writers"] == ["transfers/left", "transfers/right"]
    assert [row["commits"] for row in detail["generations"]] == [3]
    assert user.get("/v1/datasets/transfers__head_0")["dataset"]["writers"] == ["transfers/head"]
    assert "table" not in user.get("/v1/datasets/transfers__head_0")


def test_the_list_of_jobs_says_what_was_refused(flow: BufferFlow, user: User) -> None:
    def refused() -> dict[str, int | None]:
        jobs = user.get("/v1/dags/transfers/jobs")["jobs"]
        return {job["name"]: job["outputs"][0].get("dead_letters") for job in jobs if job.get("outputs")}

    assert refused() == {"head": None, "left": 0, "right": 0, "reader": None}
    for _ in range(2):
        flow.reject(flow.publish([{"key": "x"}])["publish_id"])
    assert refused() == {"head": None, "left": 2, "right": 2, "reader": None}


def test_whom_a_full_backlog_stops_is_who_could_be_stopped_by_it(flow: BufferFlow, user: User) -> None:
    """`beside` writes nothing of the table; but what it reads is silent when those before the writers are stopped."""
    text = DAG.replace("  - name: reader\n", f"{BESIDE}  - name: reader\n")
    flow.flow.deploy(text.format(on_conflict="update", more="", limits="max_queue_depth: 1"))
    told = {row["job"]: row for row in user.get("/v1/pressure")["edges"]}
    assert {job: (row["queues"], row.get("queues_of_writers", [])) for job, row in told.items()} == {
        "left": (["transfers/large"], []),
        "right": (["transfers/large"], []),
        "beside": (["transfers/large"], ["transfers/large"]),
    }
    flow.publish([{"key": 1}])
    flow.harness.run(flow.harness.dispatcher.pressure.run_once())
    made = {job: len(flow.flow.tasks(job)) for job in told}
    flow.flow.trigger("transfers", "head", range={"start": 100, "end": 109})
    assert {job: len(flow.flow.tasks(job)) for job in told} == made
    assert {row["job"]: row["state"] for row in user.get("/v1/pressure")["edges"]} == dict.fromkeys(told, "stopped")

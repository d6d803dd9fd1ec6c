"""Why rows that were published are not in a buffered dataset, in whatever is asked: it, its writers, its readers."""

import itertools
from typing import Any

import pytest

from tests.api.support import User
from tests.sink.flow import DAG, BufferFlow
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import reject_wakeup
from tests.why.support import Situation, codes, commands, said
from tracelake.dispatcher.loops import gauges

_orgs = itertools.count()

READ_ON = """
name: after
defaults: {runtime: ecs_platform}
jobs:
  - {name: sums, activation: reactive, operator: noop, inputs: [{from: {dataset: large}}]}
publish:
  totals: {from: {job: sums}, storage: postgres}
"""


@pytest.fixture
def buffers(harness: DispatcherHarness) -> BufferFlow:
    return BufferFlow(harness, "postgresql://nowhere", f"buffered_{next(_orgs)}")


@pytest.fixture
def flow(buffers: BufferFlow) -> Situation:
    return Situation(buffers.harness, buffers.org)


def sink_asks(buffers: BufferFlow) -> None:
    buffers.harness.service("GET", "/internal/buffers")


def work_off(flow: Situation) -> None:
    """What the writers have to do besides: nothing that could explain anything."""
    for job in ("left", "right"):
        for task in flow.tasks(job, "Queued"):
            flow.complete(task["task_id"], flow.claim(task["task_id"]))


def test_batches_wait_and_there_is_no_sink(buffers: BufferFlow, flow: Situation) -> None:
    buffers.harness.sql("DELETE FROM sinks_seen")
    buffers.publish([{"key": 1}])
    work_off(flow)
    flow.harness.advance(300)
    reply = flow.why_dataset("large")
    assert (codes(reply), reply["state"]) == (["no_sink"], "blocked")
    text = "1 batch of it waits, for 5m, and no sink has ever asked for work."
    assert said(reply, "no_sink")["text"] == text
    assert commands(said(reply, "no_sink")) == ["trace status", "trace sink"]
    sink_asks(buffers)
    flow.harness.advance(120)
    buffers.publish([{"key": 2}])
    work_off(flow)
    reply = flow.why_dataset("large")
    assert said(reply, "no_sink")["text"] == ("2 batches of it wait, the oldest for 7m, and no sink has asked for 2m.")


def test_batches_wait_for_a_sink_that_is_there(buffers: BufferFlow, flow: Situation) -> None:
    buffers.publish([{"key": 1}])
    work_off(flow)
    flow.harness.advance(180)
    sink_asks(buffers)
    reply = flow.why_dataset("large")
    assert (codes(reply), reply["state"]) == (["batches_wait"], "waiting")
    assert said(reply, "batches_wait")["text"] == "1 batch of it waits for a sink, for 3m; a sink was there 0s ago."


def test_batches_of_a_task_that_runs_wait_for_it(buffers: BufferFlow, flow: Situation) -> None:
    task_id, lease = buffers.attempt("left")
    buffers.publish_by(task_id, lease, [{"key": 1}])
    flow.harness.advance(60)
    reason = said(flow.why_dataset("large"), "batches_await_task")
    assert reason["text"] == "1 batch of it waits for its task to complete, for 1m."
    assert commands(reason) == [f"trace why {task_id}"]
    flow.complete(task_id, lease, status="Failed", error_message="no", retryable=False)
    assert "batches_await_task" not in codes(flow.why_dataset("large")), "it never becomes visible"


def test_a_pointer_that_the_queue_refused(buffers: BufferFlow, flow: Situation) -> None:
    batch = buffers.publish([{"key": 1}])
    work_off(flow)
    reject_wakeup(flow.harness, batch["publish_id"], tries=3)
    reply = flow.why_dataset("large")
    assert codes(reply) == ["batch_not_sent"]
    text = said(reply, "batch_not_sent")["text"]
    assert text == "1 batch of it waits, for 0s, and the queue refused the pointer to it 3 times: too large."
    assert commands(said(reply, "batch_not_sent")) == ["trace outbox requeue"]
    assert {"kind": "outbox", "id": batch["publish_id"]} in said(reply, "batch_not_sent")["references"]


def test_dead_letters_with_the_newest_of_them(buffers: BufferFlow, flow: Situation) -> None:
    first, second = (buffers.publish([{"key": "x"}])["publish_id"] for _ in range(2))
    work_off(flow)
    buffers.reject(first, "the column key: a text", line=7)
    flow.harness.advance(120)
    sink_asks(buffers)
    reply = flow.why_dataset("large")
    assert codes(reply)[0] == "dead_letters"
    assert said(reply, "dead_letters")["text"] == "1 batch of it was refused, 2m ago: line 7: the column key: a text."
    assert commands(said(reply, "dead_letters")) == [f"trace dlq show {first}", "trace dlq replay --dataset large"]
    buffers.reject(second, "the artifact is gone.")
    reply = flow.why_dataset("large")
    assert (codes(reply), reply["state"]) == (["dead_letters"], "blocked")
    found = said(reply, "dead_letters")
    assert found["text"] == "2 batches of it were refused, the newest 0s ago: the artifact is gone."
    assert commands(found)[:2] == [f"trace dlq show {second}", "trace dlq list --dataset large"]
    assert buffers.drop(first, second) == 2
    assert "dead_letters" not in codes(flow.why_dataset("large"))


def change_left(buffers: BufferFlow, more: str = "") -> None:
    """Starts the build of another definition of `left`."""
    document = DAG.format(on_conflict="update", more=more, limits="")
    reply = buffers.flow.deploy(document.replace("operator: noop", "operator: sleep\n    config: { seconds: 0 }", 1))
    assert reply.state == "Building"
    buffers.flow.drain()


def build_state(flow: Situation) -> Any:
    versions = User(flow.harness, flow.org).get("/v1/dags/transfers/versions")["versions"]
    return next(row["build"] for row in versions if row["state"] == "Building")


def test_a_dead_letter_of_an_earlier_build_is_told_as_such(buffers: BufferFlow, flow: Situation) -> None:
    buffers.publish([{"key": 1}])
    work_off(flow)
    change_left(buffers)
    (task,) = flow.tasks("left", "Queued")
    lease = flow.claim(task["task_id"])
    batch = buffers.publish_by(str(task["task_id"]), lease, [{"key": "four"}])["publish_id"]
    flow.complete(task["task_id"], lease)
    buffers.reject(batch)
    build = build_state(flow)
    assert (build["dead_letters"], build.get("old_dead_letters", 0)) == (1, 0)
    assert build["rejected_datasets"] == ["large"]
    assert "1 batch of its rows was rejected, 1 is done." in said(flow.why_dataset("large"), "build_failed")["text"]
    flow.harness.advance(60)
    change_left(buffers, "        - { name: more, type: text }")
    build = build_state(flow)
    assert (build["dead_letters"], build["old_dead_letters"]) == (1, 1)
    reason = said(flow.why_dataset("large"), "build_failed")
    assert reason["text"] == (
        "Version 3 of transfers cannot become active: 1 batch of its rows was rejected before this deploy, 1 is done."
    )
    assert "trace dlq replay --dataset large" in commands(reason)
    assert codes(flow.why_job("left", "transfers"))[0] == "build_failed"


@pytest.mark.parametrize("keep", [False, True])
def test_dead_letters_of_replaced_definitions_do_not_matter(
    buffers: BufferFlow, flow: Situation, *, keep: bool
) -> None:
    if keep:
        buffers.deploy(limits="on_change: keep")
    buffers.reject(buffers.publish([{"key": "x"}])["publish_id"])
    work_off(flow)
    assert letters_counted(flow) == [1, 1, 1, 1, 1]
    document = DAG.format(on_conflict="update", more="", limits="on_change: keep" if keep else "")
    flow.deploy(document.replace("operator: noop", "operator: sleep\n    config: { seconds: 0 }", 1))
    flow.drain()
    assert letters_counted(flow) == [1, 1, 1, 1, 1], "the old definition still writes the table"
    work_off(flow)
    dags.run_builds(flow.harness)
    assert User(flow.harness, flow.org).get("/v1/dags")["dags"][0]["active_version"] == (3 if keep else 2)
    assert letters_counted(flow) == ([1, 1, 1, 1, 1] if keep else [0, 0, 0, 0, 0])
    assert ("dead_letters" in codes(flow.why_dataset("large"))) is keep


def letters_counted(flow: Situation) -> list[int]:
    """The dead letters of `large` in the lists of DAGs, jobs, datasets and loads, and in the metrics."""
    user = User(flow.harness, flow.org)
    (dag,) = user.get("/v1/dags")["dags"]
    (job,) = (job for job in user.get("/v1/dags/transfers/jobs")["jobs"] if job["name"] == "left")
    (load,) = (load for load in user.get("/v1/overview")["jobs"] if load["job"] == "left")
    (dataset,) = (row for row in user.get("/v1/datasets")["datasets"] if row["name"] == "large")
    rows = flow.harness.sql(gauges._LETTERS)
    kept = sum(row["letters"] for row in rows if row["org"] == flow.org)
    outputs = job["outputs"][0]
    return [row.get("dead_letters", 0) for row in (dag, outputs, dataset, load)] + [kept]


# head -> ingest -> write, whose rows a sink takes.
CHAIN = """
name: feeds
defaults: {runtime: ecs_platform, execution_strategy: PerPartition}
jobs:
  - {name: head, activation: source, source: {kind: manual}}
  - {name: ingest, activation: reactive, operator: noop, inputs: [{from: {job: head}}]}
  - {name: write, activation: reactive, operator: noop, inputs: [{from: {job: ingest}}]}
publish:
  rows:
    from: {job: write}
    storage: postgres
    write_mode: buffered
    schema: {columns: [{name: key, type: int64, nullable: false}], unique: [key]}
"""


def reject_rows(buffers: BufferFlow, flow: Situation) -> str:
    """The only batch of `rows` becomes a dead letter."""
    flow.deploy(CHAIN)
    flow.trigger("feeds", "head", range={"start": 1, "end": 1})
    flow.run_all("ingest")
    task = flow.one("write")
    lease = flow.claim(task)
    batch: str = buffers.publish_by(str(task), lease, [{"key": "x"}], dedupe_scope="rows")["publish_id"]
    flow.complete(task, lease)
    buffers.reject(batch)
    sink_asks(buffers)
    assert codes(flow.why_dataset("rows")) == ["dead_letters"]
    return batch


def test_work_upstream_is_no_cause_of_a_dead_letter(buffers: BufferFlow, flow: Situation) -> None:
    reject_rows(buffers, flow)
    flow.trigger("feeds", "head", range={"start": 2, "end": 2})
    assert codes(flow.why_dataset("rows")) == ["dead_letters"], "a task is ready upstream"
    flow.claim(flow.tasks("ingest", "Queued")[0]["task_id"])
    reply = flow.why_dataset("rows")
    assert codes(reply) == ["dead_letters"]
    assert "The cause is" not in str(reply)


def test_a_failure_upstream_is_told_besides_a_dead_letter(buffers: BufferFlow, flow: Situation) -> None:
    reject_rows(buffers, flow)
    flow.trigger("feeds", "head", range={"start": 2, "end": 2})
    flow.fail(flow.tasks("ingest", "Queued")[0]["task_id"])
    reply = flow.why_dataset("rows")
    assert codes(reply) == ["dead_letters", "tasks_failed"]
    assert "The cause is" not in str(reply)
    assert reply["summary"].startswith("rows: 1 batch of it was refused, 0s ago: no. Look at the errors")
    assert "Besides: 1 task of feeds/ingest has failed" in reply["summary"]


def test_a_stuck_build_comes_after_a_dead_letter(buffers: BufferFlow, flow: Situation) -> None:
    reject_rows(buffers, flow)
    changed = "name: write, activation: reactive, operator: sleep, config: {seconds: 0}"
    assert flow.deploy(CHAIN.replace("name: write, activation: reactive, operator: noop", changed)).state == "Building"
    flow.drain()
    flow.fail(flow.tasks("write", "Queued")[0]["task_id"])
    reply = flow.why_dataset("rows")
    assert codes(reply) == ["dead_letters", "build_failed"]
    assert reply["summary"].startswith("rows: 1 batch of it was refused")
    assert "Besides: Version 2 of feeds cannot become active" in reply["summary"]


def fill(buffers: BufferFlow, flow: Situation) -> None:
    buffers.deploy(limits="max_queue_depth: 2")
    for key in (1, 2):
        buffers.publish([{"key": key}])
    work_off(flow)
    flow.harness.run(flow.harness.dispatcher.pressure.run_once())
    flow.trigger("transfers", "head", range={"start": 100, "end": 109})
    sink_asks(buffers)


def test_a_full_backlog_is_named_by_the_dataset_and_by_those_it_stops(buffers: BufferFlow, flow: Situation) -> None:
    fill(buffers, flow)
    reply = flow.why_dataset("large")
    assert codes(reply) == ["batches_wait", "backlog_full"], "its writers wait for nothing else"
    assert said(reply, "backlog_full")["text"] == (
        "Its backlog is full for 0s (2 of 2 batches; goes on below 50 %), so jobs that write it get no new tasks."
    )
    assert commands(said(reply, "backlog_full")) == ["trace pressure"]
    stopped = said(flow.why_job("left", "transfers"), "pressure")
    assert stopped["text"] == (
        "It creates no tasks from transfers__head_0, because the backlog of large is full for 0s "
        "(2 of 2 batches; goes on below 50 %); 1 event waits."
    )
    assert commands(stopped) == ["trace pressure", "trace why large"]
    assert stopped["references"] == [{"kind": "dataset", "id": "large"}]
    (left,) = [edge for edge in flow.pressure()["edges"] if edge["job"] == "left"]
    assert (left["queue"], left["queue_is_backlog"]) == ("transfers/large", True)
    source = said(flow.why_job("head", "transfers"), "pressure")
    assert commands(source)[-1] == "trace why large"


def test_only_bulk_writers_are_stopped_by_one_that_fills(buffers: BufferFlow, flow: Situation) -> None:
    document = DAG.format(on_conflict="update", more="", limits="max_queue_depth: 10")
    flow.deploy(document.replace("- name: left\n", "- name: left\n    priority: bulk\n"))
    for key in range(8):
        buffers.publish([{"key": key}], "right")
    work_off(flow)
    flow.harness.run(flow.harness.dispatcher.pressure.run_once())
    text = said(flow.why_dataset("large"), "backlog_full")["text"]
    assert text.endswith("; bulk work goes on below 50 %), so bulk jobs that write it get no new tasks.")


def test_what_reads_it_is_not_fresh_either(buffers: BufferFlow, flow: Situation) -> None:
    flow.deploy(READ_ON)
    batch = buffers.publish([{"key": 1}])
    work_off(flow)
    sink_asks(buffers)
    reply = flow.why_dataset("totals")
    assert codes(reply) == ["input_waits", "upstream", "batches_wait"]
    assert said(reply, "upstream")["text"].startswith(
        "The cause is in large, which after/sums reads: 1 batch of it waits for a sink"
    )
    assert said(reply, "batches_wait")["text"].startswith("1 batch of large waits for a sink")
    assert commands(said(reply, "upstream")) == ["trace why large"]
    body = {"dataset_uuid": str(buffers.dataset.dataset_uuid), "commit_seq": 1, "publish_ids": [batch["publish_id"]]}
    assert flow.harness.service("POST", "/internal/buffer-committed", body).status == 200
    flow.run_all("sums")
    assert codes(flow.why_dataset("totals")) == ["fresh"]
    buffers.reject(buffers.publish([{"key": "x"}])["publish_id"])
    work_off(flow)
    assert codes(flow.why_dataset("totals")) == ["dead_letters", "input_waits", "upstream"]
    reader = said(flow.why_job("sums", "after"), "input_waits")
    assert reader["text"] == "Its input large lacks rows: 1 batch of large was refused, 0s ago: no."
    assert commands(reader) == ["trace why large"]


def test_the_dataset_shows_it_at_a_glance(buffers: BufferFlow, flow: Situation) -> None:
    user = User(flow.harness, flow.org)

    def counts() -> list[tuple[int | None, int | None]]:
        rows = [user.get("/v1/datasets/large")["dataset"]]
        rows += [row for row in user.get("/v1/datasets")["datasets"] if row["name"] in ("large", "transfers__head_0")]
        return [(row.get("waiting_batches"), row.get("dead_letters")) for row in rows]

    assert counts() == [(0, 0), (0, 0), (None, None)]
    buffers.publish([{"key": 1}])
    for _ in range(2):
        buffers.reject(buffers.publish([{"key": "x"}])["publish_id"])
    assert counts() == [(1, 2), (1, 2), (None, None)]


def test_everything_is_in_the_table(buffers: BufferFlow, flow: Situation) -> None:
    batch = buffers.publish([{"key": 1}])
    work_off(flow)
    body = {"dataset_uuid": str(buffers.dataset.dataset_uuid), "commit_seq": 1, "publish_ids": [batch["publish_id"]]}
    assert flow.harness.service("POST", "/internal/buffer-committed", body).status == 200
    reply = flow.why_dataset("large")
    assert codes(reply) == ["fresh"]
    assert reply["summary"].endswith("Last computed: cursor 1, 0s ago.")

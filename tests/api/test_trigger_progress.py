"""What follows from a trigger, as the API tells it: never finished while something of it is still to come."""

import itertools
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.support import User
from tests.routing.support import Flow
from tests.sink.flow import BufferFlow
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import allow_one_attempt
from tests.windows.support import WindowFlow

_orgs = itertools.count()

CHAIN = """\
name: chain
defaults: { runtime: ecs_platform }
jobs:
  - { name: head, activation: source, source: { kind: manual } }
  - { name: other, activation: source, source: { kind: manual } }
  - name: first
    activation: reactive
    operator: noop
    inputs: [{ from: { job: head } }]
  - name: second
    activation: reactive
    operator: noop
    inputs: [{ from: { job: first } }]
  - name: elsewhere
    activation: reactive
    operator: noop
    inputs: [{ from: { job: other } }]
publish:
  firsts: { from: { job: first }, storage: postgres }
"""

READER = """\
name: reader
defaults: { runtime: ecs_platform }
jobs:
  - name: far
    activation: reactive
    operator: noop
    inputs: [{ from: { dataset: firsts } }]
"""

WINDOWS = """\
name: w
defaults: { runtime: ecs_platform }
jobs:
  - { name: src, activation: source, source: { kind: manual } }
  - name: blocks
    activation: reactive
    operator: decode_logs
    execution_strategy: PerPartition
    inputs: [{ from: { job: src } }]
  - name: model
    activation: reactive
    operator: spark_sql
    config: { query: SELECT * FROM blocks }
    units: { by: blocks, size: 20 }
    inputs: [{ from: { job: blocks } }]
publish:
  blocks: { from: { job: blocks }, storage: s3 }
  model: { from: { job: model }, storage: s3 }
"""


@pytest.fixture
def flow(harness: DispatcherHarness) -> Flow:
    made = Flow(harness, f"follows_{next(_orgs)}")
    made.deploy(CHAIN)
    return made


def progress(flow: Flow, key: str, *, across: bool = False) -> dict[str, Any]:
    query = f"key={quote(key)}" + ("&across=true" if across else "")
    reply: dict[str, Any] = User(flow.harness, flow.org).get(f"/v1/triggers?{query}")
    return {"done": 0, "open": 0, "failed": 0, "finished": False} | reply


def test_it_is_open_from_the_trigger_to_the_last_successor(flow: Flow) -> None:
    flow.trigger("chain", "head", cursor=1, idempotency_key="one key/ä")
    seen = [progress(flow, "one key/ä")]
    for job in ("first", "second"):
        flow.run_all(job)
        seen.append(progress(flow, "one key/ä"))
    states = [(item["finished"], item["open"], item["done"]) for item in seen]
    assert states == [(False, 1, 0), (False, 1, 1), (True, 0, 2)]


def test_work_that_does_not_follow_from_it_is_not_counted(flow: Flow) -> None:
    flow.trigger("chain", "head", cursor=1, idempotency_key="before")
    flow.run_all("first", "second")
    flow.trigger("chain", "head", cursor=2, idempotency_key="k")
    flow.trigger("chain", "other", cursor=1)
    flow.run_all("first", "second")
    reply = progress(flow, "k")
    assert (reply["finished"], reply["done"]) == (True, 2), "neither the tasks from before nor those of `elsewhere`"
    assert progress(flow, "before")["done"] == 4, "what comes later in the same jobs counts"


def test_other_dags_are_followed_if_asked_for(flow: Flow) -> None:
    flow.deploy(READER)
    flow.trigger("chain", "head", cursor=1, idempotency_key="k")
    flow.run_all("first", "second")
    assert progress(flow, "k")["finished"]
    assert progress(flow, "k", across=True)["open"] == 1
    flow.run_all("far")
    assert progress(flow, "k", across=True) | {"now": 0} == progress(flow, "k") | {"now": 0, "done": 3}


def test_a_dag_between_two_jobs_of_the_dag_is_followed(flow: Flow) -> None:
    back = READER + "publish:\n  fars: { from: { job: far }, storage: postgres }\n"
    flow.deploy(back)
    last = """\
  - name: last
    activation: reactive
    operator: noop
    inputs: [{ from: { dataset: fars } }]
publish:"""
    flow.deploy(CHAIN.replace("publish:", last))
    flow.trigger("chain", "head", cursor=1, idempotency_key="k")
    flow.run_all("first", "second")
    assert progress(flow, "k")["open"] == 1, "the task of another DAG leads back to `last`"
    flow.run_all("far")
    assert not progress(flow, "k")["finished"]
    flow.run_all("last")
    assert progress(flow, "k")["finished"]


def test_a_task_that_fails_is_retried_and_then_fails_for_the_last_time(flow: Flow) -> None:
    flow.trigger("chain", "head", cursor=1, idempotency_key="k")
    (task,) = flow.tasks("first")
    lease = flow.claim(task["task_id"])
    flow.complete(task["task_id"], lease, status="Failed", error_message="node 7 is away", retryable=True)
    reply = progress(flow, "k")
    assert (reply["finished"], reply["open"], reply["retrying"]) == (False, 1, 1)
    assert reply["retry_error"] == "node 7 is away"
    allow_one_attempt(flow.harness, task["task_id"])
    flow.harness.sql(
        "UPDATE tasks SET next_retry_at = NULL, finished_at = trace_now() WHERE task_id = $1", task["task_id"]
    )
    reply = progress(flow, "k")
    assert (reply["finished"], reply["failed"]) == (True, 1)
    assert [(group["error"], group["tasks"], group["jobs"]) for group in reply["errors"]] == [
        ("node 7 is away", 1, ["chain/first"])
    ]


def test_events_behind_a_failed_unit_are_told_and_do_not_keep_it_open(flow: Flow) -> None:
    flow.trigger("chain", "head", cursor=1)
    (failed,) = flow.tasks("first")
    flow.fail(failed["task_id"])
    flow.trigger("chain", "head", cursor=2, idempotency_key="k")
    reply = progress(flow, "k")
    assert (reply["finished"], reply["done"], reply["failed"]) == (True, 0, 0)
    assert [(item["job"], item["state"], item["events"]) for item in reply["inputs"]] == [("chain/first", "held", 1)]
    flow.person("retry", failed["task_id"])
    reply = progress(flow, "k")
    assert (reply["finished"], reply["waiting_events"]) == (False, 1), (
        "the input is free, and the event has no task yet"
    )
    flow.drain()
    reply = progress(flow, "k")
    assert (reply["finished"], reply["open"], reply.get("waiting_events")) == (False, 1, None)


def test_an_event_of_a_paused_source_keeps_it_open(flow: Flow) -> None:
    pauses = flow.harness.dispatcher.pauses
    flow.harness.run(pauses.pause(flow.actor, "chain", "head"))
    assert flow.trigger("chain", "head", cursor=1, idempotency_key="k").kept == "paused"
    reply = progress(flow, "k")
    assert (reply["finished"], reply["open"]) == (False, 0)
    (waiting,) = reply["inputs"]
    assert (waiting["state"], waiting["events"]) == ("paused", 1)
    assert "paused" in waiting["because"]
    flow.harness.run(pauses.resume(flow.actor, "chain", "head"))
    assert not progress(flow, "k")["finished"], "resumed, and no task yet"
    flow.drain()
    flow.run_all("first", "second")
    assert progress(flow, "k")["finished"]


def test_a_batch_on_its_way_to_its_table_keeps_it_open(harness: DispatcherHarness) -> None:
    flow = BufferFlow(harness, "postgresql://nowhere", f"follows_{next(_orgs)}")
    flow.flow.trigger("transfers", "head", range={"start": 1, "end": 1}, idempotency_key="k")
    for task in flow.flow.tasks("right"):
        flow.flow.complete(task["task_id"], flow.flow.claim(task["task_id"]))
    (task,) = flow.flow.tasks("left")
    lease = flow.flow.claim(task["task_id"])
    publish_id = flow.publish_by(str(task["task_id"]), lease, [{"key": 1}])["publish_id"]
    flow.flow.complete(task["task_id"], lease)
    reply = progress(flow.flow, "k")
    assert (reply["finished"], reply["open"], reply["waiting_batches"]) == (False, 0, 1)
    flow.reject(publish_id)
    reply = progress(flow.flow, "k")
    assert (reply["finished"], reply["dead_letters"]) == (True, 1)


def test_the_commit_of_a_batch_makes_the_successor_in_one_step(harness: DispatcherHarness) -> None:
    flow = BufferFlow(harness, "postgresql://nowhere", f"follows_{next(_orgs)}")
    flow.flow.trigger("transfers", "head", range={"start": 1, "end": 1}, idempotency_key="k")
    for task in flow.flow.tasks("right"):
        flow.flow.complete(task["task_id"], flow.flow.claim(task["task_id"]))
    (task,) = flow.flow.tasks("left")
    lease = flow.flow.claim(task["task_id"])
    publish_id = flow.publish_by(str(task["task_id"]), lease, [{"key": 1}])["publish_id"]
    flow.flow.complete(task["task_id"], lease)
    body = {"dataset_uuid": str(flow.dataset.dataset_uuid), "publish_ids": [publish_id], "commit_seq": 1}
    assert harness.service("POST", "/internal/buffer-committed", body).status == 200
    reply = progress(flow.flow, "k")
    assert (reply["open"], reply.get("waiting_batches")) == (1, None)
    flow.flow.run_all("reader")
    assert progress(flow.flow, "k")["finished"]


def test_a_window_that_waits_for_a_task_upstream_keeps_it_open(harness: DispatcherHarness) -> None:
    windows = WindowFlow(harness, f"follows_{next(_orgs)}")
    windows.deploy(WINDOWS)
    for start in (0, 10):
        windows.commit_source("w", "blocks", start, start + 9, f"{start}")
    windows.run_windows("model")
    windows.trigger("w", "blocks", range={"start": 0, "end": 9}, idempotency_key="left")
    windows.trigger("w", "blocks", range={"start": 10, "end": 19}, idempotency_key="right")
    left, right = (task["task_id"] for task in windows.tasks("blocks", "Queued"))
    windows.finish(left, "a")
    assert windows.tasks("model", "Queued") == [], "the window waits: its other half is about to change"
    windows.harness.sql("UPDATE tasks SET created_at = created_at - interval '1 day' WHERE task_id = $1", right)
    reply = progress(windows, "left")
    assert (reply["finished"], reply["open"], reply["waiting_units"]) == (False, 0, 1)
    windows.finish(right, "b")
    assert progress(windows, "left")["open"] == 1
    windows.run_windows("model")
    assert progress(windows, "left")["finished"]


def test_a_task_from_before_that_was_brought_up_to_date_keeps_it_open(flow: Flow) -> None:
    flow.trigger("chain", "head", cursor=1)
    (task,) = flow.tasks("first")
    flow.trigger("chain", "head", cursor=1, idempotency_key="k")
    assert progress(flow, "k")["finished"], "the cursor was announced before"
    (newest,) = flow.harness.sql("SELECT last_value FROM events_routed_seq")
    flow.harness.sql(
        "UPDATE tasks SET input_order = ARRAY[0, $2]::bigint[] WHERE task_id = $1",
        task["task_id"],
        newest["last_value"],
    )
    assert progress(flow, "k")["open"] == 1


def test_a_task_that_a_person_asked_for_is_followed_to_its_successors(flow: Flow) -> None:
    flow.trigger("chain", "head", cursor=1)
    flow.run_all("first", "second")
    reply = flow.trigger("chain", "first", cursor=1, idempotency_key="again")
    assert progress(flow, "again")["task_id"] == str(reply.task_id)
    flow.run_all("first")
    assert progress(flow, "again")["open"] == 1
    flow.run_all("second")
    assert (progress(flow, "again")["finished"], progress(flow, "again")["done"]) == (True, 2)


def test_a_trigger_that_an_earlier_release_stored_is_followed(flow: Flow) -> None:
    flow.trigger("chain", "head", cursor=1, idempotency_key="k")
    flow.harness.sql("UPDATE triggers SET reply = (reply::jsonb - 'node_id' - 'after_seq')::json")
    assert progress(flow, "k")["open"] == 1
    flow.run_all("first")
    assert progress(flow, "k")["open"] == 1


def test_a_key_that_nobody_used(flow: Flow) -> None:
    reply = User(flow.harness, flow.org).call("GET", "/v1/triggers?key=none")
    assert (reply.status, reply.code) == (404, "trigger_not_found")


# --- at any moment


SHAPES = """\
name: d
defaults: { runtime: ecs_platform }
jobs:
  - { name: a, activation: source, source: { kind: manual } }
  - { name: b, activation: source, source: { kind: manual } }
  - { name: each, activation: reactive, operator: noop, inputs: [{ from: { job: a } }] }
  - name: slow
    activation: reactive
    operator: noop
    scaling: { max_concurrency: 1 }
    inputs: [{ from: { job: each } }]
  - name: both
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{ from: { job: each } }, { from: { job: b } }]
  - { name: last, activation: reactive, operator: noop, inputs: [{ from: { job: both } }, { from: { job: slow } }] }
"""
STEPS = st.lists(
    st.sampled_from(["run", "run", "run", "run", "fail", "retry", "skip", "pause", "resume", "drain", "other"]),
    min_size=1,
    max_size=25,
)


class Following:
    """One trigger of one org, and everything that can happen until its work has ended."""

    def __init__(self, harness: DispatcherHarness, random: Random) -> None:
        self.flow = Flow(harness, f"moments_{next(_orgs)}")
        self.random = random
        self.cursor = 0
        self.flow.deploy(SHAPES)
        self.flow.trigger("d", "b", range={"start": 0, "end": 9})
        unit: dict[str, Any] = {"cursor": 1} if random.random() < 0.3 else {"range": {"start": 0, "end": 9}}
        if random.random() < 0.5:
            self.step("pause")
        self.flow.trigger("d", "a", idempotency_key="k", **unit)

    def tasks(self, *states: str) -> list[Any]:
        rows = self.flow.harness.sql(
            """SELECT t.task_id, t.status, t.held, t.finished_at, t.skipped_at FROM tasks t JOIN jobs j USING (job_id)
               WHERE j.org_id = $1 ORDER BY t.task_id""",
            self.flow.actor.org_id,
        )
        return [row for row in rows if row["status"] in states and not row["held"]]

    def step(self, name: str) -> None:
        flow, pauses = self.flow, self.flow.harness.dispatcher.pauses
        if name in ("run", "fail"):
            ready = self.tasks("Queued")
            if ready:
                act = flow.pass_on if name == "run" else flow.fail
                act(self.random.choice(ready)["task_id"])
        elif name in ("retry", "skip"):
            failed = [row for row in self.tasks("Failed") if row["finished_at"] is not None]
            if failed:
                flow.person(name, self.random.choice(failed)["task_id"])
        elif name in ("pause", "resume"):
            flow.harness.run(getattr(pauses, name)(flow.actor, "d", "a"))
        elif name == "other":
            self.cursor += 1
            flow.trigger("d", "b", cursor=self.cursor)
        else:
            flow.harness.run(flow.harness.dispatcher.drain.run_once())

    def check(self) -> None:
        """If it is said to be finished, nothing comes of it by itself."""
        if not progress(self.flow, "k")["finished"]:
            return
        made = len(self.tasks("Queued", "Running", "Completed", "Failed", "Canceled"))
        self.flow.drain()
        assert progress(self.flow, "k")["finished"]
        assert len(self.tasks("Queued", "Running", "Completed", "Failed", "Canceled")) == made
        assert not self.tasks("Queued", "Running")

    def end(self) -> None:
        """However it went, it ends once everything that a person has to do is done."""
        self.step("resume")
        for _ in range(200):
            self.flow.drain()
            for row in [row for row in self.tasks("Failed") if row["skipped_at"] is None]:
                self.flow.person("skip", row["task_id"])
            if not self.tasks("Queued") and not self.flow.drain():
                break
            self.step("run")
        assert progress(self.flow, "k")["finished"]


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(steps=STEPS, seed=st.integers(0, 2**16))
def test_it_is_never_finished_while_a_successor_is_to_come(
    harness: DispatcherHarness, steps: list[str], seed: int
) -> None:
    following = Following(harness, Random(seed))
    following.check()
    for name in steps:
        following.step(name)
        following.check()
    following.end()

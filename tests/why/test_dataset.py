"""Why a dataset is not fresh: its job, what lies before it, a build, a version without it."""

import shlex

from tests.api.support import User
from tests.http.support import Refusals
from tests.support import dags
from tests.why.support import CHAIN, Situation, codes, commands, said
from tracelake.cli.build_progress import failed_build_steps


def made(flow: Situation, *cursors: int) -> None:
    flow.deploy(CHAIN)
    for cursor in cursors:
        flow.trigger("d", "src", cursor=cursor)


def test_fresh_and_how_new(flow: Situation) -> None:
    made(flow, 5)
    flow.run_all("make", "step")
    flow.harness.advance(60)
    reply = flow.why_dataset()
    assert (codes(reply), reply["state"]) == (["fresh"], "fine")
    assert reply["summary"].endswith("Last computed: cursor 5, 1m ago.")
    assert reply["reasons"][0]["references"] == [{"kind": "job", "id": "d/step"}]


def test_its_own_job(flow: Situation) -> None:
    made(flow, 1)
    flow.run_all("make")
    reply = flow.why_dataset()
    assert codes(reply) == ["tasks_ready"]
    assert "1 task of d/step waits for a worker" in reply["summary"], "the dataset itself has no tasks"


def test_jobs_that_said_nothing_of_it(flow: Situation) -> None:
    made(flow, 1)
    flow.run_all("make")
    task = flow.one("step")
    flow.complete(task, flow.claim(task))
    reply = flow.why_dataset()
    assert (codes(reply), reply["state"]) == (["dataset_empty"], "waiting")
    text = "It has no event yet: d/step has processed every event, and reported no event of it."
    assert said(reply, "dataset_empty")["text"] == text
    assert commands(said(reply, "dataset_empty")) == ["trace tasks --dag d --job step"]


def test_every_reason_of_a_job_names_it(flow: Situation) -> None:
    flow.deploy(CHAIN.replace("name: step,", "name: step, max_queue_depth: 2,"))
    for cursor in (1, 2):
        flow.trigger("d", "src", cursor=cursor)
    flow.run_all("make")
    for item in flow.why_dataset()["reasons"]:
        assert "d/step" in item["text"]
        assert not item["text"].startswith("It")


def test_the_first_cause_before_it(flow: Situation) -> None:
    made(flow, 1)
    flow.run_all("make", "step")
    flow.trigger("d", "src", cursor=2)
    failed = flow.tasks("make", "Queued")[0]["task_id"]
    flow.fail(failed)
    reply = flow.why_dataset()
    assert codes(reply) == ["edge_held", "upstream"]
    assert said(reply, "upstream")["text"] == "The cause is d/make, 1 job upstream."
    assert commands(said(reply, "upstream")) == ["trace why d/make"]
    assert f"trace retry {failed}" in commands(said(reply, "edge_held"))


def test_nothing_yet_leads_to_the_source(flow: Situation) -> None:
    made(flow)
    reply = flow.why_dataset()
    assert codes(reply) == ["input_empty", "upstream", "source_never_fired"]
    assert said(reply, "input_empty")["text"] == "d/step: its input d__make_0 has no event yet."
    assert said(reply, "source_never_fired")["text"] == "d/src: Nobody has triggered it yet."
    assert "d/src, 2 jobs upstream" in said(reply, "upstream")["text"]


def test_a_cause_in_another_dag(flow: Situation) -> None:
    made(flow, 1)
    flow.deploy(
        """
name: e
defaults: {runtime: ecs_platform}
jobs:
  - {name: read, activation: reactive, operator: noop, inputs: [{from: {dataset: out}}]}
publish:
  more: {from: {job: read}, storage: postgres}
"""
    )
    reply = flow.why_dataset("more")
    assert codes(reply) == ["input_empty", "upstream", "tasks_ready"]
    assert "d/make, 2 jobs upstream" in said(reply, "upstream")["text"]


def test_an_awaited_input_of_a_join_is_followed_and_the_other_is_not(flow: Situation) -> None:
    flow.deploy(
        """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: left, activation: source, source: {kind: manual}}
  - {name: right, activation: source, source: {kind: manual}}
  - {name: near, activation: reactive, operator: noop, inputs: [{from: {job: left}}]}
  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: right}}]}
  - name: join
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{from: {job: near}}, {from: {job: slow}}]
publish:
  out: {from: {job: join}, storage: postgres}
"""
    )
    for start in (0, 10):
        flow.trigger("d", "left", range={"start": start, "end": start + 9})
        flow.trigger("d", "right", range={"start": start, "end": start + 9})
    flow.run_all("near")
    flow.pass_on(flow.tasks("slow")[0]["task_id"])
    flow.run_all("join")
    flow.trigger("d", "left", range={"start": 20, "end": 29})  # near has something to do too, but nobody waits for it
    reply = flow.why_dataset()
    assert codes(reply) == ["join_waits", "upstream", "tasks_ready"]
    assert "d/slow, 1 job upstream" in said(reply, "upstream")["text"]


OTHER = CHAIN.replace(
    "name: step, activation: reactive, operator: noop,",
    "name: step, activation: reactive, operator: sleep, config: {seconds: 0},",
)


def test_being_rebuilt(flow: Situation) -> None:
    made(flow, 1)
    flow.run_all("make", "step")
    assert flow.deploy(OTHER).state == "Building"
    reply = flow.why_dataset()
    reason = said(reply, "rebuilding")
    assert reason["text"] == (
        "Version 2 of d builds a new generation of it: 0 done, 0 open, 0 failed, 1 input reading history."
    )
    assert reply["state"] == "working"
    flow.drain()
    assert "0 done, 1 open, 0 failed." in said(flow.why_dataset(), "rebuilding")["text"]
    task = flow.tasks("step", "Queued")[0]["task_id"]
    flow.fail(task)
    assert said(flow.why_dataset(), "build_failed")
    flow.person("skip", task)
    dags.run_builds(flow.harness)
    assert not {"rebuilding", "build_failed"} & set(codes(flow.why_dataset()))


def test_a_build_that_failed_is_blocked_for_its_dataset_and_its_jobs(flow: Situation) -> None:
    made(flow, 1)
    flow.run_all("make", "step")
    more = "  - {name: more, activation: reactive, operator: noop, inputs: [{from: {job: make}}]}\npublish"
    assert flow.deploy(OTHER.replace("publish", more)).state == "Building"
    flow.drain()
    task = flow.tasks("step", "Queued")[0]["task_id"]
    flow.fail(task)
    assert "1 open, 1 failed." in said(flow.why_dataset(), "rebuilding")["text"], "the other task can still run"
    assert codes(flow.why_job("step")) == ["up_to_date"]
    flow.run_all("more")
    reply = flow.why_dataset()
    assert (codes(reply), reply["state"]) == (["build_failed"], "blocked")
    reason = said(reply, "build_failed")
    assert reason["text"] == (
        'Version 2 of d cannot become active: 1 task of its build has failed, 1 is done. The first error: "no".'
    )
    steps = [(step["purpose"], step["command"]) for step in reason["steps"]]
    assert steps == [(purpose, shlex.join(["trace", *words])) for purpose, *words in failed_build_steps("d", 2)]
    assert reason["references"] == [{"kind": "version", "id": "d@2"}, {"kind": "task", "id": str(task)}]
    assert "Wait for the build" not in reply["summary"]
    assert codes(flow.why_job("step")) == ["build_failed", "up_to_date"]
    assert codes(flow.why_job("more")) == ["build_failed"], "only the new version has it"
    assert codes(flow.why_job("make")) == ["up_to_date"], "the new version does not change it"


def test_removed_from_the_version_that_counts(flow: Situation) -> None:
    made(flow, 1)
    flow.run_all("make", "step")
    last = CHAIN[: CHAIN.index("  - {name: step")]
    flow.deploy(last)
    reply = flow.why_dataset()
    assert codes(reply) == ["removed"]
    assert "Version 2 of d is active and does not write it. Last computed: cursor 1, 0s ago." in reply["summary"]
    assert commands(said(reply, "removed"))[0] == "trace rollback d --to 1"


def test_removed_and_the_version_that_had_it_is_broken(flow: Situation) -> None:
    made(flow, 1)
    flow.fail(flow.tasks("make")[0]["task_id"])
    flow.deploy(CHAIN[: CHAIN.index("  - {name: step")])
    assert commands(said(flow.why_dataset(), "removed")) == ["trace datasets out"]


def test_a_dataset_that_no_dag_writes(flow: Situation) -> None:
    flow.harness.make_job(org=flow.org, outputs=[{"name": "loose", "storage": "none"}])
    assert codes(flow.why_dataset("loose")) == ["no_producer"]


def test_an_unknown_dataset_is_404(flow: Situation) -> None:
    made(flow)
    with Refusals(flow.harness) as refusals:
        headers = User(flow.harness, flow.org).headers
        refusals.check(
            flow.harness.call("public", "GET", "/v1/why/dataset/none", None, headers), 404, "dataset_not_found"
        )


FILES = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: feeder, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
  - {name: write, activation: reactive, operator: decode_logs, inputs: [{from: {job: feeder}}]}
publish:
  blocks: {from: {job: write}, storage: s3}
"""


def test_events_that_nobody_has_heard(flow: Situation) -> None:
    flow.deploy(FILES)
    flow.trigger("d", "src", cursor=0)
    feeder = flow.one("feeder")
    lease = flow.claim(feeder)
    flow.say(feeder, lease, flow.event("d", "feeder", cursor=9))
    old = flow.one("write")
    held = flow.claim(old)
    flow.say(old, held, flow.event("d", "write", cursor=9))
    reply = flow.why_dataset("blocks")
    reason = said(reply, "events_await_commit")
    assert reason["text"] == "1 event of it waits for the commit of the files, the first (cursor 9) for 0s."
    assert commands(reason) == [f"trace why {old}"]
    # As the completion of a task with newer inputs leaves them.
    flow.harness.sql("UPDATE events SET state = 'Outdated' WHERE state = 'AwaitsCommit'")
    assert "is not passed on" in said(flow.why_dataset("blocks"), "events_outdated")["text"]
    flow.complete(old, held, status="Failed", error_message="no")
    assert "events_await_commit" not in codes(flow.why_dataset("blocks"))

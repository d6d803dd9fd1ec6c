"""Why a job makes no tasks, or has not finished those it has."""

import pytest

from tests.api.support import User
from tests.http.support import Refusals
from tests.support import dags
from tests.why.support import CHAIN, Situation, codes, commands, said
from tracelake.model.quota import Quotas

FULL = CHAIN.replace("name: step,", "name: step, max_queue_depth: 2,")
JOIN = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: left, activation: source, source: {kind: manual}}
  - {name: right, activation: source, source: {kind: manual}}
  - name: join
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{from: {job: left}}, {from: {job: right}}]
"""


def feed(flow: Situation, *cursors: int) -> None:
    for cursor in cursors:
        flow.trigger("d", "src", cursor=cursor)


def test_no_version_counts(flow: Situation) -> None:
    flow.deploy(CHAIN, activate=False)
    reason = said(flow.why_job("make"), "no_active_version")
    assert commands(reason) == ["trace activate d 1"]
    assert reason["references"] == [{"kind": "version", "id": "d@1"}]


def test_not_in_the_version_that_counts(flow: Situation) -> None:
    flow.deploy(CHAIN + "  more: {from: {job: make}, storage: postgres}\n")
    flow.deploy(CHAIN.replace("name: step", "name: last").replace("job: step", "job: last"))
    reply = flow.why_job("step")
    assert codes(reply) == ["not_in_active_version"]
    assert "Version 2 of d is active and does not have it; version 1 does." in reply["summary"]


def test_only_in_the_version_that_is_built(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 1)
    flow.run_all("make", "step")
    more = "  - {name: more, activation: reactive, operator: noop, inputs: [{from: {job: make}}]}\npublish"
    assert flow.deploy(CHAIN.replace("publish", more)).state == "Building"
    assert codes(flow.why_job("more")) == ["being_built"]


def test_an_input_that_has_nothing_yet(flow: Situation) -> None:
    flow.deploy(CHAIN)
    reason = said(flow.why_job("make"), "input_empty")
    assert reason["text"] == "Its input d__src_0 has no event yet."
    assert commands(reason) == ["trace why d__src_0"]


def test_an_input_that_is_being_computed(flow: Situation) -> None:
    more = "  - {name: last, activation: reactive, operator: noop, inputs: [{from: {job: step}}]}\npublish"
    flow.deploy(CHAIN.replace("publish", more).replace("from: {job: step}, storage", "from: {job: last}, storage"))
    feed(flow, 1)
    assert codes(flow.why_job("last")) == ["input_empty"], "a task waits for a worker"
    flow.claim(flow.tasks("make")[0]["task_id"])
    for job, empty in (("step", "make"), ("last", "step")):
        reply = flow.why_job(job)
        assert (codes(reply), reply["state"]) == (["input_in_progress"], "working")
        text = f"Its input d__{empty}_0 has no event yet: a task of d/make is running for it."
        assert reply["reasons"][0]["text"] == text
        assert commands(reply["reasons"][0]) == ["trace why d/make"]
        assert "Check why the input is empty" not in reply["summary"]
    reply = flow.why_dataset("out")
    assert (codes(reply), reply["state"]) == (["input_in_progress", "upstream_in_progress", "tasks_running"], "working")


def test_tasks_that_wait_run_and_are_done(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 1, 2)
    first, second = (task["task_id"] for task in flow.tasks("make"))
    flow.harness.advance(60)
    reply = flow.why_job("make")
    assert codes(reply) == ["tasks_ready"]
    assert "2 tasks of it wait for a worker of ecs_platform, the oldest for 1m." in reply["summary"]
    assert "No task of ecs_platform is running now: check whether a worker runs." in reply["summary"]
    assert commands(reply["reasons"][0])[1:] == ["trace status", "trace worker --runtime ecs_platform"]
    flow.claim(first)
    assert codes(flow.why_job("make")) == ["tasks_ready", "tasks_running"]
    flow.pass_on(second)
    reply = flow.why_job("make")
    assert codes(reply) == ["tasks_running"]
    assert reply["state"] == "working"
    assert said(reply, "tasks_running")["references"] == [{"kind": "task", "id": str(first)}]


def test_up_to_date(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 7)
    flow.run_all("make", "step")
    reply = flow.why_job("make")
    assert (codes(reply), reply["state"]) == (["up_to_date"], "fine")
    assert "the newest was cursor 7 of d__src_0, 0s ago." in reply["summary"]


def test_held_by_which_task(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 1)
    task = flow.one("make")
    flow.fail(task)
    feed(flow, 2, 3, 4)
    reply = flow.why_job("make")
    assert codes(reply) == ["edge_held"]
    reason = said(reply, "edge_held")
    assert reason["text"] == (
        'Its input d__src_0 is held at cursor 1 by 1 failed unit; 3 events wait. The error: "no".'
    )
    assert commands(reason) == [f"trace retry {task}", f"trace skip {task}"]
    assert {"kind": "task", "id": str(task)} in reason["references"]
    flow.person("skip", task)
    reply = flow.why_job("make")
    assert codes(reply) == ["edge_draining"]
    assert "3 events wait." in reply["summary"]
    flow.drain()
    assert codes(flow.why_job("make")) == ["tasks_ready"]


def test_failed_partitions_and_retries(flow: Situation) -> None:
    flow.deploy(CHAIN)
    for start in (0, 10):
        flow.trigger("d", "src", range={"start": start, "end": start + 9})
    first, second = (task["task_id"] for task in flow.tasks("make"))
    flow.fail(first)
    flow.complete(second, flow.claim(second), status="Failed", error_message="soon")
    reply = flow.why_job("make")
    assert codes(reply) == ["tasks_failed", "tasks_backing_off"]
    same = "(not retried: another attempt would fail in the same way)"
    assert said(reply, "tasks_failed")["text"] == f'1 task of it has failed {same}, the first with "no".'
    assert commands(said(reply, "tasks_failed"))[1:] == [f"trace retry {first}", f"trace skip {first}"]
    assert commands(said(reply, "tasks_backing_off")) == [f"trace why {second}"]


def test_several_failed_tasks_are_retried_at_once(flow: Situation) -> None:
    flow.deploy(CHAIN)
    for start in (0, 10):
        flow.trigger("d", "src", range={"start": start, "end": start + 9})
    first, second = (task["task_id"] for task in flow.tasks("make"))
    flow.fail(first)
    flow.fail(second)
    failed = "--dag d --job make --failed"
    assert commands(said(flow.why_job("make"), "tasks_failed"))[1:] == [
        f"trace retry {failed}",
        f"trace skip {failed}",
        f"trace retry {first}",
    ]


def test_limited(flow: Situation) -> None:
    flow.deploy(CHAIN.replace("name: make,", "name: make, scaling: {max_concurrency: 1},"))
    feed(flow, 1, 2, 3)
    reply = flow.why_job("make")
    assert codes(reply) == ["tasks_limited", "tasks_ready"]
    assert "2 tasks of it have to wait for a place under the limit of d/make (1 of 1)." in reply["summary"]


def test_the_quota_of_running_tasks_is_no_limit_of_the_job(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 1, 2, 3)
    flow.set_running_quota(1)
    reply = flow.why_job("make")
    assert codes(reply) == ["tasks_at_quota", "tasks_ready"]
    reason = said(reply, "tasks_at_quota")
    assert reason["text"] == (
        "2 tasks of it have to wait for a place under your organisation's quota of running tasks (1 of 1)."
    )
    assert commands(reason) == ["trace quota", "trace tasks --status Running"]
    assert "max_concurrency" not in reply["summary"]


def test_a_join_names_the_input_and_a_unit(flow: Situation) -> None:
    flow.deploy(JOIN)
    flow.trigger("d", "left", range={"start": 0, "end": 9})
    assert codes(flow.why_job("join")) == ["input_empty"]
    flow.trigger("d", "right", range={"start": 10, "end": 19})
    reason = said(flow.why_job("join"), "join_waits")
    assert reason["text"] == "Its input d__left_0 has 0-9, and d__right_0 does not have it yet."
    assert commands(reason) == ["trace why d__right_0"]
    flow.trigger("d", "right", range={"start": 0, "end": 9})
    flow.run_all("join")
    reason = said(flow.why_job("join"), "join_waits")
    assert reason["text"] == "Its input d__right_0 has 10-19, and d__left_0 does not have it yet."
    flow.trigger("d", "left", range={"start": 10, "end": 19})
    flow.run_all("join")
    assert codes(flow.why_job("join")) == ["up_to_date"]


WINDOWS = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: blocks, activation: source, source: {kind: manual}}
  - {name: tens, activation: reactive, operator: noop, inputs: [{from: {job: blocks}}]}
  - {name: wide, activation: source, source: {kind: manual}}
  - name: join
    activation: reactive
    operator: noop
    execution_strategy: PerPartition
    inputs: [{from: {job: wide}}, {from: {job: tens}}]
publish:
  joined: {from: {job: join}, storage: postgres}
"""


def test_one_odd_unit_does_not_block_a_join(flow: Situation) -> None:
    flow.deploy(WINDOWS)
    for start in (0, 10, 20, 30):
        flow.trigger("d", "wide", range={"start": start, "end": start + 9})
        flow.trigger("d", "blocks", range={"start": start, "end": start + 9})
    flow.run_all("tens", "join")
    flow.trigger("d", "wide", range={"start": 100, "end": 139})
    for start in (100, 110):
        flow.trigger("d", "blocks", range={"start": start, "end": start + 9})
    flow.run_all("tens")
    reply = flow.why_job("join")
    assert (codes(reply), reply["state"]) == (["join_waits"], "waiting")
    text = "Its input d__wide_0 has 100-139, and d__tens_0 does not have it yet."
    assert said(reply, "join_waits")["text"] == text


def test_a_join_of_units_of_two_sizes_names_both(flow: Situation) -> None:
    flow.deploy(WINDOWS)
    flow.trigger("d", "wide", range={"start": 1000, "end": 1039})
    flow.trigger("d", "wide", range={"start": 20, "end": 59})
    for start in range(0, 80, 10):
        flow.trigger("d", "blocks", range={"start": start, "end": start + 9})
    flow.run_all("tens")
    flow.trigger("d", "wide", range={"start": 2000, "end": 2039})
    assert flow.tasks("join") == []
    reason = said(flow.why_job("join"), "units_differ")
    assert reason["state"] == "blocked"
    assert reason["text"] == (
        "Its input d__wide_0 has 20-59, and d__tens_0 has 20-29 there: a task needs the same unit of both."
    )
    assert commands(reason) == ["trace events --dataset d__tens_0", "trace deploy FILE"]
    reply = flow.why_dataset("joined")
    assert codes(reply) == ["units_differ"], "the inputs themselves are fine"
    flow.trigger("d", "wide", range={"start": 20, "end": 29})
    assert [unit for unit, _ in flow.units("join")] == ["p:20-29"]


def test_stopped_by_a_full_queue(flow: Situation) -> None:
    flow.deploy(FULL)
    feed(flow, 1, 2)
    flow.run_all("make")
    flow.harness.advance(200)
    feed(flow, 3, 4, 5)
    reply = flow.why_job("make")
    assert codes(reply) == ["pressure"]
    reason = said(reply, "pressure")
    assert reason["text"] == (
        "It creates no tasks from d__src_0, because d/step is full for 3m "
        "(2 of 2 queued; goes on below 50 %); 3 events wait."
    )
    assert commands(reason) == ["trace pressure", "trace why d/step"]
    assert codes(flow.why_job("src")) == ["pressure"]
    assert codes(flow.why_job("step")) == ["tasks_ready", "own_queue_full"], "also while nothing waits for it yet"
    flow.run_all("step")
    assert codes(flow.why_job("make")) == ["edge_draining"]


def test_its_own_queue_is_full(flow: Situation) -> None:
    flow.deploy(FULL)
    feed(flow, 1, 2, 3)
    flow.run_all("make")
    reply = flow.why_job("step")
    assert codes(reply) == ["tasks_ready", "own_queue_full"], "what it has to do comes first"
    reason = said(reply, "own_queue_full")
    assert reason["text"] == (
        "Its own queue is full for 0s (2 of 2 queued; goes on below 50 %), so it gets no new tasks; 1 event waits."
    )
    assert commands(reason) == ["trace pressure"], "not the command that was just given"
    flow.run_all("step")
    assert "own_queue_full" not in codes(flow.why_job("step"))


def test_its_own_queue_stops_bulk_work(flow: Situation) -> None:
    flow.deploy(FULL.replace("depth: 2", "depth: 5").replace("name: make,", "name: make, priority: bulk,"))
    feed(flow, 1, 2, 3, 4, 5)
    flow.run_all("make")
    reply = flow.why_job("step")
    assert codes(reply) == ["tasks_ready", "own_queue_full"]
    assert "is filling for 0s (4 of 5 queued; bulk work goes on below 50 %)" in said(reply, "own_queue_full")["text"]
    assert "so it gets no new tasks of bulk work; 1 event waits." in said(reply, "own_queue_full")["text"]


def test_a_source_that_somebody_paused_is_named_at_its_readers(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 1)
    flow.run_all("make", "step")
    flow.harness.run(flow.harness.dispatcher.pauses.pause(flow.actor, "d", "src"))
    feed(flow, 2)
    reason = said(flow.why_job("make"), "source_paused")
    assert reason["text"].startswith("d/src was paused by tester 0s ago")
    assert commands(reason) == ["trace resume d/src"]


@pytest.mark.parametrize(("path", "code"), [("d/none", "job_not_found"), ("e/make", "dag_not_found")])
def test_what_is_not_there_is_404(flow: Situation, path: str, code: str) -> None:
    flow.deploy(CHAIN)
    with Refusals(flow.harness) as refusals:
        reply = flow.harness.call("public", "GET", f"/v1/why/job/{path}", None, User(flow.harness, flow.org).headers)
        refusals.check(reply, 404, code)


def test_a_job_that_a_version_keeps_is_explained_by_all_its_tasks(flow: Situation) -> None:
    """Limits alone differ: the tasks of the definition before are the job's own."""
    flow.deploy(CHAIN)
    feed(flow, 1)
    flow.deploy(CHAIN.replace("name: make,", "name: make, max_attempts: 9,"))
    assert codes(flow.why_job("make")) == ["tasks_ready"]
    assert dags.job(flow.harness, "d", "make", org=flow.org)["max_attempts"] == 9


def test_who_has_the_workers(flow: Situation) -> None:
    other = "name: e\ndefaults: {runtime: ecs_platform}\njobs:\n"
    other += "  - {name: src, activation: source, source: {kind: manual}}\n"
    other += "  - {name: slowly, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}\n"
    flow.deploy(CHAIN)
    flow.deploy(other)
    for cursor in (1, 2, 3):
        flow.trigger("e", "src", cursor=cursor)
    feed(flow, 1, 2, 3)
    busy = [task["task_id"] for task in flow.tasks("slowly")]
    flow.claim(busy[0])
    text = said(flow.why_job("make"), "tasks_ready")["text"]
    assert text.endswith(" 1 task of ecs_platform is running now, of e/slowly; it was claimed 0s ago.")
    flow.claim(busy[1])
    flow.harness.advance(3)
    text = said(flow.why_job("make"), "tasks_ready")["text"]
    assert "2 tasks of ecs_platform are running now, all of them e/slowly; the newest was claimed 3s ago." in text
    first = flow.tasks("make")[0]["task_id"]
    flow.claim(first)
    reason = said(flow.why_job("make"), "tasks_ready")
    assert "3 tasks of ecs_platform are running now, 2 of them e/slowly; the newest was claimed 0s" in reason["text"]
    assert "trace worker --runtime ecs_platform" in commands(reason)
    waits = flow.tasks("make", "Queued")[0]["task_id"]
    flow.harness.relay()
    assert "3 tasks of ecs_platform are running now" in flow.why_task(waits)["summary"]


def test_another_orgs_tasks_are_not_told(flow: Situation) -> None:
    stranger = Situation(flow.harness, f"{flow.org}_x")
    for one in (stranger, flow):
        one.deploy(CHAIN)
        feed(one, 1)
    stranger.claim(stranger.one("make"))
    assert "No task of ecs_platform is running now" in flow.why_job("make")["summary"]


def test_a_cursor_that_its_input_has_passed(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 1, 1_000_000)
    flow.run_all("make", "step")
    assert codes(flow.why_job("make")) == ["up_to_date"]
    feed(flow, 9)
    reply = flow.why_job("make")
    assert (codes(reply), reply["state"]) == (["cursor_passed"], "waiting")
    reason = said(reply, "cursor_passed")
    assert reason["text"] == (
        "Its input d__src_0 is at cursor 1000000; the newest event, cursor 9, is not above it, so it makes no task."
    )
    assert commands(reason) == ["trace trigger d/make --cursor 9"]
    assert "cursor_passed" in codes(flow.why_dataset())
    flow.trigger("d", "make", cursor=9)
    flow.run_all("make", "step")
    assert codes(flow.why_job("make")) == ["up_to_date"], "a person had its task made"
    feed(flow, 1_000_001)
    flow.run_all("make", "step")
    assert codes(flow.why_job("make")) == ["up_to_date"]


def test_tasks_that_end_in_another_order_pass_no_cursor(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 1, 2)
    for task in reversed(flow.tasks("make")):
        flow.pass_on(task["task_id"])
    flow.run_all("step")
    assert codes(flow.why_job("step")) == ["up_to_date"]


def test_a_worker_that_is_not_heard_of(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 1)
    task = flow.one("make")
    flow.claim(task)
    flow.harness.advance(50)
    assert codes(flow.why_job("make")) == ["tasks_running"]
    flow.harness.advance(30)
    reply = flow.why_job("make")
    assert (codes(reply), reply["state"]) == (["tasks_unheard"], "waiting")
    text = said(reply, "tasks_unheard")["text"]
    assert text.startswith("1 task of it is with a worker that sends no heartbeats; the lease ends in ")
    assert commands(said(reply, "tasks_unheard")) == [f"trace why {task}"]


def test_a_quota_that_holds_the_org_back(flow: Situation) -> None:
    flow.deploy(CHAIN)
    feed(flow, 1, 2, 3)
    quotas = flow.harness.dispatcher.quotas
    org_id = flow.harness.sql("SELECT org_id FROM orgs WHERE name = $1", flow.org)[0]["org_id"]
    quotas.set_quotas({org_id: Quotas(queued_tasks=2, stored_bytes=1000)})
    try:
        quotas.set_use({org_id: 3}, {})
        flow.pass_on(flow.tasks("make")[0]["task_id"])
        reply = flow.why_job("step")
        reason = said(reply, "over_quota")
        assert reason["text"] == (
            "Its organisation has 3 queued tasks and its quota is 2, so no tasks are created; 1 event waits."
        )
        assert commands(reason) == ["trace quota"]
        assert "edge_draining" not in codes(reply), "it does not catch up while it is held back"
        assert "its events are kept and create no tasks" in said(flow.why_job("src"), "over_quota")["text"]
        assert "over_quota" in codes(flow.why_dataset())
        quotas.set_use({}, {org_id: 1234})
        assert "stores 1,234 bytes and its quota is 1,000, so" in said(flow.why_job("step"), "over_quota")["text"]
    finally:
        quotas.set_quotas({})
        quotas.set_use({}, {})
    assert "over_quota" not in codes(flow.why_job("step"))

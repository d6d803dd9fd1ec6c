"""Why a task is not running or not done: every state that one can be in."""

from uuid import UUID

from tests.api.support import User
from tests.http.support import Refusals
from tests.support import dags
from tests.support.state import reject_wakeup, set_sweep
from tests.why.support import CHAIN, Situation, codes, commands, said
from tracelake.model.ids import new_id

LIMITED = CHAIN.replace("name: make,", "name: make, scaling: {max_concurrency: 1},")


def made(flow: Situation, text: str = CHAIN) -> UUID:
    flow.deploy(text)
    flow.trigger("d", "src", cursor=1)
    return flow.one("make")


def test_completed(flow: Situation) -> None:
    task = made(flow)
    flow.pass_on(task)
    reply = flow.why_task(task)
    assert codes(reply) == ["completed"]
    assert reply["state"] == "fine"
    assert reply["reasons"][0]["references"] == [{"kind": "job", "id": "d/make"}]


def test_running_by_whom_and_until_when(flow: Situation) -> None:
    task = made(flow)
    flow.claim(task)
    flow.harness.advance(40)
    reason = said(flow.why_task(task), "running")
    assert reason["text"].startswith("The worker test has been running attempt 1 for 40s; its lease holds for ")
    assert commands(reason)[-1] == f"trace cancel {task}"


def test_a_worker_that_is_not_heard_of(flow: Situation) -> None:
    task = made(flow)
    flow.claim(task)
    flow.harness.advance(80)
    reply = flow.why_task(task)
    assert reply["state"] == "waiting"
    assert "attempt 1 for 1m, but sent its last heartbeat 1m ago; its lease ends in " in said(reply, "unheard")["text"]


def test_a_lease_that_ran_out_and_was_not_judged_yet(flow: Situation) -> None:
    task = made(flow)
    flow.claim(task)
    flow.harness.advance(200)
    assert "its lease ran out 1m ago" in said(flow.why_task(task), "lease_overdue")["text"]


def test_stopping(flow: Situation) -> None:
    task = made(flow)
    flow.claim(task)
    flow.person("cancel", task)
    reply = flow.why_task(task)
    assert codes(reply) == ["stopping"]
    assert "asked to stop; its lease ends in" in reply["summary"]


def test_a_wakeup_that_is_not_sent_yet_then_ready(flow: Situation) -> None:
    task = made(flow)
    reason = said(flow.why_task(task), "wakeup_pending")
    assert reason["references"][1] == {"kind": "outbox", "id": str(task)}
    assert "tasks.ecs_platform" in reason["text"]
    flow.harness.relay()
    flow.harness.advance(3700)
    reply = flow.why_task(task)
    assert codes(reply) == ["ready"]
    assert "It has been ready for 1h and waits for a worker of ecs_platform." in reply["summary"]


def test_a_wakeup_that_the_queue_refused(flow: Situation) -> None:
    task = made(flow)
    outbox_id = reject_wakeup(flow.harness, task, tries=20)
    reply = flow.why_task(task)
    reason = said(reply, "wakeup_failed")
    assert reply["state"] == "blocked"
    assert "refused its wake-up 20 times: too large." in reason["text"]
    assert commands(reason) == ["trace outbox requeue"]
    again = "INSERT INTO outbox (kind, queue, key) SELECT kind, queue, key FROM outbox WHERE outbox_id = $1"
    flow.harness.sql(again, outbox_id)
    assert codes(flow.why_task(task)) == ["wakeup_pending"], "another one is on its way"


def test_limited_by_what_and_who_is_ahead(flow: Situation) -> None:
    flow.deploy(LIMITED)
    for cursor in range(4):
        flow.trigger("d", "src", cursor=cursor)
    held = [task["task_id"] for task in flow.tasks("make") if task["held"]]
    assert "limit of d/make (1 of 1); it is next." in said(flow.why_task(held[0]), "limited")["text"]
    last = said(flow.why_task(held[2]), "limited")
    assert "2 tasks before it." in last["text"]
    assert last["references"] == [{"kind": "job", "id": "d/make"}, {"kind": "task", "id": str(held[0])}]


def test_the_quota_of_running_tasks_has_advice_of_its_own(flow: Situation) -> None:
    flow.deploy(LIMITED.replace("max_concurrency: 1", "max_concurrency: 3"))
    for cursor in range(3):
        flow.trigger("d", "src", cursor=cursor)
    flow.set_running_quota(2)
    (held,) = [task["task_id"] for task in flow.tasks("make") if task["held"]]
    reply = flow.why_task(held)
    reason = said(reply, "at_quota")
    assert "under your organisation's quota of running tasks (2 of 2); it is next." in reason["text"]
    assert commands(reason) == ["trace quota", "trace tasks --status Running"], "any job's tasks may have the places"
    assert "max_concurrency" not in reply["summary"], "to raise that would not help"


def test_backing_off_until_when_and_why(flow: Situation) -> None:
    task = made(flow)
    flow.complete(task, flow.claim(task), status="Failed", error_message="no such block")
    reply = flow.why_task(task)
    reason = said(reply, "backing_off")
    assert reason["text"].startswith('Attempt 1 of 3 failed with "no such block"; the next one starts in ')
    assert reply["state"] == "waiting"
    flow.harness.advance(7200)
    assert "starts any moment" in flow.why_task(task)["summary"]


def test_failed_for_good_and_holding_its_edge(flow: Situation) -> None:
    task = made(flow)
    flow.fail(task)
    for cursor in (2, 3):
        flow.trigger("d", "src", cursor=cursor)
    reply = flow.why_task(task)
    assert codes(reply) == ["failed", "holds_edge"]
    same = "(not retried: another attempt would fail in the same way)"
    assert f'failed 0s ago at attempt 1 of 3 {same} with "no".' in reply["summary"]
    reason = said(reply, "holds_edge")
    assert reason["text"] == "It holds the input d__src_0 at cursor 1; 2 events wait."
    assert commands(reason) == [f"trace retry {task}", f"trace skip {task}"]


def test_the_last_attempt_failed(flow: Situation) -> None:
    task = made(flow)
    for attempt in (1, 2, 3):
        flow.complete(task, flow.claim(task), status="Failed", error_message="no")
        if attempt < 3:
            flow.person("retry", task)
    text = said(flow.why_task(task), "failed")["text"]
    assert text.endswith('at attempt 3 of 3 (no retries left) with "no".')


def test_a_failed_task_of_a_build_can_be_retried(flow: Situation) -> None:
    made(flow)
    flow.run_all("make", "step")
    changed = "name: step, activation: reactive, operator: sleep, config: {seconds: 0},"
    flow.deploy(CHAIN.replace("name: step, activation: reactive, operator: noop,", changed))
    flow.drain()
    task = flow.tasks("step", "Queued")[0]["task_id"]
    flow.fail(task)
    reason = said(flow.why_task(task), "failed")
    assert "is not active" not in reason["text"]
    assert commands(reason) == [f"trace retry {task}", f"trace skip {task}"]
    flow.person("retry", task)
    assert codes(flow.why_task(task)) == ["wakeup_pending"]


def test_a_failed_partition_holds_nothing(flow: Situation) -> None:
    flow.deploy(CHAIN)
    flow.trigger("d", "src", range={"start": 0, "end": 9})
    flow.fail(flow.one("make"))
    assert codes(flow.why_task(flow.one("make"))) == ["failed"]


def test_skipped(flow: Situation) -> None:
    task = made(flow)
    flow.fail(task)
    flow.person("skip", task)
    reply = flow.why_task(task)
    assert (codes(reply), reply["state"]) == (["skipped"], "fine")


def test_canceled_by_whom(flow: Situation) -> None:
    task = made(flow)
    flow.person("cancel", task)
    reason = said(flow.why_task(task), "canceled")
    assert reason["text"] == "It was cancelled by tester 0s ago."
    assert commands(reason) == [f"trace retry {task}"]
    flow.person("retry", task)
    assert codes(flow.why_task(task)) == ["wakeup_pending"]


def test_a_failed_unit_that_a_person_asked_for_holds_nothing(flow: Situation) -> None:
    flow.deploy(CHAIN)
    flow.trigger("d", "src", cursor=4)
    flow.run_all("make")
    task = flow.trigger("d", "make", cursor=4).task_id
    assert task is not None
    flow.fail(task)
    assert codes(flow.why_task(task)) == ["failed"]
    assert "edge_held" not in codes(flow.why_job("make"))


def test_a_cutover_that_is_not_through_with_its_tasks(flow: Situation) -> None:
    task = made(flow)
    set_sweep(flow.harness, task, "Drop", "superseded by version 2 of the DAG")
    assert "about to be cancelled" in said(flow.why_task(task), "superseded")["text"]
    set_sweep(flow.harness, task, None)
    flow.deploy(OTHER)
    dags.activate(flow.harness, "d", 2, now=True, org=flow.org)
    set_sweep(flow.harness, task, "Return")
    assert codes(flow.why_task(task)) == ["returning"]


OTHER = CHAIN.replace("name: make, activation: reactive, operator: noop,",
                      "name: make, activation: reactive, operator: sleep, config: {seconds: 0},")  # fmt: skip


def test_superseded_by_which_version_and_back(flow: Situation) -> None:
    task = made(flow)
    flow.deploy(OTHER)
    dags.activate(flow.harness, "d", 2, now=True, org=flow.org)
    reply = flow.why_task(task)
    reason = said(reply, "superseded")
    assert reason["text"].startswith("It was superseded by version 2 of the DAG ")
    assert commands(reason) == ["trace rollback d --to 1"]
    assert {"kind": "version", "id": "d@2"} in reason["references"]
    dags.activate(flow.harness, "d", 1, org=flow.org)
    assert codes(flow.why_task(task)) == ["wakeup_pending"]


def test_returning_once_it_has_stopped(flow: Situation) -> None:
    task = made(flow)
    lease = flow.claim(task)
    flow.deploy(OTHER)
    dags.activate(flow.harness, "d", 2, now=True, org=flow.org)
    assert "because another version of the DAG is active now" in said(flow.why_task(task), "stopping")["text"]
    dags.activate(flow.harness, "d", 1, org=flow.org)
    assert codes(flow.why_task(task)) == ["returning"]
    flow.complete(task, lease, status="Canceled")
    assert codes(flow.why_task(task)) == ["returning"]


def test_failed_in_a_version_that_does_not_count(flow: Situation) -> None:
    task = made(flow)
    flow.fail(task)
    flow.deploy(OTHER)
    dags.activate(flow.harness, "d", 2, now=True, org=flow.org)
    reason = said(flow.why_task(task), "failed")
    assert reason["text"].endswith("Its version is not active; version 2 is.")
    assert commands(reason) == ["trace jobs d", f"trace skip {task}"], "nobody should go back to a version that failed"


def test_a_version_in_which_another_task_failed_is_no_way_back(flow: Situation) -> None:
    first = made(flow)
    flow.trigger("d", "src", cursor=2)
    second = flow.tasks("make")[-1]["task_id"]
    flow.fail(first)
    flow.deploy(OTHER)
    dags.activate(flow.harness, "d", 2, now=True, org=flow.org)
    assert commands(said(flow.why_task(second), "superseded")) == []
    flow.person("skip", first)
    assert commands(said(flow.why_task(second), "superseded")) == ["trace rollback d --to 1"]


def test_a_task_of_a_job_that_no_dag_made(flow: Situation) -> None:
    job = flow.harness.make_job(org=flow.org)
    task = flow.harness.make_task(job["job_id"])
    assert codes(flow.why_task(task)) == ["wakeup_pending"]
    flow.fail(task)
    assert codes(flow.why_task(task)) == ["failed"]


def test_an_unknown_task_is_404(flow: Situation) -> None:
    made(flow)
    with Refusals(flow.harness) as refusals:
        reply = flow.harness.call(
            "public", "GET", f"/v1/why/task/{new_id()}", None, User(flow.harness, flow.org).headers
        )
        refusals.check(reply, 404, "task_not_found")

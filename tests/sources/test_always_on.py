"""Always_on sources: one run each, the same through restarts; stopped, paused and brought back as its version says."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.deploy.support import Text
from tests.http.support import user_token
from tests.sources.always_on_support import (
    FIRST_WAIT,
    LONGEST_WAIT,
    Attempt,
    again,
    feed,
    head,
    monitor,
    only_run,
    pause,
    runs,
    sources,
    started,
    user,
    wait_of,
    without,
)
from tests.support.configs import worker_config
from tests.support.dags import activate, deploy, job
from tests.support.dispatcher import DispatcherHarness, fence
from tracelake.client.credentials import FileCredential
from tracelake.client.internal import InternalClient
from tracelake.client.task import TaskClient
from tracelake.dispatcher.mint import ALWAYS_ON_LIFE_SECONDS
from tracelake.dispatcher.sources.monitor import SourceMonitor
from tracelake.model.backoff import Backoff
from tracelake.worker import Worker

# One run


def test_a_source_that_counts_has_a_run_and_no_other_has(harness: DispatcherHarness) -> None:
    text = feed().source("by_hand").job("b", "by_hand")
    deploy(harness, str(text), activate=False)
    assert monitor(harness) == 0
    deploy(harness, str(text))
    assert [monitor(harness), monitor(harness)] == [1, 0]
    run = only_run(harness)
    row = job(harness, "d", "head")
    assert (run["job_id"], run["node_id"]) == (row["job_id"], row["node_id"])
    assert (run["status"], run["max_attempts"], run["unit"], run["inputs"]) == ("Queued", None, None, "[]")
    assert harness.relay() == 1, "its wake-up"
    claimed = harness.claim(str(run["task_id"])).body
    assert (claimed["task"]["operator"], claimed["task"]["inputs"]) == ("ticker", [])
    assert only_run(harness)["deadline_at"] is None


def test_two_monitors_that_saw_no_run_make_one(harness: DispatcherHarness) -> None:
    deploy(harness, str(feed()))
    dispatcher = harness.dispatcher

    async def race() -> list[int]:
        both = asyncio.Barrier(2)

        class Meeting(SourceMonitor):
            async def _start(self, *arguments: Any) -> int:
                await both.wait()  # neither has written what the other looks for
                return await super()._start(*arguments)

        shared = (dispatcher.ports.store, dispatcher.writer, dispatcher.monitor.definitions, harness.config)
        monitors = [Meeting(*shared, dispatcher.metrics) for _ in range(2)]
        return sorted(await asyncio.gather(*(monitor.run_once() for monitor in monitors)))

    assert harness.run(race()) == [0, 1]
    only_run(harness)
    assert len(harness.sql("SELECT FROM outbox")) == 1


def test_two_dispatchers_make_one_run_of_each(harness: DispatcherHarness, tmp_path: Path) -> None:
    other = DispatcherHarness.start(harness.state_dsn, harness.queue_dsn, tmp_path / "other")
    try:
        for number in range(12):
            deploy(harness, str(feed(f"d{number}")), org=f"org{number % 3}")
        with ThreadPoolExecutor() as threads:
            made = list(threads.map(monitor, [harness, other]))
    finally:
        other.stop()
    assert sum(made) == 12
    assert len({run["node_id"] for run in runs(harness)}) == len(runs(harness)) == 12


def test_a_deploy_meanwhile_is_seen_under_the_lock(harness: DispatcherHarness) -> None:
    """Between the look and the lock the source was dropped."""
    deploy(harness, str(feed()))

    class Late(SourceMonitor):
        async def _settle(self, org_id: UUID) -> int:
            actor_done = asyncio.get_running_loop().run_in_executor(None, deploy, other, str(without()))
            await actor_done
            return await super()._settle(org_id)

    other = DispatcherHarness.start(harness.state_dsn, harness.queue_dsn, harness.home / "other")
    try:
        dispatcher = harness.dispatcher
        shared = (dispatcher.ports.store, dispatcher.writer, dispatcher.monitor.definitions, harness.config)
        assert harness.run(Late(*shared, dispatcher.metrics).run_once()) == 0
    finally:
        other.stop()
    assert runs(harness) == []


# Restarts


def test_a_killed_worker_costs_an_attempt_and_not_the_run(harness: DispatcherHarness) -> None:
    harness.reap()
    attempt = started(harness)
    attempt.tick(1)
    harness.advance(121)
    before = harness.sql("SELECT trace_now() AS now")[0]["now"]
    assert harness.reap() == 1
    assert head(harness)["state"] == "backing_off"
    retry_at = harness.sql("SELECT next_retry_at FROM tasks WHERE unit_key = 'run'")[0]["next_retry_at"]
    assert (retry_at - before).total_seconds() >= 30
    assert wait_of(harness) <= FIRST_WAIT
    assert harness.requeue_due() == 0, "not before its time"
    harness.advance(FIRST_WAIT)
    assert harness.requeue_due() == 1
    assert monitor(harness) == 0
    second = Attempt(harness, UUID(attempt.task_id))
    assert second.lease["attempt"] == 2
    assert attempt.call("events", events=[]).status in (409, 422)
    second.tick(1)
    second.tick(2)
    events = harness.sql("SELECT producer, cursor FROM events ORDER BY cursor")
    assert [tuple(row) for row in events] == [(attempt.task_id, 1), (attempt.task_id, 2)], "one producer, no repeats"


def test_there_is_always_another_attempt_and_the_wait_grows(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    waits = []
    for _ in range(8):
        attempt.end(error_message="broken")
        waits.append(wait_of(harness))
        attempt = again(harness)
    assert attempt.lease["attempt"] == 9
    assert waits[0] <= FIRST_WAIT < waits[1] < waits[3]
    assert waits[-1] >= 0.75 * LONGEST_WAIT


@pytest.mark.parametrize("killed", [False, True])
def test_after_a_healthy_run_the_wait_is_the_first_one_again(harness: DispatcherHarness, killed: bool) -> None:
    harness.reap()
    attempt = started(harness)
    for _ in range(6):
        attempt.end()
        attempt = again(harness)
    attempt.live(LONGEST_WAIT + 100)
    if killed:
        harness.advance(121)
        assert harness.reap() == 1
    else:
        attempt.end()
    assert wait_of(harness) <= FIRST_WAIT


def test_a_short_life_is_no_sign_of_health_however_late_it_is_judged(harness: DispatcherHarness) -> None:
    harness.reap()
    attempt = started(harness)
    for _ in range(6):
        attempt.end()
        attempt = again(harness)
    harness.advance(10 * LONGEST_WAIT)  # nobody was there to see its lease end
    assert harness.reap() == 1
    assert wait_of(harness) >= 0.75 * LONGEST_WAIT


def test_what_ends_by_itself_stays_ended(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    attempt.end("Completed")
    harness.advance(LONGEST_WAIT)
    assert (monitor(harness), harness.requeue_due()) == (0, 0)
    assert (only_run(harness)["status"], head(harness)["state"]) == ("Completed", "ended")


def test_what_failed_for_good_waits_for_a_person(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    attempt.end(error_message="no such chain", retryable=False)
    harness.advance(LONGEST_WAIT)
    assert (monitor(harness), harness.requeue_due()) == (0, 0)
    row = head(harness)
    assert (row["state"], row["error"], row["attempt"]) == ("dead", "no such chain", 1)
    assert user(harness, "POST", f"/v1/tasks/{row['task_id']}/retry").status == 200
    assert head(harness)["state"] == "starting"
    second = Attempt(harness, UUID(row["task_id"]))
    second.end()
    assert head(harness)["state"] == "backing_off", "and it has attempts without end again"


def test_the_token_is_renewed_for_hours(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    first, seen = attempt.token, {attempt.token}
    for _ in range(12):
        attempt.live(1800)
        seen.add(attempt.token)
        attempt.tick(len(seen))
    hours = 6
    assert hours * 3600 / ALWAYS_ON_LIFE_SECONDS < len(seen) <= 13
    attempt.token, kept = first, attempt.token
    assert attempt.call("heartbeat").status == 401
    attempt.token = kept
    attempt.end("Completed")


def test_a_wrapper_gets_a_token_after_hours_without_a_dispatcher(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    harness.advance(5 * 3600)
    assert attempt.call("heartbeat").status == 401
    body = fence(attempt.task_id, attempt.lease)
    attempt.token = harness.worker("POST", "/internal/task-token", body).body["capability_token"]
    attempt.beat()


# Versions


def test_a_rollback_stops_the_run_and_the_way_back_starts_it_again(harness: DispatcherHarness) -> None:
    deploy(harness, str(without()))
    attempt = started(harness)
    activate(harness, "d")
    assert attempt.beat()["cancel"] is True
    assert "d/head" not in sources(harness)
    attempt.end("Canceled")
    assert (monitor(harness), only_run(harness)["status"]) == (0, "Canceled")
    activate(harness, "d", 2)
    assert (monitor(harness), only_run(harness)["status"]) == (0, "Queued")
    back = Attempt(harness, UUID(attempt.task_id))
    assert (back.lease["attempt"], back.beat()["cancel"]) == (2, False)


def test_a_run_that_still_stops_comes_back_when_it_has(harness: DispatcherHarness) -> None:
    deploy(harness, str(without()))
    attempt = started(harness)
    activate(harness, "d")
    activate(harness, "d", 2)
    assert head(harness)["state"] == "stopping"
    attempt.end("Canceled")
    assert head(harness)["state"] == "starting"
    assert harness.run(harness.dispatcher.builds.run_once()) == 1
    assert Attempt(harness, UUID(attempt.task_id)).lease["attempt"] == 2


def test_another_config_is_another_run(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    deploy(harness, str(feed(seconds=20)))
    assert attempt.beat()["cancel"] is True
    assert monitor(harness) == 1
    old, new = runs(harness)
    assert (str(old["task_id"]), old["cancel_requested"]) == (attempt.task_id, True)
    assert (new["status"], new["cancel_requested"]) == ("Queued", False)
    assert head(harness)["task_id"] == str(new["task_id"])
    attempt.end("Canceled")
    assert Attempt(harness, new["task_id"]).lease["task"]["config"] == {"seconds": 20}


def test_other_limits_keep_the_run(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    deploy(harness, str(feed(heartbeat_timeout_seconds=3000)))
    assert monitor(harness) == 1, "it goes on under the new definition"
    assert monitor(harness) == 0
    run = only_run(harness)
    assert (str(run["task_id"]), run["attempt"], run["status"]) == (attempt.task_id, 1, "Running")
    assert run["job_id"] == job(harness, "d", "head")["job_id"]
    assert attempt.beat()["cancel"] is False
    lease = harness.sql(
        "SELECT extract(epoch FROM lease_expires_at - trace_now())::int AS left FROM tasks WHERE unit_key = 'run'"
    )[0]
    assert lease["left"] > 2900
    attempt.tick(1)


# Pauses


def test_a_pause_is_heard_kept_and_ended(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    assert attempt.beat()["pause"] is False
    reply = pause(harness)
    assert (reply.body["paused"], reply.body["paused_by"], reply.body.get("duplicate")) == (True, "ann", None)
    assert pause(harness).body == reply.body | {"duplicate": True}
    monitor(harness)
    assert attempt.beat()["pause"] is True
    row = head(harness)
    assert (row["state"], row["paused_by"], row["paused_at"]) == ("paused", "ann", reply.body["paused_at"])
    attempt.tick(1)
    assert not harness.sql("SELECT FROM tasks WHERE unit_key <> 'run'"), "it is stored and makes no task"
    harness.restart()
    monitor(harness)
    assert attempt.beat()["pause"] is True
    assert pause(harness, "resume").body == {"dag": "d", "job": "head", "paused": False}
    assert pause(harness, "resume").body["duplicate"] is True
    monitor(harness)
    assert (attempt.beat()["pause"], head(harness)["state"]) == (False, "running")
    harness.run(harness.dispatcher.drain.run_once())
    assert len(harness.sql("SELECT FROM tasks WHERE unit_key = 'c:1'")) == 1
    said = harness.sql("SELECT subject, action, target FROM audit_log WHERE action LIKE 'source.%' ORDER BY audit_id")
    assert [tuple(entry) for entry in said] == [
        ("ann", "source.pause", "d/head"),
        ("ann", "source.resume", "d/head"),
    ]


def test_a_pause_outlives_versions_in_both_directions(harness: DispatcherHarness) -> None:
    started(harness)
    pause(harness)
    deploy(harness, str(feed(seconds=20)))
    monitor(harness)
    assert head(harness)["state"] == "paused"
    assert Attempt(harness, runs(harness)[1]["task_id"]).beat()["pause"] is True
    pause(harness, "resume")
    assert head(harness)["state"] == "running"
    activate(harness, "d")
    assert head(harness)["state"] != "paused", "it holds for every version"
    pause(harness)
    for number in (1, 2):
        activate(harness, "d", number)
        assert head(harness).get("paused_by") == "ann"


def test_every_kind_of_source_can_be_paused_and_nothing_else(harness: DispatcherHarness) -> None:
    deploy(harness, str(without()))
    assert sources(harness)["d/other"]["state"] == "waiting"
    assert pause(harness, path="d/jobs/other").status == 200
    assert sources(harness)["d/other"]["state"] == "paused"
    assert (pause(harness, path="d/jobs/a").status, pause(harness, path="d/jobs/a").code) == (422, "job_not_source")
    assert pause(harness, path="d/jobs/nothing").code == "job_not_found"
    assert pause(harness, path="nothing/jobs/a").code == "dag_not_found"


def test_nobody_but_sources_is_told_to_pause(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    attempt.tick(1)
    pause(harness)
    assert attempt.beat()["pause"] is True
    task_id = harness.sql("SELECT task_id FROM tasks WHERE unit_key = 'c:1'")[0]["task_id"]
    other = Attempt(harness, task_id)
    assert "pause" not in other.lease
    assert other.beat()["pause"] is False


# Health


def test_health_and_lag(harness: DispatcherHarness) -> None:
    deploy(harness, str(feed()))
    assert head(harness) == {"dag": "d", "job": "head", "kind": "always_on", "state": "starting"}, "without a run yet"
    monitor(harness)
    run = str(only_run(harness)["task_id"])
    assert (head(harness)["state"], head(harness)["task_id"]) == ("starting", run)
    attempt = Attempt(harness, UUID(run))
    attempt.tick(7)
    harness.advance(50)
    row = head(harness)
    assert (row["state"], row["last_cursor"], row["attempt"]) == ("running", 7, 1)
    assert row["since"] == row["last_event_at"] or row["since"] < row["last_event_at"], "its claim"
    assert 50 <= row["lag_seconds"] < 80
    harness.run(harness.dispatcher.gauges.run_once())
    text = harness.dispatcher.metrics.render().decode()
    assert 'trace_always_on_sources{state="running"} 1.0' in text
    assert 'trace_always_on_sources{state="dead"} 0.0' in text
    assert 'trace_source_lag_seconds{dag="d",job="head",org="acme"} 5' in text
    attempt.end(retryable=False)
    harness.run(harness.dispatcher.gauges.run_once())
    assert 'trace_always_on_sources{state="dead"} 1.0' in harness.dispatcher.metrics.render().decode()


def test_what_a_person_cancelled_has_ended_until_a_person_retries_it(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    assert user(harness, "POST", f"/v1/tasks/{attempt.task_id}/cancel").status == 200
    assert head(harness)["state"] == "stopping"
    attempt.end("Canceled")
    assert (monitor(harness), head(harness)["state"]) == (0, "ended")
    assert user(harness, "POST", f"/v1/tasks/{attempt.task_id}/retry").status == 200
    assert Attempt(harness, UUID(attempt.task_id)).beat()["cancel"] is False


def test_other_orgs_see_nothing(harness: DispatcherHarness) -> None:
    started(harness)
    deploy(harness, str(Text("d").source().job("a", "tick")), org="other")
    headers = {"authorization": f"Bearer {user_token(harness, org='other')}"}
    found = harness.call("public", "GET", "/v1/sources", None, headers).body["sources"]
    assert [(row["dag"], row["job"], row["kind"]) for row in found] == [("d", "tick", "manual")]
    refused = harness.call("public", "POST", "/v1/dags/d/jobs/head/pause", None, headers)
    assert refused.code == "job_not_found"


# All of it


def test_a_worker_runs_it_from_the_first_tick_to_the_last(harness: DispatcherHarness) -> None:
    deploy(harness, str(feed(seconds=0.02, ticks=5)))
    monitor(harness)
    harness.relay()

    async def work() -> None:
        dispatcher = harness.dispatcher
        final, stop = asyncio.Event(), asyncio.Event()
        worker = Worker(
            worker_config(worker_id="w", queues=("tasks.ecs_platform",), slots=1, backoff=Backoff(0.01, 0.1)),
            queue=dispatcher.ports.queue,
            claims=InternalClient(
                harness.clients["internal"], worker=FileCredential(harness.credentials.worker.token_file)
            ),
            tasks=TaskClient(harness.clients["task"]),
            on_signal=lambda name, _task_id: final.set() if name == "final" else None,
        )
        running = asyncio.create_task(worker.run(stop))
        async with asyncio.timeout(30):
            await final.wait()
        stop.set()
        await running

    harness.run(work())
    row = head(harness)
    assert (row["state"], row["attempt"]) == ("ended", 1)
    cursors = [item["cursor"] for item in harness.sql("SELECT cursor FROM events ORDER BY routed_seq")]
    assert cursors == list(range(cursors[0], cursors[0] + 5))
    made = harness.sql("SELECT unit_end FROM tasks WHERE unit_key <> 'run' ORDER BY unit_end")
    assert [item["unit_end"] for item in made] == cursors
    assert row["last_cursor"] == cursors[-1]

"""A worker that is told to stop hands its work over: the next attempt begins at once, paused if the source is."""

import asyncio
from typing import Any
from uuid import UUID

import pytest

from tests.routing.support import Flow
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
    started,
    wait_of,
)
from tests.support.configs import worker_config
from tests.support.dags import deploy
from tests.support.dispatcher import DispatcherHarness
from tracelake.client.credentials import FileCredential
from tracelake.client.internal import InternalClient
from tracelake.client.task import TaskClient
from tracelake.dispatcher.engine.calls.completion import FREE_STOPS
from tracelake.model.backoff import Backoff
from tracelake.worker import Worker


def hand_over(attempt: Attempt) -> None:
    attempt.end(error_message="worker_stopping: the worker was told to stop", error_code="worker_stopping")


def at_once(harness: DispatcherHarness) -> Attempt:
    assert wait_of(harness) <= 0
    assert harness.requeue_due() == 1
    return Attempt(harness, only_run(harness)["task_id"])


# The next attempt


def test_the_next_attempt_of_a_source_begins_at_once(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    attempt.tick(1)
    hand_over(attempt)
    second = at_once(harness)
    assert (second.task_id, second.lease["attempt"]) == (attempt.task_id, 2)
    second.tick(1)
    second.tick(2)
    events = harness.sql("SELECT producer, cursor FROM events ORDER BY cursor")
    assert [tuple(row) for row in events] == [(attempt.task_id, 1), (attempt.task_id, 2)]


def test_a_handover_neither_lengthens_nor_ends_a_row_of_failures(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    attempt.end()
    attempt = again(harness)
    for _ in range(5):
        hand_over(attempt)
        attempt = at_once(harness)
    attempt.end()
    assert FIRST_WAIT < wait_of(harness) <= 2 * FIRST_WAIT, "the second failure"


def test_one_crash_after_weeks_starts_counting_anew(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    for _ in range(8):
        attempt.end()
        attempt = again(harness)
    attempt.live(LONGEST_WAIT + 100)
    attempt.end()
    assert wait_of(harness) <= FIRST_WAIT
    again(harness).end()
    assert FIRST_WAIT < wait_of(harness) <= 2 * FIRST_WAIT, "and not the longest, whatever was weeks ago"


def test_a_task_of_a_job_is_handed_over_too_and_loses_no_attempt(harness: DispatcherHarness) -> None:
    job_id = harness.make_job(limits={"max_attempts": 1})["job_id"]
    task_id = harness.make_task(job_id)
    for number in (1, 2, 3):
        attempt = Attempt(harness, UUID(task_id))
        assert attempt.lease["attempt"] == number
        hand_over(attempt)
        assert harness.requeue_due() == 1
    last = Attempt(harness, UUID(task_id))
    last.end(error_message="broken")
    assert harness.row(task_id)["status"] == "Failed"
    assert harness.row(task_id)["next_retry_at"] is None, "a failure of its own is one"


def test_a_handover_of_what_was_cancelled_is_its_end(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    harness.service("POST", f"/internal/tasks/{attempt.task_id}/cancel")
    hand_over(attempt)
    assert only_run(harness)["status"] == "Canceled"


def test_what_the_dispatcher_starts_itself_has_no_worker_that_stops(harness: DispatcherHarness) -> None:
    job_id = harness.make_job(runtime="dispatcher", limits={"max_attempts": 1})["job_id"]
    attempt = Attempt(harness, UUID(harness.make_task(job_id)))
    hand_over(attempt)
    row = harness.row(attempt.task_id)
    assert (row["status"], row["next_retry_at"]) == ("Failed", None)


def test_a_function_is_handed_over_a_few_times_only(harness: DispatcherHarness) -> None:
    """A runner that stops costs no attempt. Code of users may say the same: it makes no attempts without end."""
    job_id = harness.make_job(runtime="lambda", limits={"max_attempts": 1})["job_id"]
    task_id = UUID(harness.make_task(job_id))
    for _ in range(FREE_STOPS):
        hand_over(Attempt(harness, task_id))
        assert harness.requeue_due() == 1
    hand_over(Attempt(harness, task_id))
    row = harness.row(str(task_id))
    assert (row["status"], row["next_retry_at"]) == ("Failed", None)


@pytest.mark.parametrize("fields", [{"status": "Completed"}, {"status": "Failed", "retryable": False}])
def test_the_code_belongs_to_a_failure_that_is_tried_again(harness: DispatcherHarness, fields: dict[str, Any]) -> None:
    attempt = started(harness)
    reply = attempt.call("complete", error_code="worker_stopping", **fields)
    assert (reply.status, reply.code) == (422, "body_invalid")
    assert attempt.call("complete", status="Failed", error_code="bored").status == 422


# The claim says whether to wait


def test_a_claim_says_what_it_is_and_that_the_source_is_paused(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    assert (attempt.lease["always_on"], attempt.lease.get("pause")) == (True, None)
    pause(harness)
    hand_over(attempt)
    harness.restart()  # nobody in this process has looked at anything yet
    second = at_once(harness)
    assert (second.lease["always_on"], second.lease["pause"]) == (True, True)
    assert second.beat()["pause"] is True
    pause(harness, "resume")
    assert second.beat()["pause"] is False


PRESSED = """
name: d
defaults: {runtime: ecs_platform}
jobs:
  - {name: head, activation: source, source: {kind: always_on}, operator: ticker, config: {seconds: 10}}
  - {name: slow, activation: reactive, operator: noop, inputs: [{from: {job: head}}], max_queue_depth: 2}
"""


def test_a_claim_says_that_a_queue_is_full(harness: DispatcherHarness) -> None:
    flow = Flow(harness)
    flow.deploy(PRESSED)
    monitor(harness)
    attempt = Attempt(harness, only_run(harness)["task_id"])
    attempt.tick(1)
    attempt.tick(2)
    hand_over(attempt)
    harness.restart()
    second = at_once(harness)
    assert second.lease["pause"] is True
    assert second.beat()["pause"] is True
    flow.run_all("slow")
    assert second.beat()["pause"] is False
    hand_over(second)
    assert "pause" not in at_once(harness).lease


# All of it

TICKS = """
    SELECT cursor FROM events WHERE producer = (SELECT task_id::text FROM tasks WHERE unit_key = 'run')
    ORDER BY routed_seq"""


def test_workers_hand_a_source_to_each_other_without_a_gap(harness: DispatcherHarness) -> None:
    """Three workers after each other, each told to stop: no lease, no wait, no cursor twice."""
    deploy(harness, str(feed(seconds=0.02)))
    monitor(harness)
    harness.relay()

    async def work(number: int) -> None:
        stop = asyncio.Event()
        worker = Worker(
            worker_config(worker_id=f"w{number}", queues=("tasks.ecs_platform",), slots=1, backoff=Backoff(0.01, 0.1)),
            queue=harness.dispatcher.ports.queue,
            claims=InternalClient(
                harness.clients["internal"], worker=FileCredential(harness.credentials.worker.token_file)
            ),
            tasks=TaskClient(harness.clients["task"]),
        )
        running = asyncio.create_task(worker.run(stop))
        said = len(await harness._sql(TICKS))
        async with asyncio.timeout(30):
            while len(await harness._sql(TICKS)) < said + 3:
                await asyncio.sleep(0.01)
        stop.set()
        await running

    for number in (1, 2, 3):
        harness.run(work(number))
        run = only_run(harness)
        assert (run["status"], run["attempt"], run["forgiven"]) == ("Failed", number, number)
        assert head(harness)["error"] == "worker_stopping: the worker was told to stop"
        assert harness.requeue_due() == 1
        harness.relay()
    cursors = [row["cursor"] for row in harness.sql(TICKS)]
    assert cursors == sorted(set(cursors))
    assert len(cursors) >= 9

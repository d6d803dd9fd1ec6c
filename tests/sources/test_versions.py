"""Always_on sources through versions: while their worker is away, while they are paused, and to another kind."""

from collections import Counter
from uuid import UUID

import pytest

from tests.deploy.support import Text
from tests.scheduler.support import Faulty
from tests.sources.always_on_support import (
    LONGEST_WAIT,
    Attempt,
    feed,
    head,
    monitor,
    only_run,
    pause,
    runs,
    sources,
    started,
    without,
)
from tests.support.configs import scheduler_config
from tests.support.dags import activate, deploy, output
from tests.support.dispatcher import DispatcherHarness
from tracelake.scheduler import Scheduler


def lose_the_worker(harness: DispatcherHarness) -> None:
    harness.advance(121)
    assert harness.reap() == 1


# A rollback while the worker is away


@pytest.mark.parametrize("judged", [False, True])
def test_a_rollback_ends_a_run_whose_worker_is_away(harness: DispatcherHarness, judged: bool) -> None:
    """Nobody hears that it should stop: its lease, or the wait for its retry, ends it."""
    harness.reap()
    deploy(harness, str(without()))
    attempt = started(harness)
    if judged:
        lose_the_worker(harness)
    activate(harness, "d")
    harness.run(harness.dispatcher.builds.run_once())
    if not judged:
        assert only_run(harness)["status"] == "Running"
        lose_the_worker(harness)
    assert only_run(harness)["status"] == "Canceled"
    harness.advance(LONGEST_WAIT)
    assert (harness.requeue_due(), monitor(harness)) == (0, 0)
    late = attempt.call("heartbeat")
    assert late.status == 409, "the old worker hears it when it is back"
    activate(harness, "d", 2)
    harness.run(harness.dispatcher.builds.run_once())
    assert (monitor(harness), only_run(harness)["status"]) == (0, "Queued"), "the same run, and no second one"
    assert Attempt(harness, UUID(attempt.task_id)).lease["attempt"] == 2


def test_a_handover_during_a_rollback_does_not_bring_the_run_back(harness: DispatcherHarness) -> None:
    """The worker is told to stop by its operator before it has heard that its source has gone."""
    deploy(harness, str(without()))
    attempt = started(harness)
    activate(harness, "d")
    attempt.end(error_code="worker_stopping")
    assert only_run(harness)["status"] == "Canceled"
    assert (harness.requeue_due(), monitor(harness)) == (0, 0)


def test_a_rollback_and_back_while_the_worker_is_away_keeps_the_run(harness: DispatcherHarness) -> None:
    harness.reap()
    deploy(harness, str(without()))
    attempt = started(harness)
    activate(harness, "d")
    activate(harness, "d", 2)
    lose_the_worker(harness)
    harness.run(harness.dispatcher.builds.run_once())
    assert monitor(harness) == 0
    run = only_run(harness)
    assert (str(run["task_id"]), run["status"]) == (attempt.task_id, "Queued")
    again = Attempt(harness, run["task_id"])
    assert (again.lease["attempt"], again.beat()["cancel"]) == (2, False)


# A rollback while it is paused


def test_a_rollback_while_it_is_paused_and_back(harness: DispatcherHarness) -> None:
    deploy(harness, str(without()))
    attempt = started(harness)
    attempt.tick(1)
    pause(harness)
    attempt.tick(2)
    activate(harness, "d")
    assert attempt.beat()["cancel"] is True
    attempt.end("Canceled")
    harness.run(harness.dispatcher.drain.run_once())
    assert len(harness.sql("SELECT FROM tasks WHERE unit_key <> 'run'")) == 1
    activate(harness, "d", 2)
    harness.run(harness.dispatcher.builds.run_once())
    monitor(harness)
    assert head(harness)["state"] == "paused", "it lasts through versions"
    back = Attempt(harness, UUID(attempt.task_id))
    assert back.lease["pause"] is True, "and the new attempt knows before it speaks"
    pause(harness, "resume")
    while harness.run(harness.dispatcher.drain.run_once()):
        pass
    made = harness.sql("SELECT unit_key FROM tasks WHERE unit_key <> 'run' ORDER BY unit_key")
    assert [row["unit_key"] for row in made] == ["c:1", "c:2"], "what it said before the rollback is not lost"


# Another kind


def by_the_clock() -> Text:
    source = {"kind": "cron", "schedule": "* * * * *", "catch_up": "all"}
    return Text("d").source("head", source=source).job("a", "head")


def test_a_source_that_moves_to_another_kind_and_back(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    attempt.tick(1)
    scheduler = Scheduler(scheduler_config(), calls=Faulty(harness))

    def fire() -> None:
        harness.advance(60)
        while harness.run(scheduler.run_once()) == 0.0:
            pass

    fire()
    assert said(harness) == Counter(run=1)
    dataset_uuid, dataset_version = output(harness, "d", "head")
    deploy(harness, str(by_the_clock()))
    assert attempt.beat()["cancel"] is True
    assert sources(harness)["d/head"]["kind"] == "cron"
    fire()
    # The old run may say something until it has stopped; nobody of the new version reads it.
    late = {"dataset_uuid": str(dataset_uuid), "dataset_version": str(dataset_version), "cursor": 2}
    assert attempt.call("events", events=[late]).status == 200
    attempt.end("Canceled")
    assert (monitor(harness), len(runs(harness))) == (0, 1), "no run for a cron source"
    fire()
    assert said(harness) == Counter(run=2, cron=2)
    assert "task_id" not in sources(harness)["d/head"]
    counted = harness.sql(
        """SELECT count(*) AS made FROM tasks t JOIN dag_version_jobs v USING (job_id)
           JOIN dags d ON d.active_version = v.dag_version_id WHERE t.unit_key LIKE 'c:%'"""
    )
    assert counted[0]["made"] == 2, "one task for each slot, none for a tick"
    activate(harness, "d", 1)
    harness.run(harness.dispatcher.builds.run_once())
    fire()
    assert said(harness)["cron"] == 2, "and no slot is fired for what runs all the time"
    assert (monitor(harness), only_run(harness)["status"]) == (0, "Queued")
    back = Attempt(harness, UUID(attempt.task_id))
    assert (back.lease["attempt"], back.beat()["cancel"]) == (2, False)


def said(harness: DispatcherHarness) -> "Counter[str]":
    """Events by the kind of who said them."""
    run = str(only_run(harness)["task_id"])
    rows = harness.sql("SELECT producer FROM events")
    return Counter("run" if row["producer"] == run else row["producer"].split(":")[0] for row in rows)


def test_a_source_that_comes_from_another_kind(harness: DispatcherHarness) -> None:
    deploy(harness, str(by_the_clock()))
    assert (monitor(harness), runs(harness)) == (0, [])
    deploy(harness, str(feed()))
    assert monitor(harness) == 1
    attempt = Attempt(harness, only_run(harness)["task_id"])
    attempt.tick(1)
    assert harness.run(Faulty(harness).cron_sources()).sources == []
    activate(harness, "d", 1)
    assert attempt.beat()["cancel"] is True
    attempt.end("Canceled")
    assert monitor(harness) == 0
    assert [row.job for row in harness.run(Faulty(harness).cron_sources()).sources] == ["head"]

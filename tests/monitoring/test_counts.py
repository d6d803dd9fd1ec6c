"""Counters and gauges say what happened and what there is: no more, no less, and the same in every Dispatcher."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.monitoring.promql import Scrape
from tests.monitoring.situations import CRON, PIPE, PLAIN, Stage
from tests.monitoring.test_movement import invalidated
from tests.sources.webhook_support import Hook
from tests.support import dags
from tests.support.dispatcher import DispatcherHarness
from tests.support.state import set_edges
from tracelake.dispatcher.engine.catch_up.invalidation_drain import PAGE
from tracelake.dispatcher.loops import gauges
from tracelake.dispatcher.metrics import SAME, Metrics
from tracelake.errors import TraceError
from tracelake.wire.sources import FireRequest

LIMITED = PLAIN.replace("inputs: [{from: {job: src}}]}", "inputs: [{from: {job: src}}], scaling: {max_concurrency: 1}}")

_LONG_QUEUE = """
    INSERT INTO tasks (task_id, org_id, job_id, inputs, status, ready_at)
    SELECT ('00000000' || substr(gen_random_uuid()::text, 9))::uuid, org_id, job_id, '[]', 'Queued', trace_now()
    FROM tasks, generate_series(1, $2) WHERE task_id = $1"""


@pytest.fixture
def stage(harness: DispatcherHarness) -> Stage:
    return Stage(harness)


def value(scrape: Scrape, name: str, **labels: str) -> float | None:
    """Of the one series with these labels (and maybe others)."""
    found = [
        number for series, number in scrape.samples.get(name, {}).items() if labels.items() <= dict(series).items()
    ]
    assert len(found) <= 1, f"{name} {labels}"
    return found[0] if found else None


def series(scrape: Scrape, name: str) -> dict[tuple[str, ...], float]:
    """Those that are not 0, by their values of labels in alphabetical order of labels."""
    found = scrape.samples.get(name, {}).items()
    return {tuple(text for _, text in sorted(labels)): number for labels, number in found if number}


def test_events_by_producer_and_tasks_by_what_asked(stage: Stage) -> None:
    flow = stage.flow
    flow.deploy(PIPE)
    key = str(uuid4())
    for _ in range(2):
        flow.trigger("d", "src", cursor=1, idempotency_key=key)
    (task,) = flow.tasks("step")
    lease = flow.claim(task["task_id"])
    for _ in range(2):
        flow.say(task["task_id"], lease, flow.event("d", "step", cursor=1))
    flow.trigger("d", "step", cursor=1)
    page = stage.scrape()
    assert series(page, "trace_events_total") == {
        ("manual", "routed"): 1,
        ("task", "routed"): 1,
        ("task", "duplicate"): 1,
    }
    assert series(page, "trace_tasks_made_total") == {("event",): 2, ("call",): 1}
    assert series(page, "trace_triggers_total") == {("event",): 1, ("duplicate",): 1, ("task",): 1}


def test_a_trigger_that_is_refused_is_counted_by_its_code(stage: Stage) -> None:
    stage.flow.deploy(PLAIN)
    with pytest.raises(TraceError):
        stage.flow.trigger("d", "nobody", cursor=1)
    page = stage.scrape()
    assert series(page, "trace_triggers_total") == {("job_not_found",): 1}
    assert not series(page, "trace_events_total"), "nothing of it was kept"


def test_deliveries_by_result(stage: Stage) -> None:
    hook = Hook(stage.harness).deploy()
    hook.sent(delivery="one")
    hook.sent(delivery="one")
    hook.send(b"other", delivery="one")
    hook.send(secrets=["wrong"])
    stage.harness.call("public", "POST", hook.where, b"x")
    stage.harness.call("public", "POST", hook.where + "x", b"x", hook.head(b"x"))
    stage.harness.call("public", "POST", hook.where, b"x" * (stage.harness.config.webhook_max_bytes + 1), hook.head())
    page = stage.scrape()
    assert series(page, "trace_webhook_deliveries_total") == {
        ("accepted",): 1,
        ("duplicate",): 1,
        ("delivery_conflict",): 1,
        ("signature_invalid",): 2,  # a path that is not there is refused alike
        ("credential_missing",): 1,
        ("body_too_large",): 1,
    }
    assert series(page, "trace_events_total") == {("webhook", "routed"): 1}


def test_slots_are_events_of_cron_and_the_last_one_is_known(stage: Stage) -> None:
    stage.flow.deploy(CRON)
    job_id = dags.job_id(stage.harness, "d", "tick")
    assert value(stage.scrape(), "trace_cron_last_slot_timestamp_seconds") is None
    now = stage.harness.sql("SELECT date_trunc('minute', trace_now()) AS now")[0]["now"]
    for _ in range(2):
        stage.harness.run(stage.harness.dispatcher.cron.fire(job_id, FireRequest(slot=now)))
    page = stage.scrape()
    assert series(page, "trace_events_total") == {("cron", "routed"): 1, ("cron", "duplicate"): 1}
    assert value(page, "trace_cron_last_slot_timestamp_seconds", job="tick") == now.timestamp()
    stage.harness.advance(600)
    overdue = value(stage.scrape(), "trace_cron_overdue_seconds", job="tick")
    assert overdue is not None
    assert 540 <= overdue < 660, "the next slot was due a minute after the last one"
    assert value(page, "trace_source_last_event_timestamp_seconds", kind="cron", job="tick") is not None
    assert series(page, "trace_sources") == {("cron", "waiting"): 1}


def fire(stage: Stage, job: str = "tick") -> None:
    """The slot of this minute."""
    now = stage.harness.sql("SELECT date_trunc('minute', trace_now()) AS now")[0]["now"]
    job_id = dags.job_id(stage.harness, "d", job)
    stage.harness.run(stage.harness.dispatcher.cron.fire(job_id, FireRequest(slot=now)))


def overdue(stage: Stage) -> float | None:
    return value(stage.scrape(), "trace_cron_overdue_seconds", job="tick")


def test_a_schedule_that_changes_owes_nothing_of_before(stage: Stage) -> None:
    stage.flow.deploy(CRON.replace("* * * * *", "0 0 * * *"))
    fire(stage)
    stage.harness.advance(20 * 3600)
    stage.flow.deploy(CRON)
    assert overdue(stage) == 0
    stage.harness.advance(600)
    assert 540 <= (overdue(stage) or 0) < 660, "of the new schedule it has fired nothing"


def test_a_source_that_comes_back_owes_nothing_of_the_time_without_it(stage: Stage) -> None:
    stage.flow.deploy(CRON)
    fire(stage)
    stage.flow.deploy(CRON.replace("tick", "tock"))
    stage.harness.advance(7200)
    assert overdue(stage) is None
    stage.flow.deploy(CRON)
    assert overdue(stage) == 0


def test_a_source_that_makes_up_for_nothing_is_never_overdue(stage: Stage) -> None:
    stage.flow.deploy(CRON.replace('"* * * * *"', '"* * * * *", catch_up: none'))
    fire(stage)
    stage.harness.advance(7200)
    assert overdue(stage) is None
    assert value(stage.scrape(), "trace_cron_last_slot_timestamp_seconds", job="tick") is not None


def test_a_long_queue_hides_no_failure(stage: Stage) -> None:
    """Even one that comes first in the index of what is not done."""
    stage.flow.deploy(PLAIN)
    stage.flow.trigger("d", "src", cursor=1)
    (task,) = stage.flow.tasks("work")
    stage.flow.fail(task["task_id"])
    stage.harness.sql(_LONG_QUEUE, task["task_id"], 10_000)
    assert series(stage.scrape(), "trace_tasks") == {("ready",): 10_000, ("failed",): 1}


def test_events_of_many_inputs_wait(stage: Stage) -> None:
    """The last of them counts, too, and a long one no further than the share of each."""
    readers = "".join(
        f"\n  - {{name: r{number}, activation: reactive, operator: noop, inputs: [{{from: {{job: src}}}}]}}"
        for number in range(60)
    )
    stage.flow.deploy(PLAIN.rstrip() + readers)
    for cursor in range(3):
        stage.flow.trigger("d", "src", cursor=cursor)
    set_edges(stage.harness, position=0)
    assert series(stage.scrape(), "trace_events_waiting") == {("behind",): 61 * 3}


@pytest.mark.parametrize(("edges", "each"), [(1, 1000), (50, 1000), (100, 500), (5000, 10), (100_000, 10)])
def test_the_waiting_events_of_all_inputs_share_one_bound(edges: int, each: int) -> None:
    assert gauges._waiting_each(edges) == each


def test_the_wait_of_a_task_ends_with_its_claim(stage: Stage) -> None:
    stage.flow.deploy(PLAIN)
    stage.flow.trigger("d", "src", cursor=1)
    stage.harness.advance(30)
    assert 30 <= (value(stage.scrape(), "trace_tasks_oldest_ready_seconds") or 0) < 90
    (task,) = stage.flow.tasks("work")
    for _ in range(2):
        stage.harness.claim(str(task["task_id"]), claim_id="same")
    page = stage.scrape()
    assert value(page, "trace_task_wait_seconds_count") == 1, "a repeated answer is no second claim"
    assert 30 <= (value(page, "trace_task_wait_seconds_sum") or 0) < 90
    assert value(page, "trace_tasks_oldest_ready_seconds") == 0


def test_tasks_by_state(stage: Stage) -> None:
    flow = stage.flow
    flow.deploy(LIMITED)
    for cursor in range(1, 4):
        flow.trigger("d", "src", cursor=cursor)
    assert series(stage.scrape(), "trace_tasks") == {("ready",): 1, ("held",): 2}
    first = next(task["task_id"] for task in flow.tasks("work") if not task["held"])
    lease = flow.claim(first)
    assert series(stage.scrape(), "trace_tasks") == {("running",): 1, ("held",): 2}
    flow.complete(first, lease, status="Failed", error_message="no")
    assert series(stage.scrape(), "trace_tasks") == {("retrying",): 1, ("ready",): 1, ("held",): 1}
    assert value(stage.scrape(), "trace_tasks_failed_total") == 0, "it is tried again"


def test_a_task_fails_for_good_once(stage: Stage) -> None:
    flow = stage.flow
    flow.deploy(PLAIN)
    flow.trigger("d", "src", cursor=1)
    (task,) = flow.tasks("work")
    flow.fail(task["task_id"])
    for cursor in (2, 3):
        flow.trigger("d", "src", cursor=cursor)
    page = stage.scrape()
    assert value(page, "trace_tasks_failed_total") == 1
    assert series(page, "trace_tasks") == {("failed",): 1}
    assert series(page, "trace_edges_behind") == {("held",): 1}
    assert series(page, "trace_events_waiting") == {("held",): 2}
    assert value(page, "trace_input_failed_units", org="acme", dag="d", job="work") == 1
    flow.person("skip", task["task_id"])
    page = stage.scrape()
    assert value(page, "trace_tasks_failed_total") == 1, "a skip is no failure"
    assert not series(page, "trace_input_failed_units")
    flow.drain()
    page = stage.scrape()
    assert series(page, "trace_tasks") == {("ready",): 2}
    assert not series(page, "trace_edges_behind")
    assert value(page, "trace_drained_events_total") == 2
    assert value(page, "trace_tasks_made_total", by="drain") == 2


def test_a_task_whose_last_lease_runs_out_has_failed_for_good(stage: Stage) -> None:
    stage.harness.reap()
    task = stage.harness.make_task(stage.harness.make_job(limits={"max_attempts": 1})["job_id"])
    stage.flow.claim(task)
    stage.harness.advance(3600)
    assert stage.harness.reap() == 1
    page = stage.scrape()
    assert value(page, "trace_tasks_failed_total") == 1
    assert value(page, "trace_lease_expiries_total", status="Failed") == 1


def test_a_large_invalidation_is_pending_until_its_pages_are_made(stage: Stage) -> None:
    invalidated(stage)
    before = stage.scrape()
    assert value(before, "trace_invalidations_pending") == 1
    assert value(before, "trace_tasks_made_total", by="invalidation") == 0
    stage.flow.drain()
    page = stage.scrape()
    assert value(page, "trace_invalidations_pending") == 0
    assert (value(page, "trace_tasks_made_total", by="invalidation") or 0) >= PAGE


def test_a_limited_queue_is_shown_by_name(stage: Stage) -> None:
    stage.flow.deploy(PIPE.replace("max_queue_depth: 10", "max_queue_depth: 10, max_queue_age: 10m"))
    stage.fill(5)
    stage.harness.advance(480)
    stage.harness.run(stage.harness.dispatcher.pressure.run_once())
    page = stage.scrape()
    queue = {"org": "acme", "dag": "d", "job": "slow", "version": "active"}
    assert value(page, "trace_pressure_depth", **queue) == 5
    assert value(page, "trace_pressure_max_depth", **queue) == 10
    assert value(page, "trace_pressure_max_age_seconds", **queue) == 600
    assert 480 <= (value(page, "trace_pressure_oldest_seconds", **queue) or 0) < 540
    assert 0.8 <= (value(page, "trace_pressure_share", **queue) or 0) < 0.9, "the age is worse than the depth"
    assert value(page, "trace_pressure_level", **queue) == 1
    assert len(page.samples["trace_pressure_level"]) == 1, "other jobs have no series"


def test_sources_by_state_and_pauses(stage: Stage) -> None:
    stage.flow.deploy(PIPE)
    stage.fill(10)
    stage.harness.run(stage.harness.dispatcher.pressure.run_once())
    page = stage.scrape()
    assert series(page, "trace_sources") == {("manual", "stopped"): 1}
    assert value(page, "trace_producers_stopped") == 2, "the source, and the step before the queue"
    stage.harness.run(stage.harness.dispatcher.pauses.pause(stage.flow.actor, "d", "src"))
    stage.harness.advance(60)
    page = stage.scrape()
    assert series(page, "trace_sources") == {("manual", "paused"): 1}
    assert 60 <= (value(page, "trace_source_paused_seconds", job="src") or 0) < 120
    stage.harness.run(stage.harness.dispatcher.pauses.resume(stage.flow.actor, "d", "src"))
    assert "trace_source_paused_seconds" not in stage.scrape().samples


def test_what_a_deploy_takes_out_is_gone(stage: Stage) -> None:
    stage.flow.deploy(PIPE)
    assert value(stage.scrape(), "trace_pressure_level", job="slow") == 0
    stage.flow.deploy(PIPE.replace(", max_queue_depth: 10", "").replace("src", "feed"))
    page = stage.scrape()
    assert "trace_pressure_level" not in page.samples
    assert series(page, "trace_sources") == {("manual", "waiting"): 1}


def test_a_run_is_one_series_and_its_restarts_are_counted(stage: Stage) -> None:
    run = stage.head()
    page = stage.scrape()
    assert series(page, "trace_always_on_run") == {("d", "head", "acme", "starting"): 1}
    assert series(page, "trace_tasks_made_total") == {("run",): 1}
    lease = stage.flow.claim(run)
    stage.flow.complete(run, lease, status="Failed", error_message="no", retryable=False)
    page = stage.scrape()
    assert series(page, "trace_always_on_run") == {("d", "head", "acme", "dead"): 1}
    assert value(page, "trace_always_on_attempts", job="head") == 1
    assert series(page, "trace_sources") == {("always_on", "dead"): 1}


def test_a_build_is_counted_while_it_lasts(stage: Stage) -> None:
    stage.flow.deploy(PLAIN)
    stage.flow.trigger("d", "src", cursor=1)
    stage.flow.run_all("work")
    other = PLAIN.replace("operator: noop,", "operator: sleep, config: {seconds: 1}, max_queue_depth: 5,")
    stage.flow.deploy(other)
    stage.harness.advance(100)
    page = stage.scrape()
    assert value(page, "trace_builds") == 1
    assert 100 <= (value(page, "trace_builds_oldest_seconds") or 0) < 160
    assert value(page, "trace_pressure_level", job="work", version="building") == 0
    stage.flow.drain()
    stage.flow.run_all("work")
    dags.run_builds(stage.harness)
    page = stage.scrape()
    assert value(page, "trace_builds") == 0
    assert value(page, "trace_pressure_level", job="work", version="active") == 0


def test_gauges_of_the_stores_are_the_same_in_every_dispatcher(
    harness: DispatcherHarness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stage = Stage(harness)
    stage.flow.deploy(PIPE)
    stage.fill(10)
    harness.service("GET", "/internal/buffers")
    other = DispatcherHarness.start(harness.state_dsn, harness.queue_dsn, Path(tmp_path_factory.mktemp("other")))
    try:
        for each in (harness, other):
            each.run(each.dispatcher.pressure.run_once())
        pages = [Stage(each).scrape() for each in (harness, other)]
        same = [family.name for family in Metrics().registry.collect() if family.documentation.endswith(SAME)]
        assert len(same) >= 30
        for name in same:
            mine, theirs = (_rounded(page.samples.get(name, {})) for page in pages)
            assert mine == theirs, name
    finally:
        other.stop()


def _rounded(samples: Any) -> dict[Any, int]:
    """Ages grow between two looks; not by a minute."""
    return {labels: round(number / 60) if number > 60 else int(number > 0) for labels, number in samples.items()}

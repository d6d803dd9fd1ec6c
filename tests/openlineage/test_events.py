"""OpenLineage events of a real Dispatcher, received by a real HTTP server: valid, in order, at least once."""

import itertools
import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.http.support import fresh
from tests.openlineage.receiver import TestReceiver
from tests.openlineage.samples import HOURLY_JOB, note
from tests.openlineage.spec import check_run_event
from tests.query.support import FILES, commit_blocks
from tests.routing.support import Flow
from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tracelake.dispatcher.openlineage.run_events import make_event, run_id_of
from tracelake.dispatcher.openlineage.sender import LineageSender
from tracelake.settings import Settings, SettingsError

MOMENTS = map(float, itertools.count(10**6, 10**6))
"""Each long after the one before."""
CHAIN = """
name: chain
defaults: {runtime: ecs_platform}
jobs:
  - {name: src, activation: source, source: {kind: manual}}
  - {name: first, activation: reactive, operator: noop, inputs: [{from: {job: src}}]}
publish:
  numbers: {from: {job: src}, storage: none}
"""


def make_flow(harness: DispatcherHarness, text: str = CHAIN) -> Flow:
    flow = Flow(harness, fresh("acme"))
    flow.deploy(text)
    return flow


def sender_of(harness: DispatcherHarness) -> LineageSender:
    sender = harness.dispatcher.lineage
    assert sender is not None
    return sender


def send(harness: DispatcherHarness, sender: LineageSender | None = None) -> int:
    """One round, as if the last failure was long ago."""
    sender = sender or sender_of(harness)
    moment = next(MOMENTS)
    sender.clock = lambda: moment
    return harness.run(sender.run_once())


def count(harness: DispatcherHarness, result: str) -> float:
    name = "trace_openlineage_events_total"
    value = harness.dispatcher.metrics.registry.get_sample_value(name, {"result": result})
    assert value is not None
    return value


def waiting(harness: DispatcherHarness) -> int:
    return int(harness.sql("SELECT count(*) AS n FROM lineage_events")[0]["n"])


def trigger(flow: Flow, cursor: int, job: str = "first") -> UUID:
    flow.trigger("chain", "src", cursor=cursor)
    (task,) = [task["task_id"] for task in flow.tasks(job, "Queued")]
    return UUID(str(task))


def test_a_success(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    flow = make_flow(harness, FILES)
    commit_blocks(flow, 0, 199, b"rows")
    (task,) = flow.tasks("write")
    assert send(harness) == 2
    assert waiting(harness) == 0
    for event in receiver.events:
        check_run_event(event)
    start, complete = receiver.events
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["eventTime"] <= complete["eventTime"]
    assert start["run"]["runId"] == complete["run"]["runId"] == str(run_id_of(UUID(str(task["task_id"])), 1))
    namespace = f"trace.{flow.org}"
    assert (complete["job"]["namespace"], complete["job"]["name"]) == (namespace, "files.write")
    assert complete["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    (output,) = [item for item in complete["outputs"] if item["name"] == "blocks"]
    assert output["namespace"] == namespace
    fields = {field["name"]: field["type"] for field in output["facets"]["schema"]["fields"]}
    assert fields["amount_string"] == "string", "the columns that were known at deploy"
    assert len(complete["inputs"]) == 1
    unit = complete["run"]["facets"]["tracelake_unit"]
    assert (unit["firstBlock"], unit["lastBlock"]) == (0, 199)
    assert complete["run"]["facets"]["parent"]["run"]["runId"] == str(task["task_id"])
    assert complete["run"]["facets"]["parent"]["job"] == {"namespace": namespace, "name": "files"}
    assert receiver.paths == ["/api/v1/lineage"] * 2
    assert receiver.headers[0]["authorization"] == "Bearer the-key-of-the-receiver"
    assert send(harness) == 0


def test_a_failure_and_its_retry(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    flow = make_flow(harness)
    task = trigger(flow, 5)
    lease = flow.claim(task)
    flow.complete(task, lease, status="Failed", error_message="node-2 answers nothing", retryable=True)
    harness.advance(3600)
    assert harness.requeue_due() == 1
    flow.pass_on(task)
    send(harness)
    for event in receiver.events:
        check_run_event(event)
    assert receiver.types() == ["START", "FAIL", "START", "COMPLETE"]
    assert receiver.events[1]["run"]["facets"]["errorMessage"]["message"] == "node-2 answers nothing"
    runs = [event["run"]["runId"] for event in receiver.events]
    assert runs == [str(run_id_of(task, attempt)) for attempt in (1, 1, 2, 2)]
    assert {event["run"]["facets"]["parent"]["run"]["runId"] for event in receiver.events} == {str(task)}
    assert [item["name"] for item in receiver.events[0]["inputs"]] == ["numbers"]


def test_an_expired_lease_fails_and_a_cancelled_attempt_aborts(
    harness: DispatcherHarness, receiver: TestReceiver
) -> None:
    flow = make_flow(harness)
    expired = trigger(flow, 5)
    flow.claim(expired)
    harness.reap()
    harness.advance(10_000)
    assert harness.reap() == 1
    canceled = trigger(flow, 6)
    lease = flow.claim(canceled)
    flow.person("cancel", canceled)
    flow.complete(canceled, lease, status="Canceled")
    send(harness)
    for event in receiver.events:
        check_run_event(event)
    ends = {event["run"]["facets"]["parent"]["run"]["runId"]: event["eventType"] for event in receiver.events}
    assert ends == {str(expired): "FAIL", str(canceled): "ABORT"}
    (failed,) = [event for event in receiver.events if event["eventType"] == "FAIL"]
    assert failed["run"]["facets"]["errorMessage"]["message"]


def test_a_restart_loses_nothing(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    flow = make_flow(harness)
    flow.pass_on(trigger(flow, 5))
    receiver.status = 503
    assert send(harness) == 0
    harness.restart()
    flow.pass_on(trigger(flow, 6))
    receiver.status = 201
    assert send(harness) == 4
    assert receiver.types() == ["START", "COMPLETE", "START", "COMPLETE"]
    assert waiting(harness) == 0


def test_a_crash_after_sending_repeats_the_same_events(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    flow = make_flow(harness)
    flow.pass_on(trigger(flow, 5))
    rows = harness.sql("SELECT * FROM lineage_events ORDER BY event_id")
    send(harness)
    for row in rows:  # as if the Dispatcher had died before it could delete them
        harness.sql(
            "INSERT INTO lineage_events (task_id, attempt, event_type, event_time, error) VALUES ($1, $2, $3, $4, $5)",
            row["task_id"], row["attempt"], row["event_type"], row["event_time"], row["error"],
        )  # fmt: skip
    crashed_holder = sender_of(harness).holder
    sender_of(harness).holder = uuid4()
    assert send(harness) == 0, "the other one may still send"
    harness.advance(31)
    assert send(harness) == 2
    assert receiver.events[:2] == receiver.events[2:]
    assert crashed_holder != sender_of(harness).holder


def test_one_dispatcher_sends_at_a_time(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    flow = make_flow(harness)
    flow.pass_on(trigger(flow, 5))
    dispatcher = harness.dispatcher
    other = LineageSender(
        dispatcher.ports.store, sender_of(harness).definitions, sender_of(harness).config, dispatcher.metrics
    )
    assert send(harness) == 2
    flow.pass_on(trigger(flow, 6))
    assert send(harness, other) == 0
    assert send(harness) == 2
    harness.run(sender_of(harness).close())
    flow.pass_on(trigger(flow, 7))
    assert send(harness, other) == 2, "one that ended lets it go"
    assert len(receiver.events) == 6


def test_a_receiver_that_does_not_answer_slows_no_task(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    flow = make_flow(harness)
    flow.pass_on(trigger(flow, 5))
    receiver.hold.clear()
    with ThreadPoolExecutor(1) as pool:
        round_: Future[int] = pool.submit(send, harness)
        assert receiver.asked.wait(30)
        locks = harness.sql("SELECT count(*) AS n FROM pg_locks WHERE relation = 'lineage_events'::regclass")
        assert locks[0]["n"] == 0, "no transaction waits with it"
        for cursor in range(6, 10):
            flow.pass_on(trigger(flow, cursor))
        assert not round_.done()
        receiver.hold.set()
        assert round_.result(60) == 2
    assert send(harness) == 8
    assert receiver.types() == ["START", "COMPLETE"] * 5


def test_a_receiver_that_is_away_is_asked_less_and_less_often(
    harness: DispatcherHarness, receiver: TestReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    flow = make_flow(harness)
    flow.pass_on(trigger(flow, 5))
    sender = sender_of(harness)
    now = 100.0
    sender.clock = lambda: now
    receiver.status = 401
    waits = []
    with caplog.at_level(logging.INFO):
        for _ in range(8):
            receiver.asked.clear()
            harness.run(sender.run_once())
            assert receiver.asked.is_set()
            receiver.asked.clear()
            harness.run(sender.run_once())
            assert not receiver.asked.is_set(), "it waits"
            waits.append(sender._retry_at - now)
            now = sender._retry_at
    assert waits[0] <= 1.5
    assert 40 <= max(waits) <= 60
    lag = harness.dispatcher.metrics.registry.get_sample_value("trace_openlineage_lag_seconds")
    assert lag is not None
    assert lag > 0
    text = caplog.text + repr(sender.config)
    assert text.count("takes no lineage events (it answers 401)") == 1
    assert "the-key-of-the-receiver" not in text
    receiver.status = 201
    assert send(harness) == 2
    harness.run(sender.run_once())
    assert harness.dispatcher.metrics.registry.get_sample_value("trace_openlineage_lag_seconds") == 0


def test_beyond_the_bound_the_oldest_go(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    flow = make_flow(harness)
    receiver.status = 503
    for cursor in range(15):
        flow.pass_on(trigger(flow, cursor))
    assert waiting(harness) == 30
    send(harness)
    assert waiting(harness) == 20
    assert count(harness, "dropped") == 10
    receiver.status = 201
    assert send(harness) == 20
    newest = flow.tasks("first")[-1]["task_id"]
    assert receiver.events[-1]["run"]["runId"] == str(run_id_of(UUID(str(newest)), 1))


def test_an_event_that_is_refused_blocks_no_other(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    flow = make_flow(harness)
    other = make_flow(harness, CHAIN.replace("name: chain", "name: other").replace("numbers", "others"))
    flow.pass_on(trigger(flow, 5))
    other.trigger("other", "src", cursor=1)
    other.run_all("first")
    receiver.refused_job = "chain.first"
    assert send(harness) == 4
    assert [event["job"]["name"] for event in receiver.events] == ["other.first"] * 2
    assert (count(harness, "sent"), count(harness, "rejected")) == (2, 2)


def test_names_of_an_org_are_in_its_namespace_alone(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    flows = [make_flow(harness, CHAIN.replace("numbers", f"secret_of_{number}")) for number in range(2)]
    for flow in flows:
        flow.pass_on(trigger(flow, 5))
    assert send(harness) == 4
    for event in receiver.events:
        number = next(number for number, flow in enumerate(flows) if event["job"]["namespace"] == f"trace.{flow.org}")
        assert flows[1 - number].org not in str(event)
        assert f"secret_of_{1 - number}" not in str(event)


def test_events_of_a_task_that_is_gone_are_dropped(harness: DispatcherHarness, receiver: TestReceiver) -> None:
    harness.sql(
        "INSERT INTO lineage_events (task_id, attempt, event_type, event_time) VALUES ($1, 1, 'START', trace_now())",
        uuid4(),
    )
    flow = make_flow(harness)
    flow.pass_on(trigger(flow, 5))
    assert send(harness) == 3
    assert receiver.types() == ["START", "COMPLETE"]
    assert count(harness, "dropped") == 1


def test_a_missing_key_is_waited_for(harness: DispatcherHarness, receiver: TestReceiver, key_file: Any) -> None:
    flow = make_flow(harness)
    flow.pass_on(trigger(flow, 5))
    key_file.unlink()
    assert send(harness) == 0
    assert not receiver.asked.is_set()
    key_file.write_text("a-new-key\n")
    assert send(harness) == 2
    assert receiver.headers[0]["authorization"] == "Bearer a-new-key"


def test_off_is_the_default_and_notes_nothing(state_dsn: str, queue_dsn: str, tmp_path: Any) -> None:
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path, dispatcher_config())
    try:
        assert harness.dispatcher.lineage is None
        assert "openlineage" not in [loop.name for loop in harness.dispatcher.loops]
        flow = make_flow(harness)
        flow.pass_on(trigger(flow, 5))
        assert waiting(harness) == 0
    finally:
        harness.stop()


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("http://127.0.0.1:5000", True),
        ("https://lineage.example/api/v2/lineage", True),
        ("http://user:password@127.0.0.1:5000", False),
        ("http://127.0.0.1:5000/?key=secret", False),
        ("ftp://127.0.0.1", False),
    ],
)
def test_addresses(url: str, good: bool) -> None:
    if good:
        assert Settings.load({"openlineage_url": url}, environ={}).openlineage_url == url
        return
    with pytest.raises(SettingsError, match="openlineage_url"):
        Settings.load({"openlineage_url": url}, environ={})


def test_a_window_of_time_is_the_nominal_time() -> None:
    event = make_event(note(), HOURLY_JOB, {}, {}, "trace")
    check_run_event(event)
    nominal = event["run"]["facets"]["nominalTime"]
    assert nominal["nominalStartTime"] == "2026-03-03T13:00:00.000Z"
    assert nominal["nominalEndTime"] == "2026-03-03T14:00:00.000Z"
    assert "tracelake_unit" not in event["run"]["facets"]
    endless = make_event(replace(note(), unit=None), HOURLY_JOB, {}, {}, "trace", endless=True)
    assert endless["job"]["facets"]["jobType"]["processingType"] == "STREAMING"

"""What metrics say of buffered datasets: batches that wait, dead letters by dataset, whether a sink is there."""

import math

import pytest

from tests.monitoring.situations import Stage
from tests.monitoring.test_counts import series, value
from tests.support.dispatcher import DispatcherHarness


@pytest.fixture
def stage(harness: DispatcherHarness) -> Stage:
    return Stage(harness)


def test_what_waits_and_what_was_refused(stage: Stage) -> None:
    flow, other = stage.buffers(), Stage(stage.harness, "others").buffers()
    for key in (1, 2, "x", "y"):
        batch = flow.publish([{"key": key}])
        if isinstance(key, str):
            flow.reject(batch["publish_id"])
    other.reject(other.publish([{"key": "x"}])["publish_id"])
    stage.harness.advance(60)
    page = stage.scrape()
    assert value(page, "trace_buffer_backlog") == 2
    assert 60 <= (value(page, "trace_buffer_backlog_oldest_seconds") or 0) < 120
    assert series(page, "trace_buffer_dead_letters_kept") == {("large", "acme"): 2, ("large", "others"): 1}
    assert value(page, "trace_buffer_dead_letters_total") == 3
    assert flow.replay() == 2
    page = stage.scrape()
    assert series(page, "trace_buffer_dead_letters_kept") == {("large", "others"): 1}
    assert value(page, "trace_buffer_dead_letters_total") == 3, "what happened stays so"
    assert value(page, "trace_buffer_backlog") == 4


def test_a_sink_is_there_while_it_asks(stage: Stage) -> None:
    stage.buffers()
    assert value(stage.scrape(), "trace_sink_asked_seconds") == math.inf
    stage.harness.service("GET", "/internal/buffers")
    stage.harness.advance(100)
    asked = value(stage.scrape(), "trace_sink_asked_seconds")
    assert asked is not None
    assert 100 <= asked < 160
    stage.harness.service("GET", "/internal/buffers")
    assert (value(stage.scrape(), "trace_sink_asked_seconds") or 0) < 60


def test_a_backlog_with_a_threshold_is_a_queue_like_others(stage: Stage) -> None:
    flow = stage.buffers()
    flow.publish([{"key": 1}])
    assert not series(stage.scrape(), "trace_pressure_level"), "without a threshold it stops nobody"
    flow.deploy(limits="max_queue_depth: 2")
    flow.publish([{"key": 2}])
    stage.harness.advance(60)
    stage.harness.run(stage.harness.dispatcher.pressure.run_once())
    page = stage.scrape()
    name = {"org": "acme", "dag": "transfers", "job": "large", "version": "backlog"}
    found = [value(page, f"trace_pressure_{what}", **name) for what in ("depth", "max_depth", "share", "level")]
    assert found == [2, 2, 1, 2]
    assert 60 <= (value(page, "trace_pressure_oldest_seconds", **name) or 0) < 120
    assert value(page, "trace_producers_stopped") == 3, "two writers and their source"

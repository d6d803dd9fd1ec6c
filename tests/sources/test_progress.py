"""How far a follower of a chain is: said with heartbeats, stored with its source, shown to people and in metrics."""

from typing import Any, get_args

import pytest

from tests.sources.always_on_support import Attempt, again, head, only_run, pause, started
from tests.support.dispatcher import DispatcherHarness
from tracelake.wire.head_progress import FollowState


def say(attempt: Attempt, **progress: Any) -> None:
    reply = attempt.call("heartbeat", progress={"state": "at_head", **progress})
    assert reply.status == 200, reply


def seconds(harness: DispatcherHarness) -> int:
    """The time of the store."""
    return int(harness.sql("SELECT floor(extract(epoch FROM trace_now()))::int AS now")[0]["now"])


def metrics(harness: DispatcherHarness) -> str:
    harness.run(harness.dispatcher.gauges.run_once())
    return harness.dispatcher.metrics.render().decode()


def gauge(name: str, value: str, **labels: str) -> str:
    given = {"dag": "d", "job": "head", "org": "acme", **labels}
    pairs = ",".join(f'{key}="{text}"' for key, text in sorted(given.items()))
    return f"{name}{{{pairs}}} {value}"


def test_what_a_heartbeat_says_is_shown_and_measured(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    attempt.beat()
    assert "progress" not in head(harness), "nothing was said"
    assert "trace_follower_lag_blocks{" not in metrics(harness)
    now = seconds(harness)
    counts = {"reorgs": 3, "last_reorg_depth": 2, "max_reorg_depth": 9}
    say(attempt, state="appended", head=120, stored=117, stored_time=now - 40, announced=True, **counts)
    harness.advance(20)
    progress = head(harness)["progress"]
    assert {name: progress[name] for name in ("state", "head", "stored", "lag_blocks", "announced")} == {
        "state": "appended",
        "head": 120,
        "stored": 117,
        "lag_blocks": 3,
        "announced": True,
    }
    assert 60 <= progress["lag_seconds"] < 90, "it grows while nothing is said"
    assert {name: progress[name] for name in counts} == counts
    text = metrics(harness)
    assert gauge("trace_follower_state", "1.0", state="appended") in text
    assert gauge("trace_follower_lag_blocks", "3.0") in text
    assert gauge("trace_follower_announced", "1.0") in text
    assert gauge("trace_follower_reorgs", "3.0") in text
    assert gauge("trace_follower_last_reorg_depth", "2.0") in text
    assert gauge("trace_follower_max_reorg_depth", "9.0") in text
    say(attempt, state="no_node")
    progress = head(harness)["progress"]
    assert (progress["state"], progress["head"], progress["stored"]) == ("no_node", 120, 117), "what is unknown stays"
    text = metrics(harness)
    assert gauge("trace_follower_state", "1.0", state="no_node") in text
    assert gauge("trace_follower_state", "1.0", state="appended") not in text


def test_reorganisations_add_up_over_attempts_and_repeated_heartbeats_count_once(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    for _ in range(2):
        say(attempt, stored=5, reorgs=2, last_reorg_depth=7, max_reorg_depth=7)
    attempt.end()
    following = again(harness)
    say(following, stored=6)
    assert reorgs(harness) == (2, 7, 7), "those of the attempt before"
    say(following, stored=7, reorgs=1, last_reorg_depth=3, max_reorg_depth=3)
    say(following, stored=7, reorgs=1, last_reorg_depth=3, max_reorg_depth=3)
    assert reorgs(harness) == (3, 3, 7)
    stale = attempt.call("heartbeat", progress={"state": "at_head", "stored": 99, "reorgs": 50})
    assert stale.status == 409
    assert reorgs(harness) == (3, 3, 7)
    assert head(harness)["progress"]["stored"] == 7


def reorgs(harness: DispatcherHarness) -> tuple[int, int, int]:
    progress = head(harness)["progress"]
    return progress["reorgs"], progress["last_reorg_depth"], progress["max_reorg_depth"]


@pytest.mark.parametrize(
    "progress",
    [
        {},
        {"state": "on_fire"},
        {"state": "at_head", "stored": -1},
        {"state": "at_head", "reorgs": 2**63},
        {"state": "at_head", "max_reorg_depth": 2**31},
        {"state": "at_head", "more": 1},
    ],
)
def test_progress_of_another_form_is_refused(harness: DispatcherHarness, progress: dict[str, Any]) -> None:
    reply = started(harness).call("heartbeat", progress=progress)
    assert (reply.status, reply.body["error"]["code"]) == (422, "body_invalid")
    assert not harness.sql("SELECT FROM source_progress")


def test_every_state_can_be_stored(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    for state in get_args(FollowState):
        say(attempt, state=state)
        assert head(harness)["progress"]["state"] == state


def test_a_source_that_has_ended_shows_none(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    say(attempt, stored=5)
    attempt.end("Completed")
    assert "progress" not in head(harness)
    assert "trace_follower_state{" not in metrics(harness)


def test_a_pause_is_heard_with_the_progress(harness: DispatcherHarness) -> None:
    attempt = started(harness)
    pause(harness)
    reply = attempt.call("heartbeat", progress={"state": "at_head", "stored": 5})
    assert reply.body["pause"] is True
    assert (head(harness)["state"], head(harness)["progress"]["stored"]) == ("paused", 5)
    assert only_run(harness)["status"] == "Running"

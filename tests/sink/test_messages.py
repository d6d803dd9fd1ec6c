"""Messages that come again, too often, twice at once, or for what a person has decided on already."""

import asyncio

import pytest

from tests.sink.conftest import MakeFlow
from tests.sink.flow import BufferFlow

MEMO = "name: memo, type: text"
BETTER = [{"key": 1, "value": "a", "memo": "x"}]
"""Bad until there is a column `memo`."""


def test_what_was_dropped_stays_out_whatever_message_is_left(flow: BufferFlow) -> None:
    flow.publish(BETTER)
    flow.deaths.append("rejected")
    flow.sink()
    assert flow.drop() == 1
    flow.deploy(MEMO)
    flow.come_back()
    assert flow.sink() == 2, "the old message, and the one that tells sinks of the drop"
    assert (flow.rows(), flow.letters(), flow.commits()) == ([], [], {})
    assert flow.sink() == 0


def test_a_dead_letter_waits_for_a_person_and_a_replay_is_heard_beside_an_old_message(flow: BufferFlow) -> None:
    flow.publish(BETTER)
    flow.deaths.append("rejected")
    flow.sink()
    flow.deploy(MEMO)
    flow.come_back()
    flow.sink()
    assert (flow.rows(), len(flow.letters())) == ([], 1), "nobody has said that it should be tried again"
    flow.publish([{"key": 1, "value": "late"}])
    flow.deaths.append("committing")
    flow.sink()
    flow.replay()
    flow.come_back()
    flow.sink()
    assert flow.rows("key", "value", "memo") == [(1, "late", None)]
    assert (flow.letters(), flow.open_batches()) == ([], 0)


def test_a_replay_while_another_sink_still_holds_the_message(flow: BufferFlow) -> None:
    flow.publish(BETTER)
    flow.deaths.append("rejected")
    flow.sink()
    flow.deploy(MEMO)
    assert flow.replay() == 1
    assert flow.sink() == 1, "the new message; the old one is hidden"
    flow.come_back()
    assert flow.sink() == 1
    assert flow.rows("key", "value", "memo") == [(1, "a", "x")]
    assert (flow.reader_units(), flow.open_batches()) == (["c:1"], 0)


def test_a_word_that_comes_late_does_not_undo_a_commit(flow: BufferFlow) -> None:
    """A sink refuses by its old schema, while another one has taken the replayed batch."""
    reply = flow.publish(BETTER)
    flow.sink()
    flow.deploy(MEMO)
    flow.replay()
    flow.sink()
    late = {"publish_id": reply["publish_id"], "code": "row_invalid", "reason": "no"}
    assert flow.harness.service("POST", "/internal/buffer-rejected", late).body == {"status": "committed"}
    assert (flow.letters(), flow.open_batches()) == ([], 0)
    ids = {"publish_ids": [reply["publish_id"]]}
    assert flow.harness.service("POST", "/internal/buffer-open", ids).body == {"publish_ids": []}


@pytest.mark.parametrize("large", [False, True])
def test_two_messages_of_one_batch_in_one_hand(make_flow: MakeFlow, large: bool) -> None:
    flow = make_flow(large=large)
    flow.publish([{"key": 1, "value": "a"}])
    flow.relay()
    flow.queue_sql(
        "INSERT INTO messages (queue, key, body, published_at, visible_at) "
        "SELECT queue, key, body, published_at, visible_at FROM messages WHERE queue = $1",
        flow.dataset.queue,
    )
    assert flow.sink() == 2
    assert flow.rows("key", "value") == [(1, "a")]
    assert flow.reader_units() == ["c:1"]
    flow.come_back()
    assert flow.sink() == 0


def test_what_fails_alone_stops_nobody_else(flow: BufferFlow) -> None:
    for key in (1, 2, 3):
        flow.publish([{"key": key, "value": "a"}])
    flow.deaths.append("received")
    flow.sink()
    flow.come_back()

    def fail() -> None:
        raise RuntimeError("nobody has thought of this")

    flow.hooks["committing"] = fail
    assert flow.sink() == 3
    assert len(flow.rows()) == 2
    flow.come_back()
    assert flow.sink() == 1
    assert len(flow.rows()) == 3


def test_only_what_is_open_is_sent_again(lone_flow: BufferFlow) -> None:
    flow = lone_flow
    flow.harness.use_movable_clock()
    dead, dropped = flow.publish([{"key": "x"}]), flow.publish([{"key": "y"}])
    flow.sink()
    flow.drop(dropped["publish_id"])
    flow.sink()
    lost = flow.publish([{"key": 1, "value": "a"}])
    flow.relay()
    flow.queue_sql("DELETE FROM messages WHERE queue = $1", flow.dataset.queue)
    flow.harness.advance(3600)
    flow.harness.run(flow.harness.dispatcher.reconciler.run_once())
    (row,) = flow.harness.sql("SELECT key FROM outbox WHERE kind = 'buffer_batch'")
    assert str(row["key"]) == lost["publish_id"]
    assert flow.sink() == 1
    assert flow.rows() == [(1, "a")]
    assert [str(letter["publish_id"]) for letter in flow.letters()] == [dead["publish_id"]]


def test_a_sink_that_is_told_to_stop_gives_back_at_once_what_it_cannot_finish(flow: BufferFlow) -> None:
    flow.publish([{"key": 1, "value": "a"}])
    flow.relay()
    stop = asyncio.Event()
    flow.away["data"] = 1000
    flow.hooks["waiting"] = stop.set
    assert flow.harness.run(flow.rounds(stop=stop)) == 0
    flow.away.clear()
    assert flow.sink() == 1, "without waiting until it is seen again by itself"
    assert flow.rows() == [(1, "a")]


def test_without_spark_no_more_is_held_at_once_than_fits(flow: BufferFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.sink.batch_commit._DIRECT_BYTES", 60)
    for key in range(5):
        flow.publish([{"key": key, "value": "abcd"}])
    assert flow.sink() == 5
    assert sorted(flow.commits().values()) == [1, 1, 2, 2, 3]
    assert len(flow.rows()) == 5

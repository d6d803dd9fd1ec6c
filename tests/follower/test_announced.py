"""The follower with subscriptions: blocks are read when they are announced, and without a gap when they are not."""

from collections.abc import Iterator

import pytest

from tests.follower.announcing_node import AnnouncingNode
from tests.follower.running_source import RunningSource
from tests.follower.source import Source, Steps, assert_rows
from tests.support.chain import ServedChain
from tracelake.catalogue.context import OperatorContext
from tracelake.follower.head_signal import HeadSignal
from tracelake.follower.pace import PollPace

Nodes = tuple[ServedChain, ServedChain]
FALSE = "0x" + "fa" * 32


@pytest.fixture
def announcing(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[AnnouncingNode]:
    with AnnouncingNode().serving() as node:
        monkeypatch.setenv("TRACE_RPC_DEFAULT", f"{nodes[0].url},{node.url},{nodes[1].url}")
        yield node


@pytest.fixture
def never_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an announcement, the next look is in an hour."""
    monkeypatch.setattr(PollPace, "next_wait", lambda _pace, **_: 3600.0)


def show(nodes: Nodes, blocks: int) -> None:
    for node in nodes:
        node.show(blocks)


def block_hash(nodes: Nodes, number: int) -> str:
    return str(nodes[0].block(number).block["hash"])


@pytest.mark.usefixtures("never_polled")
def test_an_announced_block_is_read_at_once(nodes: Nodes, announcing: AnnouncingNode) -> None:
    show(nodes, 30)
    with RunningSource(poll_min_seconds=0.05) as source:
        announcing.wait_subscribed()
        source.wait_stored(29)
        for number in (30, 31, 32):
            show(nodes, number + 1)
            for _ in range(2):  # repeated
                announcing.announce(block_hash(nodes, number))
            source.wait_stored(number)
        assert source.reports[-1].announced
    assert_rows(source, nodes[0], 32)


@pytest.mark.usefixtures("never_polled")
def test_false_and_late_announcements_do_no_harm(nodes: Nodes, announcing: AnnouncingNode) -> None:
    show(nodes, 30)
    with RunningSource(poll_min_seconds=0.05) as source:
        announcing.wait_subscribed()
        source.wait_stored(29)
        for number in (FALSE, block_hash(nodes, 35), block_hash(nodes, 3)):
            announcing.announce(number)
        source.wait_looks(1)
        assert source.newest == 29
        show(nodes, 36)
        announcing.announce(block_hash(nodes, 34))
        source.wait_stored(35)
    assert_rows(source, nodes[0], 35)


def test_a_silent_or_lost_subscription_leaves_no_gap(nodes: Nodes, announcing: AnnouncingNode) -> None:
    show(nodes, 20)
    with RunningSource(poll_min_seconds=0.05, poll_max_seconds=0.1) as source:
        announcing.wait_subscribed()
        source.wait_stored(19)
        show(nodes, 25)  # nobody says so
        source.wait_stored(24)
        assert not source.reports[-1].announced
        announcing.drop()
        show(nodes, 30)
        source.wait_stored(29)
        announcing.wait_subscribed()
        show(nodes, 31)
        announcing.announce(block_hash(nodes, 30))
        source.wait_stored(30)
    assert_rows(source, nodes[0], 30)


@pytest.mark.usefixtures("never_polled")
def test_a_reorganisation_is_followed_by_its_announcement(nodes: Nodes, announcing: AnnouncingNode) -> None:
    show(nodes, 30)
    with RunningSource(poll_min_seconds=0.05) as source:
        announcing.wait_subscribed()
        source.wait_stored(29)
        for node in nodes:
            node.reorganise(25)
        show(nodes, 31)
        announcing.announce(block_hash(nodes, 30))
        source.wait_stored(30)
        last = source.reports[-1]
        assert (last.reorgs, last.last_reorg_depth, last.max_reorg_depth) == (1, 5, 5)
    assert_rows(source, nodes[0], 30)


def test_an_address_that_announces_nothing_only_means_polling(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_RPC_DEFAULT", f"ws://127.0.0.1:9/key-of-mine,{nodes[0].url}")
    show(nodes, 60)
    with RunningSource(poll_min_seconds=0.05, poll_max_seconds=0.1) as source:
        source.wait_stored(59)
    assert_rows(source, nodes[0], 59)
    assert any("it takes no connections" in text for text in source.progress)
    assert not any("key-of-mine" in text for text in source.progress)


def test_however_often_blocks_are_announced_nodes_rest_between_two_looks(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[HeadSignal] = []

    def subscribe(context: OperatorContext, *_: object) -> HeadSignal:
        signals.append(HeadSignal(context.cancel))
        return signals[0]

    monkeypatch.setattr("tracelake.worker.block_follower._subscribe", subscribe)
    steps = [lambda number=number: signals[0].announce(f"0x{number:064x}") for number in range(20)]
    cancel = Steps(*steps)
    source = Source(poll_min_seconds=7.5)
    source.run_until_stopped(cancel)
    assert len(cancel.waits) == 21
    assert all(seconds == 7.5 for seconds in cancel.waits), "and then the announcement is there"
    assert_rows(source, nodes[0], 59)

"""What may go wrong while a chain is followed over HTTP: each ends in a state that is told, and heals by itself."""

from collections.abc import Callable, Sequence

import pytest

from tests.chain.faults import Call
from tests.follower.conftest import BLOCKS
from tests.follower.source import Source, Steps, assert_rows, use
from tests.support.chain import ServedChain
from tracelake.follower.store import HotStoreUnavailableError

Nodes = tuple[ServedChain, ServedChain]
NOTHING: Callable[[], None] = lambda: None  # noqa: E731


def show(nodes: Nodes, blocks: int) -> None:
    for node in nodes:
        node.show(blocks)


def states(source: Source) -> list[str]:
    """Without repetitions."""
    said = [report.state for report in source.reports]
    return [state for place, state in enumerate(said) if place == 0 or said[place - 1] != state]


def test_a_head_that_goes_backwards_is_waited_for(nodes: Nodes) -> None:
    show(nodes, 30)
    source = Source()
    steps = (lambda: show(nodes, 20), NOTHING, lambda: show(nodes, 25), lambda: show(nodes, 40))
    source.run_until_stopped(Steps(*steps, NOTHING))
    assert states(source)[-3:] == ["nodes_behind", "appended", "at_head"]
    lowest = min(report.stored for report in source.reports[-5:] if report.stored is not None)
    assert lowest >= 29, "stored blocks stay"
    assert not any(event.invalidates for event in source.events)
    assert_rows(source, nodes[0], 39)


def test_an_endpoint_that_forks_away_is_outvoted_and_followed_again_when_it_returns(
    nodes: Nodes,
) -> None:
    one, other = nodes
    show(nodes, 30)
    source = Source()

    def fork() -> None:
        other.reorganise(20)
        other.show(31)
        one.show(31)

    def heal() -> None:
        other.restore()
        show(nodes, 40)

    source.run_until_stopped(Steps(fork, NOTHING, NOTHING, heal, NOTHING))
    assert not any(event.invalidates for event in source.events), "one against one: what is stored stays"
    assert states(source)[-1] == "at_head"
    assert_rows(source, one, 39)


def test_a_block_that_is_reported_before_its_receipts_is_read_when_they_are_there(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = nodes[0]
    use(monkeypatch, chain)
    number = next(number for number in range(30, BLOCKS) if chain.block(number).receipts)
    chain.show(number)
    source = Source()

    def report_early() -> None:
        chain.null_receipts(number)
        chain.omit_receipts([receipt["transactionHash"] for receipt in chain.block(number).receipts], singly=False)
        chain.show(number + 1)

    cancel = Steps(report_early, NOTHING, chain.restore)
    cancel.ready = lambda: bool(cancel._steps) or source.newest == number
    source.run_until_stopped(cancel)
    assert "node_failed" in states(source)
    assert states(source)[-1] == "appended"
    assert_rows(source, chain, number)


def test_a_chain_that_stops_is_looked_at_more_rarely_until_it_goes_on(nodes: Nodes) -> None:
    show(nodes, 30)
    source = Source(poll_max_seconds=3600)
    cancel = Steps(*[NOTHING] * 30, lambda: show(nodes, 31), NOTHING)
    source.run_until_stopped(cancel)
    waits = cancel.waits[:30]
    assert waits == sorted(waits)
    assert waits[-1] > waits[0]
    assert {report.state for report in source.reports[-25:-3]} == {"at_head"}
    assert all(report.head == report.stored == 29 for report in source.reports[-25:-3])
    assert_rows(source, nodes[0], 30)


def test_a_reorganisation_of_a_reorganisation_also_while_the_first_is_read(nodes: Nodes) -> None:
    show(nodes, 40)
    source = Source()
    seen: list[int] = []

    def reorganise_again(calls: Sequence[Call]) -> None:
        if len(seen) < 2 and any(call.method == "eth_getBlockReceipts" for call in calls):
            seen.append(1)
            for node in nodes:
                node.reorganise(25 - 5 * len(seen))

    def reorganise() -> None:
        for node in nodes:
            node.reorganise(30)
            node.watch(reorganise_again)
        show(nodes, 41)

    def return_to_the_first() -> None:
        for node in nodes:
            node.restore()
        show(nodes, 42)

    cancel = Steps(reorganise, NOTHING, return_to_the_first)
    cancel.ready = lambda: not seen or source.newest == (40 if cancel._steps else 41)
    source.run_until_stopped(cancel)
    assert len(seen) == 2
    assert_rows(source, nodes[0], 41)
    last = source.reports[-1]
    assert (last.reorgs, last.max_reorg_depth) == (2, 26), "the first was never written, and then back"


def test_a_store_that_is_away_is_waited_for(nodes: Nodes) -> None:
    show(nodes, 30)
    source = Source()
    away = [True]

    def fault(point: str) -> None:
        if away and source.newest == 29 and point in ("before_commit", "claim"):
            raise HotStoreUnavailableError("connection refused")

    def grow() -> None:
        source.fault = fault
        show(nodes, 35)

    source.run_until_stopped(Steps(grow, NOTHING, NOTHING, NOTHING, away.clear, NOTHING, NOTHING))
    assert "store_unavailable" in states(source)
    waiting = next(report for report in source.reports if report.state == "store_unavailable")
    assert waiting.stored == 29, "what was known before stays"
    assert_rows(source, nodes[0], 34)

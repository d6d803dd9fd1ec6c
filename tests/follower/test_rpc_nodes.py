"""The follower on nodes over HTTP: a recorded chain that is reorganised while it is followed."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.follower.conftest import BLOCKS
from tests.follower.source import Source, Steps, assert_rows, never_ready, use
from tests.follower.support import OUTPUTS
from tests.support.chain import ServedChain
from tracelake.catalogue.context import NonRetryableError
from tracelake.follower.store import HotStoreUnavailableError, StaleFollowerError
from tracelake.wire.units import TaskOutput
from tracelake.worker.block_follower import FollowerFailedError


def test_a_served_chain_is_followed_block_by_block_through_a_reorganisation(
    nodes: tuple[ServedChain, ServedChain],
) -> None:
    source = Source()
    for node in nodes:
        node.show(30)

    def grow() -> None:
        for node in nodes:
            node.show(31)

    def reorganise() -> None:
        for node in nodes:
            node.reorganise(25)
            node.show(33)

    source.run_until_stopped(Steps(grow, reorganise, lambda: None))
    assert source.newest == 32
    assert_rows(source, nodes[0], 32)
    invalid = [event.invalidates for event in source.events if event.invalidates is not None]
    assert [(one.start, one.end) for one in invalid] == [(25, 30)]
    assert "reorganisation of 6 blocks: rewrote blocks 25 to 32" in source.progress


def test_a_chain_that_changes_between_a_block_and_its_receipts_is_read_again(
    nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = nodes[0]
    use(monkeypatch, chain)
    chain.show(40)
    changed: list[int] = []

    def change(calls: Sequence[Any]) -> None:
        if calls and calls[0].method == "eth_getBlockReceipts" and len(changed) < 2:
            changed.append(1)
            chain.reorganise(20)

    chain.watch(change)
    source = Source(batch_blocks=100)
    cancel = Steps()
    cancel.ready = lambda: source.newest == 39
    source.run_until_stopped(cancel)
    assert changed
    assert_rows(source, chain, 39)


def test_one_node_that_is_behind_and_one_that_lies_about_a_block_do_no_harm(
    nodes: tuple[ServedChain, ServedChain],
) -> None:
    behind, wrong = nodes
    behind.show(20)
    wrong.show(50)
    wrong.lose_receipts(30)
    source = Source(batch_blocks=10)

    def heal() -> None:
        wrong.restore()

    cancel = Steps(heal)
    cancel.ready = lambda: source.newest >= 19 and (bool(cancel._steps) or source.newest == 49)
    source.run_until_stopped(cancel)
    assert_rows(source, behind, 49)


def test_while_it_is_paused_nothing_is_read_and_afterwards_it_catches_up(
    nodes: tuple[ServedChain, ServedChain],
) -> None:
    chain = nodes[0]
    for node in nodes:
        node.show(20)
    source = Source()

    def pause() -> None:
        source.paused.set()
        for node in nodes:
            node.show(40)

    requests: list[int] = []

    def look() -> None:
        requests.append(chain.requests)

    cancel = Steps(pause, look, look, source.paused.clear)
    source.run_until_stopped(cancel)
    assert requests[0] == requests[1]
    assert source.newest == 39


def test_it_stops_at_once_and_the_next_attempt_goes_on_where_it_was(nodes: tuple[ServedChain, ServedChain]) -> None:
    source = Source(batch_blocks=5)
    stopped = Steps()

    def stop_in_the_middle(point: str) -> None:
        if point == "after_commit" and source.newest >= 20:
            stopped.set()

    source.fault = stop_in_the_middle
    source.run_until_stopped(stopped)
    assert 20 <= source.newest < BLOCKS - 1
    source.run_until_stopped(Steps())
    assert_rows(source, nodes[0], BLOCKS - 1)
    cursors = [event.cursor for event in source.events]
    assert cursors == sorted(set(cursors), key=lambda cursor: cursor or 0)


def test_a_reorganisation_that_is_too_deep_fails_the_attempt_with_its_code(
    nodes: tuple[ServedChain, ServedChain],
) -> None:
    source = Source(max_reorg_depth=5)
    for node in nodes:
        node.show(40)
    source.run_until_stopped(Steps())
    before = dict(source.tables.links)
    for node in nodes:
        node.reorganise(20)
    with pytest.raises(FollowerFailedError, match=r"reorg_too_deep: .* nothing was written") as failed:
        source.run(Steps(*[lambda: None] * 10))
    assert failed.value.code == "reorg_too_deep"
    assert source.tables.links == before
    for node in nodes:
        node.restore()
        node.show(45)
    source.run_until_stopped(Steps())
    assert_rows(source, nodes[0], 44)


def test_a_store_or_nodes_that_stay_away_fail_the_attempt_with_the_reason(
    nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source(retry_seconds=100)

    def away(_point: str) -> None:
        raise HotStoreUnavailableError("connection refused")

    source.fault = away
    with pytest.raises(FollowerFailedError, match="store_unavailable: for 100 seconds: connection refused"):
        source.run(never_ready())
    source.fault = lambda _point: None
    monkeypatch.setenv("TRACE_RPC_DEFAULT", "http://127.0.0.1:9")
    with pytest.raises(FollowerFailedError, match="rpc_unavailable: for 100 seconds: node-1"):
        source.run(never_ready())


def test_an_attempt_that_lost_its_tables_ends(nodes: tuple[ServedChain, ServedChain]) -> None:
    source = Source()
    source.tables.fence = 7
    with pytest.raises(StaleFollowerError):
        source.run(Steps())


def test_nodes_of_another_chain_are_refused_for_good(nodes: tuple[ServedChain, ServedChain]) -> None:
    for node in nodes:
        node.other_chain(10)
    with pytest.raises(NonRetryableError, match=r"chain_mismatch: node-1 is a node of chain 10"):
        Source().run(Steps())


def test_outputs_that_are_no_tables_are_refused_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    monkeypatch.setitem(OUTPUTS, "blocks", _as_files(OUTPUTS["blocks"]))
    with pytest.raises(NonRetryableError, match="`blocks` is not a table"):
        source.run(Steps())


def _as_files(output: TaskOutput) -> TaskOutput:
    return msgspec.structs.replace(output, storage=msgspec.structs.replace(output.storage, kind="s3"))

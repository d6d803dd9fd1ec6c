"""The follower with `verify: roots`: what a node altered is neither stored nor a reason to replace a block."""

from copy import deepcopy
from typing import Any

import pytest

from tests.follower.conftest import BLOCKS
from tests.follower.source import Source, Steps, assert_rows, use
from tests.support.chain import ServedChain

Json = dict[str, Any]
ALTERED = 37
"""It has transactions and logs, as the last block."""


def without_last_log(block: Json, receipts: list[Json]) -> tuple[Json, list[Json]]:
    receipts = deepcopy(receipts)
    next(receipt for receipt in reversed(receipts) if receipt["logs"])["logs"].pop()
    return block, receipts


def with_other_value(block: Json, receipts: list[Json]) -> tuple[Json, list[Json]]:
    block = deepcopy(block)
    block["transactions"][0]["value"] = "0x123456"
    return block, receipts


def with_other_hash(block: Json, receipts: list[Json]) -> tuple[Json, list[Json]]:
    return {**block, "hash": "0x" + block["hash"][:1:-1]}, receipts


@pytest.mark.parametrize("lie", [without_last_log, with_other_value])
@pytest.mark.parametrize("first", [True, False])
def test_a_lying_node_beside_an_honest_one(
    nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch, lie: Any, first: bool
) -> None:
    lying, honest = nodes
    use(monkeypatch, *((lying, honest) if first else (honest, lying)))
    for number in (ALTERED, BLOCKS - 1):
        lying._change(number, lie)
    source = Source(batch_blocks=10, verify="roots")
    cancel = Steps()
    cancel.ready = lambda: source.newest == BLOCKS - 1
    source.run_until_stopped(cancel)
    assert_rows(source, honest, BLOCKS - 1)


def test_a_node_that_lies_alone_is_believed_only_without(
    nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    lying, honest = nodes
    use(monkeypatch, lying)
    lying._change(ALTERED, without_last_log)
    believing = Source(batch_blocks=10)
    believing.run_until_stopped(Steps())
    assert_rows(believing, lying, BLOCKS - 1)
    source = Source(batch_blocks=10, verify="roots")
    stored: list[int] = []

    def look() -> None:
        stored.append(source.newest)

    cancel = Steps(*[look] * 5, lying.restore)
    cancel.ready = lambda: bool(cancel._steps) or source.newest == BLOCKS - 1
    source.run_until_stopped(cancel)
    assert any(
        f"node-1: the receipts of block {ALTERED} do not have the root in its header" in line
        for line in source.progress
    )
    assert max(stored) < ALTERED
    assert_rows(source, honest, BLOCKS - 1)


def test_a_reorganisation_whose_headers_are_true_is_followed(nodes: tuple[ServedChain, ServedChain]) -> None:
    for node in nodes:
        node.show(40)

    def reorganise() -> None:
        for node in nodes:
            node.reorganise(25)
            node.show(45)

    source = Source(verify="roots")
    source.run_until_stopped(Steps(reorganise, lambda: None))
    assert_rows(source, nodes[0], 44)
    assert "reorganisation of 15 blocks: rewrote blocks 25 to 44" in source.progress


def test_a_header_that_does_not_have_its_hash_is_no_reorganisation(
    nodes: tuple[ServedChain, ServedChain], monkeypatch: pytest.MonkeyPatch
) -> None:
    lying = nodes[0]
    use(monkeypatch, lying)
    lying.show(40)

    def lie() -> None:
        for number in range(20, 40):
            lying._change(number, with_other_hash)

    source = Source(verify="roots", max_reorg_depth=5)
    source.run_until_stopped(Steps(lie, *[lambda: None] * 5))
    assert any("node-1: the header of block 39 does not have the hash of the block" in line for line in source.progress)
    assert not any("reorg" in line for line in source.progress)
    assert_rows(source, nodes[1], 39)

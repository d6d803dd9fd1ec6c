"""Each fault of tests/support/chain.py does what it says, and nothing else."""

import http.client
import itertools
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.chain import ethereum
from tests.chain.client import Client, connected, request
from tests.chain.faults import (
    Call,
    Delay,
    Drop,
    NotJson,
    PartialBatch,
    RpcErrors,
    ShuffledBatch,
    Status,
    Truncate,
    WrongIds,
)
from tests.support.chain import ServedChain, recorded, serve_chain

BLOCKS = 40
BATCH = json.dumps([request("eth_getBlockByNumber", [hex(number), True], id=number) for number in range(5)]).encode()


def _ids(client: Client) -> list[Any]:
    return [one["id"] for one in client.post(BATCH).json]


def _whole(chain: ServedChain, client: Client) -> None:
    """All is well: the chain is the recorded one."""
    for one in recorded(BLOCKS):
        assert client.call("eth_getBlockByNumber", hex(one.number), True) == one.block
        assert client.call("eth_getBlockReceipts", hex(one.number)) == one.receipts


def test_without_faults_the_chain_is_the_recorded_one_and_calls_are_noted() -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        assert _ids(client) == [0, 1, 2, 3, 4]
        assert chain.requests == 1
        assert chain.calls[2] == Call("eth_getBlockByNumber", ["0x2", True], 2)
        _whole(chain, client)


def test_a_delayed_answer_comes_when_it_may() -> None:
    gate = threading.Event()
    with serve_chain(BLOCKS) as chain, connected(chain.url) as slow, connected(chain.url) as quick:
        chain.inject(Delay(until=gate), when=lambda calls: calls[0].method == "eth_chainId")
        done: list[Any] = []
        waiting = threading.Thread(target=lambda: done.append(slow.call("eth_chainId")))
        waiting.start()
        assert quick.call("eth_blockNumber") == hex(BLOCKS - 1)
        assert done == []
        gate.set()
        waiting.join(timeout=60)
        assert done == ["0x1466a9"]


def test_a_delay_in_seconds_is_only_a_delay() -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        chain.inject(Delay(0.01))
        assert _ids(client) == [0, 1, 2, 3, 4]


def test_a_dropped_connection() -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        chain.inject(Drop())
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            client.post(BATCH)
        client.connection.close()
        assert _ids(client) == [0, 1, 2, 3, 4]


def test_a_body_that_is_cut_short() -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        chain.inject(Truncate(after=500))
        with pytest.raises(http.client.IncompleteRead) as cut:
            client.post(BATCH)
        assert len(cut.value.partial) == 500
        client.connection.close()
        assert _ids(client) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_another_status_as_often_as_asked(status: int) -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        chain.inject(Status(status, retry_after="3"), times=2)
        for _ in range(2):
            answer = client.post(BATCH)
            assert (answer.status, answer.headers["retry-after"]) == (status, "3")
        assert _ids(client) == [0, 1, 2, 3, 4]


def test_faults_for_ever_until_they_are_cleared() -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        chain.inject(Status(500), times=None)
        assert [client.post(BATCH).status for _ in range(3)] == [500] * 3
        chain.clear()
        assert _ids(client) == [0, 1, 2, 3, 4]


def test_answers_that_are_not_what_was_asked_for() -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        chain.inject(PartialBatch(keep=2))
        assert _ids(client) == [0, 1]
        chain.inject(ShuffledBatch())
        assert _ids(client) == [4, 3, 2, 1, 0]
        chain.inject(WrongIds())
        assert _ids(client) == [f"nobody-{number}" for number in range(5)]
        chain.inject(WrongIds())
        assert client.ask("eth_chainId")["id"] == "nobody-0"
        chain.inject(NotJson())
        assert client.post(BATCH).body.startswith(b"<html>")
        chain.inject(RpcErrors(-32005, "slow down"))
        assert {json.dumps(one["error"]) for one in client.post(BATCH).json} == {
            '{"code": -32005, "message": "slow down"}'
        }
        assert _ids(client) == [0, 1, 2, 3, 4]


_BUSY = max(range(BLOCKS), key=lambda number: len(recorded(BLOCKS)[number].receipts))


@pytest.mark.parametrize(
    ("fault", "sees"),
    [
        (
            lambda chain: chain.lose_receipts(_BUSY, 2),
            lambda block, receipts: len(receipts) == len(block["transactions"]) - 2,
        ),
        (lambda chain: chain.misnumber(_BUSY, 7), lambda block, receipts: block["number"] == "0x7"),
        (lambda chain: chain.break_parent(_BUSY), lambda block, receipts: block["parentHash"] == "0x" + "bad0" * 16),
        (lambda chain: chain.null_block(_BUSY), lambda block, receipts: block is None and len(receipts) > 0),
        (lambda chain: chain.null_receipts(_BUSY), lambda block, receipts: receipts is None and block is not None),
    ],
    ids=["lost receipts", "wrong number", "broken parent", "null block", "null receipts"],
)
def test_data_that_are_wrong_in_one_block(
    fault: Callable[[ServedChain], None], sees: Callable[[Any, Any], bool]
) -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        fault(chain)
        block_hash = recorded(BLOCKS)[_BUSY].block["hash"]
        for one in recorded(BLOCKS):
            block = client.call("eth_getBlockByNumber", hex(one.number), True)
            receipts = client.call("eth_getBlockReceipts", hex(one.number))
            if one.number == _BUSY:
                assert sees(block, receipts)
                by_hash = client.call("eth_getBlockByHash", block_hash, True)
                assert sees(by_hash, client.call("eth_getBlockReceipts", block_hash))
            else:
                assert (block, receipts) == (one.block, one.receipts)
        chain.restore()
        _whole(chain, client)


def test_another_chain() -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        chain.other_chain(5)
        assert (client.call("eth_chainId"), client.call("net_version")) == ("0x5", "5")
        chain.restore()
        assert (client.call("eth_chainId"), client.call("net_version")) == ("0x1466a9", "1337001")


def test_a_reorganised_chain_is_consistent_and_the_old_branch_is_gone() -> None:
    first, changed = 20, 6
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        chain.reorganise(first, changed=changed)
        parent = recorded(BLOCKS)[first - 1].block["hash"]
        for old in recorded(BLOCKS)[first:]:
            block = client.call("eth_getBlockByNumber", hex(old.number), True)
            receipts = client.call("eth_getBlockReceipts", block["hash"])
            assert block["parentHash"] == parent
            assert block["hash"] != old.block["hash"]
            assert block["hash"] == "0x" + ethereum.keccak256(ethereum.header(block)).hex()
            parent = block["hash"]
            kept = len(old.receipts) - (1 if old.number < first + changed and old.receipts else 0)
            assert [one["hash"] for one in block["transactions"]] == [
                one["hash"] for one in old.block["transactions"][:kept]
            ]
            assert len(receipts) == kept
            logs = [log for receipt in receipts for log in receipt["logs"]]
            assert {one["blockHash"] for one in (*block["transactions"], *receipts, *logs)} <= {block["hash"]}
            assert client.call("eth_getLogs", {"blockHash": block["hash"]}) == logs
            assert block["gasUsed"] == (receipts[-1]["cumulativeGasUsed"] if receipts else "0x0")
            root = ethereum.trie_root([ethereum.receipt(receipt) for receipt in receipts])
            assert block["receiptsRoot"] == "0x" + root.hex()
            assert client.call("eth_getBlockByHash", old.block["hash"], True) is None
            for lost in old.block["transactions"][kept:]:
                assert client.call("eth_getTransactionReceipt", lost["hash"]) is None
            assert chain.block(old.number).block == block
        for old in recorded(BLOCKS)[:first]:
            assert client.call("eth_getBlockByNumber", hex(old.number), True) == old.block
        chain.restore()
        _whole(chain, client)


def test_blocks_of_another_branch_have_other_times() -> None:
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:
        chain.reorganise(20, changed=0, later={22: -30, 24: 100})
        for old in recorded(BLOCKS)[20:26]:
            block = client.call("eth_getBlockByNumber", hex(old.number), True)
            seconds = 0 if old.number < 22 else -30 if old.number < 24 else 70
            assert int(block["timestamp"], 16) - int(old.block["timestamp"], 16) == seconds
            assert block["hash"] == "0x" + ethereum.keccak256(ethereum.header(block)).hex()
            assert {one["blockTimestamp"] for one in block["transactions"]} <= {block["timestamp"]}


def test_a_chain_can_be_reorganised_between_two_calls_of_its_reader() -> None:
    """Half of it is read from one branch, half from the other: the parents do not fit, as with a real node."""
    with serve_chain(BLOCKS) as chain, connected(chain.url) as client:

        def switch(calls: list[Call]) -> None:
            if calls[0].params == [hex(30), True]:
                chain.reorganise(28)

        chain.watch(switch)
        blocks = [client.call("eth_getBlockByNumber", hex(number), True) for number in range(BLOCKS)]
        pairs = itertools.pairwise(blocks)
        assert [int(b["number"], 16) for a, b in pairs if b["parentHash"] != a["hash"]] == [30]


def test_a_chain_that_grows() -> None:
    with serve_chain(BLOCKS, head=10) as chain, connected(chain.url) as client:
        assert client.call("eth_blockNumber") == hex(9)
        chain.show(25)
        assert client.call("eth_blockNumber") == hex(24)
        assert client.call("eth_getBlockByNumber", "latest", True) == recorded(BLOCKS)[24].block
        chain.show(10**6)
        assert client.call("eth_blockNumber") == hex(BLOCKS - 1)

"""A recorded chain whose head is moved: what is served after a reorganisation is a chain like any other."""

import asyncio
import json
from typing import Any

import pytest

from tests.chain.client import request
from tests.support.chain import RECORDING, recorded, serve_chain
from tracelake.catalogue.evm_columns import EVM_TABLES
from tracelake.demo.chain.app import ChainApp
from tracelake.demo.chain.fork import reorganise
from tracelake.demo.chain.head import Visible
from tracelake.demo.chain.methods import Methods
from tracelake.demo.chain.orders import Orders
from tracelake.demo.chain.recording import RecordedBlock, Recording
from tracelake.demo.chain.rpc import INVALID_PARAMS, METHOD_NOT_FOUND, Rpc
from tracelake.demo.chain.store import ChainStore
from tracelake.follower.nodes import ChainRows
from tracelake.follower.rpc_nodes import RpcChainNode
from tracelake.spark.evm.endpoints import parse_endpoint
from tracelake.spark.evm.node import RpcOptions

BLOCKS, FIRST, CHANGED = 120, 90, 12


@pytest.fixture
def store() -> ChainStore:
    head = Recording(RECORDING).head
    return ChainStore.load(recorded(BLOCKS), chain_id=head.chain_id, client=head.client)


def read(blocks: list[RecordedBlock]) -> ChainRows:
    """As the follower reads them, with all of its checks."""
    with serve_chain(blocks) as chain:
        options = RpcOptions(chain_id=1337001, batch_size=20)
        node = RpcChainNode(parse_endpoint(chain.url), options, EVM_TABLES)
        try:
            return node.read_rows(0, len(blocks) - 1)
        finally:
            node.close()


def served(store: ChainStore) -> list[RecordedBlock]:
    return [
        RecordedBlock(number=number, block=json.loads(stored.full), receipts=json.loads(stored.receipts))
        for number, stored in enumerate(store.blocks)
    ]


def test_a_branch_passes_the_checks_of_a_follower_and_lacks_a_transaction_of_each_replaced_block(
    store: ChainStore,
) -> None:
    reorganise(store, FIRST, CHANGED)
    before, after = read(list(recorded(BLOCKS))), read(served(store))
    assert after.links[:FIRST] == before.links[:FIRST]
    assert all(new.hash != old.hash for new, old in zip(after.links[FIRST:], before.links[FIRST:], strict=True))
    assert [link.timestamp for link in after.links] == [link.timestamp for link in before.links]
    replaced = recorded(BLOCKS)[FIRST : FIRST + CHANGED]
    lost = [one.receipts[-1] for one in replaced if one.receipts]
    assert lost
    assert any(receipt["logs"] for receipt in lost)
    expected = {"transactions": len(lost), "logs": sum(len(receipt["logs"]) for receipt in lost)}
    for table, rows in expected.items():
        assert before.tables[table].num_rows - after.tables[table].num_rows == rows


def test_a_block_sums_up_what_is_left_of_it(store: ChainStore) -> None:
    reorganise(store, FIRST, CHANGED)
    for one in served(store)[FIRST : FIRST + CHANGED]:
        assert int(one.block["gasUsed"], 16) == sum(int(receipt["gasUsed"], 16) for receipt in one.receipts)
        bloom = 0
        for receipt in one.receipts:
            bloom |= int(receipt["logsBloom"], 16)
        assert int(one.block["logsBloom"], 16) == bloom


def test_the_same_reorganisation_gives_the_same_branch_and_a_second_one_another(store: ChainStore) -> None:
    other = store.copy()
    reorganise(store, FIRST, CHANGED)
    assert [block.hash for block in other.blocks] == [one.block["hash"] for one in recorded(BLOCKS)]
    reorganise(other, FIRST, CHANGED)
    assert other.blocks == store.blocks
    reorganise(other, FIRST, CHANGED)
    assert not {block.hash for block in other.blocks[FIRST:]} & {block.hash for block in store.blocks[FIRST:]}


def test_a_replaced_block_and_its_lost_transaction_are_not_found_any_more(store: ChainStore) -> None:
    old = next(one for one in recorded(BLOCKS)[FIRST:] if one.receipts)
    reorganise(store, old.number, 1)
    assert old.block["hash"] not in store.by_hash
    assert old.block["transactions"][-1]["hash"] not in store.of_transaction


class Served:
    """The application as a client sees it: calls at two paths."""

    def __init__(self, store: ChainStore) -> None:
        live, visible = store.copy(), Visible(BLOCKS, of=BLOCKS)
        orders = Orders(live, visible).table()
        self._app = ChainApp(
            Rpc(Methods(store, Visible(BLOCKS, of=BLOCKS)).table()), live=Rpc(Methods(live, visible).table() | orders)
        )

    def ask(self, path: str, method: str, *params: Any) -> Any:
        sent: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"body": json.dumps(request(method, list(params))).encode()}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        asyncio.run(self._app(scope, receive, send))
        return json.loads(sent[1]["body"])


@pytest.fixture
def chain(store: ChainStore) -> Served:
    return Served(store)


def test_orders_move_the_head_of_one_path_alone(chain: Served) -> None:
    assert chain.ask("/live", "demo_setHead", 99)["result"] is True
    assert chain.ask("/live", "eth_blockNumber")["result"] == hex(99)
    before = chain.ask("/live", "eth_getBlockByNumber", "latest", False)["result"]
    assert chain.ask("/live", "demo_reorg", 3)["result"] is True
    after = chain.ask("/live", "eth_getBlockByNumber", "latest", False)["result"]
    assert (after["number"], after["hash"] != before["hash"]) == (before["number"], True)
    kept = chain.ask("/live", "eth_getBlockByNumber", hex(96), False)["result"]
    assert kept["hash"] == recorded(BLOCKS)[96].block["hash"]
    assert chain.ask("/live", "demo_setHead", 100)["result"] is True
    assert chain.ask("/live", "eth_getBlockByNumber", "latest", False)["result"]["parentHash"] == after["hash"]
    assert chain.ask("/", "eth_getBlockByNumber", hex(99), True)["result"] == recorded(BLOCKS)[99].block
    assert chain.ask("/", "eth_blockNumber")["result"] == hex(BLOCKS - 1)


def test_only_the_moving_chain_takes_orders(chain: Served) -> None:
    assert chain.ask("/", "demo_setHead", 5)["error"]["code"] == METHOD_NOT_FOUND
    assert chain.ask("/", "demo_reorg", 5)["error"]["code"] == METHOD_NOT_FOUND


@pytest.mark.parametrize("params", [[], [1, 2], ["0x1"], [True], [-1], [BLOCKS], [1.0]])
def test_an_order_that_makes_no_sense_changes_nothing(chain: Served, params: list[Any]) -> None:
    assert chain.ask("/live", "demo_setHead", *params)["error"]["code"] == INVALID_PARAMS
    assert chain.ask("/live", "demo_reorg", *params)["error"]["code"] == INVALID_PARAMS
    assert chain.ask("/live", "eth_blockNumber")["result"] == hex(BLOCKS - 1)

"""With `verify: roots`, content that a node altered under true hashes is found, and another node is asked."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from tests.chain import ethereum
from tests.chain.faults import RpcErrors
from tests.spark.evm.support import TABLES, expected, pool_of
from tests.support.chain import ServedChain, recorded, serve_chain
from tracelake.demo.chain.recording import RecordedBlock
from tracelake.spark.evm.errors import AnswerError, WrongHashError
from tracelake.spark.evm.fetch import Stretch, fetch
from tracelake.spark.evm.node_pool import RpcPool
from tracelake.spark.evm.read_options import USUAL, ReadOptions

BLOCKS = 60
ASKED = range(20, 40)
VERIFIED = ReadOptions.of({"blocks": ["withdrawals"], "transactions": ["access_list"]}, verify_roots=True)
Json = dict[str, Any]
Change = Callable[[Json, list[Json]], None]
ALTERED = 20
"""The first block: its parent is compared with no block that was read."""


@pytest.fixture
def chain() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as served:
        yield served


@pytest.fixture
def honest() -> Iterator[ServedChain]:
    with serve_chain(BLOCKS) as served:
        yield served


def read(pool: RpcPool, options: ReadOptions = VERIFIED, tables: tuple[str, ...] = TABLES) -> Stretch:
    try:
        return fetch(pool, ASKED, tables, None, options)
    finally:
        pool.close()


def assert_right(stretch: Stretch, tables: tuple[str, ...] = TABLES) -> None:
    wanted = expected(recorded(BLOCKS)[ASKED.start : ASKED.stop])
    for table in tables:
        names = list(wanted[table][0])
        assert stretch.tables[table].select(names).to_pylist() == wanted[table]


def with_logs(receipts: list[Json]) -> Json:
    return next(receipt for receipt in receipts if receipt["logs"])


def of_block(**fields: Any) -> Change:
    return lambda block, _receipts: block.update(fields)


def of_transaction(**fields: Any) -> Change:
    return lambda block, _receipts: block["transactions"][-1].update(fields)


def of_receipt(**fields: Any) -> Change:
    return lambda _block, receipts: receipts[-1].update(fields)


def of_log(**fields: Any) -> Change:
    return lambda _block, receipts: with_logs(receipts)["logs"][0].update(fields)


def other_topic(_block: Json, receipts: list[Json]) -> None:
    with_logs(receipts)["logs"][0]["topics"][-1] = "0x" + "12" * 32


def no_topic(_block: Json, receipts: list[Json]) -> None:
    with_logs(receipts)["logs"][0]["topics"].pop()


def no_last_log(_block: Json, receipts: list[Json]) -> None:
    next(receipt for receipt in reversed(receipts) if receipt["logs"])["logs"].pop()


def no_last_transaction(block: Json, receipts: list[Json]) -> None:
    block["transactions"].pop()
    receipts.pop()


def other_hash(block: Json, receipts: list[Json]) -> None:
    name = "0x" + "34" * 32
    block["transactions"][-1]["hash"] = receipts[-1]["transactionHash"] = name
    for log in receipts[-1]["logs"]:
        log["transactionHash"] = name


ADDRESS = "0x" + "ab" * 20
WITHDRAWAL = {"index": "0x1", "validatorIndex": "0x2", "address": ADDRESS, "amount": "0x3"}
HEADER, TRANSACTIONS, RECEIPTS = "the header of block 20", "the transactions of block 20", "the receipts of block 20"
CHANGES: dict[str, tuple[Change, str]] = {
    "timestamp": (of_block(timestamp="0x69a4d301"), HEADER),
    "parent hash": (of_block(parentHash="0x" + "bad0" * 16), HEADER),
    "author": (of_block(miner=ADDRESS), HEADER),
    "gas used of the block": (of_block(gasUsed="0x1"), HEADER),
    "base fee": (of_block(baseFeePerGas="0x1"), HEADER),
    "extra data": (of_block(extraData="0x12"), HEADER),
    "a field of no fork": (of_block(requestsHash=None), HEADER),
    "withdrawals": (of_block(withdrawals=[WITHDRAWAL]), "the withdrawals of block 20"),
    "no withdrawals": (of_block(withdrawals=None), "the withdrawals of block 20"),
    "value": (of_transaction(value="0x123456"), TRANSACTIONS),
    "to": (of_transaction(to=ADDRESS), TRANSACTIONS),
    "no to": (of_transaction(to=None), TRANSACTIONS),
    "input": (of_transaction(input="0x1234"), TRANSACTIONS),
    "nonce": (of_transaction(nonce="0xffff"), TRANSACTIONS),
    "gas limit": (of_transaction(gas="0xffff"), TRANSACTIONS),
    "maximum fee": (of_transaction(maxFeePerGas="0xffffffffff"), TRANSACTIONS),
    "type": (of_transaction(type="0x1"), TRANSACTIONS),
    "access list": (of_transaction(accessList=[{"address": ADDRESS, "storageKeys": []}]), TRANSACTIONS),
    "hash of a transaction": (other_hash, r"transaction \d+ of block 20 does not have its hash"),
    "a field of another type": (of_transaction(blobVersionedHashes=["0x" + "12" * 32]), "fields of another type"),
    "no last transaction": (no_last_transaction, TRANSACTIONS),
    "price": (of_transaction(gasPrice="0x1"), r"transaction \d+ of block 20 has another price"),
    "effective price": (of_receipt(effectiveGasPrice="0x1"), r"transaction \d+ of block 20 has another price"),
    "topic": (other_topic, RECEIPTS),
    "no topic": (no_topic, RECEIPTS),
    "data": (of_log(data="0x" + "12" * 32), RECEIPTS),
    "address of a log": (of_log(address=ADDRESS), RECEIPTS),
    "no last log": (no_last_log, RECEIPTS),
    "status": (of_receipt(status="0x0"), RECEIPTS),
    "cumulative gas": (of_receipt(cumulativeGasUsed="0x1"), RECEIPTS),
    "gas used": (of_receipt(gasUsed="0x1"), r"receipt \d+ of block 20 has other gas"),
    "bloom": (of_receipt(logsBloom="0x" + "ff" * 256), RECEIPTS),
}


def alter(chain: ServedChain, change: Change, number: int = ALTERED) -> None:
    def altered(block: Json, receipts: list[Json]) -> tuple[Json, list[Json]]:
        block, receipts = deepcopy((block, receipts))
        change(block, receipts)
        return block, receipts

    assert recorded(BLOCKS)[number].block["transactions"][-1]["type"] == "0x2"
    chain._change(number, altered)


@pytest.mark.parametrize("name", CHANGES)
def test_altered_content_is_found_and_another_node_is_asked(chain: ServedChain, honest: ServedChain, name: str) -> None:
    change, words = CHANGES[name]
    alter(chain, change)
    with pytest.raises(WrongHashError, match=f"^node-1: .*{words}") as caught:
        read(pool_of(chain, tries=2))
    assert caught.value.kind == "rpc_wrong_hash"
    pool = pool_of(chain, honest)
    assert_right(read(pool))
    assert isinstance(pool.nodes[0].trouble, WrongHashError)


@pytest.mark.parametrize(
    "name", ["value", "input", "topic", "data", "no last log", "status", "timestamp", "parent hash"]
)
def test_it_is_believed_without(chain: ServedChain, name: str) -> None:
    alter(chain, CHANGES[name][0])
    with pytest.raises(AssertionError):
        assert_right(read(pool_of(chain), USUAL))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (of_transaction(r=None), "the transactions of block 20: no hex value"),
        (of_transaction(input="0x123"), "the transactions of block 20: half a byte"),
        (of_transaction(type="0x7e"), "the transactions of block 20: a transaction has type 0x7e"),
        (of_receipt(logsBloom=None), "the receipts of block 20: no hex value"),
        (of_block(stateRoot=None), "the header of block 20: no hex value"),
        (of_block(withdrawalsRoot=None), "the header of block 20: no hex value"),
    ],
)
def test_what_has_no_hash_is_malformed(chain: ServedChain, honest: ServedChain, change: Change, words: str) -> None:
    alter(chain, change)
    with pytest.raises(AnswerError, match=f"^node-1: no hash can be computed from {words}") as caught:
        read(pool_of(chain, tries=2))
    assert caught.value.kind == "rpc_malformed_answer"
    assert_right(read(pool_of(chain, honest)))


def test_logs_alone_are_verified_with_their_transactions(chain: ServedChain, honest: ServedChain) -> None:
    """The hash of a transaction is not covered by its receipt."""
    alter(chain, other_hash)
    options = ReadOptions(verify_roots=True)
    with pytest.raises(WrongHashError, match="does not have its hash"):
        read(pool_of(chain, tries=2), options, ("logs",))
    tables = ("blocks", "logs")
    assert_right(read(pool_of(chain, honest), options, tables), tables)


def test_blocks_alone_are_verified_by_their_headers(chain: ServedChain, honest: ServedChain) -> None:
    alter(chain, no_last_log)
    options, tables = ReadOptions(verify_roots=True), ("blocks",)
    assert_right(read(pool_of(chain), options, tables), tables)
    alter(chain, CHANGES["timestamp"][0])
    with pytest.raises(WrongHashError, match=HEADER):
        read(pool_of(chain, tries=2), options, tables)
    assert_right(read(pool_of(chain, honest), options, tables), tables)


def test_receipts_that_come_one_by_one(chain: ServedChain) -> None:
    no_method = RpcErrors(-32601, "the method eth_getBlockReceipts does not exist/is not available")
    chain.inject(no_method, times=None, when=lambda calls: calls[0].method == "eth_getBlockReceipts")
    assert_right(read(pool_of(chain)))
    alter(chain, no_last_log)
    with pytest.raises(WrongHashError, match=RECEIPTS):
        read(pool_of(chain, tries=2))


def test_receipts_that_a_node_has_singly_are_put_between_the_others(chain: ServedChain) -> None:
    chain.omit_receipts([chain.block(ALTERED).receipts[0]["transactionHash"]])
    assert_right(read(pool_of(chain)))


def test_receipts_in_another_order(chain: ServedChain) -> None:
    chain._change(ALTERED, lambda block, receipts: (block, receipts[::-1]))
    assert_right(read(pool_of(chain)))


def test_a_block_with_blobs() -> None:
    """The recorded root of such a block covers more than it has, so it gets the one of what it has."""
    *others, last = recorded(155)
    block = deepcopy(last.block)
    transactions = [ethereum.transaction(one) for one in block["transactions"]]
    block["transactionsRoot"] = "0x" + ethereum.trie_root(transactions).hex()
    block["hash"] = "0x" + ethereum.keccak256(ethereum.header(block)).hex()
    receipts = deepcopy(last.receipts)
    for part in (*block["transactions"], *receipts, *(log for receipt in receipts for log in receipt["logs"])):
        part["blockHash"] = block["hash"]
    blobs = next(one for one in block["transactions"] if one["type"] == "0x3")
    with serve_chain([*others, RecordedBlock(number=154, block=block, receipts=receipts)]) as chain:
        pool = pool_of(chain)
        assert fetch(pool, range(150, 155), TABLES, None, VERIFIED).last_hash == block["hash"]
        hashes = list(blobs["blobVersionedHashes"])
        chain._change(154, lambda block, receipts: (without_blob(block, hashes), receipts))
        with pytest.raises(WrongHashError, match="the transactions of block 154"):
            fetch(pool, range(150, 155), TABLES, None, VERIFIED)
        pool.close()


def without_blob(block: Json, hashes: list[str]) -> Json:
    block = deepcopy(block)
    for one in block["transactions"]:
        if one["type"] == "0x3":
            one["blobVersionedHashes"] = hashes[1:]
    return block

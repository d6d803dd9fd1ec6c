"""The shipped recording is a real chain: all that its blocks commit to is computed again from what they hold."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.chain import ethereum
from tests.support.chain import RECORDING
from tracelake.demo.chain.recording import RecordedBlock, Recording

TRANSFER = "0x" + ethereum.keccak256(b"Transfer(address,address,uint256)").hex()
DOLLAR = "0x5fbdb2315678afecb367f032d93f642f64180aa3"
ODDITIES = "0x0165878a594ca255338adfa4d48449f69242eb8f"


@pytest.fixture(scope="module")
def chain() -> list[RecordedBlock]:
    return list(Recording(RECORDING))


def _hex(digests: list[bytes]) -> list[str]:
    return ["0x" + digest.hex() for digest in digests]


def _transactions(chain: list[RecordedBlock]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for one in chain:
        yield from zip(one.block["transactions"], one.receipts, strict=True)


def test_each_block_has_the_hash_of_its_header_and_names_its_parent(chain: list[RecordedBlock]) -> None:
    hashes = _hex(ethereum.keccak256_many([ethereum.header(one.block) for one in chain]))
    assert hashes == [one.block["hash"] for one in chain]
    assert [one.block["parentHash"] for one in chain[1:]] == hashes[:-1]
    assert [int(one.block["number"], 16) for one in chain] == list(range(len(chain)))
    times = [int(one.block["timestamp"], 16) for one in chain]
    assert times == sorted(set(times))


def test_each_transaction_has_the_hash_of_its_bytes(chain: list[RecordedBlock]) -> None:
    transactions = [transaction for transaction, _ in _transactions(chain)]
    hashes = _hex(ethereum.keccak256_many([ethereum.transaction(transaction) for transaction in transactions]))
    assert hashes == [transaction["hash"] for transaction in transactions]
    assert len(set(hashes)) == len(hashes)


def test_receipts_and_logs_belong_to_their_transactions(chain: list[RecordedBlock]) -> None:
    for one in chain:
        block, log_index, used = one.block, 0, 0
        assert len(block["transactions"]) == len(one.receipts)
        for index, (transaction, receipt) in enumerate(zip(block["transactions"], one.receipts, strict=True)):
            place = {"blockHash": block["hash"], "blockNumber": block["number"], "transactionIndex": hex(index)}
            assert transaction.items() >= place.items()
            assert receipt.items() >= {**place, "transactionHash": transaction["hash"]}.items()
            assert (receipt["from"], receipt["to"]) == (transaction["from"], transaction["to"])
            assert (transaction["to"] is None) == (receipt["contractAddress"] is not None)
            used += int(receipt["gasUsed"], 16)
            assert int(receipt["cumulativeGasUsed"], 16) == used
            assert not receipt["logs"] or receipt["status"] == "0x1"
            for log in receipt["logs"]:
                assert log.items() >= {**place, "transactionHash": transaction["hash"], "removed": False}.items()
                assert log["logIndex"] == hex(log_index)
                log_index += 1
        assert int(block["gasUsed"], 16) == used


def test_blooms_are_those_of_the_logs(chain: list[RecordedBlock]) -> None:
    receipts = [receipt for _, receipt in _transactions(chain)]
    items = {item for receipt in receipts for log in receipt["logs"] for item in (log["address"], *log["topics"])}
    named = sorted(items)
    hashed = ethereum.keccak256_many([ethereum.data(item) for item in named])
    bits = dict(zip(named, map(ethereum.bloom_bits, hashed), strict=True))
    for one in chain:
        whole = 0
        for receipt in one.receipts:
            bloom = 0
            for log in receipt["logs"]:
                for item in (log["address"], *log["topics"]):
                    bloom |= bits[item]
            assert int(receipt["logsBloom"], 16) == bloom
            whole |= bloom
        assert int(one.block["logsBloom"], 16) == whole


def test_blocks_commit_to_their_transactions_and_receipts(chain: list[RecordedBlock]) -> None:
    """For tries of every shape. (This node's root of transactions with blobs is made from more than the block has.)"""
    by_size = {len(one.block["transactions"]): one for one in chain}
    delegates = next(one for one in chain if "0x4" in _kinds(one))
    for one in (*(by_size[size] for size in (0, 1, 2, 3, 16, 17, max(by_size))), delegates):
        receipts = [ethereum.receipt(receipt) for receipt in one.receipts]
        assert "0x" + ethereum.trie_root(receipts).hex() == one.block["receiptsRoot"]
        if "0x3" not in _kinds(one):
            transactions = [ethereum.transaction(transaction) for transaction in one.block["transactions"]]
            assert "0x" + ethereum.trie_root(transactions).hex() == one.block["transactionsRoot"]


def _kinds(one: RecordedBlock) -> set[str]:
    return {transaction["type"] for transaction in one.block["transactions"]}


def test_the_chain_has_what_its_readme_says(chain: list[RecordedBlock]) -> None:
    text = (RECORDING.parent / "README.md").read_text()
    kinds = Counter(transaction["type"] for transaction, _ in _transactions(chain))
    logs = [log for _, receipt in _transactions(chain) for log in receipt["logs"]]
    sizes = [len(one.block["transactions"]) for one in chain]
    transfers = [log for log in logs if log["topics"][:1] == [TRANSFER]]
    seconds = int(chain[-1].block["timestamp"], 16) - int(chain[0].block["timestamp"], 16)
    facts = (
        f"| {len(chain)} (0 to {len(chain) - 1}), {sizes.count(0)} of them without transactions, at most {max(sizes)} ",
        f"| {sum(sizes)}: {kinds['0x0']} legacy, {kinds['0x1']} with an access list (type 1), {kinds['0x2']} with",
        f" {kinds['0x3']} with blobs (3), {kinds['0x4']} that delegates",
        f"{sum(t['to'] is None for t, _ in _transactions(chain))} create a contract",
        f"{sum(r['status'] == '0x0' for _, r in _transactions(chain))} failed",
        f"| logs | {len(logs)} |",
        f"{sum(log['address'] == DOLLAR for log in transfers)} transfers, most of them small",
        f"{sum(log['address'] == ODDITIES for log in transfers)} logs with the topic of ERC-20's `Transfer`",
        f"the {(seconds + 1800) // 3600} hours after",
    )
    assert [fact for fact in facts if fact not in text] == []


def test_it_holds_the_largest_amount_there_is(chain: list[RecordedBlock]) -> None:
    largest = "0x" + "ff" * 32
    names = {
        log["topics"][0] for _, receipt in _transactions(chain) for log in receipt["logs"] if log["data"] == largest
    }
    approval = "0x" + ethereum.keccak256(b"Approval(address,address,uint256)").hex()
    assert names == {TRANSFER, approval}

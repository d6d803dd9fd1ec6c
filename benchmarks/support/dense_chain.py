"""A chain of any length with blocks like mainnet's: 150 to 200 transactions and 300 and more logs in each.

They are made of the transactions and logs of two real blocks (tests/spark/evm/data/mainnet, with their licence). Each
block has as many of them as it draws, in an order of its own, with values of its own: in inputs, data, topics and
senders every byte that is not zero becomes another, by a permutation that belongs to the block. Zeros, lengths,
selectors, event names and contracts stay, so that what compresses in mainnet's data compresses here, and what does not
does not. The same arguments make the same chain.

Hashes are consistent and not computed as a node does it: a block's is that of its number, parent and transactions. The
blooms are true.
"""

import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from tracelake.spark.evm.keccak import keccak256

DATA = Path(__file__).parents[2] / "tests" / "spark" / "evm" / "data" / "mainnet" / "blocks_17173049_17173050"
CHAIN_ID = 1
FEWEST_TRANSACTIONS, MOST_TRANSACTIONS, FEWEST_LOGS = 150, 200, 300
_WORD, _SELECTOR = 32, 4
_BLOOM_BITS = 2048
Json = dict[str, Any]


class DenseChain:
    """Blocks from 0 on, each a node's answers to eth_getBlockByNumber (with whole transactions) and
    eth_getBlockReceipts."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._header: Json = _read("blocks")[-1]
        logs = {name: list(of_one) for name, of_one in groupby(_read("logs"), lambda log: log["transaction_hash"])}
        self._originals = [(one, logs.get(one["hash"], [])) for one in _read("transactions")]

    def __iter__(self) -> Iterator[tuple[Json, list[Json]]]:
        parent = _hash("before the first")
        for number in range(self._count):
            block, receipts = self._block(number, parent)
            parent = block["hash"]
            yield block, receipts

    def _block(self, number: int, parent: str) -> tuple[Json, list[Json]]:
        draw = random.Random(number)
        drawn: list[tuple[Json, list[Json]]] = []
        while sum(len(logs) for _, logs in drawn) < FEWEST_LOGS:
            drawn = draw.sample(self._originals, draw.randint(FEWEST_TRANSACTIONS, MOST_TRANSACTIONS))
        changed = _Changed(draw)
        hashes = [_hash(f"transaction {place} of block {number}") for place in range(len(drawn))]
        block_hash = _hash(f"block {number} {parent} {' '.join(hashes)}")
        place_of = {"blockHash": block_hash, "blockNumber": hex(number)}
        transactions, receipts, spent, log_count = [], [], 0, 0
        for place, (original, logs) in enumerate(drawn):
            own = {**place_of, "transactionHash": hashes[place], "transactionIndex": hex(place)}
            spent += original["receipt_gas_used"]
            transactions.append(_transaction(original, own, changed))
            receipts.append(_receipt(original, logs, own, changed, spent, log_count))
            log_count += len(logs)
        header = self._header
        block = {
            "hash": block_hash,
            "parentHash": parent,
            "number": hex(number),
            "nonce": header["nonce"],
            "sha3Uncles": header["sha3_uncles"],
            "logsBloom": _bloom_text(sum_blooms(receipts)),
            "transactionsRoot": _hash(f"transactions {number}"),
            "stateRoot": _hash(f"state {number}"),
            "receiptsRoot": _hash(f"receipts {number}"),
            "mixHash": _hash(f"mix {number}"),
            "miner": header["miner"],
            "difficulty": "0x0",
            "totalDifficulty": hex(header["total_difficulty"]),
            "extraData": header["extra_data"],
            "size": hex(header["size"]),
            "gasLimit": hex(header["gas_limit"]),
            "gasUsed": hex(spent),
            "timestamp": hex(header["timestamp"] + 12 * number),
            "baseFeePerGas": hex(header["base_fee_per_gas"]),
            "uncles": [],
            "withdrawalsRoot": header["withdrawals_root"],
            "withdrawals": [_withdrawal(one) for one in header["withdrawals"]],
            "transactions": transactions,
        }
        return block, receipts


class _Changed:
    """The values of one block."""

    def __init__(self, draw: random.Random) -> None:
        others = list(range(1, 256))
        draw.shuffle(others)
        self._table = bytes([0, *others])

    def text(self, value: str, kept: int = 0) -> str:
        """`kept`: so many bytes at its beginning stay."""
        raw = bytes.fromhex(value[2:])
        return "0x" + (raw[:kept] + raw[kept:].translate(self._table)).hex()


def _transaction(original: Mapping[str, Any], own: Json, changed: _Changed) -> Json:
    kind = original["transaction_type"]
    transaction = {
        "blockHash": own["blockHash"],
        "blockNumber": own["blockNumber"],
        "from": changed.text(original["from_address"]),
        "gas": hex(original["gas"]),
        "gasPrice": hex(original["gas_price"]),
        "hash": own["transactionHash"],
        "input": changed.text(original["input"], _SELECTOR),
        "nonce": hex(original["nonce"]),
        "to": original["to_address"],
        "transactionIndex": own["transactionIndex"],
        "value": hex(int(original["value"])),
        "type": hex(kind),
        "chainId": hex(CHAIN_ID),
        "v": "0x1",
        "r": _hash("r" + own["transactionHash"]),
        "s": _hash("s" + own["transactionHash"]),
    }
    if kind == 2:
        transaction["maxFeePerGas"] = hex(original["max_fee_per_gas"])
        transaction["maxPriorityFeePerGas"] = hex(original["max_priority_fee_per_gas"])
    if kind:
        transaction |= {"accessList": [], "yParity": "0x1"}
    return transaction


def _receipt(
    original: Mapping[str, Any], logs: Sequence[Json], own: Json, changed: _Changed, spent: int, log_count: int
) -> Json:
    made = [_log(log, own, changed, log_count + place) for place, log in enumerate(logs)]
    return {
        **own,
        "contractAddress": original["receipt_contract_address"],
        "cumulativeGasUsed": hex(spent),
        "effectiveGasPrice": hex(original["receipt_effective_gas_price"]),
        "from": changed.text(original["from_address"]),
        "gasUsed": hex(original["receipt_gas_used"]),
        "logs": made,
        "logsBloom": _bloom_text(_bloom(made)),
        "status": hex(original["receipt_status"]),
        "to": original["to_address"],
        "type": hex(original["transaction_type"]),
    }


def _log(original: Mapping[str, Any], own: Json, changed: _Changed, index: int) -> Json:
    event, *others = original["topics"] or [None]
    return {
        "address": original["address"],
        "topics": ([] if event is None else [event]) + [changed.text(topic) for topic in others],
        "data": changed.text(original["data"]),
        **own,
        "logIndex": hex(index),
        "removed": False,
    }


def _withdrawal(original: Mapping[str, Any]) -> Json:
    return {
        "index": hex(original["index"]),
        "validatorIndex": hex(original["validator_index"]),
        "address": original["address"],
        "amount": hex(original["amount"]),
    }


def _bloom(logs: Sequence[Json]) -> int:
    bloom = 0
    for log in logs:
        bloom |= _bits(log["address"])
        for topic in log["topics"]:
            bloom |= _bits(topic)
    return bloom


@lru_cache(4096)
def _bits(value: str) -> int:
    """Three of them."""
    digest = keccak256(bytes.fromhex(value[2:]))
    bits = 0
    for place in (0, 2, 4):
        bits |= 1 << (int.from_bytes(digest[place : place + 2], "big") % _BLOOM_BITS)
    return bits


def sum_blooms(receipts: Sequence[Json]) -> int:
    bloom = 0
    for receipt in receipts:
        bloom |= int(receipt["logsBloom"], 16)
    return bloom


def _bloom_text(bloom: int) -> str:
    return f"0x{bloom:0{_BLOOM_BITS // 4}x}"


def _hash(text: str) -> str:
    return "0x" + hashlib.sha256(text.encode()).hexdigest()


def _read(table: str) -> list[Json]:
    text = (DATA / f"expected_{table}.json").read_text()
    return [json.loads(line) for line in text.splitlines() if line.strip()] if text[:1] == "{" else json.loads(text)

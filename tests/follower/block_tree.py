"""Random chains: a tree of made-up blocks, and the rows that plain Python makes of one."""

import hashlib
import random
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from tracelake.spark.evm.answers import Block, Receipt

Json = dict[str, Any]
CHAIN_ID = 7


@dataclass(eq=False)
class MadeBlock:
    number: int
    parent: "MadeBlock | None"
    salt: str

    @cached_property
    def hash(self) -> str:
        return _digest("block", self.salt, self.parent_hash)

    @property
    def parent_hash(self) -> str:
        return self.parent.hash if self.parent is not None else "0x" + "00" * 32

    @cached_property
    def timestamp(self) -> int:
        return 1_700_000_000 + 2 * self.number

    @cached_property
    def json(self) -> tuple[Json, list[Json]]:
        """The block and its receipts, as a node sends them."""
        rng = random.Random(self.salt)
        transactions, receipts, log_index = [], [], 0
        for index in range(rng.choice((0, 0, 1, 2, 3))):
            name = _digest("transaction", self.salt, str(index))
            logs = []
            for _ in range(rng.choice((0, 0, 1, 2))):
                topics = [_digest("topic", self.salt, str(log_index + n)) for n in range(rng.randrange(5))]
                logs.append(
                    {
                        "address": _address(rng),
                        "topics": topics,
                        "data": "0x" + rng.randbytes(rng.randrange(40)).hex(),
                        "transactionHash": name,
                        "blockHash": self.hash,
                        "logIndex": hex(log_index),
                    }
                )
                log_index += 1
            dynamic = rng.random() < 0.5
            transactions.append(
                {
                    "blockHash": self.hash,
                    "from": _address(rng),
                    "gas": hex(rng.randrange(2**40)),
                    "gasPrice": hex(rng.randrange(2**40)),
                    **({"maxFeePerGas": "0x9", "maxPriorityFeePerGas": "0x3"} if dynamic else {}),
                    "hash": name,
                    "input": "0x" + bytes(rng.choice((0, 1, 255)) for _ in range(rng.randrange(20))).hex(),
                    "nonce": hex(rng.randrange(1000)),
                    "to": None if rng.random() < 0.2 else _address(rng),
                    "transactionIndex": hex(index),
                    "value": hex(rng.randrange(2**100)),
                    "type": "0x2" if dynamic else "0x0",
                }
            )
            receipts.append(
                {
                    "blockHash": self.hash,
                    "effectiveGasPrice": "0x5",
                    "gasUsed": hex(rng.randrange(2**30)),
                    "logs": logs,
                    "status": rng.choice(("0x0", "0x1")),
                    "transactionHash": name,
                    "transactionIndex": hex(index),
                }
            )
        block = {
            "baseFeePerGas": hex(rng.randrange(2**40)),
            "extraData": "0x" + rng.randbytes(3).hex(),
            "gasUsed": hex(rng.randrange(2**30)),
            "hash": self.hash,
            "miner": _address(rng),
            "number": hex(self.number),
            "parentHash": self.parent_hash,
            "timestamp": hex(self.timestamp),
            "transactions": transactions,
        }
        return block, receipts

    @cached_property
    def answers(self) -> tuple[Block, list[Receipt]]:
        block, receipts = self.json
        return msgspec.convert(block, Block), msgspec.convert(receipts, list[Receipt])

    @cached_property
    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        """The rows of each table, computed from the JSON value by value."""
        block, receipts = self.json
        return {
            "blocks": [
                (
                    _bytes(block["hash"]),
                    _bytes(block["parentHash"]),
                    _bytes(block["miner"]),
                    self.number,
                    int(block["gasUsed"], 16),
                    _bytes(block["extraData"]),
                    self.timestamp,
                    int(block["baseFeePerGas"], 16),
                    CHAIN_ID,
                )
            ],
            "transactions": [
                _transaction_row(self.number, index, sent, receipt)
                for index, (sent, receipt) in enumerate(zip(block["transactions"], receipts, strict=True))
            ],
            "logs": [
                _log_row(self.number, index, log) for index, receipt in enumerate(receipts) for log in receipt["logs"]
            ],
        }


def chain_to(head: MadeBlock) -> list[MadeBlock]:
    """From block 0."""
    blocks: list[MadeBlock] = []
    block: MadeBlock | None = head
    while block is not None:
        blocks.append(block)
        block = block.parent
    blocks.reverse()
    return blocks


def _transaction_row(number: int, index: int, sent: Json, receipt: Json) -> tuple[Any, ...]:
    value, content = int(sent["value"], 16), _bytes(sent["input"])
    fees = [int(sent[name], 16) if name in sent else None for name in ("maxPriorityFeePerGas", "maxFeePerGas")]
    return (
        number,
        index,
        _bytes(sent["hash"]),
        int(sent["nonce"], 16),
        _bytes(sent["from"]),
        None if sent["to"] is None else _bytes(sent["to"]),
        value.to_bytes(32, "big"),
        str(value),
        float(value),
        content,
        int(sent["gas"], 16),
        int(receipt["gasUsed"], 16),
        int(sent["gasPrice"], 16),
        int(sent["type"], 16),
        *fees,
        receipt["status"] == "0x1",
        len(content),
        content.count(0),
        len(content) - content.count(0),
        CHAIN_ID,
    )


def _log_row(number: int, index: int, log: Json) -> tuple[Any, ...]:
    topics = [_bytes(topic) for topic in log["topics"]]
    return (
        number,
        index,
        int(log["logIndex"], 16),
        _bytes(log["transactionHash"]),
        _bytes(log["address"]),
        *(topics + [None] * 4)[:4],
        _bytes(log["data"]),
        CHAIN_ID,
    )


def _digest(*parts: str) -> str:
    return "0x" + hashlib.sha256("/".join(parts).encode()).hexdigest()


def _address(rng: random.Random) -> str:
    return "0x" + rng.randbytes(20).hex()


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])

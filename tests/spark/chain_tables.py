"""The recorded chain as plain tables with cryo's columns, made by plain Python."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from tests.support.chain import recorded
from tracelake.demo.chain.recording import RecordedBlock

BLOCKS = pa.schema(
    [
        ("block_hash", pa.binary()),
        ("parent_hash", pa.binary()),
        ("block_number", pa.uint32()),
        ("gas_used", pa.uint64()),
        ("timestamp", pa.uint32()),
        ("chain_id", pa.uint64()),
    ]
)
TRANSACTIONS = pa.schema(
    [
        ("block_number", pa.uint32()),
        ("transaction_index", pa.uint64()),
        ("transaction_hash", pa.binary()),
        ("gas_used", pa.uint64()),
        ("success", pa.bool_()),
        ("chain_id", pa.uint64()),
    ]
)
LOGS = pa.schema(
    [
        ("block_number", pa.uint32()),
        ("transaction_index", pa.uint32()),
        ("log_index", pa.uint32()),
        ("transaction_hash", pa.binary()),
        ("address", pa.binary()),
        *((f"topic{number}", pa.binary()) for number in range(4)),
        ("data", pa.binary()),
        ("chain_id", pa.uint64()),
    ]
)
CHAIN_ID = 31337


def _number(text: str) -> int:
    return int(text, 16)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text[2:])


def _block(one: RecordedBlock) -> dict[str, Any]:
    return {
        "block_hash": _bytes(one.block["hash"]),
        "parent_hash": _bytes(one.block["parentHash"]),
        "block_number": one.number,
        "gas_used": _number(one.block["gasUsed"]),
        "timestamp": _number(one.block["timestamp"]),
        "chain_id": CHAIN_ID,
    }


def _transactions(one: RecordedBlock) -> Iterable[dict[str, Any]]:
    for receipt in one.receipts:
        yield {
            "block_number": one.number,
            "transaction_index": _number(receipt["transactionIndex"]),
            "transaction_hash": _bytes(receipt["transactionHash"]),
            "gas_used": _number(receipt["gasUsed"]),
            "success": receipt["status"] == "0x1",
            "chain_id": CHAIN_ID,
        }


def _logs(one: RecordedBlock) -> Iterable[dict[str, Any]]:
    for receipt in one.receipts:
        for log in receipt["logs"]:
            topics = [_bytes(topic) for topic in log["topics"]]
            yield {
                "block_number": one.number,
                "transaction_index": _number(log["transactionIndex"]),
                "log_index": _number(log["logIndex"]),
                "transaction_hash": _bytes(log["transactionHash"]),
                "address": _bytes(log["address"]),
                **{f"topic{number}": topics[number] if number < len(topics) else None for number in range(4)},
                "data": _bytes(log["data"]),
                "chain_id": CHAIN_ID,
            }


@lru_cache(maxsize=2)
def chain_tables(blocks: int) -> dict[str, pa.Table]:
    """`blocks`, `transactions` and `logs` of the first so many blocks."""
    chain = recorded(blocks)
    return {
        "blocks": pa.Table.from_pylist([_block(one) for one in chain], BLOCKS),
        "transactions": pa.Table.from_pylist([row for one in chain for row in _transactions(one)], TRANSACTIONS),
        "logs": pa.Table.from_pylist([row for one in chain for row in _logs(one)], LOGS),
    }

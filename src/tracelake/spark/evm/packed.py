"""Blocks and receipts with their transactions and logs packed into columns of text.

A block of mainnet has thousands of strings. They are joined, column by column, as soon as the block is decoded, and the
objects are let go. What `check` would have to look at more closely stays as it is.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from operator import attrgetter
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tracelake.spark.evm.answers import Block, BlockHeader, Receipt
from tracelake.spark.evm.texts import Texts

MOST_TOPICS = 4
_HASH_LETTERS = 66
_COUNTED = [hex(number) for number in range(4096)]
_TRANSACTION = (
    "block_hash",
    "transaction_index",
    "hash",
    "nonce",
    "from_",
    "to",
    "value",
    "input",
    "gas",
    "gas_price",
    "type",
    "max_priority_fee_per_gas",
    "max_fee_per_gas",
)
TRANSACTION_TEXTS = _TRANSACTION[2:]
"""The columns of a block's transactions."""
_RECEIPT = ("transaction_hash", "transaction_index", "block_hash", "gas_used", "effective_gas_price", "status", "logs")
_LOG = ("log_index", "block_hash", "transaction_hash", "removed", "topics", "address", "data")


class PackedBlock:
    __slots__ = (
        "base_fee_per_gas",
        "columns",
        "extra_data",
        "gas_used",
        "hash",
        "miner",
        "number",
        "parent_hash",
        "timestamp",
    )

    def __init__(self, block: Block, columns: dict[str, Texts]) -> None:
        self.hash = block.hash
        self.parent_hash = block.parent_hash
        self.number = block.number
        self.miner = block.miner
        self.gas_used = block.gas_used
        self.extra_data = block.extra_data
        self.timestamp = block.timestamp
        self.base_fee_per_gas = block.base_fee_per_gas
        self.columns = columns
        """Of its transactions, by the names of their fields."""


class PackedReceipts:
    """Of one block, or of several that lie side by side."""

    __slots__ = (
        "address",
        "block_hash",
        "counts",
        "data",
        "gas_price",
        "gas_used",
        "hashes",
        "log_counts",
        "statuses",
        "topic_counts",
        "topics",
    )

    def __init__(
        self, block_hash: str | None, counts: Sequence[int], rows: list[list[Any]], logs: list[list[Any]]
    ) -> None:
        hashes, _, _, gas_used, gas_price, self.statuses, of_receipts = rows
        _, _, _, _, topics, address, data = logs
        self.block_hash = block_hash
        """None if there are no receipts, or those of several blocks."""
        self.counts = counts
        """By block."""
        self.hashes = Texts.of(hashes)
        self.gas_used = Texts.of(gas_used)
        self.gas_price = Texts.of(gas_price)
        self.log_counts = count_each(of_receipts)
        self.topics = Texts.of(list(chain.from_iterable(topics)))
        self.topic_counts = count_each(topics)
        self.address = Texts.of(address)
        self.data = Texts.of(data)


AnyBlock: TypeAlias = Block | BlockHeader | PackedBlock
AnyReceipts: TypeAlias = Sequence[Receipt] | PackedReceipts


def counted(count: int) -> list[str]:
    """0x0, 0x1, ... as nodes number what is in a block."""
    while len(_COUNTED) < count:
        _COUNTED.append(hex(len(_COUNTED)))
    return _COUNTED[:count]


def count_each(values: Sequence[Any]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, values), np.int64, len(values))


def hashes_of(block: AnyBlock) -> list[str]:
    """Of its transactions."""
    if isinstance(block, PackedBlock):
        return block.columns["hash"].to_list()  # type: ignore[return-value]
    if isinstance(block, BlockHeader):
        return block.transactions
    return [transaction.hash for transaction in block.transactions]


def pack_regular_block(block: Block) -> Block | PackedBlock:
    """Packed, if its transactions are of it and in order."""
    rows = _fields(block.transactions, _TRANSACTION)
    owners, places, hashes = rows[:3]
    if (
        owners.count(block.hash) + owners.count(None) == len(owners)
        and places == counted(len(places))
        and _are_hashes(hashes)
    ):
        return PackedBlock(block, _columns(rows))
    return block


def pack_regular_receipts(receipts: Sequence[Receipt]) -> AnyReceipts:
    """Packed, if they and their logs are in order and all say that they are of one block."""
    rows = _fields(receipts, _RECEIPT)
    hashes, places, blocks, _, _, _, of_receipts = rows
    logs = _logs(rows)
    log_places, log_blocks, owners, removed, topics, _, _ = logs
    block_hash = blocks[0] if blocks else None
    if (
        places == counted(len(places))
        and _are_hashes(hashes)
        and blocks.count(block_hash) == len(blocks)
        and log_places == counted(len(log_places))
        and log_blocks.count(block_hash) == len(log_blocks)
        and True not in removed
        and owners == [name for name, some in zip(hashes, of_receipts, strict=True) for _ in some]
        and max(map(len, topics), default=0) <= MOST_TOPICS
    ):
        return PackedReceipts(block_hash, [len(receipts)], rows, logs)
    return receipts


def transaction_columns(blocks: Sequence[Block | PackedBlock]) -> dict[str, Texts]:
    """Of all of them together."""
    parts: list[dict[str, Texts]] = []
    for is_packed, some in groupby(blocks, lambda block: isinstance(block, PackedBlock)):
        if is_packed:
            parts += [block.columns for block in cast("Iterator[PackedBlock]", some)]
        else:
            rows = [row for block in cast("Iterator[Block]", some) for row in block.transactions]
            parts.append(_columns(_fields(rows, _TRANSACTION)))
    return {name: Texts.concat([part[name] for part in parts]) for name in TRANSACTION_TEXTS}


def pack_receipts(receipts: Sequence[AnyReceipts]) -> list[PackedReceipts]:
    """By block, in as few pieces as possible. They and their logs must be in order."""
    parts: list[PackedReceipts] = []
    for is_packed, some in groupby(receipts, lambda of_block: isinstance(of_block, PackedReceipts)):
        if is_packed:
            parts += cast("Iterator[PackedReceipts]", some)
        else:
            typed = list(cast("Iterator[Sequence[Receipt]]", some))
            rows = _fields(list(chain.from_iterable(typed)), _RECEIPT)
            parts.append(PackedReceipts(None, list(map(len, typed)), rows, _logs(rows)))
    return parts


def _columns(rows: list[list[Any]]) -> dict[str, Texts]:
    return {name: Texts.of(values) for name, values in zip(TRANSACTION_TEXTS, rows[2:], strict=True)}


def _logs(rows: list[list[Any]]) -> list[list[Any]]:
    return _fields(list(chain.from_iterable(rows[-1])), _LOG)


def _fields(objects: Sequence[Any], names: Sequence[str]) -> list[list[Any]]:
    return [list(map(attrgetter(name), objects)) for name in names]


def _are_hashes(values: Sequence[str]) -> bool:
    """By their length alone: then they are the same as others if they are the same joined."""
    return set(map(len, values)) <= {_HASH_LETTERS}

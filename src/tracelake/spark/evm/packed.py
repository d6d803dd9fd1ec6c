"""Blocks and receipts with their transactions and logs packed into columns of text.

A block of mainnet has thousands of strings. They are joined, column by column, as soon as the block is decoded, and the
objects are let go. What `answer_checks` would have to look at more closely stays as it is.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import chain, groupby
from typing import Any, TypeAlias, cast

import msgspec

from tracelake.spark.evm.answers import Block, BlockHeader, Log, Receipt, Transaction
from tracelake.spark.evm.optional_columns import ChosenFields
from tracelake.spark.evm.texts import Texts

NO_FIELDS = ChosenFields()
MOST_TOPICS = 4
_HASH_LETTERS = 66
_COUNTED = [hex(number) for number in range(4096)]
TRANSACTION_TEXTS = (
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
"""The columns of a block's transactions."""
Column: TypeAlias = list[Any]


class PackedBlock:
    __slots__ = (
        "base_fee_per_gas",
        "block_fields",
        "columns",
        "extra_data",
        "gas_used",
        "hash",
        "miner",
        "number",
        "parent_hash",
        "timestamp",
        "transaction_fields",
    )

    def __init__(self, block: Block, columns: dict[str, Texts], fields: ChosenFields = NO_FIELDS) -> None:
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
        self.block_fields = {name: getattr(block, name) for name in fields.block}
        """The block's own fields of optional columns."""
        self.transaction_fields = raw_fields(block.transactions, fields.transaction)
        """Of its transactions: fields of optional columns."""


class PackedReceipts:
    """Of one block, or of several that lie side by side."""

    __slots__ = (
        "address",
        "block_hash",
        "counts",
        "data",
        "fields",
        "gas_price",
        "gas_used",
        "hashes",
        "log_counts",
        "log_places",
        "places",
        "statuses",
        "topic_counts",
        "topics",
    )

    def __init__(
        self,
        block_hash: str | None,
        counts: Sequence[int],
        receipts: Sequence[Receipt],
        logs: Sequence[Log],
        fields: ChosenFields = NO_FIELDS,
    ) -> None:
        self.block_hash = block_hash
        """None if there are no receipts, or those of several blocks."""
        self.counts = counts
        """By block."""
        self.places: Sequence[int] | None = None
        """Of the transactions in their block; None: 0, 1, ..."""
        self.log_places: Sequence[int] | None = None
        """Of the logs in their block; None: 0, 1, ..."""
        self.hashes = Texts.of([receipt.transaction_hash for receipt in receipts])
        self.gas_used = Texts.of([receipt.gas_used for receipt in receipts])
        self.gas_price = Texts.of([receipt.effective_gas_price for receipt in receipts])
        self.statuses = [receipt.status for receipt in receipts]
        self.log_counts = [len(receipt.logs) for receipt in receipts]
        self.topics = Texts.of([topic for log in logs for topic in log.topics])
        self.topic_counts = [len(log.topics) for log in logs]
        self.address = Texts.of([log.address for log in logs])
        self.data = Texts.of([log.data for log in logs])
        self.fields = raw_fields(receipts, fields.receipt)
        """Fields of optional columns."""


AnyBlock: TypeAlias = Block | BlockHeader | PackedBlock
AnyReceipts: TypeAlias = Sequence[Receipt] | PackedReceipts


def counted(count: int) -> list[str]:
    """0x0, 0x1, ... as nodes number what is in a block."""
    while len(_COUNTED) < count:
        _COUNTED.append(hex(len(_COUNTED)))
    return _COUNTED[:count]


def hashes_of(block: AnyBlock) -> list[str]:
    """Of its transactions."""
    if isinstance(block, PackedBlock):
        return block.columns["hash"].to_list()  # type: ignore[return-value]
    if isinstance(block, BlockHeader):
        return block.transactions
    return [transaction.hash for transaction in block.transactions]


def count_transactions(block: AnyBlock) -> int:
    return len(block.columns["hash"] if isinstance(block, PackedBlock) else block.transactions)


def pack_regular_block(block: Block, fields: ChosenFields = NO_FIELDS) -> Block | PackedBlock:
    """Packed, if its transactions are of it and in order."""
    columns = _transaction_fields(block.transactions)
    owners, places, hashes = columns[:3]
    if (
        owners.count(block.hash) + owners.count(None) == len(owners)
        and places == counted(len(places))
        and _are_hashes(hashes)
    ):
        return PackedBlock(block, _texts(columns), fields)
    return block


def pack_whole_block(block: Block, fields: ChosenFields = NO_FIELDS) -> Block | PackedBlock:
    """Packed, if it is regular and none of its transactions lacks a field that those of Ethereum have."""
    is_whole = all(None not in (row.value, row.input, row.gas, row.nonce) for row in block.transactions)
    return pack_regular_block(block, fields) if is_whole else block


def keep_transactions(block: AnyBlock, places: Sequence[int]) -> AnyBlock:
    """The block with these of its transactions only."""
    if not isinstance(block, PackedBlock):
        rows = [block.transactions[place] for place in places]
        return msgspec.structs.replace(block, transactions=rows)
    rest = copy(block)
    rest.columns = {name: _pick(texts, places) for name, texts in block.columns.items()}
    rest.transaction_fields = {
        name: [values[place] for place in places] for name, values in block.transaction_fields.items()
    }
    return rest


def _pick(texts: Texts, places: Sequence[int]) -> Texts:
    values = texts.to_list()
    return Texts.of([values[place] for place in places])


def pack_regular_receipts(receipts: Sequence[Receipt], fields: ChosenFields = NO_FIELDS) -> AnyReceipts:
    """Packed, if they and their logs are in order and all say that they are of one block."""
    block_hash = receipts[0].block_hash if receipts else ""
    hashes = [receipt.transaction_hash for receipt in receipts]
    blocks = [receipt.block_hash for receipt in receipts]
    logs = [log for receipt in receipts for log in receipt.logs]
    log_blocks = [log.block_hash for log in logs]
    if (
        [receipt.transaction_index for receipt in receipts] == counted(len(receipts))
        and _are_hashes(hashes)
        and blocks.count(block_hash) == len(blocks)
        and [log.log_index for log in logs] == counted(len(logs))
        and log_blocks.count(block_hash) == len(logs)
        and True not in [log.removed for log in logs]
        and [log.transaction_hash for log in logs]
        == [receipt.transaction_hash for receipt in receipts for _ in receipt.logs]
    ):
        packed = PackedReceipts(block_hash if receipts else None, [len(receipts)], receipts, logs, fields)
        if max(packed.topic_counts, default=0) <= MOST_TOPICS:
            return packed
    return receipts


def transaction_columns(blocks: Sequence[Block | PackedBlock]) -> dict[str, Texts]:
    """Of all of them together."""
    parts: list[dict[str, Texts]] = []
    for is_packed, some in groupby(blocks, lambda block: isinstance(block, PackedBlock)):
        if is_packed:
            parts += [block.columns for block in cast("Iterator[PackedBlock]", some)]
        else:
            rows = [row for block in cast("Iterator[Block]", some) for row in block.transactions]
            parts.append(_texts(_transaction_fields(rows)))
    return {name: Texts.concat([part[name] for part in parts]) for name in TRANSACTION_TEXTS}


def pack_receipts(receipts: Sequence[AnyReceipts], fields: ChosenFields = NO_FIELDS) -> list[PackedReceipts]:
    """By block, in as few pieces as possible. They and their logs must be in order."""
    parts: list[PackedReceipts] = []
    for is_packed, some in groupby(receipts, lambda of_block: isinstance(of_block, PackedReceipts)):
        if is_packed:
            parts += cast("Iterator[PackedReceipts]", some)
        else:
            typed = list(cast("Iterator[Sequence[Receipt]]", some))
            rows = list(chain.from_iterable(typed))
            logs = [log for receipt in rows for log in receipt.logs]
            parts.append(PackedReceipts(None, list(map(len, typed)), rows, logs, fields))
    return parts


def block_values(blocks: Sequence[AnyBlock], name: str) -> Column:
    """A chosen field of the blocks themselves."""
    return [block.block_fields[name] if isinstance(block, PackedBlock) else getattr(block, name) for block in blocks]


def transaction_values(blocks: Sequence[Block | PackedBlock], name: str) -> Column:
    """A chosen field of the transactions of all of them."""
    values: Column = []
    for block in blocks:
        if isinstance(block, PackedBlock):
            values += block.transaction_fields[name]
        else:
            values += [getattr(row, name) for row in block.transactions]
    return values


def raw_fields(rows: Sequence[Any], names: Sequence[str]) -> dict[str, Column]:
    return {name: [getattr(row, name) for row in rows] for name in names}


def _texts(columns: Sequence[Column]) -> dict[str, Texts]:
    return {name: Texts.of(values) for name, values in zip(TRANSACTION_TEXTS, columns[2:], strict=True)}


def _transaction_fields(rows: Sequence[Transaction]) -> list[Column]:
    """The block's hash and the index, then as in `TRANSACTION_TEXTS`. Written out: the interpreter reads a field in a
    comprehension in a fifth of the time that an `attrgetter` takes."""
    return [
        [row.block_hash for row in rows],
        [row.transaction_index for row in rows],
        [row.hash for row in rows],
        [row.nonce for row in rows],
        [row.from_ for row in rows],
        [row.to for row in rows],
        [row.value for row in rows],
        [row.input for row in rows],
        [row.gas for row in rows],
        [row.gas_price for row in rows],
        [row.type for row in rows],
        [row.max_priority_fee_per_gas for row in rows],
        [row.max_fee_per_gas for row in rows],
    ]


def _are_hashes(values: Sequence[str]) -> bool:
    """By their length alone: then they are the same as others if they are the same joined."""
    return set(map(len, values)) <= {_HASH_LETTERS}

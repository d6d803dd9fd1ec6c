"""What is read of a node's answers, typed. Fields that no column and no check needs are passed over unread.

Numbers stay the text they came as until whole columns are decoded at once (`columns`). Fields are in the order in which
most nodes send them, which is the order that the decoder looks for first.
"""

import msgspec


class Transaction(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    block_hash: str | None = None
    from_: str = msgspec.field(name="from")
    gas: str
    gas_price: str | None = None
    max_fee_per_gas: str | None = None
    max_priority_fee_per_gas: str | None = None
    hash: str
    input: str
    nonce: str
    to: str | None = None
    transaction_index: str | None = None
    value: str
    type: str | None = None


class SparseTransaction(Transaction, kw_only=True, rename="camel", gc=False):
    """Of a chain whose own types lack what those of Ethereum have; `answer_checks` looks whose they are."""

    gas: str | None = None  # type: ignore[assignment]
    input: str | None = None  # type: ignore[assignment]
    nonce: str | None = None  # type: ignore[assignment]
    value: str | None = None  # type: ignore[assignment]


class BlockHeader(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    """A block asked for without its transactions: their hashes only."""

    base_fee_per_gas: str | None = None
    extra_data: str
    gas_used: str
    hash: str
    miner: str
    number: str
    parent_hash: str
    timestamp: str
    transactions: list[str]


class Block(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    base_fee_per_gas: str | None = None
    extra_data: str
    gas_used: str
    hash: str
    miner: str
    number: str
    parent_hash: str
    timestamp: str
    transactions: list[Transaction]


class Log(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    address: str
    topics: list[str]
    data: str
    transaction_hash: str
    block_hash: str
    log_index: str
    removed: bool = False


class FilteredLog(Log, rename="camel", gc=False, kw_only=True):
    """A log that comes without its receipt, so that it has to say where it is."""

    block_number: str
    transaction_index: str


class Receipt(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    block_hash: str
    effective_gas_price: str | None = None
    gas_used: str
    logs: list[Log]
    status: str | None = None
    """None before Byzantium, when a receipt had a state root instead."""
    transaction_hash: str
    transaction_index: str

"""What is read of a node's answers, typed. Fields that no column and no check needs are passed over unread.

Numbers stay the text they came as until whole columns are decoded at once (`columns`).
"""

import msgspec


class Transaction(msgspec.Struct, rename="camel", gc=False):
    hash: str
    nonce: str
    from_: str = msgspec.field(name="from")
    value: str
    input: str
    gas: str
    block_hash: str | None = None
    transaction_index: str | None = None
    to: str | None = None
    gas_price: str | None = None
    type: str | None = None
    max_priority_fee_per_gas: str | None = None
    max_fee_per_gas: str | None = None


class BlockHeader(msgspec.Struct, rename="camel", gc=False):
    """A block asked for without its transactions: their hashes only."""

    hash: str
    parent_hash: str
    number: str
    miner: str
    gas_used: str
    extra_data: str
    timestamp: str
    transactions: list[str]
    base_fee_per_gas: str | None = None


class Block(msgspec.Struct, rename="camel", gc=False):
    hash: str
    parent_hash: str
    number: str
    miner: str
    gas_used: str
    extra_data: str
    timestamp: str
    transactions: list[Transaction]
    base_fee_per_gas: str | None = None


class Log(msgspec.Struct, rename="camel", gc=False):
    address: str
    topics: list[str]
    data: str
    log_index: str
    block_hash: str
    transaction_hash: str
    removed: bool = False


class Receipt(msgspec.Struct, rename="camel", gc=False):
    transaction_hash: str
    transaction_index: str
    block_hash: str
    gas_used: str
    logs: list[Log]
    status: str | None = None
    """None before Byzantium, when a receipt had a state root instead."""
    effective_gas_price: str | None = None

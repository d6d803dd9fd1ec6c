"""Answers with all fields that hashes of blocks are computed from. Only jobs with `verify: roots` read them."""

from functools import lru_cache

from tracelake.spark.evm.answers import Block, BlockHeader, Receipt, Transaction
from tracelake.spark.evm.optional_columns import (
    AccessEntry,
    AnswerTypes,
    Authorization,
    ChosenFields,
    widen_type,
)

HEADER_DATA = (
    "sha3_uncles",
    "state_root",
    "transactions_root",
    "receipts_root",
    "logs_bloom",
    "difficulty",
    "gas_limit",
    "mix_hash",
    "nonce",
    "withdrawals_root",
    "blob_gas_used",
    "excess_blob_gas",
    "parent_beacon_block_root",
    "requests_hash",
)
"""Fields of a header besides those that are always read."""


class VerifiedTransaction(Transaction, rename="camel", gc=False, kw_only=True):
    chain_id: str | None = None
    access_list: list[AccessEntry] | None = None
    max_fee_per_blob_gas: str | None = None
    blob_versioned_hashes: list[str] | None = None
    authorization_list: list[Authorization] | None = None
    v: str | None = None
    y_parity: str | None = None
    r: str | None = None
    s: str | None = None


class VerifiedReceipt(Receipt, rename="camel", gc=False, kw_only=True):
    cumulative_gas_used: str | None = None
    logs_bloom: str | None = None
    root: str | None = None
    """Of the state after the transaction, before Byzantium."""


@lru_cache(maxsize=64)
def verified_types(fields: ChosenFields) -> AnswerTypes:
    """The types of answers, with the chosen fields of optional columns."""
    transaction = widen_type(VerifiedTransaction, fields.transaction)
    block_fields = tuple(dict.fromkeys((*HEADER_DATA, *fields.block)))
    block = widen_type(Block, block_fields, ("transactions", list[transaction]))  # type: ignore[valid-type]
    return AnswerTypes(block, widen_type(BlockHeader, block_fields), widen_type(VerifiedReceipt, fields.receipt))

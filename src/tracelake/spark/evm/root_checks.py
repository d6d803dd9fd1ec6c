"""Whether what a node said has the hashes and roots that its header names: `verify: roots`.

The hash of a block covers its header, which has the roots of its transactions, receipts and withdrawals. A row is of
that block only if all of it is covered. So what follows from covered fields is compared with them (prices, gas of a
receipt), and fields that a transaction of its type does not have must be missing. Not covered are a sender, which would
have to be computed from the signature, the address of a new contract, and fields that other chains have.

The answers must have passed `answer_checks`.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from tracelake.spark.evm.block_roots import (
    ACCESS_LIST,
    BLOB,
    DYNAMIC_FEE,
    LEGACY,
    SET_CODE,
    encode_transaction,
    header_hash,
    kind_of,
    receipts_root,
    withdrawals_root,
)
from tracelake.spark.evm.errors import AnswerError, WrongHashError
from tracelake.spark.evm.optional_columns import ChosenFields
from tracelake.spark.evm.ordered_trie import ordered_root
from tracelake.spark.evm.packed import AnyReceipts
from tracelake.spark.evm.rlp import hash_text
from tracelake.spark.evm.verified_answers import VerifiedReceipt, VerifiedTransaction

T = TypeVar("T")


def check_header_hash(number: int, block: Any, host: str) -> None:
    """`block`: with the fields of `HEADER_DATA`."""
    if _computed(number, "the header", host, lambda: header_hash(block)) != _digits(block.hash):
        raise WrongHashError(f"the header of block {number} does not have the hash of the block", host=host)


def check_block_roots(number: int, block: Any, host: str, fields: ChosenFields, *, full: bool) -> None:
    """`full`: it has its transactions, not only their hashes."""
    check_header_hash(number, block, host)
    if "withdrawals" in fields.block:
        _check_withdrawals(number, block, host)
    if full:
        _check_transactions(number, block, host)


def check_receipts_root(number: int, block: Any, receipts: AnyReceipts, host: str) -> None:
    """They are in the order of the transactions, which the block has."""
    rows: Sequence[VerifiedTransaction] = block.transactions
    of_rows = cast("Sequence[VerifiedReceipt]", receipts)
    root = _computed(number, "the receipts", host, lambda: receipts_root(of_rows, [kind_of(row) for row in rows]))
    if root != _digits(block.receipts_root):
        raise WrongHashError(f"the receipts of block {number} do not have the root in its header", host=host)
    _computed(number, "the receipts", host, lambda: _check_derived(number, block, rows, of_rows, host))


def _check_transactions(number: int, block: Any, host: str) -> None:
    rows: Sequence[VerifiedTransaction] = block.transactions
    texts = _computed(number, "the transactions", host, lambda: [encode_transaction(row) for row in rows])
    if _computed(number, "the transactions", host, lambda: ordered_root(texts)) != _digits(block.transactions_root):
        raise WrongHashError(f"the transactions of block {number} do not have the root in its header", host=host)
    for place, (row, text) in enumerate(zip(rows, texts, strict=True)):
        if hash_text(text) != _digits(row.hash):
            raise WrongHashError(f"transaction {place} of block {number} does not have its hash", host=host)
        if _has_foreign_field(row):
            raise WrongHashError(f"transaction {place} of block {number} has fields of another type", host=host)


def _has_foreign_field(row: VerifiedTransaction) -> bool:
    kind = kind_of(row)
    return bool(
        (kind < DYNAMIC_FEE and (row.max_fee_per_gas is not None or row.max_priority_fee_per_gas is not None))
        or (kind < ACCESS_LIST and row.access_list)
        or (kind != BLOB and (row.blob_versioned_hashes or row.max_fee_per_blob_gas is not None))
        or (kind != SET_CODE and row.authorization_list)
    )


def _check_derived(
    number: int, block: Any, rows: Sequence[VerifiedTransaction], receipts: Sequence[VerifiedReceipt], host: str
) -> None:
    base_fee = int(block.base_fee_per_gas or "0x0", 16)
    before = 0
    for place, (row, receipt) in enumerate(zip(rows, receipts, strict=True)):
        total = int(receipt.cumulative_gas_used or "0x0", 16)
        if total - before != int(receipt.gas_used, 16):
            raise WrongHashError(f"receipt {place} of block {number} has other gas than it adds", host=host)
        before = total
        price = _price(row, base_fee)
        for reported in (row.gas_price, receipt.effective_gas_price):
            if reported is not None and int(reported, 16) != price:
                raise WrongHashError(f"transaction {place} of block {number} has another price than it paid", host=host)


def _price(row: VerifiedTransaction, base_fee: int) -> int:
    if kind_of(row) in (LEGACY, ACCESS_LIST):
        return int(row.gas_price or "0x0", 16)
    priority, most = int(row.max_priority_fee_per_gas or "0x0", 16), int(row.max_fee_per_gas or "0x0", 16)
    return min(most, base_fee + priority)


def _check_withdrawals(number: int, block: Any, host: str) -> None:
    if block.withdrawals is None and block.withdrawals_root is None:
        return
    root = _computed(number, "the withdrawals", host, lambda: withdrawals_root(block.withdrawals or ()))
    if block.withdrawals is None or root != _digits(block.withdrawals_root):
        raise WrongHashError(f"the withdrawals of block {number} do not have the root in its header", host=host)


def _computed(number: int, what: str, host: str, compute: Callable[[], T]) -> T:
    try:
        return compute()
    except ValueError as error:
        raise AnswerError(f"no hash can be computed from {what} of block {number}: {error}", host=host) from None


def _digits(text: str | None) -> str:
    return (text or "")[2:].lower()

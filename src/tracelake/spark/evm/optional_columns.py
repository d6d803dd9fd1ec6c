"""The optional columns of `evm_ingest`: which field of an answer each comes from, and how its values are decoded.

A field that no job asks for is passed over unread: the types of answers get the fields of the chosen columns only. What
a chain does not have is null; what is there must be as it should be, as in any other column. Numbers without a bound in
the protocol saturate: at 2^64 - 1, inside of lists at 2^63 - 1, amounts at 10^38 - 1.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.spark.evm.answers import Block, BlockHeader, Receipt, SparseTransaction, Transaction
from tracelake.spark.evm.columns import BadHexError, binary, integers, numbers, words

_HASH, _ADDRESS, _NONCE, _BLOOM = 32, 20, 8, 256
_MOST_IN_LIST, _MOST_AMOUNT = 2**63 - 1, 10**38 - 1
_DECIMAL_TEXT = re.compile(r"[0-9]{1,40}(\.[0-9]{1,40})?")
Values: TypeAlias = Sequence[Any]


class AccessEntry(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    address: str
    storage_keys: list[str] | None = None


class Authorization(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    chain_id: str
    address: str
    nonce: str
    y_parity: str | None = None
    r: str | None = None
    s: str | None = None


class Withdrawal(msgspec.Struct, rename="camel", gc=False, kw_only=True):
    index: str
    validator_index: str
    address: str
    amount: str


_WITHDRAWAL = pa.struct(
    [("index", pa.int64()), ("validator_index", pa.int64()), ("address", pa.binary()), ("amount", pa.int64())]
)
_ACCESS = pa.struct([("address", pa.binary()), ("storage_keys", pa.list_(pa.binary()))])
_AUTHORIZATION = pa.struct(
    [
        ("chain_id", pa.int64()),
        ("address", pa.binary()),
        ("nonce", pa.int64()),
        ("y_parity", pa.int64()),
        ("r", pa.binary()),
        ("s", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class OptionalColumn:
    """Where a column comes from, and how the values of its field become one."""

    field: str
    """Of the answer, in our spelling."""
    type: pa.DataType
    decode: Callable[[str, Values], pa.Array]
    of_receipt: bool = False
    """In the table of transactions: the field is the receipt's."""
    form: Any = str | None
    """What the field holds in JSON."""


def _amounts(name: str, values: Values) -> pa.Array:
    exact = iter(integers(name, [value for value in values if value is not None]))
    capped = [None if value is None else min(next(exact), _MOST_AMOUNT) for value in values]
    return pa.array(capped, pa.decimal128(38, 0))


def _words(name: str, values: Values) -> pa.Array:
    return words(name, values)[0]


def _decimal_texts(name: str, values: Values) -> pa.Array:
    if any(value is not None and not _DECIMAL_TEXT.fullmatch(value) for value in values):
        raise BadHexError(name)
    return pa.array(values, pa.string())


def _flags(_name: str, values: Values) -> pa.Array:
    return pa.array(values, pa.bool_())


def _in_list(name: str, values: Values) -> pa.Array:
    """Spark has no unsigned numbers, and only those of whole columns are told to it as larger ones."""
    exact = numbers(name, values, "uint64", saturate=True)
    return pc.min_element_wise(exact, pa.scalar(_MOST_IN_LIST, pa.uint64()), skip_nulls=False).cast(pa.int64())


def _nested(name: str, values: Values, decode_items: Callable[[str, Values], pa.Array]) -> pa.Array:
    """Lists, some of which may be null, from the items of all of them."""
    items = decode_items(name, [item for value in values if value is not None for item in value])
    ends = np.cumsum([0 if value is None else len(value) for value in values], dtype=np.int64)
    offsets = np.zeros(len(values) + 1, np.int32)
    offsets[1:] = ends
    nulls = np.array([*(value is None for value in values), False], np.bool_)
    return pa.ListArray.from_arrays(pa.array(offsets, mask=nulls), items)


def _access_entries(name: str, entries: Values) -> pa.Array:
    keys = _nested(name, [entry.storage_keys or [] for entry in entries], partial(binary, width=_HASH))
    return _structs(_ACCESS, binary(name, [entry.address for entry in entries], _ADDRESS), keys)


def _authorizations(name: str, entries: Values) -> pa.Array:
    return _structs(
        _AUTHORIZATION,
        _in_list(name, [entry.chain_id for entry in entries]),
        binary(name, [entry.address for entry in entries], _ADDRESS),
        _in_list(name, [entry.nonce for entry in entries]),
        _in_list(name, [entry.y_parity for entry in entries]),
        _words(name, [entry.r for entry in entries]),
        _words(name, [entry.s for entry in entries]),
    )


def _withdrawals(name: str, entries: Values) -> pa.Array:
    return _structs(
        _WITHDRAWAL,
        _in_list(name, [entry.index for entry in entries]),
        _in_list(name, [entry.validator_index for entry in entries]),
        binary(name, [entry.address for entry in entries], _ADDRESS),
        _in_list(name, [entry.amount for entry in entries]),
    )


def _structs(kind: pa.StructType, *columns: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(list(columns), fields=list(kind))


def _bytes(field: str, width: int | None = None, *, of_receipt: bool = False) -> OptionalColumn:
    return OptionalColumn(field, pa.binary(), partial(binary, width=width), of_receipt)


def _number(field: str, *, of_receipt: bool = False, kind: str = "uint64", saturate: bool = True) -> OptionalColumn:
    decode = partial(numbers, kind=kind, saturate=saturate)
    return OptionalColumn(field, pa.type_for_alias(kind), decode, of_receipt)


def _list(field: str, items: pa.DataType, decode: Callable[[str, Values], pa.Array], form: Any) -> OptionalColumn:
    return OptionalColumn(field, pa.list_(items), partial(_nested, decode_items=decode), form=list[form] | None)


OPTIONAL: dict[str, dict[str, OptionalColumn]] = {
    "blocks": {
        "gas_limit": _number("gas_limit"),
        "size": _number("size"),
        "state_root": _bytes("state_root", _HASH),
        "transactions_root": _bytes("transactions_root", _HASH),
        "receipts_root": _bytes("receipts_root", _HASH),
        "uncles_hash": _bytes("sha3_uncles", _HASH),
        "logs_bloom": _bytes("logs_bloom", _BLOOM),
        "difficulty": _number("difficulty"),
        "total_difficulty": OptionalColumn("total_difficulty", pa.decimal128(38, 0), _amounts),
        "mix_hash": _bytes("mix_hash", _HASH),
        "nonce": _bytes("nonce", _NONCE),
        "blob_gas_used": _number("blob_gas_used"),
        "excess_blob_gas": _number("excess_blob_gas"),
        "parent_beacon_block_root": _bytes("parent_beacon_block_root", _HASH),
        "requests_hash": _bytes("requests_hash", _HASH),
        "withdrawals_root": _bytes("withdrawals_root", _HASH),
        "withdrawals": _list("withdrawals", _WITHDRAWAL, _withdrawals, Withdrawal),
        "l1_block_number": _number("l1_block_number", kind="uint32"),
        "l1_batch_number": _number("l1_batch_number"),
    },
    "transactions": {
        "contract_address": _bytes("contract_address", _ADDRESS, of_receipt=True),
        "cumulative_gas_used": _number("cumulative_gas_used", of_receipt=True),
        "effective_gas_price": _number("effective_gas_price", of_receipt=True),
        "v": _number("v"),
        "r": OptionalColumn("r", pa.binary(), _words),
        "s": OptionalColumn("s", pa.binary(), _words),
        "access_list": _list("access_list", _ACCESS, _access_entries, AccessEntry),
        "max_fee_per_blob_gas": _number("max_fee_per_blob_gas"),
        "blob_versioned_hashes": _list("blob_versioned_hashes", pa.binary(), partial(binary, width=_HASH), str),
        "blob_gas_used": _number("blob_gas_used", of_receipt=True),
        "blob_gas_price": _number("blob_gas_price", of_receipt=True),
        "authorization_list": _list("authorization_list", _AUTHORIZATION, _authorizations, Authorization),
        "l1_fee": OptionalColumn("l1_fee", pa.decimal128(38, 0), _amounts, of_receipt=True),
        "l1_gas_used": _number("l1_gas_used", of_receipt=True),
        "l1_gas_price": _number("l1_gas_price", of_receipt=True),
        "l1_fee_scalar": OptionalColumn("l1_fee_scalar", pa.string(), _decimal_texts, of_receipt=True),
        "l1_base_fee_scalar": _number("l1_base_fee_scalar", of_receipt=True),
        "l1_blob_base_fee": _number("l1_blob_base_fee", of_receipt=True),
        "l1_blob_base_fee_scalar": _number("l1_blob_base_fee_scalar", of_receipt=True),
        "operator_fee_scalar": _number("operator_fee_scalar", of_receipt=True),
        "operator_fee_constant": _number("operator_fee_constant", of_receipt=True),
        "source_hash": _bytes("source_hash", _HASH),
        "mint": OptionalColumn("mint", pa.decimal128(38, 0), _amounts),
        "is_system_tx": OptionalColumn("is_system_tx", pa.bool_(), _flags, form=bool | None),
        "deposit_nonce": _number("deposit_nonce", of_receipt=True),
        "gas_used_for_l1": _number("gas_used_for_l1", of_receipt=True),
        "l1_block_number": _number("l1_block_number", of_receipt=True, kind="uint32"),
        "l1_batch_number": _number("l1_batch_number"),
        "l1_batch_tx_index": _number("l1_batch_tx_index"),
    },
    "logs": {},
    "traces": {},
}
"""By table and column. Columns that are copies of others (`COPIED`) have no field of their own."""
_FORMS = {column.field: column.form for columns in OPTIONAL.values() for column in columns.values()}
COPIED: dict[str, dict[str, pa.DataType]] = {
    "blocks": {},
    "transactions": {"block_hash": pa.binary(), "timestamp": pa.uint32()},
    "logs": {"block_hash": pa.binary(), "timestamp": pa.uint32(), "n_data_bytes": pa.uint32()},
    "traces": {"block_hash": pa.binary(), "timestamp": pa.uint32()},
}


def optional_type(table: str, column: str) -> pa.DataType:
    copied = COPIED[table].get(column)
    return OPTIONAL[table][column].type if copied is None else copied


class ChosenFields(NamedTuple):
    """Fields of answers that chosen columns need, besides those that are always read."""

    block: tuple[str, ...] = ()
    transaction: tuple[str, ...] = ()
    receipt: tuple[str, ...] = ()


class AnswerTypes(NamedTuple):
    block: type[Block]
    header: type[BlockHeader]
    receipt: type[Receipt]


def chosen_fields(blocks: Iterable[str], transactions: Iterable[str]) -> ChosenFields:
    """`blocks`, `transactions`: names of optional columns of these tables."""
    of_block = [OPTIONAL["blocks"][name] for name in blocks if name in OPTIONAL["blocks"]]
    others = [OPTIONAL["transactions"][name] for name in transactions if name in OPTIONAL["transactions"]]
    return ChosenFields(
        tuple(column.field for column in of_block),
        tuple(column.field for column in others if not column.of_receipt),
        tuple(column.field for column in others if column.of_receipt),
    )


@lru_cache(maxsize=64)
def answer_types(fields: ChosenFields, *, null_fields: bool = False) -> AnswerTypes:
    """The types of answers with the chosen fields. `null_fields`: transactions may lack some that are usual."""
    if fields == ChosenFields() and not null_fields:
        return AnswerTypes(Block, BlockHeader, Receipt)
    base = SparseTransaction if null_fields else Transaction
    transaction = widen_type(base, fields.transaction)
    block = widen_type(Block, fields.block, ("transactions", list[transaction]))  # type: ignore[valid-type]
    return AnswerTypes(block, widen_type(BlockHeader, fields.block), widen_type(Receipt, fields.receipt))


def widen_type(base: Any, names: Sequence[str], *fields: tuple[str, Any]) -> Any:
    """The type with these fields of optional columns, as far as it lacks them. `fields`: others, with their types."""
    own = {field.name for field in msgspec.structs.fields(base)}
    added = [(name, _FORMS[name], None) for name in names if name not in own]
    return msgspec.defstruct(
        f"Wide{base.__name__}", [*fields, *added], bases=(base,), rename="camel", gc=False, kw_only=True
    )


def decode_optional(table: str, column: str, values: Values) -> pa.Array:
    """A column from the values of its field."""
    return OPTIONAL[table][column].decode(column, values)

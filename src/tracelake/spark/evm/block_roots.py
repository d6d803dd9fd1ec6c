"""The hash of a block and the roots of what is in it, computed from what a node said. All hashes are digits.

A value is encoded as the node wrote it. What cannot be encoded raises ValueError, with words for an error.
"""

from collections.abc import Sequence
from typing import Any

from tracelake.spark.evm.answers import Log
from tracelake.spark.evm.optional_columns import AccessEntry, Authorization, Withdrawal
from tracelake.spark.evm.ordered_trie import ordered_root
from tracelake.spark.evm.rlp import EMPTY_STRING, encode_data, encode_list, encode_quantity, hash_text
from tracelake.spark.evm.verified_answers import VerifiedReceipt, VerifiedTransaction

LEGACY, ACCESS_LIST, DYNAMIC_FEE, BLOB, SET_CODE = range(5)
"""Types of transactions."""
_HEADER = (
    ("parent_hash", encode_data),
    ("sha3_uncles", encode_data),
    ("miner", encode_data),
    ("state_root", encode_data),
    ("transactions_root", encode_data),
    ("receipts_root", encode_data),
    ("logs_bloom", encode_data),
    ("difficulty", encode_quantity),
    ("number", encode_quantity),
    ("gas_limit", encode_quantity),
    ("gas_used", encode_quantity),
    ("timestamp", encode_quantity),
    ("extra_data", encode_data),
    ("mix_hash", encode_data),
    ("nonce", encode_data),
)
_LATER_HEADER = (
    ("base_fee_per_gas", encode_quantity),
    ("withdrawals_root", encode_data),
    ("blob_gas_used", encode_quantity),
    ("excess_blob_gas", encode_quantity),
    ("parent_beacon_block_root", encode_data),
    ("requests_hash", encode_data),
)
"""What London, Shanghai, Cancun and Prague added, in this order. A block has those up to its own fork."""
_TOPIC_LETTERS = 66


def header_hash(block: Any) -> str:
    """`block`: with the fields of `HEADER_DATA`."""
    items = [encode(getattr(block, name)) for name, encode in _HEADER]
    later = [(getattr(block, name), encode) for name, encode in _LATER_HEADER]
    while later and later[-1][0] is None:
        later.pop()
    return hash_text(encode_list("".join([*items, *(encode(value) for value, encode in later)])))


def encode_transaction(row: VerifiedTransaction) -> str:
    """As it is hashed: to its own hash, and in the tree of the block."""
    kind = kind_of(row)
    to = EMPTY_STRING if row.to is None else encode_data(row.to)
    what = encode_quantity(row.gas) + to + encode_quantity(row.value) + encode_data(row.input)
    signature = encode_quantity(row.r) + encode_quantity(row.s)
    if kind == LEGACY:
        fields = encode_quantity(row.nonce) + encode_quantity(row.gas_price) + what
        return encode_list(fields + encode_quantity(row.v) + signature)
    fields = encode_quantity(row.chain_id) + encode_quantity(row.nonce)
    if kind == ACCESS_LIST:
        fields += encode_quantity(row.gas_price)
    else:
        fields += encode_quantity(row.max_priority_fee_per_gas) + encode_quantity(row.max_fee_per_gas)
    fields += what + encode_list("".join(map(_access_entry, row.access_list or ())))
    if kind == BLOB:
        blobs = "".join(map(encode_data, row.blob_versioned_hashes or ()))
        fields += encode_quantity(row.max_fee_per_blob_gas) + encode_list(blobs)
    if kind == SET_CODE:
        fields += encode_list("".join(map(_authorization, row.authorization_list or ())))
    parity = encode_quantity(row.y_parity if row.v is None else row.v)
    return f"{kind:02x}{encode_list(fields + parity + signature)}"


def kind_of(row: VerifiedTransaction) -> int:
    kind = LEGACY if row.type is None else int(row.type, 16)
    if not LEGACY <= kind <= SET_CODE:
        raise ValueError(f"a transaction has type {kind:#x}, which is none of Ethereum")
    return kind


def encode_receipt(receipt: VerifiedReceipt, kind: int) -> str:
    """`kind`: the type of its transaction."""
    outcome = encode_quantity(receipt.status) if receipt.root in (None, "0x") else _state_root(receipt)
    logs = encode_list("".join(map(_log, receipt.logs)))
    fields = outcome + encode_quantity(receipt.cumulative_gas_used) + encode_data(receipt.logs_bloom) + logs
    return (f"{kind:02x}" if kind else "") + encode_list(fields)


def receipts_root(receipts: Sequence[VerifiedReceipt], kinds: Sequence[int]) -> str:
    """`kinds`: the types of the transactions."""
    return ordered_root([encode_receipt(receipt, kind) for receipt, kind in zip(receipts, kinds, strict=True)])


def withdrawals_root(withdrawals: Sequence[Withdrawal]) -> str:
    return ordered_root([_withdrawal(one) for one in withdrawals])


def _state_root(receipt: VerifiedReceipt) -> str:
    """Before Byzantium; a status would be what no hash covers."""
    if receipt.status is not None:
        raise ValueError("a receipt has a state root and a status")
    return encode_data(receipt.root)


def _log(log: Log) -> str:
    """Topics are of one length, so they are encoded together."""
    topics = "".join(log.topics).replace("0x", "a0")
    if len(topics) != _TOPIC_LETTERS * len(log.topics):
        raise ValueError("a topic has not 32 bytes")
    return encode_list(encode_data(log.address) + encode_list(topics) + encode_data(log.data))


def _access_entry(entry: AccessEntry) -> str:
    keys = "".join(map(encode_data, entry.storage_keys or ()))
    return encode_list(encode_data(entry.address) + encode_list(keys))


def _authorization(entry: Authorization) -> str:
    signature = encode_quantity(entry.y_parity) + encode_quantity(entry.r) + encode_quantity(entry.s)
    what = encode_quantity(entry.chain_id) + encode_data(entry.address) + encode_quantity(entry.nonce)
    return encode_list(what + signature)


def _withdrawal(entry: Withdrawal) -> str:
    place = encode_quantity(entry.index) + encode_quantity(entry.validator_index)
    return encode_list(place + encode_data(entry.address) + encode_quantity(entry.amount))

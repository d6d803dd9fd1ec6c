"""The root of the tree that a block has of its transactions, of its receipts, and of its withdrawals.

It is a Merkle Patricia tree from the RLP of a place (0, 1, ...) to a value. No key begins with another one, so no
branch has a value of its own.
"""

from collections.abc import Sequence
from itertools import groupby

from tracelake.spark.evm.rlp import EMPTY_STRING, encode_list, encode_quantity, encode_string, hash_text

EMPTY_ROOT = hash_text(EMPTY_STRING)
_HASH_DIGITS = 64
Entry = tuple[str, str]
"""The digits of a key, and a value."""


def ordered_root(values: Sequence[str]) -> str:
    """All in hex digits."""
    if not values:
        return EMPTY_ROOT
    return hash_text(_node(sorted((encode_quantity(hex(place)), value) for place, value in enumerate(values)), 0))


def _node(entries: Sequence[Entry], depth: int) -> str:
    """Of entries in order, that have the digits of their keys up to this depth in common."""
    first = entries[0][0]
    if len(entries) == 1:
        return encode_list(encode_string(_path(first[depth:], "2", "3")) + encode_string(entries[0][1]))
    last, fork = entries[-1][0], depth
    while first[fork] == last[fork]:
        fork += 1
    if fork > depth:
        return encode_list(encode_string(_path(first[depth:fork], "0", "1")) + _reference(_node(entries, fork)))
    items = [EMPTY_STRING] * 17
    for digit, children in groupby(entries, lambda entry: entry[0][depth]):
        items[int(digit, 16)] = _reference(_node(list(children), depth + 1))
    return encode_list("".join(items))


def _reference(node: str) -> str:
    """A node that is shorter than a hash stands for itself."""
    return node if len(node) < _HASH_DIGITS else encode_string(hash_text(node))


def _path(digits: str, even: str, odd: str) -> str:
    """Whole bytes, which begin with the kind of the node."""
    return odd + digits if len(digits) & 1 else f"{even}0{digits}"

"""The little of the contract ABI that the recorder's own contracts need: words, byte strings and lists of both."""

from collections.abc import Sequence

Value = int | bool | str | bytes | Sequence["Value"]
"""An integer, a flag, an address ("0x..."), a byte string, or a list of values of one kind."""


def _word(value: int) -> bytes:
    return value.to_bytes(32, "big")


def _one(value: Value) -> tuple[bytes, bool]:
    """The value's bytes, and whether the head holds only their place."""
    if isinstance(value, int):
        return _word(int(value)), False
    if isinstance(value, str):
        return bytes.fromhex(value[2:]).rjust(32, b"\0"), False
    if isinstance(value, bytes):
        return _word(len(value)) + value + bytes(-len(value) % 32), True
    return _word(len(value)) + encode(*value), True


def encode(*values: Value) -> bytes:
    heads, tails = b"", b""
    for value in values:
        encoded, dynamic = _one(value)
        if dynamic:
            heads += _word(32 * len(values) + len(tails))
            tails += encoded
        else:
            heads += encoded
    return heads + tails

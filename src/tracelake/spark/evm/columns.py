"""Columns from the hex text of JSON-RPC, decoded all values at once.

Every value is checked, though none is looked at by itself: a text that is not exactly what a node may say raises
`BadHexError`, and a number that its column cannot hold `ValueTooLargeError`.
"""

import binascii
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracelake.spark.evm.errors import ValueTooLargeError

_DIGITS = b"0123456789abcdefABCDEF"
_ZERO, _X = ord("0"), ord("x")
_MOST = {"uint32": 2**32 - 1, "uint64": 2**64 - 1}
WORD_BYTES = 32


class BadHexError(ValueError):
    """A value of this column is not hex as it should be."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a value of {name} is not as it should be")


def binary(name: str, values: Sequence[str | None], width: int | None = None) -> pa.Array:
    """0x and an even number of digits each; with a width, of so many bytes. None stays null."""
    valid = None
    present: Sequence[str | None] = values
    if None in values:
        valid = np.fromiter((value is not None for value in values), np.bool_, len(values))
        present = [value for value in values if value is not None]
    sizes, decoded = _decode(name, present)
    if width is not None and (sizes != width).any():
        raise BadHexError(name)
    if valid is not None:
        spread = np.zeros(len(values), np.int64)
        spread[valid] = sizes
        sizes = spread
    return _binary_array(name, sizes, decoded, valid)


def _decode(name: str, values: Sequence[str | None]) -> tuple[npt.NDArray[np.int64], bytes]:
    """How many bytes each has, and the bytes of all of them."""
    count = len(values)
    lengths = np.fromiter(map(len, values), np.int64, count)  # type: ignore[arg-type]
    joined = "".join(values)  # type: ignore[arg-type]
    if not count:
        return lengths, b""
    if not joined.isascii() or (lengths < 2).any() or (lengths % 2).any():
        raise BadHexError(name)
    starts = np.cumsum(lengths) - lengths
    letters = np.frombuffer(bytearray(joined, "ascii"), np.uint8)
    if (letters[starts] != _ZERO).any() or (letters[starts + 1] != _X).any():
        raise BadHexError(name)
    # With its x made a 0 each prefix is a byte as well, which is taken out afterwards; any other x is no digit.
    letters[starts + 1] = _ZERO
    try:
        decoded = np.frombuffer(binascii.unhexlify(letters.data), np.uint8)
    except binascii.Error:
        raise BadHexError(name) from None
    width = int(lengths[0]) // 2
    if (lengths == lengths[0]).all():
        return lengths // 2 - 1, decoded.reshape(count, width)[:, 1:].tobytes()
    keep = np.ones(len(decoded), np.bool_)
    keep[starts // 2] = False
    return lengths // 2 - 1, decoded[keep].tobytes()


def _binary_array(
    name: str, sizes: npt.NDArray[np.int64], content: bytes, valid: npt.NDArray[np.bool_] | None
) -> pa.Array:
    if len(content) >= 2**31:
        raise ValueTooLargeError(f"the values of {name} have more than 2 GiB together: ask for fewer blocks at once")
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [bits, pa.py_buffer(offsets), pa.py_buffer(content)])


def numbers(name: str, values: Sequence[str | None], kind: str) -> pa.Array:
    """0x and at least one digit each. None stays null."""
    mask = None
    if None in values:
        mask = np.fromiter((value is None for value in values), np.bool_, len(values))
        values = ["0x0" if value is None else value for value in values]
    found = integers(name, values)
    if found and max(found) > _MOST[kind]:
        raise ValueTooLargeError(f"a value of {name} is {max(found)}, and its column holds {_MOST[kind]} at most")
    return pa.array(np.array(found, kind), mask=mask)


def integers(name: str, values: Sequence[str | None]) -> list[int]:
    try:
        found = [int(value, 16) for value in values]  # type: ignore[arg-type]
        joined = "".join(values).encode("ascii")  # type: ignore[arg-type]
    except ValueError:
        raise BadHexError(name) from None
    # `int` takes signs, spaces, underscores and bare digits too: nothing but digits and one x for each may be there.
    if joined.translate(None, _DIGITS) != b"x" * len(found):
        raise BadHexError(name)
    return found


def words(name: str, values: Sequence[str], found: Sequence[int]) -> pa.Array:
    """Numbers as 32 bytes each, the highest first. `found`: the same, as `integers` gave them."""
    if found and max(found).bit_length() > 8 * WORD_BYTES:
        raise ValueTooLargeError(f"a value of {name} has more than {8 * WORD_BYTES} bits")
    content = b"".join([number.to_bytes(WORD_BYTES, "big") for number in found])
    return _binary_array(name, np.full(len(values), WORD_BYTES, np.int64), content, None)


def zeros_in(values: pa.Array) -> npt.NDArray[np.uint32]:
    """How many bytes of each are zero."""
    _, raw_offsets, content = values.buffers()
    offsets = np.frombuffer(raw_offsets, np.int32, len(values) + 1)
    counted = np.zeros(int(offsets[-1]) + 1, np.uint32)
    if content is not None:
        np.cumsum(np.frombuffer(content, np.uint8, int(offsets[-1])) == 0, out=counted[1:], dtype=np.uint32)
    totals: npt.NDArray[np.uint32] = counted[offsets[1:]] - counted[offsets[:-1]]
    return totals


def lists(name: str, values: Sequence[Sequence[str]], places: int, width: int) -> list[pa.Array]:
    """The first, second, ... item of each list as a column of its own; null where a list is shorter."""
    counts = np.fromiter(map(len, values), np.int64, len(values))
    sizes, content = _decode(name, [item for items in values for item in items])
    if (sizes != width).any():
        raise BadHexError(name)
    items = np.frombuffer(content, np.uint8).reshape(-1, width)
    starts = np.cumsum(counts) - counts
    columns = []
    for place in range(places):
        there = counts > place
        chosen = items[starts[there] + place].tobytes()
        columns.append(_binary_array(name, np.where(there, width, 0), chosen, None if there.all() else there))
    return columns

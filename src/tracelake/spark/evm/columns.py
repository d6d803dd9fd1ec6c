"""Columns from the hex text of JSON-RPC, decoded all values at once.

Every value is checked, though none is looked at by itself: a text that is not exactly what a node may say raises
`BadHexError`, and a number that its column cannot hold `ValueTooLargeError`, unless the column saturates.
"""

import binascii
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tracelake.spark.evm.errors import ValueTooLargeError

_DIGITS = b"0123456789abcdefABCDEF"
_ZERO, _X = ord("0"), ord("x")
_MOST = {"uint32": 2**32 - 1, "uint64": 2**64 - 1}
_LONGEST = 18
"""Letters of a number of 64 bits."""
_MANY = 256
"""From so many on it is worth while to parse them together."""
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
        valid = np.fromiter([value is not None for value in values], np.bool_, len(values))
        present = [value for value in values if value is not None]
    if width is not None:
        content: bytes = _decode_fixed(name, present, width).tobytes()
        sizes = np.full(len(present), width, np.int64)
    else:
        sizes, content = _decode(name, present)
    if valid is not None:
        spread = np.zeros(len(values), np.int64)
        spread[valid] = sizes
        sizes = spread
    return _binary_array(name, sizes, content, valid)


def _decode_fixed(name: str, values: Sequence[str | None], width: int) -> npt.NDArray[np.uint8]:
    """The bytes of values that must all have so many, a row for each."""
    if not values:
        return np.empty((0, width), np.uint8)
    letters = 2 + 2 * width
    if set(map(len, values)) != {letters}:  # type: ignore[arg-type]
        raise BadHexError(name)
    try:
        joined = "".join(values).encode("ascii")  # type: ignore[arg-type]
        text = np.frombuffer(joined, np.uint8).reshape(-1, letters)
        if (text[:, 0] != _ZERO).any() or (text[:, 1] != _X).any():
            raise BadHexError(name)
        return np.frombuffer(binascii.unhexlify(text[:, 2:].tobytes()), np.uint8).reshape(-1, width)
    except (UnicodeEncodeError, binascii.Error):
        raise BadHexError(name) from None


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


def numbers(name: str, values: Sequence[str | None], kind: str, *, saturate: bool = False) -> pa.Array:
    """0x and at least one digit each. None stays null.

    `saturate`: a larger number than the column holds becomes the largest that it does hold.
    """
    mask = None
    if None in values:
        mask = np.fromiter([value is None for value in values], np.bool_, len(values))
        values = ["0x0" if value is None else value for value in values]
    parsed = _parse(name, values) if len(values) >= _MANY else None  # type: ignore[arg-type]
    if parsed is None or int(parsed.max()) > _MOST[kind]:
        exact = integers(name, values)
        if saturate:
            exact = [min(value, _MOST[kind]) for value in exact]
        elif exact and max(exact) > _MOST[kind]:
            raise ValueTooLargeError(f"a value of {name} is {max(exact)}, and its column holds {_MOST[kind]} at most")
        parsed = np.array(exact, np.uint64)
    return pa.array(parsed.astype(kind), mask=mask)


def _parse(name: str, values: Sequence[str]) -> npt.NDArray[np.uint64] | None:
    """All at once; None if one has more digits than 64 bits can have, were they not zeros."""
    count = len(values)
    lengths = np.fromiter(map(len, values), np.int64, count)
    if lengths.max() > _LONGEST:
        return None
    if lengths.min() <= 2:
        raise BadHexError(name)
    joined = "".join(values)
    if not joined.isascii():
        raise BadHexError(name)
    raw = joined.encode()
    starts = np.cumsum(lengths) - lengths
    letters = np.frombuffer(raw, np.uint8)
    if (letters[starts] != _ZERO).any() or (letters[starts + 1] != _X).any() or raw.count(b"x") != count:
        raise BadHexError(name)
    filled = "".join([value.rjust(_LONGEST, "0") for value in values]).replace("x", "0")
    try:
        decoded = np.frombuffer(binascii.unhexlify(filled), np.uint8)
    except binascii.Error:
        raise BadHexError(name) from None
    parsed: npt.NDArray[np.uint64] = (
        decoded.reshape(count, -1)[:, 1:].copy().view(">u8").reshape(count).astype(np.uint64)
    )
    return parsed


def integers(name: str, values: Sequence[str | None]) -> list[int]:
    """One by one, of any size."""
    try:
        parsed = [int(value, 16) for value in values]  # type: ignore[arg-type]
        joined = "".join(values).encode("ascii")  # type: ignore[arg-type]
    except ValueError:
        raise BadHexError(name) from None
    # `int` takes signs, spaces, underscores and bare digits too: nothing but digits and one x for each may be there.
    if joined.translate(None, _DIGITS) != b"x" * len(parsed):
        raise BadHexError(name)
    return parsed


def words(name: str, values: Sequence[int]) -> pa.Array:
    """Numbers as 32 bytes each, the highest first."""
    if values and max(values).bit_length() > 8 * WORD_BYTES:
        raise ValueTooLargeError(f"a value of {name} has more than {8 * WORD_BYTES} bits")
    content = b"".join([number.to_bytes(WORD_BYTES, "big") for number in values])
    return _binary_array(name, np.full(len(values), WORD_BYTES, np.int64), content, None)


def zeros_in(values: pa.Array) -> npt.NDArray[np.uint32]:
    """How many bytes of each are zero."""
    _, raw_offsets, content = values.buffers()
    offsets = np.frombuffer(raw_offsets, np.int32, len(values) + 1)
    sums = np.zeros(int(offsets[-1]) + 1, np.uint32)
    if content is not None:
        np.cumsum(np.frombuffer(content, np.uint8, int(offsets[-1])) == 0, out=sums[1:], dtype=np.uint32)
    totals: npt.NDArray[np.uint32] = sums[offsets[1:]] - sums[offsets[:-1]]
    return totals


def lists(name: str, values: Sequence[Sequence[str]], places: int, width: int) -> list[pa.Array]:
    """The first, second, ... item of each list as a column of its own; null where a list is shorter."""
    counts = np.fromiter(map(len, values), np.int64, len(values))
    different, which = distinct(list(chain.from_iterable(values)))
    items = _decode_fixed(name, different, width)
    starts = np.cumsum(counts) - counts
    columns = []
    for place in range(places):
        present = counts > place
        data = items[which[starts[present] + place]].tobytes()
        columns.append(_binary_array(name, np.where(present, width, 0), data, None if present.all() else present))
    return columns


def distinct(values: Sequence[str]) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Each text once, and which of them stands at each place: for what is decoded dearly and says the same often."""
    unique = list(dict.fromkeys(values))
    place_of = {value: place for place, value in enumerate(unique)}
    return unique, np.fromiter(map(place_of.__getitem__, values), np.int64, len(values))

"""Columns from the hex text of JSON-RPC, decoded all values at once.

Every value is checked, though none is looked at by itself: a text that is not exactly what a node may say raises
`BadHexError`, and a number that its column cannot hold `ValueTooLargeError`, unless the column saturates.
"""

import binascii
from collections.abc import Sequence
from itertools import repeat

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.spark.evm.errors import ValueTooLargeError
from tracelake.spark.evm.texts import END, Flags, Texts

_DIGITS = b"0123456789abcdefABCDEF"
_ZERO, _X, _END = ord("0"), ord("x"), ord("\n")
_MOST = {"uint32": 2**32 - 1, "uint64": 2**64 - 1}
_NUMBER_BYTES = 8
WORD_BYTES = 32
_ZEROS = b"0" * 2 * WORD_BYTES
_PREFIX_LETTERS = 2
Letters = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]


def _masks(width: int) -> Letters:
    """Of numbers with so many bytes, a row for each count of digits: the bits that they have."""
    rows = [((1 << 4 * digits) - 1).to_bytes(width, "big") for digits in range(2 * width + 1)]
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, width)


_MASKS = {width: _masks(width) for width in (_NUMBER_BYTES, WORD_BYTES)}


class BadHexError(ValueError):
    """A value of this column is not hex as it should be."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a value of {name} is not as it should be")


def binary(name: str, values: Sequence[str | None] | Texts, width: int | None = None) -> pa.Array:
    """0x and an even number of digits each; with a width, of so many bytes. None stays null."""
    texts = _texts(values)
    if width is None:
        return _binary_of_any_length(name, texts)
    content = fixed(name, texts, width).tobytes()
    if texts.nulls is None:
        return _binary_array(name, np.full(texts.count, width, np.int64), content, None)
    return _binary_array(name, np.where(texts.nulls, 0, width), content, ~texts.nulls)


def fixed(name: str, texts: Texts, width: int) -> npt.NDArray[np.uint8]:
    """The bytes of values that must all have so many, a row for each; nulls have none."""
    letters = _PREFIX_LETTERS + 2 * width
    raw = b"".join(texts.parts)
    if len(raw) != texts.count * (letters + len(END)):
        raise BadHexError(name)
    text = np.frombuffer(raw, np.uint8).reshape(-1, letters + len(END))
    if (text[:, 0] != _ZERO).any() or (text[:, 1] != _X).any() or (text[:, letters] != _END).any():
        raise BadHexError(name)
    return np.frombuffer(_unhexed(name, text[:, _PREFIX_LETTERS:letters].tobytes()), np.uint8).reshape(-1, width)


def _binary_of_any_length(name: str, texts: Texts) -> pa.Array:
    letters, starts, lengths = _lines(name, texts)
    if (lengths % 2).any():
        raise BadHexError(name)
    # What is between two values is bytes as well, which nobody wants.
    content = _unhexed(name, letters.data)
    if len(content) >= 2**31:
        raise ValueTooLargeError(f"the values of {name} have more than 2 GiB together: ask for fewer blocks at once")
    offsets = np.zeros(2 * texts.count + 1, np.int32)
    offsets[1::2] = starts // 2 + 1
    offsets[2::2] = (starts + lengths) // 2
    pairs = pa.Array.from_buffers(pa.binary(), 2 * texts.count, [None, pa.py_buffer(offsets), pa.py_buffer(content)])
    places = np.arange(1, 2 * texts.count, 2)
    if texts.nulls is None:
        return pairs.take(pa.array(places))
    spread = np.zeros(len(texts), np.int64)
    spread[~texts.nulls] = places
    return pairs.take(pa.array(spread, mask=texts.nulls))


def _texts(values: Sequence[str | None] | Texts) -> Texts:
    return values if isinstance(values, Texts) else Texts.of(values)


def _unhexed(name: str, digits: bytes | memoryview) -> bytes:
    try:
        return binascii.unhexlify(digits)
    except binascii.Error:
        raise BadHexError(name) from None


def _lines(name: str, texts: Texts, margin: int = 0) -> tuple[Letters, Places, Places]:
    """The letters, where each value starts, and how many it has. Each begins with 0x. Of the prefixes and ends only
    zeros are left, so that whatever else is no digit is wrong. `margin`: so many more zeros before the first."""
    letters = np.frombuffer(bytearray().join([_ZEROS[:margin], *texts.parts]), np.uint8)
    ends = np.flatnonzero(letters == _END)
    if len(ends) != texts.count:
        raise BadHexError(name)
    starts = np.empty(texts.count, np.int64)
    starts[:1] = margin
    starts[1:] = ends[:-1] + len(END)
    lengths = ends - starts
    if (lengths < _PREFIX_LETTERS).any() or (letters[starts] != _ZERO).any() or (letters[starts + 1] != _X).any():
        raise BadHexError(name)
    letters[ends] = _ZERO
    letters[starts + 1] = _ZERO
    return letters, starts, lengths


def _binary_array(name: str, sizes: npt.NDArray[np.int64], content: bytes, valid: Flags | None) -> pa.Array:
    if len(content) >= 2**31:
        raise ValueTooLargeError(f"the values of {name} have more than 2 GiB together: ask for fewer blocks at once")
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [bits, pa.py_buffer(offsets), pa.py_buffer(content)])


def numbers(name: str, values: Sequence[str | None] | Texts, kind: str, *, saturate: bool = False) -> pa.Array:
    """0x and at least one digit each. None stays null.

    `saturate`: a larger number than the column holds becomes the largest that it does hold.
    """
    texts = _texts(values)
    parsed = _parse(name, texts, _NUMBER_BYTES)
    numerals = None if parsed is None else parsed.view(">u8").reshape(-1).astype(np.uint64)
    if numerals is None or (len(numerals) and int(numerals.max()) > _MOST[kind]):
        exact = integers(name, [text for text in texts.to_list() if text is not None])
        if saturate:
            exact = [min(value, _MOST[kind]) for value in exact]
        elif max(exact) > _MOST[kind]:
            raise ValueTooLargeError(f"a value of {name} is {max(exact)}, and its column holds {_MOST[kind]} at most")
        numerals = np.array(exact, np.uint64)
    if texts.nulls is None:
        return pa.array(numerals.astype(kind))
    spread = np.zeros(len(texts), kind)
    spread[~texts.nulls] = numerals
    return pa.array(spread, mask=texts.nulls)


def _parse(name: str, texts: Texts, width: int) -> Letters | None:
    """Numbers as so many bytes each, the highest first; None if one has more digits than fit, were they not zeros."""
    if not texts.count:
        return np.empty((0, width), np.uint8)
    letters, starts, lengths = _lines(name, texts, 2 * width)
    digits = lengths - _PREFIX_LETTERS
    if int(digits.min()) < 1:
        raise BadHexError(name)
    longest = int(digits.max())
    if longest > 2 * width:
        return None
    # Windows that end where the numbers end; what is before a number in its window is masked.
    items = np.ndarray((len(letters) - 2 * width + 1,), np.dtype((np.void, 2 * width)), letters.data, strides=(1,))
    windows = items[starts + lengths - 2 * width]
    parsed = np.frombuffer(bytearray(_unhexed(name, windows.data)), np.uint8).reshape(-1, width)
    parsed &= _MASKS[width][digits]
    return parsed


def words(name: str, values: Sequence[str | None] | Texts) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Numbers as 32 bytes each, the highest first; as decimal text; and as floats, the nearest that there are."""
    texts = _texts(values)
    if texts.nulls is not None:
        is_null = texts.nulls
        places = pa.array(np.cumsum(~is_null) - 1, mask=is_null)
        exact, decimals, floats = words(name, Texts(texts.parts, texts.count))
        return exact.take(places), decimals.take(places), floats.take(places)
    parsed = _parse(name, texts, WORD_BYTES)
    if parsed is None:
        exact = integers(name, texts.to_list())
        if max(exact).bit_length() > 8 * WORD_BYTES:
            raise ValueTooLargeError(f"a value of {name} has more than {8 * WORD_BYTES} bits")
        content = b"".join([number.to_bytes(WORD_BYTES, "big") for number in exact])
        parsed = np.frombuffer(content, np.uint8).reshape(-1, WORD_BYTES)
    low = parsed[:, -_NUMBER_BYTES:].copy().view(">u8").reshape(-1).astype(np.uint64)
    decimals, floats = pa.array(low).cast(pa.string()), low.astype(np.float64)
    is_large = parsed[:, :-_NUMBER_BYTES].any(axis=1)
    if is_large.any():
        exact = [int.from_bytes(word.tobytes(), "big") for word in parsed[is_large]]
        floats[is_large] = list(map(float, exact))
        decimals = pc.replace_with_mask(decimals, pa.array(is_large), pa.array(list(map(str, exact)), pa.string()))
    sizes = np.full(texts.count, WORD_BYTES, np.int64)
    return _binary_array(name, sizes, parsed.tobytes(), None), decimals, pa.array(floats)


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


def zeros_in(values: pa.Array) -> npt.NDArray[np.uint32]:
    """How many bytes of each are zero."""
    _, raw_offsets, content = values.buffers()
    offsets = np.frombuffer(raw_offsets, np.int32, len(values) + 1).tolist()
    raw = b"" if content is None else content.to_pybytes()
    return np.fromiter(map(raw.count, repeat(0), offsets, offsets[1:]), np.uint32, len(values))


def spread_lists(name: str, items: Texts, counts: Places, places: int, width: int) -> list[pa.Array]:
    """The first, second, ... item of each list as a column of its own; null where a list is shorter. `items`: of all
    lists together; `counts`: how many each has."""
    decoded = fixed(name, items, width).view(np.dtype((np.void, width))).reshape(-1)
    starts = np.cumsum(counts) - counts
    columns = []
    for place in range(places):
        present = counts > place
        content = decoded[starts[present] + place].tobytes()
        columns.append(_binary_array(name, np.where(present, width, 0), content, None if present.all() else present))
    return columns

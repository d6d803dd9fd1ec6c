"""Words of 32 bytes, many at once: n of them are an (n, 32) array of bytes, and nothing here looks at single rows."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracelake.catalogue.abi import Plain

Words: TypeAlias = npt.NDArray[np.uint8]
Flags: TypeAlias = npt.NDArray[np.bool_]
WORD = 32
_BILLION = np.uint64(10**9)


def lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    """Bytes of each value; -1 where there is none."""
    counts: npt.NDArray[np.int64] = pc.fill_null(pc.binary_length(column).cast(pa.int64()), -1).to_numpy()
    return counts


def fixed_bytes(column: pa.Array, size: int) -> Words:
    """The values of a binary column as (n, size) bytes. All of them have that size, and none is missing."""
    count = len(column)
    if not count or not size:
        return np.zeros((count, size), np.uint8)
    wide = pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    first = np.frombuffer(offsets, np.int64 if wide else np.int32, 1, offset=column.offset * (8 if wide else 4))[0]
    return np.frombuffer(data, np.uint8, count * size, offset=int(first)).reshape(count, size)


def binary_column(values: Words) -> pa.Array:
    count, size = values.shape
    offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32) if size else np.zeros(count + 1, np.int32)
    data = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _some_nonzero(values: Words) -> Flags:
    """Per row: is any byte not zero. Columns are folded one by one, which numpy does faster than rows."""
    folded = np.zeros(len(values), np.uint8)
    for column in range(values.shape[1]):
        np.bitwise_or(folded, values[:, column], out=folded)
    flags: Flags = folded != 0
    return flags


def _prefix_nonzero(words: Words, size: int) -> Flags:
    quads = np.ascontiguousarray(words).view(np.uint32)
    folded = np.zeros(len(words), np.uint32)
    for column in range(size // 4):
        np.bitwise_or(folded, quads[:, column], out=folded)
    flags: Flags = (folded != 0) | _some_nonzero(words[:, size // 4 * 4 : size])
    return flags


def wrong(abi_type: Plain, words: Words) -> tuple[Flags, str]:
    """Which of the words are no value of the type, and what they are then."""
    match abi_type:
        case Plain("address", _):
            return _prefix_nonzero(words, 12), "address_padding"
        case Plain("bool", _):
            return _prefix_nonzero(words, 31) | (words[:, 31] > 1), "bool_value"
        case Plain("bytes", size):
            return _some_nonzero(words[:, size:]), "bytes_padding"
        case Plain("int", size):
            start = WORD - size // 8
            fill = np.where(words[:, start] >= 0x80, np.uint8(0xFF), np.uint8(0))
            return _prefix_nonzero(words ^ fill[:, None], start), "int_padding"
        case Plain(_, size):
            return _prefix_nonzero(words, WORD - size // 8), "int_padding"


def narrow_column(abi_type: Plain, words: Words) -> pa.Array:
    """Of every type but numbers of more than 64 bits. The words were found right."""
    match abi_type:
        case Plain("address", _):
            return binary_column(words[:, 12:])
        case Plain("bool", _):
            return pa.array(words[:, 31] == 1)
        case Plain("bytes", size):
            return binary_column(words[:, :size])
        case Plain("uint", 64):
            halves = np.zeros((len(words), 2), np.uint64)
            halves[:, 0] = _limbs(words)[:, 3]
            return pa.Array.from_buffers(pa.decimal128(20, 0), len(words), [None, pa.py_buffer(halves)])
        case _:
            # Sign extended, so the last eight bytes are the number, whatever its size.
            return pa.array(_limbs(words)[:, 3].astype(np.int64))


def _limbs(words: Words) -> npt.NDArray[np.uint64]:
    """As four numbers of 64 bits, the highest first."""
    return np.ascontiguousarray(words).view(">u8").astype(np.uint64)


def decimal_text(words: Words, *, signed: bool = False) -> pa.Array:
    """Exact, in decimal."""
    limbs = _limbs(words)
    if not signed:
        return _unsigned_text(limbs)
    negative = limbs[:, 0] >> np.uint64(63) == 1
    if not negative.any():
        return _unsigned_text(limbs)
    limbs[negative] = _negated(limbs[negative])
    text = _unsigned_text(limbs)
    return pc.if_else(pa.array(negative), pc.binary_join_element_wise("-", text, ""), text)


def _negated(limbs: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    negated = ~limbs
    carry = np.ones(len(limbs), np.bool_)
    for column in (3, 2, 1, 0):
        negated[:, column] += carry
        carry &= negated[:, column] == 0
    return negated


def _unsigned_text(limbs: npt.NDArray[np.uint64]) -> pa.Array:
    """Most amounts fit into 64 or 128 bits, for which Arrow is quick; each row goes the cheapest way that holds it."""
    high = limbs[:, 0] | limbs[:, 1]
    if not (high | limbs[:, 2]).any():
        return pa.array(limbs[:, 3]).cast(pa.string())
    way = np.full(len(limbs), 3, np.uint8)
    way[limbs[:, 0] >> np.uint64(60) == 0] = 2
    way[(high == 0) & (limbs[:, 2] >> np.uint64(62) == 0)] = 1
    way[(high | limbs[:, 2]) == 0] = 0
    parts, places = [], []
    for number, write in enumerate((_text64, _text128, _text256, _text_largest)):
        rows = np.flatnonzero(way == number)
        if len(rows):
            parts.append(write(limbs if len(rows) == len(limbs) else limbs[rows]))
            places.append(rows)
    if len(parts) == 1:
        return parts[0]
    back = np.empty(len(limbs), np.int64)
    back[np.concatenate(places)] = np.arange(len(limbs))
    return pa.concat_arrays(parts).take(pa.array(back))


def _text64(limbs: npt.NDArray[np.uint64]) -> pa.Array:
    return pa.array(np.ascontiguousarray(limbs[:, 3])).cast(pa.string())


def _text128(limbs: npt.NDArray[np.uint64]) -> pa.Array:
    little = np.ascontiguousarray(limbs[:, :1:-1])
    return pa.Array.from_buffers(pa.decimal128(38, 0), len(limbs), [None, pa.py_buffer(little)]).cast(pa.string())


def _text256(limbs: npt.NDArray[np.uint64]) -> pa.Array:
    little = np.ascontiguousarray(limbs[:, ::-1])
    return pa.Array.from_buffers(pa.decimal256(76, 0), len(limbs), [None, pa.py_buffer(little)]).cast(pa.string())


def _text_largest(limbs: npt.NDArray[np.uint64]) -> pa.Array:
    """More than 76 digits: the last nine are taken off first."""
    quads = np.empty((len(limbs), 8), np.uint64)
    quads[:, 0::2] = limbs >> np.uint64(32)
    quads[:, 1::2] = limbs & np.uint64(0xFFFFFFFF)
    rest = np.zeros(len(limbs), np.uint64)
    for column in range(8):
        current = (rest << np.uint64(32)) | quads[:, column]
        quads[:, column] = current // _BILLION
        rest = current - quads[:, column] * _BILLION
    quotient = (quads[:, 0::2] << np.uint64(32)) | quads[:, 1::2]
    last = pc.utf8_lpad(pa.array(rest).cast(pa.string()), 9, "0")
    return pc.binary_join_element_wise(_text256(quotient), last, "")


def nearest_double(text: pa.Array) -> pa.Array:
    """Of decimal texts. Reading text rounds to the nearest double, as reading the number itself would."""
    return text.cast(pa.float64())


def wide_columns(words: Words, *, signed: bool) -> list[pa.Array]:
    """Bytes, text, double."""
    text = decimal_text(words, signed=signed)
    return [binary_column(words), text, nearest_double(text)]


def as_words(numbers: list[int]) -> Words:
    joined = b"".join((number % 2**256).to_bytes(WORD, "big") for number in numbers)
    return np.frombuffer(joined, np.uint8).reshape(len(numbers), WORD)


def constant(value: Any, arrow_type: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, arrow_type), count)

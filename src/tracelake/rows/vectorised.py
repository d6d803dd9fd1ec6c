"""Converts whole columns at once if all values have the usual spelling of times, bytes or large numbers.

Each function returns an array, or None if any value has another spelling; then the values are converted one by one,
which also explains what is wrong. Both ways give the same result.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_ZERO, _NINE = ord("0"), ord("9")
_SECONDS = "dddd-dd-ddTdd:dd:ddZ"
_SURE = 76
"""Any number of this many digits fits both 256-bit types."""


def whole_bytes(values: Sequence[Any], longest: int | None) -> pa.Array | None:
    """Hexadecimal texts of one length, with the prefix `0x`."""
    texts = _same_length(values)
    if texts is None or texts.shape[1] % 2 or not _is(texts[:, :2], b"0x"):
        return None
    width = texts.shape[1] // 2 - 1
    if longest is not None and width > longest:
        return None
    try:
        data = bytes.fromhex(np.ascontiguousarray(texts[:, 2:]).tobytes().decode())
    except ValueError:
        return None
    # `fromhex` skips spaces between bytes, which the length reveals.
    if len(data) != width * len(values):
        return None
    offsets = np.arange(len(values) + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def whole_timestamps(values: Sequence[Any]) -> pa.Array | None:
    """`2026-01-31T12:00:00Z`, all with the same number of decimals, at most six; from the year 1000 on."""
    texts = _same_length(values)
    if texts is None or not len(_SECONDS) <= texts.shape[1] <= len(_SECONDS) + 7:
        return None
    fraction = texts.shape[1] - len(_SECONDS)
    shape = _SECONDS if not fraction else f"{_SECONDS[:-1]}.{'d' * (fraction - 1)}Z"
    digits = np.frombuffer(shape.encode(), np.uint8) == ord("d")
    signs = shape.replace("d", "").encode()
    if fraction == 1 or (texts[:, 0] == _ZERO).any() or not _is(texts[:, ~digits], signs):
        return None
    try:
        return pa.array(values, pa.string()).cast(pa.timestamp("us", "UTC"))
    except pa.ArrowInvalid:
        return None


def whole_numbers(values: Sequence[Any]) -> pa.Array | None:
    """Decimal digits as text that fit both 256-bit types."""
    try:
        array = pa.array(values, pa.string())
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(array) + 1]
    text = np.frombuffer(data, np.uint8)[: ends[-1]]
    lengths = np.diff(ends)
    if not ((lengths > 0) & (lengths <= _SURE)).all() or not _digits(text):
        return None
    if ((text[ends[:-1]] == _ZERO) & (lengths > 1)).any():
        return None
    return array


def _same_length(values: Sequence[Any]) -> npt.NDArray[np.uint8] | None:
    """The characters of texts of one length, as a matrix; None if lengths differ."""
    length = len(values[0])
    if not length or any(len(value) != length for value in values):
        return None
    text = "".join(values)
    return np.frombuffer(text.encode(), np.uint8).reshape(-1, length) if text.isascii() else None


def _digits(characters: npt.NDArray[np.uint8]) -> bool:
    return bool(((characters >= _ZERO) & (characters <= _NINE)).all())


def _is(characters: npt.NDArray[np.uint8], expected: bytes) -> bool:
    return bool((characters == np.frombuffer(expected, np.uint8)).all())

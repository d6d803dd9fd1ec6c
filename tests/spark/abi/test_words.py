"""Many words at once say what they say one by one."""

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.abi.encoder import PLAIN
from tracelake.catalogue.abi import Plain
from tracelake.catalogue.decode import is_wide
from tracelake.spark.abi.values import UndecodableError, column_value, plain_value
from tracelake.spark.abi.words import (
    WORD,
    Words,
    as_words,
    binary_column,
    decimal_text,
    fixed_bytes,
    lengths,
    narrow_column,
    wide_columns,
    wrong,
)

EDGES = [0, 1, 9, 10, 2**63, 2**64 - 1, 2**64, 2**126 - 1, 2**126, 10**38, 2**252 - 1, 2**252, 10**76, 10**77]
NUMBERS = (
    st.sampled_from([*EDGES, *(2**256 - edge for edge in EDGES[1:])])
    | st.integers(0, 2**256 - 1)
    | st.integers(0, 256).flatmap(lambda bits: st.integers(0, 2**bits - 1))
)


@given(st.lists(NUMBERS, max_size=30))
def test_wide_numbers(numbers: list[int]) -> None:
    words = _words(numbers)
    raw, text, double = wide_columns(words, signed=False)
    assert raw.to_pylist() == [number.to_bytes(WORD, "big") for number in numbers]
    assert text.to_pylist() == [str(number) for number in numbers]
    assert double.to_pylist() == [float(number) for number in numbers]
    signed = [number - 2**256 if number >> 255 else number for number in numbers]
    assert decimal_text(words, signed=True).to_pylist() == [str(number) for number in signed]


def _words(numbers: list[int]) -> Words:
    return as_words(numbers) if numbers else np.zeros((0, WORD), np.uint8)


def _slowly(abi_type: Plain, word: bytes) -> tuple[Any, str | None]:
    try:
        return column_value(abi_type, plain_value(abi_type, word)), None
    except UndecodableError as error:
        return None, error.reason


@given(PLAIN, st.lists(st.binary(min_size=WORD, max_size=WORD) | NUMBERS.map(lambda n: n.to_bytes(WORD, "big"))))
def test_the_same_words_are_wrong_and_the_others_have_the_same_values(abi_type: Plain, raw: list[bytes]) -> None:
    words = np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), WORD)
    flags, reason = wrong(abi_type, words)
    slowly = [_slowly(abi_type, word) for word in raw]
    assert [reason if flag else None for flag in flags] == [found for _, found in slowly]
    expected = [value for value, found in slowly if found is None]
    good = words[~flags]
    if is_wide(abi_type):
        assert decimal_text(good, signed=abi_type.kind == "int").to_pylist() == expected
    else:
        assert narrow_column(abi_type, good).to_pylist() == expected


@given(PLAIN)
def test_no_byte_of_the_padding_is_overlooked(abi_type: Plain) -> None:
    raw = [bytes(at) + bytes([value]) + bytes(WORD - 1 - at) for at in range(WORD) for value in (1, 2, 0x80, 0xFF)]
    raw += [bytes(byte ^ 0xFF for byte in word) for word in raw]
    flags, reason = wrong(abi_type, np.frombuffer(b"".join(raw), np.uint8).reshape(len(raw), WORD))
    assert [reason if flag else None for flag in flags] == [_slowly(abi_type, word)[1] for word in raw]


@given(st.lists(st.binary(min_size=5, max_size=5), min_size=1), st.integers(0, 3), st.booleans())
def test_columns_and_bytes(values: list[bytes], skipped: int, large: bool) -> None:
    column = pa.array(values, pa.large_binary() if large else pa.binary()).slice(skipped)
    assert binary_column(fixed_bytes(column, 5)).to_pylist() == values[skipped:]


def test_lengths() -> None:
    assert lengths(pa.array([b"", None, b"abc"], pa.binary())).tolist() == [0, -1, 3]
    assert fixed_bytes(pa.array([b"", b""], pa.binary()), 0).shape == (2, 0)

"""The decoder for single logs: gives back what was encoded, and is not impressed by bytes that lie."""

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spark.abi.encoder import TYPES, encode_all, moving, typed_values
from tracelake.catalogue.abi import AbiType, Array, Bytes, Plain, head_words, is_dynamic, parse_event
from tracelake.spark.abi.values import UndecodableError, array_span, decode_values, plain_value

WORD = 32
UINT = Plain("uint", 256)
NUMBERS = Array(UINT, None)


def _word(number: int) -> bytes:
    return number.to_bytes(WORD, "big")


@given(typed_values())
def test_what_was_encoded_comes_back(case: tuple[list[AbiType], list[Any]]) -> None:
    types, values = case
    assert decode_values(types, encode_all(types, values)) == values
    assert [is_dynamic(each) for each in types] == [moving(each) for each in types]


@given(typed_values(), st.data())
def test_changed_bytes_are_decoded_or_refused(case: tuple[list[AbiType], list[Any]], data: st.DataObject) -> None:
    types, values = case
    raw = bytearray(encode_all(types, values))
    for _ in range(data.draw(st.integers(1, 3))):
        if raw:
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at] = data.draw(st.integers(0, 255))
    _survives(types, bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    _survives(types, bytes(raw))


@given(st.lists(TYPES, min_size=1, max_size=3), st.binary(max_size=400))
def test_any_bytes_are_decoded_or_refused(types: list[AbiType], raw: bytes) -> None:
    _survives(types, raw)


@given(
    st.lists(TYPES, min_size=1, max_size=3),
    st.lists(st.sampled_from([0, 1, 2, 31, 32, 64, 96, 2**31, 2**64, 2**255, 2**256 - 1]), max_size=20),
)
def test_words_that_look_like_offsets_and_lengths(types: list[AbiType], words: list[int]) -> None:
    _survives(types, b"".join(map(_word, words)))


REASONS = {
    *("data_length", "offset", "length", "overlap", "utf8"),
    *("address_padding", "bool_value", "int_padding", "bytes_padding"),
}


def _decoded(types: list[AbiType], raw: bytes) -> list[Any] | str:
    """The values, or the reason why there are none."""
    try:
        return decode_values(types, raw)
    except UndecodableError as error:
        return error.reason


def _survives(types: list[AbiType], raw: bytes) -> None:
    found = _decoded(types, raw)
    assert found in REASONS if isinstance(found, str) else _size(found) <= len(raw)


def _size(value: Any) -> int:
    """At least so many bytes must have been there for it. Text has at most as many characters as bytes."""
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return len(value) if isinstance(value, bytes | str) else 1


def _bomb(depth: int, width: int) -> bytes:
    """Arrays whose elements are all the same array, and so on: width ** depth numbers in few bytes."""
    body = _word(width) + _word(7) * width
    for _ in range(depth - 1):
        body = _word(width) + _word(WORD * width) * width + body
    return _word(WORD) + body


def test_arrays_within_arrays_do_not_explode() -> None:
    nested: AbiType = UINT
    for _ in range(8):
        nested = Array(nested, None)
    data = _bomb(8, 30)
    assert len(data) < 10_000
    tracemalloc.start()
    with pytest.raises(UndecodableError, match="overlap"):
        decode_values([nested], data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize("length", [2, 2**20, 2**31, 2**63, 2**256 - 1])
@pytest.mark.parametrize("element", [UINT, Bytes(False), Array(UINT, 1024), Array(NUMBERS, 3)])
def test_huge_lengths_allocate_nothing(length: int, element: AbiType) -> None:
    tracemalloc.start()
    with pytest.raises(UndecodableError):
        decode_values([Array(element, None)], _word(WORD) + _word(length) + _word(1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize(
    ("signature", "words", "reason"),
    [
        ("A(uint256 x)", [], "data_length"),
        ("A(uint256 x)", [1, 2], "data_length"),
        ("A(bytes x)", [64], "offset"),
        ("A(bytes x)", [2**255], "offset"),
        ("A(bytes x)", [32], "data_length"),
        ("A(bytes x)", [32, 1], "length"),
        ("A(string x)", [32, 1, 0xFF << 248], "utf8"),
        ("A(uint256[] x)", [32, 2, 1], "length"),
        ("A(uint256[] x, uint256[] y)", [64, 64, 2, 5, 6], "overlap"),
        ("A(string[] x)", [32, 1, 2**200], "offset"),
        ("A(address[] x)", [32, 1, 2**160], "address_padding"),
        ("A(bool[2] x)", [1, 2], "bool_value"),
        ("A(uint8[1] x)", [256], "int_padding"),
        ("A(int8[1] x)", [128], "int_padding"),
        ("A(bytes4[1] x)", [1], "bytes_padding"),
    ],
)
def test_reasons(signature: str, words: list[int], reason: str) -> None:
    types = [parameter.type for parameter in parse_event(signature).parameters]
    with pytest.raises(UndecodableError) as caught:
        decode_values(types, b"".join(map(_word, words)))
    assert caught.value.reason == reason


def test_the_last_padding_may_be_missing() -> None:
    assert decode_values([Bytes(False)], _word(32) + _word(3) + b"abc") == [b"abc"]


@given(st.binary(min_size=WORD, max_size=200), st.sampled_from([0, 1]))
def test_the_ends_of_an_array_are_those_of_its_values(raw: bytes, head: int) -> None:
    raw = _word(64 + raw[0] % 64) + _word(raw[1]) + raw
    try:
        start, count = array_span(raw, head)
    except UndecodableError:
        with pytest.raises(UndecodableError):
            decode_values([UINT] * head + [NUMBERS], raw)
    else:
        words = [int.from_bytes(raw[at : at + WORD], "big") for at in range(start, start + count * WORD, WORD)]
        found = _decoded([*[UINT] * head, NUMBERS], raw)
        # It is refused only if it lies over its own head.
        assert found == "overlap" if isinstance(found, str) else found[head] == words


@given(st.binary(min_size=WORD, max_size=WORD))
def test_one_word(word: bytes) -> None:
    assert plain_value(UINT, word) == int.from_bytes(word, "big")
    assert plain_value(Plain("bytes", 32), word) == word
    assert head_words(Array(Array(UINT, 3), 2)) == 6

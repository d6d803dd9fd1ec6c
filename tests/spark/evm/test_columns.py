"""Columns decoded at once hold what each value says by itself, and nothing is taken that is not as it should be."""

from contextlib import suppress

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.spark.evm.columns import BadHexError, binary, integers, numbers, spread_lists, words, zeros_in
from tracelake.spark.evm.errors import ValueTooLargeError
from tracelake.spark.evm.texts import Texts

BYTES = st.binary(max_size=40)
MANY = 300
WORD = st.binary(min_size=32, max_size=32)


def hexed(value: bytes | None) -> str | None:
    return None if value is None else "0x" + value.hex()


@given(st.lists(BYTES | st.none()))
def test_bytes_of_any_length(values: list[bytes | None]) -> None:
    column = binary("it", [hexed(value) for value in values])
    column.validate(full=True)
    assert column.type == pa.binary()
    assert column.to_pylist() == values


@given(st.lists(WORD | st.none()))
def test_bytes_of_one_length(values: list[bytes | None]) -> None:
    column = binary("it", [hexed(value) for value in values], 32)
    column.validate(full=True)
    assert column.to_pylist() == values


@given(st.lists(BYTES, min_size=1))
def test_zero_bytes_are_counted(values: list[bytes]) -> None:
    column = binary("it", [hexed(value) for value in values])
    assert zeros_in(column).tolist() == [value.count(0) for value in values]


@given(st.lists(st.lists(WORD, max_size=4)))
def test_topics(values: list[list[bytes]]) -> None:
    items = Texts.of(["0x" + item.hex() for some in values for item in some])
    columns = spread_lists("it", items, np.array([len(some) for some in values], np.int64), 4, 32)
    for place, column in enumerate(columns):
        column.validate(full=True)
        assert column.to_pylist() == [items[place] if place < len(items) else None for items in values]


@given(st.lists(st.integers(0, 2**64 - 1) | st.none()))
def test_numbers(values: list[int | None]) -> None:
    column = numbers("it", [None if value is None else hex(value) for value in values], "uint64")
    assert column.type == pa.uint64()
    assert column.to_pylist() == values


@given(st.lists(st.integers(0, 2**64 - 1) | st.none(), min_size=1), st.sampled_from(["", "0", "00000000000000000"]))
def test_many_numbers(values: list[int | None], zeros: str) -> None:
    """So many that they are parsed together; leading zeros change nothing, nor does their case."""
    many = (values * MANY)[: MANY + len(values)]
    texts = [None if value is None else f"0x{zeros}{value:x}" for value in many]
    assert numbers("it", texts, "uint64").to_pylist() == many
    upper = [None if text is None else "0x" + text[2:].upper() for text in texts]
    assert numbers("it", upper, "uint64").to_pylist() == many


@given(
    st.lists(st.integers(0, 2**256 - 1) | st.integers(0, 2**64 - 1) | st.sampled_from([2**53 + 1, 2**64 - 1, 2**64])),
    st.sampled_from(["", "0", "0" * 70]),
)
def test_words(values: list[int], zeros: str) -> None:
    texts = [f"0x{zeros}{value:x}" for value in values]
    column, decimals, floats = words("it", texts)
    assert integers("it", texts) == values
    assert column.to_pylist() == [value.to_bytes(32, "big") for value in values]
    assert decimals.to_pylist() == list(map(str, values))
    assert floats.to_pylist() == list(map(float, values))


def test_the_largest_and_one_more() -> None:
    assert numbers("it", ["0xffffffff"], "uint32").to_pylist() == [2**32 - 1]
    for text, kind in (("0x100000000", "uint32"), ("0x10000000000000000", "uint64")):
        for values in ([text], [text, *["0x1"] * MANY]):
            with pytest.raises(ValueTooLargeError, match="a value of it is"):
                numbers("it", values, kind)
    with pytest.raises(ValueTooLargeError):
        words("it", [hex(2**256)])


def test_a_column_that_saturates_holds_the_largest_instead_of_one_more() -> None:
    for values in (["0x1", None, hex(2**64), hex(2**300)], ["0x1", None, hex(2**64), hex(2**300), *["0x2"] * MANY]):
        column = numbers("it", values, "uint64", saturate=True)
        assert column.type == pa.uint64()
        assert column.to_pylist()[:4] == [1, None, 2**64 - 1, 2**64 - 1]
        assert set(column.to_pylist()[4:]) <= {2}
    with pytest.raises(BadHexError):
        numbers("it", [hex(2**64), "0xg"], "uint64", saturate=True)


BAD_BYTES = [
    "",
    "0",
    "0x1",
    "x0",
    "ab",
    "0xzz",
    "0x0x",
    "0X12",
    "0x1g",
    " 0x12",
    "0x12 ",
    "0xé1",
    "0x\u0661\u0661",
    "-0x1",
    "0x_1",
    "\x00x12",
    "0x\n",
    "0x12\n",
    "0x12\n0x34",
]


@pytest.mark.parametrize("bad", BAD_BYTES)
@pytest.mark.parametrize("beside", [[], ["0x12"], ["0x", "0x00"]])
def test_what_is_no_bytes(bad: str, beside: list[str]) -> None:
    for values in ([*beside, bad], [bad, *beside]):
        with pytest.raises(BadHexError):
            binary("it", values)


BAD_NUMBERS = [
    "",
    "0x",
    "1",
    "x1",
    "0xg",
    "-0x1",
    "+0x1",
    " 0x1",
    "0x1 ",
    "0x_1",
    "0x1_0",
    "0X1",
    "0x\u0661",
    "1e3",
    "0b1",
    "0x1\n",
    "0x1\n0x2",
]


@pytest.mark.parametrize("bad", BAD_NUMBERS)
@pytest.mark.parametrize("beside", [[], ["0x12"], ["0x0", "0x1"], ["0x0", "0x12"] * 200])
def test_what_is_no_number(bad: str, beside: list[str]) -> None:
    for values in ([*beside, bad], [bad, *beside]):
        with pytest.raises(BadHexError):
            numbers("it", values, "uint64")


@given(st.lists(st.text(alphabet="0123456789abcdefABCDEFxX_ -+\n", max_size=6), min_size=1, max_size=4))
def test_any_text_is_decoded_rightly_or_refused(texts: list[str]) -> None:
    """Two wrong values must not make up for each other."""
    digits = set("0123456789abcdefABCDEF")
    plain = [text[:2] == "0x" and set(text[2:]) <= digits for text in texts]
    right = all(plain) and all(len(text) % 2 == 0 for text in texts)
    try:
        found = binary("it", texts).to_pylist()
    except BadHexError:
        assert not right
    else:
        assert right
        assert found == [bytes.fromhex(text[2:]) for text in texts]
    try:
        counted = integers("it", texts)
    except BadHexError:
        assert not (all(plain) and all(len(text) > 2 for text in texts))
    else:
        assert all(plain)
        assert counted == [int(text, 16) for text in texts]


@given(st.lists(st.text(max_size=5), min_size=1, max_size=3), st.sampled_from([None, 20, 32]))
def test_nothing_but_our_own_error(texts: list[str], width: int | None) -> None:
    with suppress(BadHexError):
        binary("it", texts, width)
    with suppress(BadHexError, ValueTooLargeError):
        numbers("it", texts, "uint64")


def test_another_width_is_refused() -> None:
    with pytest.raises(BadHexError, match="address"):
        binary("address", ["0x" + "00" * 20, "0x" + "00" * 21], 20)
    with pytest.raises(BadHexError):
        spread_lists("topics", Texts.of(["0x00"]), np.array([1]), 4, 32)


@given(st.lists(st.text(alphabet="01abFx\n", max_size=4), min_size=1, max_size=4), st.integers(0, 3))
def test_wrong_numbers_do_not_make_up_for_each_other(texts: list[str], place: int) -> None:
    right = all(text[:2] == "0x" and len(text) > 2 and not set("x\n") & set(text[2:]) for text in texts)
    for values in (texts, ["0x1"] * MANY + texts, texts[:place] + ["0x1"] * MANY + texts[place:]):
        try:
            numbers("it", values, "uint64")
        except BadHexError:
            assert not right
        else:
            assert right


@given(st.lists(st.text(alphabet="01abFx\n", max_size=6), min_size=1, max_size=4))
def test_wrong_lengths_do_not_make_up_for_each_other(texts: list[str]) -> None:
    right = all(text[:2] == "0x" and len(text) == 4 and not set("x\n") & set(text[2:]) for text in texts)
    try:
        found = binary("it", texts, 1).to_pylist()
    except BadHexError:
        assert not right
    else:
        assert found == [bytes.fromhex(text[2:]) for text in texts]


def test_values_of_other_lengths_do_not_make_up_for_one_another() -> None:
    """Joined, these look like two values of 32 bytes, but for where the first one ends."""
    with pytest.raises(BadHexError):
        binary("it", ["0x" + "a" * 65, "x" + "a" * 64], 32)

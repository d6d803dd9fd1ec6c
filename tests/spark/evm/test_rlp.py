"""RLP and the roots of ordered trees are those of known values, and those that another implementation has."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chain import ethereum
from tracelake.spark.evm.ordered_trie import EMPTY_ROOT, ordered_root
from tracelake.spark.evm.rlp import encode_data, encode_list, encode_quantity, encode_string, hash_text

ITEMS: st.SearchStrategy[Any] = st.recursive(st.binary(max_size=70), lambda items: st.lists(items, max_size=6))


def encoded(item: Any) -> str:
    return encode_string(item.hex()) if isinstance(item, bytes) else encode_list("".join(map(encoded, item)))


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (b"dog", "83646f67"),
        ([b"cat", b"dog"], "c88363617483646f67"),
        (b"", "80"),
        ([], "c0"),
        (b"\x00", "00"),
        (b"\x0f", "0f"),
        (b"\x7f", "7f"),
        (b"\x80", "8180"),
        ([[], [[]], [[], [[]]]], "c7c0c1c0c3c0c1c0"),
        (b"a" * 55, "b7" + "61" * 55),
        (b"a" * 56, "b838" + "61" * 56),
        (b"a" * 1024, "b90400" + "61" * 1024),
        ([b"a"] * 56, "f838" + "61" * 56),
    ],
)
def test_rlp_of_known_values(item: Any, text: str) -> None:
    assert encoded(item) == text


@given(ITEMS)
def test_rlp_of_any_value(item: Any) -> None:
    assert encoded(item) == ethereum.rlp(item).hex()


@given(st.integers(0, 2**256 - 1))
def test_quantities(number: int) -> None:
    assert encode_quantity(hex(number)) == ethereum.rlp(ethereum.quantity(number)).hex()
    assert encode_quantity(f"0x{number:064x}") == encode_quantity(hex(number)), "some nodes pad them"


@pytest.mark.parametrize("value", [None, "", "1f", "0x1"])
def test_what_is_not_whole_bytes_has_no_encoding(value: str | None) -> None:
    with pytest.raises(ValueError, match=r"no hex value|half a byte"):
        encode_data(value)


@pytest.mark.parametrize("digits", ["1g", "1 ", "1f  2f", "0x"])
def test_what_is_not_hex_has_no_hash(digits: str) -> None:
    with pytest.raises(ValueError, match="hex"):
        hash_text(encode_string(digits))


def test_the_root_of_nothing() -> None:
    assert EMPTY_ROOT == "56e81f171bcc55a6ff8345e692c0f86e5b48e01b996cadc001622fb5e363b421"
    assert ordered_root([]) == EMPTY_ROOT


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17, 127, 128, 129, 130, 255, 256, 257, 300])
def test_roots_of_every_shape(count: int) -> None:
    values = [bytes([place % 251]) * (place % 40 + 1) for place in range(count)]
    assert ordered_root([value.hex() for value in values]) == ethereum.trie_root(values).hex()


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=20))
def test_roots_of_any_values(values: list[bytes]) -> None:
    assert ordered_root([value.hex() for value in values]) == ethereum.trie_root(values).hex()

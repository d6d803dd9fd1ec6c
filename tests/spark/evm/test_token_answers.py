"""Answers of contracts, honest and hostile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.demo.chain.contracts import encode_text
from tracelake.spark.evm.token_answers import read_decimals, read_text


def word(number: int) -> bytes:
    return number.to_bytes(32, "big")


def text(content: str | bytes, length: int | None = None, start: int = 32) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    padded = raw + bytes(-len(raw) % 32)
    return word(start) + word(len(raw) if length is None else length) + padded


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (text("USDC"), "USDC"),
        (text("a" * 100), "a" * 100),
        (text("Tether 💵 \u200d"), "Tether 💵 \u200d"),
        (b"MKR".ljust(32, b"\0"), "MKR"),
        (b"x" * 32, "x" * 32),
        (text(b"padded\0\0\0"), "padded"),
        (text("z" * 256), "z" * 256),
        (word(64) + word(0) + word(3) + b"far".ljust(32, b"\0"), "far"),
        (text("loose")[:-20], "loose"),
    ],
)
def test_texts(answer: bytes, value: str) -> None:
    assert read_text(answer) == (value, None)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (None, "reverted"),
        (b"", "empty"),
        (text(""), "empty"),
        (bytes(32), "empty"),
        (text(b"\0\0"), "empty"),
        (b"x" * 31, "malformed"),
        (b"x" * 63, "malformed"),
        (text("short", length=40), "malformed"),
        (text("short", length=2**256 - 1), "malformed"),
        (text("short", start=2**256 - 1), "malformed"),
        (text("short", start=66), "malformed"),
        (text("z" * 257), "too_long"),
        (text("z" * 1_000_000), "too_long"),
        (text("é" * 600), "too_long"),
        (text(b"\xff\xfe"), "not_utf8"),
        (b"\xc3".ljust(32, b"\0"), "not_utf8"),
        (text(b"\xed\xa0\x80"), "not_utf8"),
        (text("a\0b"), "unprintable"),
        (text("a\nb"), "unprintable"),
        (text("\x1b[31mred"), "unprintable"),
        (text("CDSU\u202e"), "unprintable"),
        (text("\u2028"), "unprintable"),
    ],
)
def test_texts_that_are_none(answer: bytes | None, problem: str) -> None:
    assert read_text(answer) == (None, problem)


@pytest.mark.parametrize(
    ("answer", "value", "problem"),
    [
        (word(18), 18, None),
        (word(0), 0, None),
        (word(255), 255, None),
        (word(256), None, "out_of_range"),
        (word(2**256 - 1), None, "out_of_range"),
        (word(6) + word(1), 6, None),
        (b"", None, "empty"),
        (b"\x12", None, "malformed"),
        (None, None, "reverted"),
    ],
)
def test_decimals(answer: bytes | None, value: int | None, problem: str | None) -> None:
    assert read_decimals(answer) == (value, problem)


@given(st.binary(max_size=200))
def test_whatever_a_contract_answers(answer: bytes) -> None:
    for value, problem in (read_text(answer), read_decimals(answer)):
        assert (value is None) != (problem is None)


@given(st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=256))
def test_texts_come_back(content: str) -> None:
    assert read_text(bytes.fromhex(encode_text(content)[2:])) == (content, None)

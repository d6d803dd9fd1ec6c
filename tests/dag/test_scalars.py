"""Plain scalars mean one thing each."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.dag.scalars import Unclear, is_text, meaning
from tracelake.model.dag import Scalar


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("~", None),
        ("null", None),
        ("true", True),
        ("false", False),
        ("0", 0),
        ("-0", 0),
        ("12", 12),
        ("-7", -7),
        ("9223372036854775807", 2**63 - 1),
        ("-9223372036854775808", -(2**63)),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("-2.5E-3", -0.0025),
        ("x", "x"),
        ("y", "y"),
        ("n", "n"),
        ("-", "-"),
        ("1.2.3", "1.2.3"),
        ("2024-01-01", "2024-01-01"),
        ("12ab", "12ab"),
        ("0xZZ", "0xZZ"),
        ("1,000", "1,000"),
        ("nan", "nan"),
        ("inf", "inf"),
        ("+", "+"),
        ("...x", "...x"),
        ("5m", "5m"),
        ("\u0661", "\u0661"),
    ],
)
def test_clear(text: str, expected: Scalar) -> None:
    value = meaning(text)
    assert (type(value), value) == (type(expected), expected)


@pytest.mark.parametrize("text", ["yes", "No", "ON", "off", "True", "TRUE", "False", "Null", "NULL"])
def test_words_that_some_yaml_takes_for_something_else(text: str) -> None:
    assert meaning(text) is Unclear.WORD
    assert is_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "1_000",
        "0x1F",
        "0o17",
        "017",
        "0b11",
        "+1",
        "1:30",
        "190:20:30.15",
        ".5",
        "5.",
        "1_0.5",
        ".inf",
        "-.INF",
        ".NaN",
        "00",
        "-01",
    ],
)
def test_numbers_that_are_not_plain(text: str) -> None:
    assert meaning(text) is Unclear.NUMBER
    assert not is_text(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "9" * 100_000, "1e999", "-1e999"])
def test_numbers_that_do_not_fit(text: str) -> None:
    assert meaning(text) is Unclear.TOO_LARGE


@given(st.text(st.sampled_from("0123456789+-._:eExXobinfNa")))
def test_a_number_is_finite(text: str) -> None:
    value = meaning(text)
    assert not isinstance(value, float) or math.isfinite(value)

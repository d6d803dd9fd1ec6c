"""Secrets in texts: blanked in every shape that an error or a log gives them, and nothing else is."""

import json
from urllib.parse import quote

import pytest

from tracelake.model.hiding import LEAST, Hiding
from tracelake.ports import SecretValues

KEY = 's3cr/t "k\'y"\\ü'
PEM = "-----BEGIN KEY-----\nQUJDREVGR0g\r\naWprbG1ub3A\n-----END KEY-----\n"


@pytest.mark.parametrize(
    "text",
    [
        KEY,
        repr(KEY),
        repr({"key": KEY}),
        str(KeyError(KEY)),
        json.dumps(KEY),
        json.dumps(KEY, ensure_ascii=False),
        f"https://host/?key={quote(KEY)}",
        f"https://host/?key={quote(KEY, safe='')}",
        KEY + KEY,
    ],
)
def test_shapes_of_one_value(text: str) -> None:
    hidden = Hiding([KEY])(f"before {text} after")
    assert hidden.startswith("before ")
    assert hidden.endswith(" after")
    assert "[secret]" in hidden
    for part in ("s3cr", "k'y", "ü", "%C3"):
        assert part not in hidden


def test_a_value_of_several_lines_is_found_line_by_line() -> None:
    hide = Hiding([PEM])
    assert "QUJD" not in hide(PEM)
    assert "QUJD" not in hide("  File x\n    QUJDREVGR0g\n")
    assert "aWpr" not in hide(repr(PEM))
    assert hide(PEM.strip()) == "[secret]"


def test_the_longer_of_two_that_begin_alike() -> None:
    assert Hiding(["abcdef", "abcdefgh"])("abcdefgh abcdefg") == "[secret] [secret]g"


def test_what_is_too_short_or_not_there_is_left_alone() -> None:
    hide = Hiding(["x" * (LEAST - 1), "", "\n"])
    assert hide("xxxxx and more\n") == "xxxxx and more\n"
    assert not hide.finds("xxxxx")
    hide.add(["y" * LEAST])
    assert hide("y" * LEAST) == "[secret]"
    assert hide.finds(f"<{'y' * LEAST}>")


def test_values_show_nothing_by_themselves() -> None:
    values = SecretValues({"KEY": "open sesame", "API": "other value"})
    assert repr(values) == str(values) == "SecretValues(API, KEY)"
    assert dict(values) == {"KEY": "open sesame", "API": "other value"}
    assert values["KEY"] == "open sesame"
    assert values.get("NOT") is None
    assert values.hide("it is open sesame") == "it is [secret]"

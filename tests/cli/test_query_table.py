"""Results as text: aligned and typed, numbers whole, wide tables fitted to the screen."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tracelake.cli.error_text import query_error_lines
from tracelake.cli.query_table import render, shorten
from tracelake.errors import TraceError
from tracelake.wire.query import ResultColumn

ADDRESS = "0x" + "ab" * 20
BIG = str(2**256 - 1)


def lines(columns: dict[str, str], rows: list[list[Any]], width: int | None = 80, **options: bool) -> list[str]:
    return render([ResultColumn(name=name, type=kind) for name, kind in columns.items()], rows, width, **options).lines


def test_numbers_are_on_the_right_and_null_is_seen() -> None:
    columns = {"token": "VARCHAR", "n": "BIGINT", "share": "DECIMAL(5,2)", "took": "INTERVAL", "ok": "BOOLEAN"}
    assert lines(columns, [["ab", 1, "0.50", "PT1S", True], [None, 1234567, None, None, None]]) == [
        "token          n         share  took      ok",
        "varchar   bigint  decimal(5,2)  interval  boolean",
        "ab             1          0.50  PT1S      true",
        "NULL     1234567          NULL  NULL      NULL",
    ]


def test_wide_texts_are_shortened_and_numbers_never() -> None:
    columns = {"sender": "BLOB", "receiver": "BLOB", "amount": "BIGNUM"}
    rows = [[ADDRESS, ADDRESS, "123456789012345678901234567890"]]
    text = render([ResultColumn(name=name, type=kind) for name, kind in columns.items()], rows, 80)
    assert text.shortened
    short = f"{ADDRESS[:15]}…{ADDRESS[-7:]}"
    assert text.lines[2] == f"{short}  {short}  123456789012345678901234567890"
    assert max(map(cell_len, text.lines)) <= 80


def test_what_cannot_fit_has_a_line_per_column() -> None:
    assert lines({"a": "BIGNUM", "long_name": "VARCHAR"}, [[BIG, None], ["1", "x" * 90]]) == [
        "-- row 1",
        f"a          {BIG}",
        "long_name  NULL",
        "-- row 2",
        "a          1",
        f"long_name  {'x' * 90}",
    ]


def test_elsewhere_than_on_a_screen_all_values_are_whole() -> None:
    assert lines({"a": "BIGNUM", "b": "VARCHAR"}, [[BIG, "x" * 200]], None)[2] == f"{BIG}  {'x' * 200}"


def test_elsewhere_than_on_a_screen_types_are_whole_too() -> None:
    kind = "STRUCT(a INTEGER, b INTEGER)[]"
    assert lines({"a": kind}, [[1]], None)[1] == kind.lower()


def test_values_cannot_write_to_the_terminal() -> None:
    assert lines({"a\x1b[2J": "VARCHAR"}, [["\x1b]0;x\x07\nb"]]) == ["a\\x1b[2J", "varchar", "\\x1b]0;x\\x07 b"]


def test_nothing_and_nested_values() -> None:
    assert lines({"a": "INTEGER"}, []) == ["      a", "integer"]
    assert lines({}, [[], []]) == []
    assert lines({"a": "STRUCT(b INTEGER[], c VARCHAR)"}, [[{"b": [1], "c": None}]])[1:] == [
        "struct(b integer[…",
        '{"b":[1],"c":null}',
    ]


@given(
    st.lists(st.tuples(st.text(max_size=30), st.text(max_size=60), st.integers()), max_size=5),
    st.integers(min_value=48, max_value=120),
)
def test_a_table_is_never_wider_than_the_screen(rows: list[tuple[str, str, int]], width: int) -> None:
    columns = {"a": "VARCHAR", "语言": "VARCHAR", "n": "BIGINT"}
    text = lines(columns, [list(row) for row in rows], width)
    if not text[0].startswith("-- row"):
        assert all(cell_len(line) <= width for line in text)


def test_hex_keeps_both_ends() -> None:
    assert shorten(ADDRESS, 12) == "0xababab…bab"
    assert shorten("语言语言语言", 6) == "语言…"


# --- the place of an error


@pytest.mark.parametrize(
    ("sql", "line", "column", "name", "expected"),
    [
        ("select tokn\nfrom t", 1, 8, "tokn", ["line 1: select tokn", "               ^^^^"]),
        ("select 1\nfrm t", 2, 1, None, ["line 2: frm t", "        ^"]),
        ("select '语', x", 1, 13, "x", ["line 1: select '语', x", "                     ^"]),
        ("select\tx", 1, 8, "x", ["line 1: select x", "               ^"]),
        ("", 1, 1, None, ["line 1:", "        ^"]),
        ("select 1", 9, 1, None, []),
    ],
)
def test_the_place_of_an_error(sql: str, line: int, column: int, name: str | None, expected: list[str]) -> None:
    details: dict[str, Any] = {"line": line, "column": column} | ({"name": name} if name else {})
    assert query_error_lines(TraceError("query_syntax", "No.", **details), sql)[1:] == expected


def test_a_long_line_is_cut_around_the_place() -> None:
    sql = "select " + ", ".join(f"column_{number}" for number in range(100)) + " from t"
    place = sql.index("column_50")
    error = TraceError(
        "query_unknown_column", "No.", line=1, column=place + 1, name="column_50", suggestions=["a", "b"]
    )
    _, text, mark, names = query_error_lines(error, sql, 80)
    assert len(text) <= 80
    assert text[mark.index("^") : len(mark)] == "column_50"
    assert names == "Similar names: a, b"

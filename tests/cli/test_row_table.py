"""`trace read` on a terminal: a table that fits, whose names and whole numbers are complete."""

import io
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tracelake.cli.row_table import show_rows
from tracelake.cli.session import Session

HOUR = datetime(2026, 3, 3, 13, tzinfo=UTC)
FLOWS = pa.table(
    {
        "hour": pa.array([HOUR, HOUR + timedelta(hours=1)], pa.timestamp("us", "UTC")),
        "token": ["5fbdb2315678afecb367f032d93f642f64180aa3"] * 2,
        "standard": ["erc20", None],
        "transfers": [880, 2],
        "senders": [53, 1],
        "amount": [2.315841784746324e77, 1091890000.0],
    }
)


def show(
    table: pa.Table, total: int | None = None, *, more: bool = False, width: int = 80, wide: bool = False
) -> list[str]:
    session = Session()
    file = io.StringIO()
    session.console = Console(file=file, width=width, force_terminal=True, no_color=True, color_system=None)
    show_rows(session, table, total, more=more, wide=wide)
    return file.getvalue().splitlines()


def test_the_hourly_flows_of_the_demo_fit() -> None:
    assert show(FLOWS, 384) == [
        "hour               token           standard  transfers  senders           amount",
        "2026-03-03 13:00Z  5fbdb2315678a…  erc20           880       53  2.315841785e+77",
        "2026-03-03 14:00Z  5fbdb2315678a…  NULL              2        1      1.09189e+09",
        "(2 of 384 rows; long values are shortened: --wide shows them whole)",
    ]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1e15, 21273658440000.0, None], ["1000000000000000", "21273658440000", "NULL"]),
        ([1e18, 2.5, 0.0], ["1e+18", "2.5e+00", "0"]),
        ([123456789012345.67, 3.0], ["1.23456789e+14", "3e+00"]),
        ([0.25, 3.0, -1.5], ["0.25", "3", "-1.5"]),
        ([float("nan"), 1e20], ["NaN", "1e+20"]),
    ],
)
def test_numbers_of_a_column_have_one_form(values: list[float | None], shown: list[str]) -> None:
    lines = show(pa.table({"amount": pa.array(values, pa.float64())}))
    assert [line.strip() for line in lines[1:-1]] == shown


def test_wide_shows_everything() -> None:
    lines = show(FLOWS, 2, wide=True)
    assert lines[-1] == "(2 rows)"
    assert show(FLOWS, 2, more=True, wide=True)[-1] == "(2 rows; there are more)", "counted before others came"
    assert show(FLOWS, more=True)[-1].startswith("(2 rows; there are more; long values")
    assert "2026-03-03T13:00:00Z  5fbdb2315678afecb367f032d93f642f64180aa3" in lines[1]
    assert "2.315841784746324e77" in lines[1]


def test_columns_that_do_not_fit_are_left_out() -> None:
    table = pa.table({f"column_{number}": [b"\xab" * 32] for number in range(9)})
    lines = show(table, 100_001)
    assert lines[0] == "  ".join(f"column_{number}".ljust(14) for number in range(5)).rstrip()
    assert lines[1].startswith("0xabababa…abab  ")
    assert lines[2] == "(1 of more than 100,000 rows; 5 of 9 columns: --columns a,b or --wide)"


def test_seconds_are_shown_where_there_are_some() -> None:
    times = [HOUR, HOUR + timedelta(seconds=7)]
    table = pa.table({"at": pa.array(times, pa.timestamp("us", "UTC"))})
    assert show(table)[1:3] == ["2026-03-03 13:00:00Z", "2026-03-03 13:00:07Z"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    lines = show(pa.table({"a\x1b[2J": ["\x1b]0;x\x07\u202e\x9b"]}))
    assert lines[0] == r"a\x1b[2J"
    assert lines[1] == r"\x1b]0;x\x07\u202e\x9b"


@given(
    st.lists(st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=30), min_size=1, max_size=12),
    st.lists(st.integers(-(10**75), 10**75), min_size=1, max_size=4),
    st.integers(80, 200),
)
def test_names_and_whole_numbers_are_complete(names: list[str], numbers: list[int], width: int) -> None:
    values = pa.array([Decimal(number) for number in numbers], pa.decimal256(76, 0))
    texts = pa.array(["x" * 100] * len(numbers))
    table = pa.table([texts if place % 2 else values for place in range(len(names))], names=names)
    heading, *rows = show(table, width=width)[:-1]
    shown = heading.split()
    assert shown == names[: len(shown)], "the first ones, whole"
    assert [int(row.split()[0]) for row in rows] == numbers
    assert all(cell_len(line) <= width for line in (heading, *rows)), "or one column, whatever its width"


@pytest.mark.parametrize(("rows", "total", "text"), [(1, 1, "1 row"), (1, None, "1 row"), (1, 5, "1 of 5 rows")])
def test_how_many_rows(rows: int, total: int | None, text: str) -> None:
    assert show(pa.table({"a": [1] * rows}), total)[-1] == f"({text})"

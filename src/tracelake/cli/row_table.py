"""Rows of a dataset as a table that fits the terminal.

Names of columns and whole numbers are never shortened. In a terminal, long texts and hashes are, times have no more
parts than they need, floating-point numbers have ten digits, and columns that do not fit are left out; a line below
says so. Output that goes elsewhere has everything.
"""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from rich.text import Text

from tracelake.cli.query_table import render, show_result
from tracelake.cli.session import Session
from tracelake.query.results import encode_rows
from tracelake.wire.content import MOST_COUNTED
from tracelake.wire.query import ResultColumn

_ANY_SIZE = 2**62
_FLOAT_WIDTH = 16
"""A number with more characters is rounded."""
_WHOLE_BELOW = 10**18
"""Larger ones have an exponent: most of their digits would say nothing."""
_WHOLE_MINUTE = ":00Z"


def show_rows(session: Session, table: pa.Table, total: int | None, *, more: bool, wide: bool) -> None:
    """`total`: how many rows there are in all, if that is known. `more`: whether there are others than these."""
    console = session.console
    columns = [ResultColumn(name=field.name, type=_type(field.type)) for field in table.schema]
    rows = encode_rows(table, _ANY_SIZE)
    width = console.width if console.is_terminal and not wide else None
    is_rounded = False
    if width is not None:
        rows, is_rounded = _short(table.schema, rows)
    text = render(columns, rows, width, types=False, leave_out=True)
    show_result(console, text)
    notes = [_row_text(table.num_rows, total, more=more)]
    if text.columns < len(columns):
        notes.append(f"{text.columns} of {len(columns)} columns: --columns a,b or --wide")
    elif text.shortened or is_rounded:
        notes.append("long values are shortened: --wide shows them whole")
    session.show(Text(f"({'; '.join(notes)})", style="dim"))


def _short(schema: pa.Schema, rows: Sequence[Sequence[Any]]) -> tuple[list[list[Any]], bool]:
    """The rows with times and floating-point numbers that are quick to read, and whether a number was rounded."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    is_rounded = False
    for place, field in enumerate(schema):
        if pa.types.is_timestamp(field.type):
            columns[place] = _short_times(columns[place])
        elif pa.types.is_floating(field.type):
            short = _short_numbers(columns[place])
            is_rounded |= any(
                isinstance(text, str) and float(text) != value
                for text, value in zip(short, columns[place], strict=True)
                if isinstance(value, float)
            )
            columns[place] = short
    return [list(row) for row in zip(*columns, strict=True)], is_rounded


def _short_times(texts: Sequence[str | None]) -> list[str | None]:
    """`2026-03-02 13:00Z`, with seconds if one of them has some."""
    times = [None if text is None else text.replace("T", " ") for text in texts]
    zoned = [text for text in times if text is not None and text.endswith("Z")]
    if len(zoned) < len(times) - times.count(None) or not all(text.endswith(_WHOLE_MINUTE) for text in zoned):
        return times
    return [None if text is None else f"{text.removesuffix(_WHOLE_MINUTE)}Z" for text in times]


def _short_numbers(values: Sequence[Any]) -> list[Any]:
    """The numbers of a column in one form: all in whole digits, all with an exponent, or none."""
    numbers = [value for value in values if isinstance(value, float)]
    if all(value.is_integer() and abs(value) < _WHOLE_BELOW for value in numbers):
        return [str(int(value)) if isinstance(value, float) else value for value in values]
    texts = [_short_number(value) if isinstance(value, float) else value for value in values]
    if any(isinstance(value, float) and "e" in text for value, text in zip(values, texts, strict=True)):
        return [_with_exponent(value) if isinstance(value, float) else value for value in values]
    return texts


def _short_number(value: float) -> str:
    if value.is_integer() and abs(value) < _WHOLE_BELOW:
        return str(int(value))
    return repr(value) if len(repr(value)) <= _FLOAT_WIDTH else format(value, ".10g")


def _with_exponent(value: float) -> str:
    if value == 0:
        return "0"
    digits, _, exponent = format(value, ".9e").partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{exponent}"


def _row_text(rows: int, total: int | None, *, more: bool) -> str:
    noun = "row" if rows == 1 and total in (None, 1) else "rows"
    if total is None or total == rows:
        return f"{rows:,} {noun}; there are more" if more else f"{rows:,} {noun}"
    return f"{rows:,} of more than {MOST_COUNTED:,} rows" if total > MOST_COUNTED else f"{rows:,} of {total:,} rows"


def _type(kind: pa.DataType) -> str:
    """Only whether it is a number or a time matters: neither is shortened, and numbers stand on the right."""
    is_number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if any(is_one(kind) for is_one in is_number):
        return "BIGINT"
    return "TIMESTAMP" if pa.types.is_temporal(kind) else "VARCHAR"

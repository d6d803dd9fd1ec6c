"""Bounds the number of items of a `sequence` from its text.

The number is known if both ends are literal numbers or dates, if both are parameters of the unit, or if the end is
relative to the beginning: `sequence(a, a + 9)`, or `sequence(a, least(b, a + 9))` where the end is a column.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlglot import exp

from tracelake.catalogue.sql.nodes import plain_number, plain_text

MAX_SEQUENCE = 100_000
BLOCKS_OF_UNIT = 10_000
"""The assumed length of a sequence over the blocks of a unit, whose size is decided where it is split."""
_SECONDS = {
    "MICROSECOND": Decimal("0.000001"),
    "MILLISECOND": Decimal("0.001"),
    "SECOND": Decimal(1),
    "MINUTE": Decimal(60),
    "HOUR": Decimal(3_600),
    "DAY": Decimal(86_400),
    "WEEK": Decimal(7 * 86_400),
    "MONTH": Decimal(28 * 86_400),
    "YEAR": Decimal(365 * 86_400),
}
_DAY = _SECONDS["DAY"]
_LONGEST = Decimal(31) / Decimal(28)
"""How much longer the longest month is than the one in `_SECONDS`."""


def count_steps(arguments: Sequence[Any], write: Callable[[Any], str]) -> int | None:
    """The largest number of items; None if unknown. `write` returns the text of an expression, to compare two."""
    first, last = (_bare(item) for item in arguments[:2])
    step = _bare(arguments[2]) if len(arguments) > 2 else None
    span = _span(first, last, write)
    if span is None:
        return None
    length, in_seconds = span
    if step is None:
        width: Decimal | None = _DAY if in_seconds else Decimal(1)
    else:
        width = _interval_seconds(step) if in_seconds else plain_number(step)
    return None if not width else int(abs(length) / abs(width)) + 1


def _span(first: Any, last: Any, write: Callable[[Any], str]) -> tuple[Decimal, bool] | None:
    """The distance between the ends, and whether it is in seconds."""
    low, high = plain_number(first), plain_number(last)
    if low is not None and high is not None:
        return high - low, False
    if isinstance(first, exp.Placeholder) and isinstance(last, exp.Placeholder):
        return Decimal(BLOCKS_OF_UNIT - 1), False
    begin, end = _moment(first), _moment(last)
    if begin is not None and end is not None:
        return Decimal(int((end - begin).total_seconds())), True
    spans = [_offset(first, item, write) for item in _least(last)]
    return next((span for span in spans if span is not None), None)


def _least(node: Any) -> list[Any]:
    """The arguments of `least`, each of which is an upper bound."""
    if isinstance(node, exp.Anonymous) and str(node.this).lower() == "least":
        return [_bare(item) for item in node.expressions]
    return [node]


def _offset(first: Any, last: Any, write: Callable[[Any], str]) -> tuple[Decimal, bool] | None:
    """The span of an end that adds to the beginning: `a + 9`, `date_add(a, 9)`, `a + INTERVAL 9 DAYS`."""
    base: Any = None
    distance: Any = None
    if isinstance(last, exp.Add):
        base, distance = _bare(last.this), _bare(last.expression)
    elif isinstance(last, exp.Anonymous) and str(last.this).lower() == "date_add" and len(last.expressions) == 2:
        base, distance = (_bare(item) for item in last.expressions)
    if base is None or write(base) != write(first):
        return None
    if (seconds := _interval_seconds(distance)) is not None:
        return seconds * _LONGEST, True
    days = plain_number(distance)
    if days is None:
        return None
    return (days, False) if isinstance(last, exp.Add) else (days * _DAY, True)


def _interval_seconds(node: Any) -> Decimal | None:
    if not isinstance(node, exp.Interval):
        return None
    unit = _SECONDS.get(str(node.args["unit"].name).upper().removesuffix("S")) if node.args.get("unit") else None
    text = plain_text(node.this)
    number = plain_number(exp.Literal.number(text.lstrip("-"))) if text is not None else plain_number(node.this)
    return None if unit is None or number is None else unit * number


def _moment(node: Any) -> datetime | None:
    """The value of `DATE '2024-01-01'` or `TIMESTAMP '2024-01-01 00:00:00'`."""
    text = plain_text(node.this) if type(node) is exp.Cast else None
    try:
        return datetime.fromisoformat(text[:19]).replace(tzinfo=None) if text else None
    except ValueError:
        return None


def _bare(node: Any) -> Any:
    while isinstance(node, exp.Paren):
        node = node.this
    return node

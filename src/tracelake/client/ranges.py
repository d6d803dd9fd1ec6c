"""Ranges of blocks and windows of time as people write them."""

import operator
import re

from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.jobs import BlockRange

Blocks = tuple[int, int] | tuple[str, str] | str
"""The first and the last block, both included; or as commands write it, like `0-999`, or `2026-03-03` for windows of
time; or the dates of the first and the last window."""
_NUMBER = r"[0-9]+(?:[_,][0-9]+)*"
_CURSOR = re.compile(_NUMBER)
_RANGE = re.compile(rf"({_NUMBER})\s*-\s*({_NUMBER})")
_DATE = r"[0-9]{4}-(?:[0-9]{2}(?:-[0-9]{2}(?:[ T][0-9]{2}:00)?)?|W[0-9]{2})"
_WINDOWS = re.compile(rf"{_DATE}(?:\.\.{_DATE})?")
"""An hour, a day, a month or a week; no range of blocks looks like one, because it would start after its end."""


def parse_cursor(text: str) -> int:
    """`1000000`, or with `_` or `,` between digits: `1_000_000`. Raises ValueError."""
    if not _CURSOR.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a number like 1000000 or 1_000_000")
    digits = text.strip().replace("_", "").replace(",", "")
    if len(digits.lstrip("0")) > len(str(MAX_CURSOR)) or int(digits) > MAX_CURSOR:
        raise ValueError(f"{text!r} is larger than {MAX_CURSOR}")
    return int(digits)


def parse_range(text: str) -> BlockRange:
    """`1000-2000`, with both ends included. Raises ValueError."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a range like 1000-2000 or 1_000-2_000")
    start, end = parse_cursor(match[1]), parse_cursor(match[2])
    if start > end:
        raise ValueError(f"{text!r} starts after its end")
    return BlockRange(start=start, end=end)


def parse_range_or_windows(text: str) -> BlockRange | str:
    """A range of blocks, or the dates of windows of time, which the server knows: `2026-03-03`. Raises ValueError."""
    if _WINDOWS.fullmatch(text.strip()):
        return text.strip()
    try:
        return parse_range(text)
    except ValueError:
        if _RANGE.fullmatch(text.strip()):
            raise
        raise ValueError(f"{text!r} is neither a range like 1000-2000 nor windows like 2026-03-03") from None


def read_units(units: Blocks) -> BlockRange | str:
    """The argument `range` of `Client`. Raises ValueError, which names it."""
    try:
        if isinstance(units, str):
            return parse_range_or_windows(units)
        first, last = units
        if isinstance(first, str) and isinstance(last, str):
            return parse_range_or_windows(first if first == last else f"{first.strip()}..{last.strip()}")
        return BlockRange(start=operator.index(first), end=operator.index(last))  # type: ignore[arg-type]
    except TypeError:
        expected = 'expected blocks like (0, 999) or "0-999", or windows like ("2026-03-02", "2026-03-04")'
        raise ValueError(f"range: {expected}, received {units!r}") from None
    except ValueError as error:
        raise ValueError(f"range: {error}") from None

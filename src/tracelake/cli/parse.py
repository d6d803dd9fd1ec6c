"""What people type: block ranges, cursors, times, the address of a job."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.jobs import BlockRange

_NUMBER = r"[0-9]+(?:[_,][0-9]+)*"
_CURSOR = re.compile(_NUMBER)
_RANGE = re.compile(rf"({_NUMBER})\s*-\s*({_NUMBER})")
_SPAN = re.compile(r"([0-9]{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_cursor(text: str) -> int:
    """`1000000`, or with `_` or `,` between digits: `1_000_000`. Raises ValueError."""
    if not _CURSOR.fullmatch(text.strip()):
        raise ValueError(f"{text!r} is not a number like 1000000 or 1_000_000")
    digits = text.strip().replace("_", "").replace(",", "")
    if len(digits.lstrip("0")) > len(str(MAX_CURSOR)) or int(digits) > MAX_CURSOR:
        raise ValueError(f"{text!r} is larger than {MAX_CURSOR}")
    return int(digits)


def parse_range(text: str) -> BlockRange:
    """`1000-2000`: both ends belong to it. Raises ValueError."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a range like 1000-2000 or 1_000-2_000")
    start, end = parse_cursor(match[1]), parse_cursor(match[2])
    if start > end:
        raise ValueError(f"{text!r} starts after its end")
    return BlockRange(start=start, end=end)


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """`30m` (that long ago), or a date or time as ISO 8601 writes it; without a zone it is UTC. Raises ValueError."""
    span = _SPAN.fullmatch(text.strip())
    if span is not None:
        return (now or datetime.now(UTC)) - timedelta(seconds=int(span[1]) * _SECONDS[span[2]])
    try:
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is neither a span like 30m, 2h, 7d nor a time like 2026-01-31T12:00:00Z") from None


class _Parsed(click.ParamType[Any]):
    """An option that is read by one of the functions above."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def read(self, text: str) -> Any:
        raise NotImplementedError


class CursorType(_Parsed):
    name = "N"

    def read(self, text: str) -> int:
        return parse_cursor(text)


class RangeType(_Parsed):
    name = "START-END"

    def read(self, text: str) -> BlockRange:
        return parse_range(text)


class TimeType(_Parsed):
    name = "TIME"

    def read(self, text: str) -> datetime:
        return parse_time(text)

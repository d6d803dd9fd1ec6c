"""Options that many commands share, and how their values are read: block ranges, cursors, times."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from tracelake.wire.base import MAX_CURSOR
from tracelake.wire.jobs import BlockRange

_NUMBER = r"[0-9]+(?:[_,][0-9]+)*"
_CURSOR = re.compile(_NUMBER)
_RANGE = re.compile(rf"({_NUMBER})\s*-\s*({_NUMBER})")
_DATE = r"[0-9]{4}-(?:[0-9]{2}(?:-[0-9]{2}(?:[ T][0-9]{2}:00)?)?|W[0-9]{2})"
_WINDOWS = re.compile(rf"{_DATE}(?:\.\.{_DATE})?")
"""An hour, a day, a month or a week; no range of blocks looks like one, because it would start after its end."""
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


def parse_time(text: str, now: datetime | None = None) -> datetime:
    """`30m` (that long ago), or a date or time in ISO 8601; without a zone it is UTC. Raises ValueError."""
    span = _SPAN.fullmatch(text.strip())
    if span is not None:
        return (now or datetime.now(UTC)) - timedelta(seconds=int(span[1]) * _SECONDS[span[2]])
    try:
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is neither a span like 30m, 2h, 7d nor a time like 2026-01-31T12:00:00Z") from None


class ParsedType(click.ParamType[Any]):
    """The type of an option whose text a function reads; a ValueError of the function is a wrong option."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


CURSOR = ParsedType("N", parse_cursor)
RANGE = ParsedType("START-END", parse_range)
RANGE_OR_WINDOWS = ParsedType("START-END", parse_range_or_windows)
TIME = ParsedType("TIME", parse_time)

home_option = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory of the stack (default: TRACE_HOME, else ~/.trace).",
)
token_file_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, readable=True),
    help="A file that holds your token (default: TRACE_TOKEN, else the stack's admin token).",
)
watch_option = click.option("--watch", is_flag=True, help="Refresh every second until Ctrl-C.")
follow_option = click.option(
    "--follow",
    "following",
    is_flag=True,
    help="Print one line for each change from now on, until Ctrl-C; with --json each line is a JSON document.",
)
cursor_option = click.option("--cursor", metavar="TEXT", help="Continue after an earlier page: its value of `next`.")


def limit_option(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "--limit", type=click.IntRange(1, 10_000), default=default, show_default=True, help="At most this many rows."
    )

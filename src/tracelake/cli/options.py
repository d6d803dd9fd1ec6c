"""Options that many commands share, and how their values are read: block ranges, cursors, times."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from tracelake.client.ranges import parse_cursor, parse_range, parse_range_or_windows
from tracelake.client.stack import HostOnlyError, chosen_context, explain_host_only

_SPAN = re.compile(r"([0-9]{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


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


def _refuse_in_context(_ctx: click.Context, _param: click.Parameter, home: Path | None) -> Path | None:
    """A command of the stack's machine must not act on another stack than the one that the user works with."""
    context = chosen_context(home)
    if context is not None:
        raise HostOnlyError(explain_host_only(context))
    return home


home_option = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    callback=_refuse_in_context,
    help="The directory of the stack (default: TRACE_HOME, else ~/.trace).",
)
"""Of commands that run on the machine of the stack."""
stack_option = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    help="Use the stack of this machine in this directory (default: TRACE_HOME, else ~/.trace).",
)
context_option = click.option(
    "--context",
    metavar="NAME",
    help="Use the stack of this context (default: TRACE_CONTEXT, else the current one); see `trace context`.",
)
token_file_option = click.option(
    "--token-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, readable=True),
    help="A file that holds your token (default: that of the context, TRACE_TOKEN, or the stack's admin token).",
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

"""Errors for people: one line that says what happened and what to do, and for a query the place at fault."""

import re

from rich.cells import cell_len

from tracelake.cli.text import clean, span
from tracelake.errors import TraceError

_MARK = "\u2026"
_LEAST_WIDTH = 40
_COMMAND = re.compile(r"`trace ([a-z]+)")


def error_line(error: TraceError) -> str:
    """The code, the message, and the remedy unless the message names its commands already."""
    message = error.message if error.message.endswith((".", "!", "?")) else f"{error.message}."
    return clean(f"{error.code}: {message} {_remedy(error)}".rstrip())


def query_error_lines(error: TraceError, sql: str, width: int = 80) -> list[str]:
    """The error, the line of the query that it is about with a mark below the place, and names that may be meant.

    The mark takes the place of a remedy, which for programs names the details that hold the position.
    """
    number, column = error.details.get("line"), error.details.get("column")
    texts = sql.split("\n")
    if isinstance(number, int) and isinstance(column, int) and 1 <= number <= len(texts) and column >= 1:
        text, start = texts[number - 1], column - 1
        lines = [
            clean(f"{error.code}: {error.message}"),
            *_mark(text, number, start, _extent(error, text, start), width),
        ]
    else:
        lines = [error_line(error)]
    suggestions = error.details.get("suggestions")
    if isinstance(suggestions, list) and any(f"`{name}`" not in error.message for name in suggestions):
        lines.append("Similar names: " + clean(", ".join(map(str, suggestions))))
    return lines


def _remedy(error: TraceError) -> str:
    """The remedy for people: it has the value, where the catalogue names the detail or the header that holds it.

    None if the message has the same commands: there they have the names that the catalogue cannot know.
    """
    remedy, details = error.kind.remedy, error.details
    commands = set(_COMMAND.findall(remedy))
    if commands and commands <= set(_COMMAND.findall(error.message)):
        return ""
    if isinstance(field := details.get("field"), str):
        remedy = remedy.replace("the field that `details.field` names", f"`{field}`")
        remedy = remedy.replace("See `details.field`", f"Look at `{field}`")
    if isinstance(role := details.get("needed_role"), str):
        remedy = remedy.replace("the role that `details.needed_role` names", f"the role {role}")
    if isinstance(status := details.get("status"), str):
        remedy = remedy.replace("`details.status` has its state", f"it is {status}")
        remedy = remedy.replace("`details.status` has the result", f"it is {status}")
    return remedy.replace("Wait for the time in Retry-After", f"Wait {_wait(details.get('retry_after_seconds'))}")


def _wait(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "a moment"
    return "a second" if seconds <= 1 else span(seconds)


def _extent(error: TraceError, text: str, start: int) -> int:
    """How many characters the mark spans: those of the name, if it stands there."""
    name = error.details.get("name")
    if isinstance(name, str) and name and text[start : start + len(name)].lower() == name.lower():
        return len(name)
    return 1


def _mark(text: str, number: int, start: int, extent: int, width: int) -> list[str]:
    heading = f"line {number}: "
    room = max(width, _LEAST_WIDTH) - len(heading) - 2
    first = max(0, min(start - room // 2, len(text) - room))
    last = first + room
    before = (_MARK if first else "") + clean(text[first:start])
    excerpt = before + clean(text[start:last]) + (_MARK if last < len(text) else "")
    mark = "^" * max(1, cell_len(clean(text[start : min(start + extent, last)])))
    return [(heading + excerpt).rstrip(), " " * (len(heading) + cell_len(before)) + mark]

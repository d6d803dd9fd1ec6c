"""Errors for people: one line that says what happened and what to do, and for a query the place at fault."""

from rich.cells import cell_len

from tracelake.cli.text import clean
from tracelake.errors import TraceError

_MARK = "\u2026"
_LEAST_WIDTH = 40


def error_line(error: TraceError) -> str:
    """The code, the message and the remedy."""
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
    """The remedy for people: it names the field, where the catalogue names the detail that holds it."""
    field = error.details.get("field")
    if not isinstance(field, str):
        return error.kind.remedy
    remedy = error.kind.remedy.replace("the field that `details.field` names", f"`{field}`")
    return remedy.replace("See `details.field`", f"Look at `{field}`")


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

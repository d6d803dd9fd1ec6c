"""Errors of the gate: a code of the catalogue, the position in the query, the name at fault, and what to write instead.

Messages are our own. Text of DuckDB or sqlglot can quote values, paths and names of other relations, so none of it is
passed on.
"""

from collections.abc import Iterable
from difflib import get_close_matches

from tracelake.errors import TraceError

MAX_SUGGESTIONS = 3
_MAX_SHOWN = 60


def refuse(
    code: str,
    message: str,
    query: str = "",
    offset: int | None = None,
    *,
    name: str | None = None,
    suggestions: Iterable[str] = (),
) -> TraceError:
    """The error for a place of the query. `offset` counts characters."""
    details: dict[str, object] = {}
    if offset is not None:
        details["line"], details["column"] = position(query, offset)
    if name is not None:
        details["name"] = shorten(name)
    if listed := list(suggestions)[:MAX_SUGGESTIONS]:
        details["suggestions"] = listed
    return TraceError(code, message, **details)


def position(query: str, offset: int) -> tuple[int, int]:
    """Line and column of a character, both from 1."""
    before = query[: max(0, offset)]
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def shorten(text: str) -> str:
    """The text in one line of visible ASCII characters."""
    short = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    return "".join(character if " " <= character <= "~" else "?" for character in short)


def quote(text: str) -> str:
    return f"`{shorten(text)}`"


def closest(name: str, candidates: Iterable[str]) -> list[str]:
    """Candidates that the caller may have meant."""
    by_lower = {candidate.lower(): candidate for candidate in candidates}
    matches = get_close_matches(name.lower()[:100], by_lower, MAX_SUGGESTIONS, 0.6)
    return [by_lower[match] for match in matches]

"""Checks of a query's text before anything parses it: characters, length, words and nesting.

The limits bound what the parsers may cost. Counting is coarse: quotes and comments are skipped in DuckDB's way only as
far as they hide brackets, and a text that fools the count meets the limits of the process that parses it.
"""

import re

from tracelake.errors import TraceError
from tracelake.query.gate.refusals import refuse

MAX_LENGTH = 50_000
MAX_TOKENS = 10_000
MAX_NESTING = 40
_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?\*/|[eExXbB]?'(?:[^']|'')*'|"(?:[^"]|"")*"|\$(\w*)\$.*?\$\1\$|\w+|\s+|[^\w\s]""", re.DOTALL
)
_OPENING = {"(", "[", "{", "case"}
_CLOSING = {")", "]", "}", "end"}
_PREFIXES = {"not", "-", "+", "~", "@"}


def check_text(query: str) -> None:
    """Raises TraceError."""
    if len(query) > MAX_LENGTH:
        raise refuse("query_too_complex", f"A query has at most {MAX_LENGTH:,} characters.", query, MAX_LENGTH)
    for offset, character in enumerate(query):
        if not (character.isprintable() or character in "\n\t\r"):
            message = f"The character U+{ord(character):04X} cannot stand in a query."
            raise refuse("query_syntax", message + " Remove it, or use chr() for it in a text.", query, offset)
    nesting = prefixes = tokens = 0
    for match in _TOKEN.finditer(query):
        word = match[0].lower()
        if word[0].isspace() or word.startswith(("--", "/*")):
            continue
        tokens += 1
        nesting += (word in _OPENING) - (word in _CLOSING)
        prefixes = prefixes + 1 if word in _PREFIXES else 0
        if tokens > MAX_TOKENS:
            raise refuse("query_too_complex", f"A query has at most {MAX_TOKENS:,} words.", query, match.start())
        if nesting > MAX_NESTING or prefixes > MAX_NESTING:
            raise too_deep(query, match.start())
    if not tokens:
        raise refuse("query_syntax", "The query is empty. Begin with SELECT, WITH, FROM, VALUES or PIVOT.", query, 0)


def too_deep(query: str, offset: int) -> TraceError:
    message = f"The query nests more than {MAX_NESTING} levels deep. Use WITH for the inner parts."
    return refuse("query_too_complex", message, query, offset)


class ByteOffsets:
    """DuckDB counts bytes of UTF-8; positions for people count characters."""

    def __init__(self, query: str) -> None:
        self._bytes = None if query.isascii() else query.encode()

    def character(self, offset: int) -> int:
        return offset if self._bytes is None else len(self._bytes[:offset].decode(errors="ignore"))

"""Reserved words that stand where a query needs a name, such as `at` in `SELECT max(at) FROM labels`."""

import re

from tracelake.query.gate.duckdb_parser import DuckDbParser, ParseError
from tracelake.query.gate.text import ByteOffsets

_WORD = re.compile(r"[a-z_]+", re.IGNORECASE)
_LAST_WORD = re.compile(r"[a-z_]+(?=\s*$)", re.IGNORECASE)
_CLAUSES = re.compile(
    "and|as|by|case|having|in|is|join|like|limit|not|on|or|qualify|select|using|where|with", re.IGNORECASE
)
"""Words that are hardly ever names: one at the end of a query lacks what has to follow."""


def find_reserved_name(parser: DuckDbParser, sql: str, offset: int) -> re.Match[str] | None:
    """The reserved word whose quotes would let DuckDB parse more of the query, which fails at `offset`.

    DuckDB fails at the word itself, or at what follows it.
    """
    for match in (_WORD.match(sql, offset), _LAST_WORD.search(sql, max(0, offset - 200), offset)):
        if match is None or match[0].lower() not in parser.reserved_words or _CLAUSES.fullmatch(match[0]):
            continue
        quoted = f'{sql[: match.start()]}"{match[0]}"{sql[match.end() :]}'
        place = _failing_place(parser, quoted)
        if place is None or place > max(match.end(), offset) + 2:
            return match
    return None


def _failing_place(parser: DuckDbParser, sql: str) -> int | None:
    """Where the text cannot be parsed; None if it can be."""
    try:
        parser.parse(sql)
    except ParseError as error:
        return 0 if error.offset is None else ByteOffsets(sql).character(error.offset)
    return None

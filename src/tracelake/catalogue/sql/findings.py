"""The findings of the SQL gate: codes, positions, and the error that carries them."""

from dataclasses import dataclass

MAX_LENGTH = 20_000
"""The most characters of a query."""

CODES = {
    "sql_argument": "An argument is not what the function takes there, or is computed where a literal is needed.",
    "sql_column": "A column of the result has no name, or no name of a column can be this.",
    "sql_construct": "Spark may know this, but a query of a DAG may not use it.",
    "sql_function": "The function is not one that queries may call.",
    "sql_join": "Two relations are joined without an equality between them, and neither is small.",
    "sql_limit": "The query is too long, nests too deeply, or asks for something too large.",
    "sql_name": "A name is not letters, digits and _.",
    "sql_parameter": "There is no such parameter, it stands inside quotes, or no parameter may stand there.",
    "sql_pattern": "A pattern is computed, is none, or may take too long to match.",
    "sql_relation": "The query reads something that is not an input of the job.",
    "sql_statement": "Not one SELECT.",
    "sql_syntax": "The text is not SQL.",
    "sql_text": "The query has a character that it may not have, or text that could be read in two ways.",
}
"""What each code means. A code is stable: one may be added, none changes its meaning."""


@dataclass(frozen=True, slots=True)
class Finding:
    code: str
    message: str
    line: int
    column: int
    suggestion: str = ""

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column} of the query: {self.message} ({self.code})"


class SqlRefusedError(Exception):
    """A query that is refused, and why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def position(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset]
    return before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1


def offset_of(text: str, line: int, column: int) -> int:
    """The inverse of `position`."""
    start = 0
    for _ in range(line - 1):
        start = text.find("\n", start) + 1
    return min(start + column - 1, len(text))


def shown(text: str) -> str:
    """A text as a message may quote it: short, in one line, only visible characters."""
    short = text if len(text) <= 60 else text[:60] + "..."
    return "`" + "".join(character if " " <= character <= "~" else "?" for character in short) + "`"

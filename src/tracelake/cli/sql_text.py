"""The words of SQL text, as DuckDB reads them: enough to find where statements end and what stands at the cursor.

Strings (`'it''s'`, `E'it\\'s'`, `$$it's$$`, `$tag$...$tag$`), quoted names and comments (`--`, and `/* */`, which nest)
may contain anything. A token that the text ends in the middle of is `open`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_BLANK = re.compile(r"\s+|--[^\n\r]*")
_WORD = re.compile(r"[^\W\d][\w$]*")
_NUMBER = re.compile(r"\d\w*")
_STRING = re.compile(r"'(?:[^']|'')*'")
_ESCAPE_STRING = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_QUOTED_NAME = re.compile(r'"(?:[^"]|"")*"')
_DOLLAR_TAG = re.compile(r"\$(?:[^\W\d]\w*)?\$")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_SIMPLE_NAME = re.compile(r"[a-z_][a-z0-9_]*", re.IGNORECASE | re.ASCII)


class TokenKind(Enum):
    BLANK = "blank"
    """White space or a comment."""
    WORD = "word"
    """A keyword, or a name without quotes."""
    NAME = "name"
    """A name in quotes."""
    STRING = "string"
    OTHER = "other"
    """A number, or one character."""


@dataclass(frozen=True, slots=True)
class SqlToken:
    kind: TokenKind
    text: str
    start: int
    open: bool = False

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    @property
    def name(self) -> str:
        """The name that a word or a quoted name stands for."""
        if self.kind is not TokenKind.NAME:
            return self.text
        inner = self.text[1:] if self.open else self.text[1:-1]
        return inner.replace('""', '"')


@dataclass(frozen=True, slots=True)
class SqlPieces:
    statements: list[str]
    """Those that end in `;`, without it and the blanks around; empty ones are left out."""
    rest: str
    """What follows the last `;`; empty if it has nothing but blanks and comments."""


def scan(text: str) -> Iterator[SqlToken]:
    """The tokens of the text; together they are the text."""
    start = 0
    after_e = False
    while start < len(text):
        token = _scan_one(text, start, after_e=after_e)
        yield token
        # Backslashes escape only in a string that directly follows an E.
        after_e = token.kind is TokenKind.WORD and token.text in ("e", "E")
        start = token.end


def split(text: str) -> SqlPieces:
    statements = []
    start, has_content, is_open = 0, False, False
    for token in scan(text):
        is_open = token.open
        if token.kind is TokenKind.OTHER and token.text == ";":
            if has_content:
                statements.append(text[start : token.start].strip())
            start, has_content = token.end, False
        elif token.kind is not TokenKind.BLANK:
            has_content = True
    return SqlPieces(statements, text[start:] if has_content or is_open else "")


def is_complete(text: str) -> bool:
    """Whether the text can be run as it is: nothing, or statements that all end in `;`."""
    return not split(text).rest


def quote_name(name: str, reserved: frozenset[str]) -> str:
    """The name as it has to stand in a query."""
    if _SIMPLE_NAME.fullmatch(name) and name.lower() not in reserved:
        return name
    return '"' + name.replace('"', '""') + '"'


def _scan_one(text: str, start: int, *, after_e: bool) -> SqlToken:
    for kind, pattern in ((TokenKind.BLANK, _BLANK), (TokenKind.WORD, _WORD), (TokenKind.OTHER, _NUMBER)):
        if match := pattern.match(text, start):
            return SqlToken(kind, match[0], start)
    character = text[start]
    if character == "'":
        return _scan_quoted(_ESCAPE_STRING if after_e else _STRING, TokenKind.STRING, text, start)
    if character == '"':
        return _scan_quoted(_QUOTED_NAME, TokenKind.NAME, text, start)
    if character == "$" and (tag := _DOLLAR_TAG.match(text, start)):
        end = text.find(tag[0], tag.end())
        if end < 0:
            return SqlToken(TokenKind.STRING, text[start:], start, open=True)
        return SqlToken(TokenKind.STRING, text[start : end + len(tag[0])], start)
    if text.startswith("/*", start):
        return _scan_comment(text, start)
    return SqlToken(TokenKind.OTHER, character, start)


def _scan_quoted(pattern: re.Pattern[str], kind: TokenKind, text: str, start: int) -> SqlToken:
    match = pattern.match(text, start)
    return SqlToken(kind, text[start:] if match is None else match[0], start, open=match is None)


def _scan_comment(text: str, start: int) -> SqlToken:
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return SqlToken(TokenKind.BLANK, text[start : edge.end()], start)
    return SqlToken(TokenKind.BLANK, text[start:], start, open=True)

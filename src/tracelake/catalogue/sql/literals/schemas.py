"""Schemas of `from_json` and `variant_get`: types as SQL writes them, and nothing else.

Spark also takes schemas as JSON there. JSON can name a user-defined type, a class that Java instantiates and Python
imports while they look at the schema, so no form of it is accepted.
"""

import re

from tracelake.catalogue.sql.literals.errors import LiteralError

MAX_LENGTH = 10_000
MAX_DEPTH = 16
MAX_FIELDS = 500
_ATOMIC = frozenset(
    [
        "bigint", "binary", "boolean", "byte", "date", "double", "float", "int", "integer", "long", "real", "short",
        "smallint", "string", "timestamp", "timestamp_ltz", "timestamp_ntz", "tinyint", "variant",
    ]
)  # fmt: skip
_DECIMALS = frozenset({"dec", "decimal", "numeric"})
_TOKEN = re.compile(r"\s+|`[A-Za-z_][A-Za-z0-9_]{0,127}`|[A-Za-z_][A-Za-z0-9_]{0,127}|[0-9]{1,2}(?![0-9])|[<>(),:]")


def check_schema(text: str) -> None:
    """A type, or columns with their types: `a INT, b ARRAY<STRING>`."""
    parser = _TypeParser(text)
    if parser.begins_with_type():
        parser.read_type(1)
    else:
        parser.read_fields(1, "")
    parser.expect_end()


def check_type(text: str) -> None:
    """One type: `ARRAY<INT>`."""
    parser = _TypeParser(text)
    parser.read_type(1)
    parser.expect_end()


class _TypeParser:
    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise LiteralError(f"a schema has at most {MAX_LENGTH:,} characters")
        self._tokens = _tokens(text)
        self._index = 0
        self._fields = 0

    def begins_with_type(self) -> bool:
        """`INT` and `ARRAY<INT>`; `date DATE` begins with the name of a column."""
        following = self._tokens[1] if len(self._tokens) > 1 else ""
        return self._peek().lower() in _ATOMIC | _DECIMALS | {"array", "map", "struct"} and following in ("", "<", "(")

    def read_type(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise LiteralError(f"a schema has at most {MAX_DEPTH} levels")
        word = self._take().lower()
        if word == "array":
            self._expect("<")
            self.read_type(depth + 1)
            self._expect(">")
        elif word == "map":
            self._expect("<")
            self.read_type(depth + 1)
            self._expect(",")
            self.read_type(depth + 1)
            self._expect(">")
        elif word == "struct":
            self._expect("<")
            if self._peek() != ">":
                self.read_fields(depth + 1, ">")
            self._expect(">")
        elif word in _DECIMALS:
            self._read_digits()
        elif word not in _ATOMIC:
            raise LiteralError("expected a type like INT or ARRAY<STRING>")

    def read_fields(self, depth: int, end: str) -> None:
        while True:
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise LiteralError(f"a schema has at most {MAX_FIELDS} fields")
            name = self._take()
            if not re.fullmatch("`?[A-Za-z_][A-Za-z0-9_]*`?", name):
                raise LiteralError("a field begins with its name")
            if self._peek() == ":":
                self._take()
            self.read_type(depth)
            if self._peek().lower() == "not":
                self._take()
                if self._take().lower() != "null":
                    raise LiteralError("only NOT NULL may follow a type")
            if self._peek() == end:
                return
            self._expect(",")

    def expect_end(self) -> None:
        if self._index < len(self._tokens):
            raise LiteralError("there is more behind the end of the schema")

    def _read_digits(self) -> None:
        if self._peek() != "(":
            return
        self._take()
        numbers = [self._number()]
        if self._peek() == ",":
            self._take()
            numbers.append(self._number())
        self._expect(")")
        if not 1 <= numbers[0] <= 38 or numbers[-1] > numbers[0]:
            raise LiteralError("DECIMAL has 1 to 38 digits")

    def _number(self) -> int:
        word = self._take()
        if not word.isdigit():
            raise LiteralError("DECIMAL takes one or two numbers")
        return int(word)

    def _peek(self) -> str:
        return self._tokens[self._index] if self._index < len(self._tokens) else ""

    def _take(self) -> str:
        word = self._peek()
        if not word:
            raise LiteralError("the schema is incomplete")
        self._index += 1
        return word

    def _expect(self, sign: str) -> None:
        if self._peek() != sign:
            raise LiteralError(f"the schema lacks a `{sign}`")
        self._index += 1


def _tokens(text: str) -> list[str]:
    tokens, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None or not text.isascii():
            raise LiteralError("a schema has names, types and <>(),: alone")
        if not match[0].isspace():
            tokens.append(match[0])
        place = match.end()
    return tokens

"""What an argument of a function may be. Each kind says what is expected, and why it is no free value.

`value` is any expression: the function does work that is linear in it, and parses nothing in it. Everything else is a
literal, because what Spark plans with, allocates by or parses is decided before a row is read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum

from tracelake.catalogue.sql.literals import formats, paths, patterns, schemas, words


class Form(Enum):
    """How an argument stands in the query."""

    VALUE = "any expression"
    LAMBDA = "a lambda"
    TEXT = "a text in quotes"
    NUMBER = "a plain number"
    NUMBERS = "a plain number, or `array(...)` of such"
    FLAG = "TRUE or FALSE"
    UNIT = "the name of a unit"
    OPTIONS = "`map(...)` of texts"
    SEQUENCE_END = "the end of a sequence"
    NUMBER_OR_TEXT = "a plain number or a text in quotes"


@dataclass(frozen=True, slots=True)
class ArgumentKind:
    name: str
    form: Form
    expected: str
    """What to write, for people."""
    reason: str
    """Why it is not a value."""
    check: Callable[[str], int | None] | None = None
    """Of a text: raises `LiteralError`. That of a pattern gives the power of a text's length that it costs."""
    low: Decimal = Decimal(0)
    high: Decimal = Decimal(0)
    whole: bool = True


def _text(name: str, expected: str, reason: str, check: Callable[[str], int | None]) -> ArgumentKind:
    return ArgumentKind(name, Form.TEXT, expected, reason, check)


def _number(
    name: str, low: str, high: str, reason: str, *, whole: bool = True, form: Form = Form.NUMBER
) -> ArgumentKind:
    kind = "a whole number" if whole else "a number"
    expected = f"{kind} from {Decimal(low):,f} to {Decimal(high):,f}"
    return ArgumentKind(name, form, expected, reason, None, Decimal(low), Decimal(high), whole)


MAX_SIZE = 100_000
"""Characters of a text and items of an array that one call may make."""

_ALL = [
    ArgumentKind("value", Form.VALUE, "any expression", "The work is linear in it, and nothing in it is parsed."),
    ArgumentKind("lambda", Form.LAMBDA, "a lambda like `x -> x + 1`", "It runs once per item; nesting is limited."),
    ArgumentKind("flag", Form.FLAG, "TRUE or FALSE", "Spark plans with it."),
    ArgumentKind("unit", Form.UNIT, "a unit like DAY", "It is a word of the grammar."),
    ArgumentKind(
        "options",
        Form.OPTIONS,
        "options like `map('mode', 'FAILFAST')`",
        "Each is a setting of a parser; those that are harmless are listed.",
    ),
    ArgumentKind(
        "end",
        Form.SEQUENCE_END,
        "an end that is a known number of steps away: a plain number, or `least(last, first + 999)`",
        "It decides how many items the array has.",
    ),
    _text(
        "schema",
        "a schema like `'a INT, b ARRAY<STRING>'`",
        "A schema as JSON can name classes that Java and Python load; a deep one ends Java's stack.",
        schemas.check_schema,
    ),
    _text("type", "a type like `'DECIMAL(38, 0)'`", "As a schema.", schemas.check_type),
    _text(
        "pattern",
        "a regular expression in quotes",
        "Java's matching backtracks, cannot be interrupted, and can take exponential time.",
        patterns.check_pattern,
    ),
    _text("replacement", "a text with `$1` for groups", "Java parses it, once per match.", words.check_replacement),
    _text("datetime", "a pattern like `'yyyy-MM-dd'`", "Java parses it, and pads by it.", formats.check_datetime),
    _text("number_format", "a format like `'999.99'`", "Spark parses it, and pads by it.", formats.check_number),
    _text("char_format", "a format like `'999.99'` or `'yyyy-MM-dd'`", "Spark parses it.", formats.check_char),
    ArgumentKind(
        "decimals",
        Form.NUMBER_OR_TEXT,
        "a whole number from 0 to 38, or a format like `'#,###.00'`",
        "Java makes a format with so many digits.",
        formats.check_decimal,
        Decimal(0),
        Decimal(38),
    ),
    _text("printf", "a format like `'%s: %5d'`", "Java pads to the width in it.", formats.check_printf),
    _text("json_path", "a path like `'$.a[0].b'`", "Spark parses it; wildcards multiply.", paths.check_json_path),
    _text("variant_path", "a path like `'$.a[0].b'`", "Spark parses it.", paths.check_variant_path),
    _text("json", "JSON in quotes", "Spark reads it while it plans, and recurses.", words.check_json),
    _text("zone", "a time zone like `'Europe/Berlin'`", "Java looks it up by name.", words.check_zone),
    _text("charset", "a charset like `'UTF-8'`", "Java looks it up by name.", words.check_charset),
    _text("binary_format", "'hex', 'utf-8' or 'base64'", "It decides how bytes are parsed.", words.check_binary),
    _text("truncation", "a unit like `'hour'`", "It is a word of a small language.", words.check_truncation),
    _text("part", "a part like `'year'`", "It is a word of a small language.", words.check_part),
    _text("weekday", "a day like `'Monday'`", "It is a word of a small language.", words.check_weekday),
    _text("field", "the name of a field in quotes", "It becomes a part of the schema.", words.check_field),
    _text("delimiter", "a text in quotes", "Spark plans with it; it stands between all rows.", words.check_text),
    _number("size", "0", str(MAX_SIZE), "It is the length of the result."),
    _number("position", "-10000", "10000", "An array is padded up to there."),
    _number("scale", "-38", "38", "Decimals are computed with so many digits."),
    _number(
        "error", "0.01", "0.39", "The sketch has 1 / error² cells; a small one overflows Java's arrays.", whole=False
    ),
    _number("accuracy", "1", "100000", "The summary of each group keeps so many samples."),
    _number("share", "0", "1", "Spark plans with it.", whole=False, form=Form.NUMBERS),
    _number("bins", "2", "1000", "The histogram of each group has so many bins."),
    _number("epsilon", "0.0001", "1", "The sketch is 2 / epsilon wide.", whole=False),
    _number("confidence", "0.01", "0.9999", "The sketch is as deep as its logarithm.", whole=False),
    _number("seed", "-2147483648", "2147483647", "Spark plans with it."),
    _number("top", "1", "1000", "Each group keeps so many rows."),
    _number("offset", "-100000", "100000", "A window keeps so many rows in memory."),
    _number("rank", "1", "1000000", "Spark plans with it."),
    _number("group", "0", "99", "It is the number of a group of the pattern."),
    _number("limit", "-1", str(MAX_SIZE), "It is the length of the result."),
    _number("rows", "1", "1000", "It is the number of rows that one row becomes."),
]
KINDS: dict[str, ArgumentKind] = {kind.name: kind for kind in _ALL}

FLAG_OPTIONS = frozenset(
    [
        "allowbackslashescapinganycharacter", "allowcomments", "allownonnumericnumbers", "allownumericleadingzeros",
        "allowsinglequotes", "allowunquotedcontrolchars", "allowunquotedfieldnames", "dropfieldifallnull",
        "ignorenullfields", "multiline", "prefersdecimal", "pretty", "primitivesasstring",
        "writenonasciicharacterascodepoint",
    ]
)  # fmt: skip
OPTIONS: dict[str, Callable[[str], None]] = {
    "dateformat": formats.check_datetime,
    "timestampformat": formats.check_datetime,
    "timestampntzformat": formats.check_datetime,
    "timezone": words.check_zone,
    "columnnameofcorruptrecord": words.check_field,
}
"""Options with a language of their own. `mode` and flags have words."""
MODES = frozenset({"permissive", "failfast", "dropmalformed"})

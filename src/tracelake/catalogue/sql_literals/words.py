"""Languages of one word: time zones, charsets, units, names, texts; and JSON that is read for its types."""

import json
import re

from tracelake.catalogue.sql_literals.errors import LiteralError

MAX_TEXT = 1_000
MAX_JSON = 10_000
MAX_JSON_DEPTH = 16
_ZONE = re.compile(r"[A-Za-z]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,2}|[+-](?:0[0-9]|1[0-8]):[0-5][0-9]")
_FIELD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_REPLACEMENT = re.compile(r"(?:[^\\$]|\\.|\$[0-9])*", re.DOTALL)
_CHARSETS = frozenset({"us-ascii", "iso-8859-1", "utf-8", "utf-16be", "utf-16le", "utf-16", "utf-32"})
_BINARY = frozenset({"hex", "utf-8", "utf8", "base64"})
_TRUNCATED = frozenset(
    [
        "year",
        "yyyy",
        "yy",
        "quarter",
        "month",
        "mon",
        "mm",
        "week",
        "day",
        "dd",
        "hour",
        "minute",
        "second",
        "millisecond",
        "microsecond",
    ]
)
_PARTS = frozenset(
    [
        "year",
        "y",
        "years",
        "yr",
        "yrs",
        "yearofweek",
        "quarter",
        "qtr",
        "month",
        "mon",
        "mons",
        "months",
        "week",
        "w",
        "weeks",
        "day",
        "d",
        "days",
        "dayofweek",
        "dow",
        "dayofweek_iso",
        "dow_iso",
        "doy",
        "hour",
        "h",
        "hours",
        "hr",
        "hrs",
        "minute",
        "m",
        "min",
        "mins",
        "minutes",
        "second",
        "s",
        "sec",
        "seconds",
        "secs",
    ]
)
_WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


def check_zone(text: str) -> None:
    if not _ZONE.fullmatch(text):
        raise LiteralError("a time zone is like `Europe/Berlin`, `UTC` or `+01:00`")


def check_charset(text: str) -> None:
    _check_word(text, _CHARSETS, "a charset is one of")


def check_binary(text: str) -> None:
    _check_word(text, _BINARY, "a format of bytes is one of")


def check_truncation(text: str) -> None:
    _check_word(text, _TRUNCATED, "what dates are cut to is one of")


def check_part(text: str) -> None:
    _check_word(text, _PARTS, "a part of a date is one of")


def check_weekday(text: str) -> None:
    word = text.lower()
    if len(word) < 2 or not any(word in (day, day[:2], day[:3]) for day in _WEEKDAYS):
        raise LiteralError("a day of the week is like `Monday`, `Mon` or `Mo`")


def check_field(text: str) -> None:
    if not _FIELD.fullmatch(text):
        raise LiteralError("the name of a field is letters, digits and _")


def check_text(text: str) -> None:
    if len(text) > MAX_TEXT:
        raise LiteralError(f"a text here has at most {MAX_TEXT:,} characters")


def check_replacement(text: str) -> None:
    """What a match of a pattern is replaced by: text, with `$1` for a group."""
    check_text(text)
    if not _REPLACEMENT.fullmatch(text):
        raise LiteralError(r"a replacement has `$1` to `$9` for groups; write `\\$` for a dollar sign")


def check_json(text: str) -> None:
    """JSON that Spark reads when it plans the query."""
    if len(text) > MAX_JSON or _depth(text) > MAX_JSON_DEPTH:
        raise LiteralError(f"JSON here has at most {MAX_JSON:,} characters and {MAX_JSON_DEPTH} levels")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise LiteralError("this is not JSON") from None


def _depth(text: str) -> int:
    """Of the brackets outside of quotes."""
    depth = deepest = 0
    for sign in _QUOTED.sub("", text):
        depth += (sign in "[{") - (sign in "]}" and depth > 0)
        deepest = max(deepest, depth)
    return deepest


def _check_word(text: str, words: frozenset[str], expected: str) -> None:
    if text.lower() not in words:
        raise LiteralError(f"{expected} {', '.join(sorted(words))}")

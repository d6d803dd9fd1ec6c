"""Languages of one word: time zones, charsets, units, names, texts; and JSON that is read for its types."""

import json
import re
from collections.abc import Callable

from tracelake.catalogue.sql.literals.errors import LiteralError

MAX_TEXT = 1_000
MAX_JSON = 10_000
MAX_JSON_DEPTH = 16
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_REPLACEMENT = re.compile(r"(?:[^\\$]|\\.|\$[0-9])*", re.DOTALL)
_WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")


def _matching(expected: str, pattern: str) -> Callable[[str], None]:
    """A check that a whole text matches a pattern."""

    def check(text: str) -> None:
        if not re.fullmatch(pattern, text):
            raise LiteralError(expected)

    return check


def _one_of(what: str, words: str) -> Callable[[str], None]:
    """A check that a text is one of some words, in any case."""
    allowed = frozenset(words.split())

    def check(text: str) -> None:
        if text.lower() not in allowed:
            raise LiteralError(f"{what} is one of {', '.join(sorted(allowed))}")

    return check


check_zone = _matching(
    "a time zone is like `Europe/Berlin`, `UTC` or `+01:00`",
    r"[A-Za-z]{1,32}(?:/[A-Za-z0-9_+-]{1,32}){0,2}|[+-](?:0[0-9]|1[0-8]):[0-5][0-9]",
)
check_field = _matching("the name of a field is letters, digits and _", "[A-Za-z_][A-Za-z0-9_]{0,127}")
check_charset = _one_of("a charset", "us-ascii iso-8859-1 utf-8 utf-16be utf-16le utf-16 utf-32")
check_binary = _one_of("a format of bytes", "hex utf-8 utf8 base64")
check_truncation = _one_of(
    "the unit that a date is truncated to",
    "year yyyy yy quarter month mon mm week day dd hour minute second millisecond microsecond",
)
check_part = _one_of(
    "a part of a date",
    "year y years yr yrs yearofweek quarter qtr month mon mons months week w weeks day d days dayofweek dow "
    "dayofweek_iso dow_iso doy hour h hours hr hrs minute m min mins minutes second s sec seconds secs",
)


def check_weekday(text: str) -> None:
    word = text.lower()
    if len(word) < 2 or not any(word in (day, day[:2], day[:3]) for day in _WEEKDAYS):
        raise LiteralError("a day of the week is like `Monday`, `Mon` or `Mo`")


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
    """The deepest nesting of the brackets outside of quotes."""
    depth = deepest = 0
    for sign in _QUOTED.sub("", text):
        depth += (sign in "[{") - (sign in "]}" and depth > 0)
        deepest = max(deepest, depth)
    return deepest

"""Formats of dates, numbers and texts. What they have in common: a long one asks Java for a long result."""

import re

from tracelake.catalogue.sql.literals.errors import LiteralError

MAX_LENGTH = 100
MAX_DIGITS = 38
MAX_WIDTH = 999

_LETTERS = {
    **dict.fromkeys("GEa", 4),
    **dict.fromkeys("MLQq", 4),
    "y": 6,
    "d": 2,
    "D": 3,
    "F": 1,
    **dict.fromkeys("hHkKms", 2),
    "S": 9,
    "n": 9,
    "V": 2,
    "z": 4,
    "O": 4,
    **dict.fromkeys("Xx", 5),
}
"""How often each letter of a pattern of dates may stand in a row. `V` is the only one that has to stand twice."""
_DATE_SIGNS = frozenset(" .,:;/-_+()T")
_NUMBER_FORMAT = re.compile(r"(?:MI|S|\$|L)?\$?[09][09,G]*(?:[.D][09]*)?\$?(?:MI|S|PR)?")
_DECIMAL_FORMAT = re.compile(r"[#0,]*[#0](?:\.[#0]*)?|\.[#0]+")
_DIRECTIVE = re.compile(r"%(?:[1-9][0-9]?\$)?[-#+ 0,(]{0,6}([0-9]{0,9})(?:\.([0-9]{1,9}))?([a-zA-Z%])")
_CONVERSIONS = frozenset("bBsScdoxXeEfgGn%")


def check_datetime(text: str) -> None:
    """A pattern of dates and times: `yyyy-MM-dd HH:mm:ss`."""
    _check_length(text)
    index = depth = 0
    while index < len(text):
        letter = text[index]
        run = len(text) - index - len(text[index:].lstrip(letter))
        if letter == "'":
            index = _end_of_quote(text, index)
            continue
        if letter in "[]":
            depth += 1 if letter == "[" else -1
            run = 1
            if depth not in (0, 1):
                raise LiteralError("an optional part `[...]` of a pattern has no other one in it")
        elif letter in _LETTERS:
            if run > _LETTERS[letter] or (letter == "V" and run != 2):
                raise LiteralError(f"`{letter}` stands {run} times in a row, which no pattern of dates has")
        elif letter not in _DATE_SIGNS:
            raise LiteralError("a pattern of dates has letters like `yyyy`, signs, and other text in ''")
        index += run
    if depth:
        raise LiteralError("`[` of a pattern of dates is not closed")


def _end_of_quote(text: str, start: int) -> int:
    end = text.find("'", start + 1)
    if end < 0:
        raise LiteralError("a quote in a pattern of dates is not closed")
    return end + 1


def check_number(text: str) -> None:
    """A format of `to_number` and `to_char`: `999,999.99`."""
    _check_length(text)
    if not _NUMBER_FORMAT.fullmatch(text) or sum(text.count(digit) for digit in "09") > MAX_DIGITS:
        raise LiteralError(f"a format of numbers is like `999,999.99`, with at most {MAX_DIGITS} digits")


def check_decimal(text: str) -> None:
    """A format of `format_number`: `#,###.00`."""
    _check_length(text)
    if text and (not _DECIMAL_FORMAT.fullmatch(text) or sum(text.count(digit) for digit in "0#") > MAX_DIGITS):
        raise LiteralError(f"a format of numbers is like `#,###.00`, with at most {MAX_DIGITS} digits")


def check_char(text: str) -> None:
    """A format of `to_char`: of numbers, of dates, or the name of one for bytes. Which it is depends on a type."""
    if text.lower() in ("base64", "hex", "utf-8"):
        return
    try:
        check_number(text)
    except LiteralError:
        check_datetime(text)


def check_printf(text: str) -> None:
    """A format of `format_string`: `%s has %05d`. Dates (`%t`) depend on where Java runs."""
    if len(text) > 1_000:
        raise LiteralError("a format of texts has at most 1,000 characters")
    place, width = text.find("%"), 0
    while place >= 0:
        match = _DIRECTIVE.match(text, place)
        if match is None or match[3] not in _CONVERSIONS:
            raise LiteralError(r"a format of texts has directives like `%s`, `%5d` and `%.2f`; `%%` is a percent sign")
        width += int(match[1] or 0) + int(match[2] or 0)
        place = text.find("%", match.end())
    if width > MAX_WIDTH:
        raise LiteralError(f"the widths of a format add up to more than {MAX_WIDTH}")


def _check_length(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise LiteralError(f"a format has at most {MAX_LENGTH} characters")

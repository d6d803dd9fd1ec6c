"""The meaning of a plain scalar, with fewer spellings than YAML allows.

`true` and `false` are booleans; `null`, `~` and an empty scalar are null; numbers are plain decimal. Spellings that
only some versions of YAML read as a boolean or a number (`yes`, `on`, `True`, `1_000`, `0x1F`, `010`, `1:30`, `.inf`)
are ambiguous: unless the field is text, they must be quoted or spelled plainly.
"""

import math
import re
from enum import Enum

from tracelake.model.dag import Scalar

MAX_INTEGER = 2**63 - 1


class Unclear(Enum):
    WORD = "word"
    """A boolean or null in some versions of YAML."""
    NUMBER = "number"
    """A number in some versions of YAML."""
    TOO_LARGE = "too large"
    """A number that is too large to be stored."""


_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORDS = frozenset(
    form
    for word in ("true", "false", "yes", "no", "on", "off", "null")
    for form in (word, word.capitalize(), word.upper())
) - {"true", "false", "null"}
_ODD_NUMBER = re.compile(
    r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*(?::[0-9]{1,2})+(?:\.[0-9_]*)?"
    r"|[0-9][0-9_]*(?:\.[0-9_]*)?(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?|\.(?:inf|Inf|INF))"
    r"|\.(?:nan|NaN|NAN)"
)
_LONGEST_NUMBER = 400


def meaning(text: str) -> Scalar | Unclear:
    """The value of a scalar without quotes."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if text in _WORDS:
        return Unclear.WORD
    if text[0] not in "-+.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return _integer(text)
    if len(text) > _LONGEST_NUMBER:
        return text
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if math.isfinite(number) else Unclear.TOO_LARGE
    return Unclear.NUMBER if _ODD_NUMBER.fullmatch(text) else text


def is_text(text: str) -> bool:
    """Whether a plain scalar is accepted as text where only text is allowed, as in keys and names."""
    value = meaning(text)
    return isinstance(value, str) or value is Unclear.WORD


def _integer(text: str) -> int | Unclear:
    if len(text) > 20:
        return Unclear.TOO_LARGE
    number = int(text)
    return number if -MAX_INTEGER - 1 <= number <= MAX_INTEGER else Unclear.TOO_LARGE

"""What a plain scalar means. Fewer spellings than YAML has: one for each thing.

`true` and `false` are booleans, `null`, `~` and nothing are null, numbers are plain decimal. What only some versions
of YAML take for a boolean or a number (`yes`, `on`, `True`, `1_000`, `0x1F`, `010`, `1:30`, `.inf`) has no meaning of
its own here: where the field does not say that it is text, it must be quoted or spelled plainly.
"""

import math
import re
from enum import Enum

from tracelake.model.dag import Scalar

MAX_INTEGER = 2**63 - 1


class Unclear(Enum):
    WORD = "word"
    """A boolean or null in some version of YAML."""
    NUMBER = "number"
    """A number in some version of YAML."""
    TOO_LARGE = "too large"
    """A number, but of more digits than can be kept."""


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
    """Of a scalar without quotes."""
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
    """Whether a plain scalar stands for text in a place where everything is text: keys, names."""
    value = meaning(text)
    return isinstance(value, str) or value is Unclear.WORD


def _integer(text: str) -> int | Unclear:
    if len(text) > 20:
        return Unclear.TOO_LARGE
    number = int(text)
    return number if -MAX_INTEGER - 1 <= number <= MAX_INTEGER else Unclear.TOO_LARGE

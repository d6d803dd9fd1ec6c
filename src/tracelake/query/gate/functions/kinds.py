"""Kinds of arguments. `value` is any expression; every other kind is a constant that the gate looks at, or a lambda.

A constant is a literal, a cast of one, or a parameter, whose value the gate knows.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tracelake.query.gate.functions.types import is_plain_type
from tracelake.query.gate.word_sets import words

MAX_SIZE = 10_000
"""The largest text or list that one call may make from a number."""
MAX_COUNT = 10_000
MAX_PATTERN = 500
MAX_REPETITION = 1_000
MAX_WILDCARDS = 8
MAX_WORD = 100
_REPETITION = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_WIDTH = re.compile(r"\d{4,}|\*|\{[^{}]*\{")
_PARTS = words(
    """century day dayofmonth dayofweek dayofyear days decade dow doy epoch epoch_ms epoch_ns epoch_us era hour hours hr
    isodow isoyear julian microsecond microseconds millennium millisecond milliseconds minute minutes min mins month
    months mon mons ms msec nanosecond ns quarter quarters s sec second seconds secs timezone timezone_hour
    timezone_minute us usec week weekday weeks weekofyear y year years yearweek yr d h m w q c dec"""
)
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+\-]*(?:/[A-Za-z0-9_+\-]+){0,2}|[+-]\d{2}:?\d{2}")
_AGGREGATE_NAMES = words(
    """any_value approx_count_distinct avg bit_and bit_or bit_xor bool_and bool_or count entropy favg first fsum
    histogram kurtosis kurtosis_pop last mad max mean median min mode product sem skewness stddev stddev_pop
    stddev_samp string_agg sum sumkahan var_pop var_samp variance"""
)


class NoConstant:
    """The argument is not a constant."""


NO_CONSTANT = NoConstant()
Constant = str | int | float | bool | None | list[Any] | NoConstant


@dataclass(frozen=True, slots=True)
class ConstantKind:
    expected: str
    reason: str
    accepts: Callable[[Any], bool]


def _is_text(limit: int) -> Callable[[Any], bool]:
    return lambda value: value is None or (isinstance(value, str) and len(value) <= limit)


def _is_number(least: int, most: int) -> Callable[[Any], bool]:
    def accepts(value: Any) -> bool:
        return value is None or (not isinstance(value, bool) and isinstance(value, int) and least <= value <= most)

    return accepts


def _is_share(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 100 and all(_is_share(item) for item in value)
    return isinstance(value, int | float) and not isinstance(value, bool) and -1 <= value <= 1


def _is_pattern(value: Any) -> bool:
    """RE2 takes time linear in the text; its program grows with what is repeated."""
    if value is None:
        return True
    if not isinstance(value, str) or len(value) > MAX_PATTERN:
        return False
    product = 1
    for match in _REPETITION.finditer(value):
        product *= max(1, *(int(number[:6]) for number in match.groups() if number))
    return product <= MAX_REPETITION


def _is_like(value: Any) -> bool:
    """Each `%` may be tried at every place of the text."""
    return value is None or (
        isinstance(value, str) and len(value) <= MAX_PATTERN and _wildcards(value) <= MAX_WILDCARDS
    )


def _wildcards(pattern: str) -> int:
    return len(re.findall(r"%+", pattern))


def _is_glob(value: Any) -> bool:
    return value is None or (
        isinstance(value, str) and len(value) <= MAX_PATTERN and len(re.findall(r"\*+", value)) <= MAX_WILDCARDS
    )


def _is_template(value: Any) -> bool:
    """Widths and precisions make a text of that size; a nested width comes from a value."""
    return value is None or (isinstance(value, str) and len(value) <= MAX_PATTERN and not _WIDTH.search(value))


def _is_format(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 20 and all(_is_format(item) for item in value)
    return value is None or (isinstance(value, str) and len(value) <= MAX_WORD)


def _is_part(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= 20 and all(_is_part(item) for item in value)
    return isinstance(value, str) and value.lower() in _PARTS


def _is_zone(value: Any) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= MAX_WORD and bool(_ZONE.fullmatch(value)))


def _is_structure(value: Any) -> bool:
    """A JSON text whose leaves are names of types."""
    if not isinstance(value, str) or len(value) > 4_000:
        return False
    try:
        return _is_structure_part(json.loads(value), 0)
    except (ValueError, RecursionError):
        return False


def _is_structure_part(value: Any, depth: int) -> bool:
    if depth > 10:
        return False
    if isinstance(value, str):
        return is_plain_type(value)
    if isinstance(value, list):
        return len(value) == 1 and _is_structure_part(value[0], depth + 1)
    return isinstance(value, dict) and all(_is_structure_part(item, depth + 1) for item in value.values())


def _is_any(value: Any) -> bool:
    return not isinstance(value, NoConstant)


KINDS: dict[str, ConstantKind] = {
    "value": ConstantKind("any expression", "the function only computes with it", lambda _: True),
    "lambda": ConstantKind("a lambda", "anything else would be a name of a function", lambda _: True),
    "literal": ConstantKind("a constant", "DuckDB needs it before it runs", _is_any),
    "word": ConstantKind("a constant word", "it selects a variant of the function", _is_text(MAX_WORD)),
    "size": ConstantKind(
        f"a constant number up to {MAX_SIZE:,}", "it sizes the result", _is_number(-MAX_SIZE, MAX_SIZE)
    ),
    "count": ConstantKind(
        f"a constant number from 1 to {MAX_COUNT:,}", "it sizes the state of the function", _is_number(1, MAX_COUNT)
    ),
    "share": ConstantKind("a constant between -1 and 1, or a list of them", "it sizes nothing else", _is_share),
    "pattern": ConstantKind(
        f"a constant pattern of at most {MAX_PATTERN} characters and {MAX_REPETITION:,} repetitions",
        "its program is built before it runs",
        _is_pattern,
    ),
    "like": ConstantKind(
        f"a constant pattern with at most {MAX_WILDCARDS} wildcards (`starts_with` and `contains` take any expression)",
        "each wildcard multiplies the work",
        _is_like,
    ),
    "glob": ConstantKind(
        f"a constant pattern with at most {MAX_WILDCARDS} wildcards", "each wildcard multiplies the work", _is_glob
    ),
    "template": ConstantKind(
        "a constant format whose widths have at most 3 digits", "a width makes a text of that size", _is_template
    ),
    "format": ConstantKind("a constant date format", "it is a small language of its own", _is_format),
    "part": ConstantKind("a constant part of a date, such as 'month'", "it selects the function", _is_part),
    "zone": ConstantKind("a constant time zone, such as 'UTC'", "it is looked up by name", _is_zone),
    "structure": ConstantKind("a constant JSON text of types", "it names types", _is_structure),
    "aggregate": ConstantKind(
        "the constant name of a simple aggregate, such as 'sum'",
        "it names a function",
        lambda value: isinstance(value, str) and value.lower() in _AGGREGATE_NAMES,
    ),
}

"""Types of operations, by the rules of Spark's ANSI mode.

A test asks Spark for the type of every operation on every pair of types and compares: what is named here is what Spark
answers, and what is called a mismatch here is one for Spark.
"""

from collections.abc import Iterable
from functools import reduce

from tracelake.catalogue.sql.columns.types import (
    ATOMIC,
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGRAL,
    MAX_PRECISION,
    NUMERIC,
    STRING,
    TIMES,
    UNKNOWN,
    SqlType,
    array,
    as_decimal,
    decimal,
    fitted_decimal,
)

_MIN_QUOTIENT_SCALE = 6
_NO_NUMBER = frozenset(["binary", "boolean", "timestamp", "timestamp_ntz"])
"""Types that no arithmetic takes, unless with an interval."""


class TypeMismatchError(Exception):
    """Spark takes no operation on these types."""


def arithmetic(sign: str, left: SqlType, right: SqlType) -> SqlType:
    """The type of `left sign right`; `sign` is one of + - * / % DIV."""
    if not (left.is_known and right.is_known):
        return UNKNOWN
    kinds = {left.kind, right.kind}
    if not kinds <= ATOMIC:
        return UNKNOWN
    if kinds <= NUMERIC:
        return _numbers(sign, left, right)
    if kinds & TIMES and sign in "+-":
        return _days(sign, left, right)
    if kinds & (_NO_NUMBER | TIMES) or left == right == STRING:
        raise TypeMismatchError
    return UNKNOWN  # text is read as a number


def _days(sign: str, left: SqlType, right: SqlType) -> SqlType:
    """A date and a number of days is a date. The difference of two times is an interval, which has no type here."""
    if left == DATE and right.kind in ("tinyint", "smallint", "int"):
        return DATE
    if sign == "+" and right == DATE and left.kind in ("tinyint", "smallint", "int"):
        return DATE
    if sign == "-" and {left.kind, right.kind} <= TIMES | {"string"}:
        return UNKNOWN
    raise TypeMismatchError


def _numbers(sign: str, left: SqlType, right: SqlType) -> SqlType:
    one, other = as_decimal(left), as_decimal(right)
    if one is None or other is None:  # one of them is rounded
        if sign == "DIV":
            raise TypeMismatchError
        return FLOAT if left == right == FLOAT and sign != "/" else DOUBLE
    if sign == "DIV":
        return BIGINT
    if "decimal" not in (left.kind, right.kind):
        return DOUBLE if sign == "/" else max(left, right, key=INTEGRAL.index)
    (precision, scale), (other_precision, other_scale) = one.digits, other.digits
    whole, other_whole = precision - scale, other_precision - other_scale
    widest = max(scale, other_scale)
    if sign in "+-":
        return fitted_decimal(max(whole, other_whole) + widest + 1, widest)
    if sign == "*":
        return fitted_decimal(precision + other_precision + 1, scale + other_scale)
    if sign == "%":
        return fitted_decimal(min(whole, other_whole) + widest, widest)
    digits = max(_MIN_QUOTIENT_SCALE, scale + other_precision + 1)
    return fitted_decimal(whole + other_scale + digits, digits)


def bitwise(left: SqlType, right: SqlType) -> SqlType:
    if left in INTEGRAL and right in INTEGRAL:
        return max(left, right, key=INTEGRAL.index)
    if left.kind in ATOMIC and right.kind in ATOMIC and not {left, right} <= {*INTEGRAL, STRING}:
        raise TypeMismatchError
    return UNKNOWN


def compare(left: SqlType, right: SqlType) -> SqlType:
    """The type of a comparison."""
    if left.kind in ATOMIC and right.kind in ATOMIC and _group(left) != _group(right) and STRING not in (left, right):
        raise TypeMismatchError
    return BOOLEAN


def _group(kind: SqlType) -> str:
    """Types of one group can be compared with each other."""
    return "number" if kind.kind in NUMERIC else "time" if kind.kind in TIMES else kind.kind


def condition(value: SqlType) -> SqlType:
    """The type of NOT, AND and OR, for each of their parts."""
    if value.kind in ATOMIC and value not in (BOOLEAN, STRING):
        raise TypeMismatchError
    return BOOLEAN


def join_texts(left: SqlType, right: SqlType) -> SqlType:
    """The type of `||`."""
    if left.kind == right.kind == "array":
        return common((left, right))
    if not (left.kind in ATOMIC and right.kind in ATOMIC):
        return UNKNOWN
    return left if left.kind == right.kind == "binary" else STRING


def common(types: Iterable[SqlType]) -> SqlType:
    """The type of a value that is one of these, as in CASE and UNION; UNKNOWN also if they have none in common."""
    listed = list(types)
    if not listed or not all(item.is_known for item in listed):
        return UNKNOWN
    if all(item == listed[0] for item in listed):
        return listed[0]
    # Of more than two types, the result may depend on their order.
    return reduce(_common, listed) if len(set(listed)) == 2 else UNKNOWN


def _common(left: SqlType, right: SqlType) -> SqlType:
    if left == right or not (left.is_known and right.is_known):
        return left if left == right else UNKNOWN
    if left.kind == right.kind == "array":
        item = _common(left.items[0], right.items[0])
        return array(item) if item.is_known else UNKNOWN
    if left.kind not in NUMERIC or right.kind not in NUMERIC:
        return UNKNOWN
    one, other = as_decimal(left), as_decimal(right)
    if one is None or other is None:
        return DOUBLE
    if "decimal" not in (left.kind, right.kind):
        return max(left, right, key=INTEGRAL.index)
    scale = max(one.digits[1], other.digits[1])
    whole = max(one.digits[0] - one.digits[1], other.digits[0] - other.digits[1])
    return decimal(whole + scale, scale) if whole + scale <= MAX_PRECISION else UNKNOWN

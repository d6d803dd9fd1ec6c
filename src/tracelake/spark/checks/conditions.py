"""Checks of single rows as conditions of Spark: true for a row that offends, never null."""

from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from tracelake.catalogue.check_values import misfit
from tracelake.catalogue.context import NonRetryableError
from tracelake.catalogue.sql.columns.types import NUMERIC, TIMES, SqlType, parse_type
from tracelake.model.dag import CheckKind, OutputCheck, Scalar

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

ROW_KINDS = frozenset({CheckKind.NOT_NULL, CheckKind.ACCEPTED_VALUES, CheckKind.RANGE})
"""One pass over the rows evaluates all checks of these kinds."""
_MAX_DIGITS = 38
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def offends(check: OutputCheck, columns: "list[Column]", types: "list[DataType]") -> "Column":
    """Raises NonRetryableError if the check does not fit the type of its column."""
    import pyspark.sql.functions as F  # noqa: N812

    if check.kind is CheckKind.NOT_NULL:
        condition = columns[0].isNull()
        for column in columns[1:]:
            condition = condition | column.isNull()
        return condition
    column, kind = columns[0], parse_type(types[0].simpleString())
    if not kind.is_known or kind.items or (check.kind is CheckKind.RANGE and kind.kind not in NUMERIC | TIMES):
        raise NonRetryableError(
            f"the column {check.columns[0]} is {types[0].simpleString()[:100]}, which has no such check"
        )
    if check.kind is CheckKind.ACCEPTED_VALUES:
        literals = [literal for value in check.values if (literal := _literal(check, kind, value)) is not None]
        accepted = column.isin(literals) if literals else F.lit(False)
        return column.isNotNull() & ~accepted
    outside = F.lit(False)
    for bound, is_below in ((check.min, True), (check.max, False)):
        if bound is None:
            continue
        literal = _literal(check, kind, bound, exact=False)
        outside = outside | (column < literal if is_below else column > literal)
    if kind.kind in ("float", "double"):
        outside = outside | F.isnan(column)
    return F.coalesce(outside, F.lit(False))


def _literal(check: OutputCheck, kind: SqlType, value: Scalar, *, exact: bool = True) -> Any:
    """The value as a literal of about the column's type; None if it is one that no row of the column has."""
    import pyspark.sql.functions as F  # noqa: N812

    if wrong := misfit(kind, value):
        raise NonRetryableError(f"the column {check.columns[0]} is {kind}: {wrong} in the check")
    if kind.kind in ("float", "double"):
        return F.lit(float(value))  # type: ignore[arg-type]
    if kind.kind in NUMERIC:
        return _number(value, exact=exact)
    if kind.kind == "binary":
        return F.lit(bytes.fromhex(str(value).removeprefix("0x")))
    if kind.kind == "date":
        return F.lit(date.fromisoformat(str(value)))
    if kind.kind == "timestamp":
        # Counted from 1970, so that no time zone of a session matters.
        moment = datetime.fromisoformat(str(value))
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
        distance = moment - _EPOCH
        return F.timestamp_micros(
            F.lit((distance.days * 86_400 + distance.seconds) * 1_000_000 + distance.microseconds)
        )
    if kind.kind == "timestamp_ntz":
        moment = datetime.fromisoformat(str(value))
        moment = moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
        return F.lit(moment.isoformat(sep=" ")).cast("timestamp_ntz")
    return F.lit(value)


def _number(value: Scalar, *, exact: bool) -> Any:
    """Exact: a whole number or a decimal, and never a rounded double."""
    import pyspark.sql.functions as F  # noqa: N812

    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise NonRetryableError(f"{value!r} is not a number") from None
    digits = number.as_tuple()
    scale = -digits.exponent if isinstance(digits.exponent, int) and digits.exponent < 0 else 0
    if number == number.to_integral_value() and -(2**63) <= number < 2**63:
        return F.lit(int(number))
    if not number.is_finite() or max(len(digits.digits), scale) > _MAX_DIGITS or number.adjusted() >= _MAX_DIGITS:
        # More digits than any column of numbers has: no row is equal, and a double is near enough to compare.
        return None if exact else F.lit(float(number))
    return F.lit(number)

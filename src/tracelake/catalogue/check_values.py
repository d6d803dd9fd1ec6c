"""Which values a column can be compared with by a check: asked at deploy, and again when the rows are there."""

import re
from datetime import date, datetime

from tracelake.catalogue.sql.columns.types import NUMERIC, TIMES, SqlType
from tracelake.model.dag import CheckKind, OutputCheck, Scalar

_SHOWN_VALUES = 5
OUTPUT_RELATION = "output"
"""The rows of the unit in a check of kind `sql`."""
UNIT_KINDS = frozenset(
    {CheckKind.NOT_NULL, CheckKind.UNIQUE, CheckKind.ACCEPTED_VALUES, CheckKind.RANGE, CheckKind.ROW_COUNT}
)
"""Kinds that need nothing but the rows of the unit; `unique` unless its scope is the dataset."""
_NUMBER = re.compile(r"-?[0-9]{1,78}(?:\.[0-9]{1,78})?")
_BYTES = re.compile("0x(?:[0-9a-fA-F]{2})*")


def misfit(kind: SqlType, value: Scalar) -> str | None:
    """What to write instead, if no row of such a column can be compared with the value; None if one can."""
    text = isinstance(value, str)
    if kind.kind == "boolean":
        return None if isinstance(value, bool) else "write true or false"
    if isinstance(value, bool):
        return "a boolean does not fit"
    if kind.kind in NUMERIC:
        number = not text or _NUMBER.fullmatch(str(value)) is not None
        return None if number else "write a number, in quotes if it is long"
    if not text:
        return "write text in quotes"
    if kind.kind == "binary":
        return None if _BYTES.fullmatch(str(value)) else "write hexadecimal digits after 0x, in quotes"
    if kind.kind in TIMES:
        try:
            (date if kind.kind == "date" else datetime).fromisoformat(str(value))
        except ValueError:
            return 'write it as in ISO 8601, in quotes: "2024-01-31"'
    return None


def describe_values(check: OutputCheck) -> str:
    """The first accepted values."""
    values = ", ".join(str(value) for value in check.values[:_SHOWN_VALUES])
    return f"[{values}{', ...' if len(check.values) > _SHOWN_VALUES else ''}]"


def describe_bounds(check: OutputCheck) -> str:
    if check.max is None:
        return f"at least {check.min}"
    return f"at most {check.max}" if check.min is None else f"{check.min} to {check.max}"

"""Named, typed parameters of a query. A value is bound by the engine and never becomes a part of the text.

The SQL that runs has `CAST($name AS type)` at each place, so a value has the declared type whichever client bound it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation

from tracelake.query.gate.refusals import quote, refuse

MAX_PARAMETERS = 100
MAX_VALUE = 10_000
MAX_ITEMS = 10_000
LIST = "[]"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_INTEGER = re.compile(r"-?[0-9]{1,78}")
_DECIMAL = re.compile(r"-?[0-9]{1,38}(?:\.[0-9]{1,38})?")
_BYTES = re.compile(r"0x(?:[0-9a-fA-F]{2})*")

BoundScalar = bool | int | float | str | None
BoundValue = BoundScalar | list[BoundScalar]


@dataclass(frozen=True, slots=True)
class QueryParameter:
    """A parameter as a caller sends it. `type` is a type of columns, with `[]` for a list of them; integers beyond 64
    bits are texts of digits."""

    type: str
    value: bool | int | float | str | list[bool | int | float | str | None] | None


@dataclass(frozen=True, slots=True)
class TypedValue:
    """A parameter that was checked: DuckDB's type, and the value to bind."""

    sql_type: str
    value: BoundValue


def check_parameters(parameters: Mapping[str, QueryParameter]) -> dict[str, TypedValue]:
    """Raises TraceError."""
    if len(parameters) > MAX_PARAMETERS:
        raise refuse("query_parameter", f"A query has at most {MAX_PARAMETERS} parameters.")
    return {name: _typed(name, parameter) for name, parameter in parameters.items()}


def _typed(name: str, parameter: QueryParameter) -> TypedValue:
    if not _NAME.fullmatch(name):
        message = f"{quote(name)} is no name of a parameter: use small letters, digits and `_`."
        raise refuse("query_parameter", message, name=name)
    kind = parameter.type.removesuffix(LIST)
    if kind not in _READERS:
        message = f"The type of `${name}` is {quote(parameter.type)}; expected one of {', '.join(_READERS)}."
        raise refuse("query_parameter", f"{message} `[]` behind it makes a list.", name=name)
    is_list = kind != parameter.type
    if parameter.value is None:
        return TypedValue(_NULL_TYPES[kind] + (LIST if is_list else ""), None)
    expected = ("a list; each item is " if is_list else "") + _READERS[kind][1]
    try:
        if is_list != isinstance(parameter.value, list):
            raise TypeError
        return _read_list(kind, parameter.value) if isinstance(parameter.value, list) else _read(kind, parameter.value)
    except (ValueError, TypeError, OverflowError, InvalidOperation):
        raise refuse("query_parameter", f"The value of `${name}` is not {expected}.", name=name) from None


def _read(kind: str, value: object) -> TypedValue:
    if isinstance(value, str) and len(value) > MAX_VALUE:
        raise ValueError
    return _READERS[kind][0](value)


def _read_list(kind: str, values: list[bool | int | float | str | None]) -> TypedValue:
    if len(values) > MAX_ITEMS:
        raise ValueError
    items = [None if value is None else _read(kind, value) for value in values]
    # Decimals have as many digits behind the point as the item with the most.
    sql_type = max((item.sql_type for item in items if item is not None), key=_scale, default=_NULL_TYPES[kind])
    texts: list[BoundScalar] = [None if item is None or isinstance(item.value, list) else item.value for item in items]
    return TypedValue(sql_type + LIST, texts)


def _scale(sql_type: str) -> int:
    match = re.fullmatch(r"DECIMAL\(38,(\d+)\)", sql_type)
    return int(match[1]) if match else 0


def _bool(value: object) -> TypedValue:
    if not isinstance(value, bool):
        raise TypeError
    return TypedValue("BOOLEAN", value)


def _integer(bits: int, sql_type: str, *, signed: bool = True) -> Callable[[object], TypedValue]:
    def read(value: object) -> TypedValue:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise TypeError
        if isinstance(value, str) and not _INTEGER.fullmatch(value):
            raise ValueError
        number = int(value)
        least, most = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        if not least <= number <= most:
            raise ValueError
        return TypedValue(sql_type, number if bits <= 64 else str(number))

    return read


def _float(value: object) -> TypedValue:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return TypedValue("DOUBLE", float(value))


def _decimal(value: object) -> TypedValue:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError
    text = str(value)
    if not _DECIMAL.fullmatch(text):
        raise ValueError
    scale = len(text.partition(".")[2])
    if len(Decimal(text).as_tuple().digits) > 38 or len(text.lstrip("-").partition(".")[0]) + scale > 38:
        raise ValueError
    return TypedValue(f"DECIMAL(38,{scale})", text)


def _text(value: object) -> TypedValue:
    if not isinstance(value, str) or "\0" in value:
        raise TypeError
    value.encode()
    return TypedValue("VARCHAR", value)


def _bytes(value: object) -> TypedValue:
    if not isinstance(value, str) or not _BYTES.fullmatch(value):
        raise ValueError
    # DuckDB casts a text of such escapes to bytes.
    return TypedValue("BLOB", "".join(f"\\x{byte:02X}" for byte in bytes.fromhex(value[2:])))


def _date(value: object) -> TypedValue:
    if not isinstance(value, str):
        raise TypeError
    return TypedValue("DATE", date.fromisoformat(value).isoformat())


def _timestamp(value: object) -> TypedValue:
    if not isinstance(value, str):
        raise TypeError
    moment = datetime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError
    return TypedValue("TIMESTAMP WITH TIME ZONE", moment.astimezone(UTC).isoformat())


_READERS: dict[str, tuple[Callable[[object], TypedValue], str]] = {
    "bool": (_bool, "true or false"),
    "int16": (_integer(16, "SMALLINT"), "an integer of 16 bits"),
    "int32": (_integer(32, "INTEGER"), "an integer of 32 bits"),
    "int64": (_integer(64, "BIGINT"), "an integer of 64 bits"),
    "int256": (_integer(256, "BIGNUM"), "an integer of 256 bits, or a text of its digits"),
    "uint256": (_integer(256, "BIGNUM", signed=False), "an unsigned integer of 256 bits, or a text of its digits"),
    "float64": (_float, "a number"),
    "decimal": (_decimal, "a text like `12.50` of at most 38 digits"),
    "text": (_text, f"a text of at most {MAX_VALUE:,} characters"),
    "bytes": (_bytes, "a text like `0x00ff`"),
    "date": (_date, "a date like `2026-03-01`"),
    "timestamp": (_timestamp, "a time with its zone, like `2026-03-01T12:00:00Z`"),
}
_NULL_TYPES = {
    "bool": "BOOLEAN",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "int256": "BIGNUM",
    "uint256": "BIGNUM",
    "float64": "DOUBLE",
    "decimal": "DECIMAL(38,0)",
    "text": "VARCHAR",
    "bytes": "BLOB",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}

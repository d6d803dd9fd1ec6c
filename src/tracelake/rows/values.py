"""The types of a column of a buffered dataset: in JSON, in Arrow, in a staging table and in the dataset's table.

Nothing is rounded, truncated or guessed: a value that the column cannot hold exactly is refused, with a readable
reason. Two types are staged as text and cast in the database: 256-bit integers, which have two digits more than
Arrow's widest decimal, and JSON, which is stored as it was written.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, Inexact, InvalidOperation, Overflow, Underflow
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
from msgspec import Meta

from tracelake.model.dag import Column, ColumnType
from tracelake.rows.vectorised import whole_bytes, whole_numbers, whole_timestamps

MAX_DEPTH = 64
"""The deepest nesting of objects and lists in a json value."""

_NOT_HEX = "is not hexadecimal text like 0x1f, with two digits for each byte"
_ZERO = Decimal(0)
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DIGITS = re.compile(r"-?(?:0|[1-9][0-9]{0,77})")
_TIMESTAMP = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,6}0*)?(?:[Zz]|[+-]\d{2}:\d{2})", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)

Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ColumnKind:
    """How the values of one column are read and stored."""

    column: Column
    json: Any
    """The type of a non-null value in JSON, for msgspec."""
    convert: Convert | None
    """Converts a decoded value to one that Arrow takes; raises ValueError with the reason. None: no conversion."""
    arrow: pa.DataType
    staged: str
    """Its type in a staging table."""
    kept: str
    """Its type in the dataset's table."""
    whole: Callable[[Sequence[Any]], pa.Array | None] | None = None
    """Converts many non-null values at once like `convert`; returns None if one of them must be converted alone."""

    @property
    def cast(self) -> str:
        """The SQL cast from the staged type to the stored one."""
        return "" if self.staged == self.kept else f"::{self.kept}"


def kind_of(column: Column) -> ColumnKind:
    """The kind of any column that a document can declare."""
    return _KINDS[column.type](column)


def _simple(json: Any, arrow: pa.DataType, sql_type: str) -> Callable[[Column], ColumnKind]:
    """A type that JSON, Arrow and Postgres all have."""
    return lambda column: ColumnKind(column, json, None, arrow, sql_type, sql_type)


def _large(column: Column) -> ColumnKind:
    least, most = (0, 2**256 - 1) if column.type is ColumnType.UINT256 else (-(2**255), 2**255 - 1)

    def convert(value: int | str) -> str:
        if isinstance(value, str):
            if not _DIGITS.fullmatch(value):
                raise ValueError("is not a whole number in decimal digits")
            value = int(value)
        if not least <= value <= most:
            raise ValueError(f"does not fit {column.type}")
        return str(value)

    return ColumnKind(column, int | str, convert, pa.string(), "text", "numeric(78,0)", whole_numbers)


def _decimal(column: Column) -> ColumnKind:
    precision, scale = column.precision or 38, column.scale or 0
    sql_type = f"numeric({precision},{scale})"
    unit = Decimal((0, (1,), -scale))
    never = [InvalidOperation, Overflow, Underflow, Inexact]
    exactly = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=never)

    def convert(raw: msgspec.Raw) -> Decimal | None:
        # Checked as written: Python's `Decimal` accepts texts that are not numbers in JSON, like 1_0.
        text = bytes(raw)
        if text == b"null":
            if column.nullable:
                return None
            raise ValueError("must not be null")
        text = text[1:-1] if text.startswith(b'"') else text
        if not _NUMBER.fullmatch(text):
            raise ValueError("is not a number in decimal digits, like 12.5")
        try:
            value = exactly.create_decimal(text.decode())
        except ArithmeticError:
            raise ValueError(f"does not fit decimal({precision},{scale})") from None
        if not value:
            return _ZERO
        # Computed from the digits: arithmetic would round to the precision of a context.
        _, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        if -(exponent + zeros) > scale:
            raise ValueError(f"has more than {scale} digits after the point")
        if value.adjusted() >= precision - scale:
            raise ValueError(f"has more than {precision - scale} digits before the point")
        return value if -scale <= exponent <= 0 else value.quantize(unit, context=exactly)

    return ColumnKind(column, msgspec.Raw, convert, pa.decimal128(precision, scale), sql_type, sql_type)


def _text(column: Column) -> ColumnKind:
    if column.enum is not None:
        # Checked when the document was read: an enum has at least one value, and all are text.
        return ColumnKind(column, Literal[column.enum], _plain, pa.string(), "text", "text")
    json = str if column.max_length is None else Annotated[str, Meta(max_length=column.max_length)]
    return ColumnKind(column, json, _plain, pa.string(), "text", "text")


def _plain(value: str) -> str:
    if "\x00" in value:
        raise ValueError("holds a zero character, which Postgres does not keep")
    return value


def _bytes(column: Column) -> ColumnKind:
    longest = column.max_length

    def convert(value: str) -> bytes:
        try:
            data = bytes.fromhex(value[2:])
        except ValueError:
            raise ValueError(_NOT_HEX) from None
        # `fromhex` skips spaces between bytes, which the length reveals.
        if value[:2] != "0x" or len(value) != 2 + 2 * len(data):
            raise ValueError(_NOT_HEX)
        if longest is not None and len(data) > longest:
            raise ValueError(f"is longer than {longest} bytes")
        return data

    whole = partial(whole_bytes, longest=longest)
    return ColumnKind(column, str, convert, pa.binary(), "bytea", "bytea", whole)


def _timestamp(column: Column) -> ColumnKind:
    def convert(value: str) -> datetime:
        if not _TIMESTAMP.fullmatch(value):
            raise ValueError("is not a time with a zone and at most microseconds, like 2026-01-31T12:00:00.5Z")
        whole, point, rest = value.partition(".")
        if point:
            fraction = re.match(r"\d+", rest)
            assert fraction is not None
            value = f"{whole}.{fraction[0][:6].ljust(6, '0')}{rest[fraction.end() :]}"
        try:
            return datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError):
            raise ValueError("is not a valid time") from None

    return ColumnKind(column, str, convert, pa.timestamp("us", "UTC"), "timestamptz", "timestamptz", whole_timestamps)


def _date(column: Column) -> ColumnKind:
    def convert(value: str) -> date:
        if not _DATE.fullmatch(value):
            raise ValueError("is not a date like 2026-01-31")
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise ValueError("is not a valid date") from None

    return ColumnKind(column, str, convert, pa.date32(), "date", "date")


def _json(column: Column) -> ColumnKind:
    def convert(value: msgspec.Raw) -> str | None:
        data = bytes(value)
        if data == b"null" and column.nullable:
            return None
        try:
            read = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ValueError("is not valid JSON") from None
        except RecursionError:
            raise ValueError(f"is nested deeper than {MAX_DEPTH}") from None
        if not isinstance(read, dict):
            raise ValueError("is not a JSON object")
        _check_json(read)
        return data.decode()

    return ColumnKind(column, msgspec.Raw, convert, pa.string(), "text", "jsonb")


def _check_json(value: Any) -> None:
    """Walks without recursion, since the value is untrusted."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise ValueError(f"is nested deeper than {MAX_DEPTH}")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                for key, member in item.items():
                    _plain(key)
                    below.append(member)
            elif isinstance(item, list):
                below += item
            elif isinstance(item, str):
                _plain(item)
        level = below


_KINDS: dict[ColumnType, Callable[[Column], ColumnKind]] = {
    ColumnType.BOOL: _simple(bool, pa.bool_(), "boolean"),
    ColumnType.INT16: _simple(Annotated[int, Meta(ge=-(2**15), le=2**15 - 1)], pa.int16(), "smallint"),
    ColumnType.INT32: _simple(Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)], pa.int32(), "integer"),
    ColumnType.INT64: _simple(Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)], pa.int64(), "bigint"),
    ColumnType.INT256: _large,
    ColumnType.UINT256: _large,
    ColumnType.FLOAT64: _simple(float, pa.float64(), "double precision"),
    ColumnType.DECIMAL: _decimal,
    ColumnType.TEXT: _text,
    ColumnType.BYTES: _bytes,
    ColumnType.TIMESTAMP: _timestamp,
    ColumnType.DATE: _date,
    ColumnType.JSON: _json,
}

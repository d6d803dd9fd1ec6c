"""From a value of a record to a value of a column: exactly, or not at all.

Numbers may be numbers of JSON or the same digits as text, since many feeds write prices as text. Nothing is trimmed,
rounded or guessed. In CSV every value is text, and an empty field is null where the column may be.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from tracelake.catalogue.feeds.columns import FeedColumn
from tracelake.feeds.documents import JsonNumber, encode_json, kind_of_json
from tracelake.feeds.errors import BadRowError
from tracelake.model.dag import ColumnType
from tracelake.rows.values import kind_of

ParseValue: TypeAlias = Callable[[Any], Any]
"""From a value that is not null to what Arrow takes; raises BadRowError or ValueError with the reason."""

_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,77})", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,399})(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)
_TIME = re.compile(r"-?(?:0|[1-9][0-9]{0,18})(?:\.([0-9]{1,9}))?", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BITS = {ColumnType.INT16: 16, ColumnType.INT32: 32, ColumnType.INT64: 64}
_PLACES = {"seconds": 6, "millis": 3, "micros": 0}
"""Digits behind the point that a microsecond takes."""


def parser_of(column: FeedColumn) -> ParseValue:
    kind = column.column.type
    if kind in _BITS:
        return _integer_parser(_BITS[kind])
    if kind is ColumnType.TIMESTAMP and column.unit != "iso":
        return _epoch_parser(column.unit)
    return _PARSERS[kind](column)


def _digits(value: Any, pattern: "re.Pattern[str]", expected: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str) or not pattern.fullmatch(value):
        raise BadRowError(f"expected {expected}, received {kind_of_json(value)}")
    return str(value)


def _integer_parser(bits: int) -> ParseValue:
    least, most = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def parse(value: Any) -> int:
        number = int(_digits(value, _INTEGER, "a whole number"))
        if not least <= number <= most:
            raise BadRowError(f"does not fit int{bits}")
        return number

    return parse


def _large_parser(column: FeedColumn) -> ParseValue:
    convert = kind_of(column.column).convert
    assert convert is not None
    return lambda value: convert(_digits(value, _INTEGER, "a whole number"))


def _float_parser(_column: FeedColumn) -> ParseValue:
    def parse(value: Any) -> float:
        number = float(_digits(value, _NUMBER, "a number"))
        if number in (float("inf"), float("-inf")):
            raise BadRowError("is larger than any float64")
        return number

    return parse


def _decimal_parser(column: FeedColumn) -> ParseValue:
    convert = kind_of(column.column).convert
    assert convert is not None

    def parse(value: Any) -> Decimal:
        number: Decimal = convert(msgspec.Raw(_digits(value, _NUMBER, "a number").encode()))
        return number

    return parse


def _bool_parser(_column: FeedColumn) -> ParseValue:
    words = {"true": True, "false": False}

    def parse(value: Any) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, JsonNumber) or not isinstance(value, str) or value not in words:
            raise BadRowError(f"expected true or false, received {kind_of_json(value)}")
        return words[value]

    return parse


def _text_of(value: Any, expected: str) -> str:
    if isinstance(value, JsonNumber) or not isinstance(value, str):
        raise BadRowError(f"expected {expected}, received {kind_of_json(value)}")
    return value


def _text_parser(column: FeedColumn) -> ParseValue:
    longest = column.column.max_length

    def parse(value: Any) -> str:
        text = _text_of(value, "text")
        if longest is not None and len(text) > longest:
            raise BadRowError(f"is longer than {longest} characters")
        if "\0" in text:
            raise BadRowError("holds a zero character")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadRowError("holds half of a character (a lone surrogate)") from None
        return text

    return parse


def _converted(expected: str) -> Callable[[FeedColumn], ParseValue]:
    """Types whose text the sinks read as well."""

    def make(column: FeedColumn) -> ParseValue:
        convert = kind_of(column.column).convert
        assert convert is not None
        return lambda value: convert(_text_of(value, expected))

    return make


def _epoch_parser(unit: str) -> ParseValue:
    def parse(value: Any) -> datetime:
        # At most 28 digits, which a Decimal holds exactly.
        exact = Decimal(_digits(value, _TIME, f"{unit} since 1970")).scaleb(_PLACES[unit])
        if exact != exact.to_integral_value():
            raise BadRowError("has more than microseconds")
        try:
            return _EPOCH + timedelta(microseconds=int(exact))
        except OverflowError:
            raise BadRowError(f"is no time in {unit} since 1970: look at `unit`") from None

    return parse


def _json_parser(_column: FeedColumn) -> ParseValue:
    def parse(value: Any) -> str:
        if not isinstance(value, dict):
            raise BadRowError(f"expected an object, received {kind_of_json(value)}")
        text = encode_json(value)
        if "\\u0000" in text:
            raise BadRowError("holds a zero character")
        return text

    return parse


_PARSERS: dict[ColumnType, Callable[[FeedColumn], ParseValue]] = {
    ColumnType.BOOL: _bool_parser,
    ColumnType.INT256: _large_parser,
    ColumnType.UINT256: _large_parser,
    ColumnType.FLOAT64: _float_parser,
    ColumnType.DECIMAL: _decimal_parser,
    ColumnType.TEXT: _text_parser,
    ColumnType.BYTES: _converted("hexadecimal text like 0x1f"),
    ColumnType.TIMESTAMP: _converted("a time like 2026-01-31T12:00:00Z"),
    ColumnType.DATE: _converted("a date like 2026-01-31"),
    ColumnType.JSON: _json_parser,
}

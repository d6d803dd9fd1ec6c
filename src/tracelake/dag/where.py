"""Reads the filter of an input: a map of field to value (equality) or list (IN), or an SQL condition with that meaning.

Both forms become one map, in which a list is sorted, has no duplicates, and has at least two values.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice

import msgspec

from tracelake.dag.kinds import INVALID, DocumentPlace, JsonSchema, ListOf, scalar_value
from tracelake.dag.nodes import ListNode, MapNode, ScalarNode
from tracelake.dag.problems import one_of, shown
from tracelake.dag.scalars import MAX_INTEGER
from tracelake.model.dag import Column, ColumnType, Scalar, Where

_MAX_CONDITIONS = 64
_MAX_VALUES = 1000
_MAX_SQL = 20_000
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>\"[^\"]+\")|(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?!\w))"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>[=(),]))"
)
_HINT = "Write `field = 'text'`, `field IN (1, 2)`, joined by AND; or a map of field to value or list."


@dataclass(slots=True)
class ReadWhere:
    values: Where
    places: dict[str, DocumentPlace]
    """The place of each field's value."""


class WhereKind:
    def read(self, place: DocumentPlace) -> object:
        if isinstance(place.node, MapNode):
            return _read_map(place)
        if isinstance(place.node, ScalarNode) and place.node.text:
            return _read_sql(place, place.node.text)
        return place.wrong_type("a map of field to value, or an SQL condition", _HINT)

    def schema(self) -> JsonSchema:
        one: JsonSchema = {"type": ["string", "number", "boolean", "null"]}
        many = {"type": "array", "items": one, "minItems": 1, "maxItems": _MAX_VALUES}
        mapping = {
            "type": "object",
            "additionalProperties": {"anyOf": [one, many]},
            "maxProperties": _MAX_CONDITIONS,
        }
        return {"anyOf": [mapping, {"type": "string", "minLength": 1, "maxLength": _MAX_SQL}]}


class _ScalarKind:
    def read(self, place: DocumentPlace) -> object:
        return scalar_value(place)

    def schema(self) -> JsonSchema:
        raise NotImplementedError


_VALUES = ListOf(_ScalarKind(), 1, _MAX_VALUES)


def _read_map(place: DocumentPlace) -> object:
    where = ReadWhere({}, {})
    entries = place.entries()
    if len(entries) > _MAX_CONDITIONS:
        place.problem("out_of_range", f"{place.title} has {len(entries)} fields; it takes {_MAX_CONDITIONS}.")
        return INVALID
    for name, (_, value) in entries.items():
        read = _VALUES.read(value) if isinstance(value.node, ListNode) else scalar_value(value)
        if read is INVALID:
            return INVALID
        where.values[name] = _normal(read)
        where.places[name] = value
    return where


def _normal(value: Scalar | list[Scalar]) -> Scalar | list[Scalar]:
    if not isinstance(value, list):
        return value
    distinct = {msgspec.json.encode(item): item for item in value}
    return [distinct[key] for key in sorted(distinct)] if len(distinct) > 1 else next(iter(distinct.values()))


# --- the SQL form


class _SqlError(Exception):
    pass


def _read_sql(place: DocumentPlace, text: str) -> object:
    try:
        values = parse_sql(text)
    except _SqlError as error:
        place.problem("where_invalid", f"The condition cannot be used: {error}.", _HINT)
        return INVALID
    return ReadWhere(values, {name: DocumentPlace(place.node, place.below(name), place.problems) for name in values})


def parse_sql(text: str) -> Where:
    if len(text) > _MAX_SQL:
        raise _SqlError(f"it is longer than {_MAX_SQL} characters")
    tokens = _tokens(text)
    where: Where = {}
    while True:
        kind, field = next(tokens)
        if kind not in ("word", "quoted"):
            raise _SqlError(f"expected a field name, received {shown(field)}")
        if kind == "word" and field.upper() in ("NOT", "AND", "OR", "IN", "TRUE", "FALSE", "NULL"):
            raise _SqlError(f"{shown(field)} is not supported here")
        if field in where:
            raise _SqlError(f"{shown(field)} is named twice")
        where[field] = _condition(tokens)
        if len(where) > _MAX_CONDITIONS:
            raise _SqlError(f"it has more than {_MAX_CONDITIONS} parts")
        kind, word = next(tokens)
        if kind == "end":
            return where
        if kind != "word" or word.upper() != "AND":
            raise _SqlError(f"expected AND, received {shown(word)}")


def _condition(tokens: Iterator[tuple[str, str]]) -> Scalar | list[Scalar]:
    kind, word = next(tokens)
    if (kind, word) == ("sign", "="):
        return _literal(*next(tokens))
    if kind != "word" or word.upper() != "IN":
        raise _SqlError(f"expected = or IN, received {shown(word)}")
    _expect(tokens, "(")
    values: list[Scalar] = []
    while True:
        values.append(_literal(*next(tokens)))
        if len(values) > _MAX_VALUES:
            raise _SqlError(f"a list has more than {_MAX_VALUES} values")
        if _expect(tokens, ",", ")") == ")":
            return _normal(values)


def _literal(kind: str, word: str) -> Scalar:
    if kind == "text":
        return word[1:-1].replace("''", "'")
    if kind == "number":
        if re.fullmatch("-?[0-9]+", word):
            if len(word) > 20 or not -MAX_INTEGER - 1 <= int(word) <= MAX_INTEGER:
                raise _SqlError(f"the number {shown(word)} is too large; quote it")
            return int(word)
        number = float(word)
        if number in (float("inf"), float("-inf")):
            raise _SqlError(f"the number {shown(word)} is too large")
        return number
    if kind == "word" and word.upper() in ("TRUE", "FALSE"):
        return word.upper() == "TRUE"
    if kind == "word" and word.upper() == "NULL":
        raise _SqlError("nothing is equal to NULL in SQL; the map form has `field: null`")
    raise _SqlError(f"expected a literal, received {shown(word)}")


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _SqlError(f"{shown(text[position:].strip()[:20])} is not understood")
        position = match.end()
        kind = match.lastgroup
        assert kind is not None
        yield ("quoted", match[kind][1:-1]) if kind == "quoted" else (kind, match[kind])
    while True:
        yield "end", "the end"


def _expect(tokens: Iterator[tuple[str, str]], *signs: str) -> str:
    kind, word = next(tokens)
    if kind != "sign" or word not in signs:
        raise _SqlError(f"expected {' or '.join(signs)}, received {shown(word)}")
    return word


# --- against the columns


def check_names(where: ReadWhere, columns: Collection[str]) -> None:
    """Checks that each field is a column."""
    for name, place in where.places.items():
        if name not in columns:
            hint = place.problems.did_you_mean(name, columns) or f"It has {one_of(islice(columns, 20))}."
            place.problem("where_unknown_field", f"The dataset has no column {shown(name)}.", hint)


def check_values(where: ReadWhere, types: Mapping[str, str]) -> None:
    """Checks that each value can be compared with its column, by types as Spark writes them."""
    for name, value in where.values.items():
        kind = types.get(name, "")
        for item in value if isinstance(value, list) else [value]:
            number = isinstance(item, int | float) and not isinstance(item, bool)
            if (number and kind in _NO_NUMBERS) or (isinstance(item, bool) and kind in _NO_FLAGS):
                where.places[name].problem("where_type", f"The column `{name}` is {kind}, not {_word(item)}.")
                break


_NO_NUMBERS = frozenset({"binary", "boolean", "date", "timestamp", "timestamp_ntz"})
_NO_FLAGS = frozenset(
    {"binary", "date", "timestamp", "timestamp_ntz", "tinyint", "smallint", "int", "bigint", "double"}
)


def _word(value: Scalar) -> str:
    return "a boolean" if isinstance(value, bool) else "a number"


def check_where(where: ReadWhere, columns: Mapping[str, Column]) -> None:
    check_names(where, columns)
    for name, value in where.values.items():
        place = where.places[name]
        column = columns.get(name)
        if column is None:
            continue
        for item in value if isinstance(value, list) else [value]:
            if wrong := _misfit(column, item):
                place.problem("where_type", f"The column `{name}` {wrong}.")
                break


_INTEGERS = {ColumnType.INT16: 2**15, ColumnType.INT32: 2**31, ColumnType.INT64: 2**63}
_DIGITS = re.compile(r"-?[0-9]{1,78}")
_DECIMAL = re.compile(r"-?[0-9]{1,78}(?:\.[0-9]{1,78})?")


def _misfit(column: Column, value: Scalar) -> str | None:
    """Why no row can have this value; None if one can."""
    kind = column.type
    if value is None:
        return None if column.nullable else "is never null"
    if kind is ColumnType.JSON:
        return f"is {'json' if column.nested is None else column.nested} and cannot be compared"
    if kind is ColumnType.BOOL:
        return None if isinstance(value, bool) else "is bool: write true or false"
    if isinstance(value, bool):
        return f"is {kind}, not a boolean"
    if kind in _INTEGERS:
        limit = _INTEGERS[kind]
        return None if isinstance(value, int) and -limit <= value < limit else f"is {kind}: write a number of that size"
    if kind in (ColumnType.INT256, ColumnType.UINT256):
        fits = isinstance(value, int) or (isinstance(value, str) and _DIGITS.fullmatch(value) is not None)
        low = -(2**255) if kind is ColumnType.INT256 else 0
        high = 2**255 if kind is ColumnType.INT256 else 2**256
        return (
            None if fits and low <= int(value) < high else f"is {kind}: write a whole number, in quotes if it is long"
        )
    if kind is ColumnType.FLOAT64:
        return None if isinstance(value, int | float) else "is float64: write a number"
    if kind is ColumnType.DECIMAL:
        fits = isinstance(value, int | float) or (isinstance(value, str) and _DECIMAL.fullmatch(value) is not None)
        return None if fits else "is decimal: write a number, in quotes if it is long"
    if not isinstance(value, str):
        return f"is {kind}: write text in quotes"
    return _text_misfit(column, value)


def _text_misfit(column: Column, value: str) -> str | None:
    if column.enum is not None and value not in column.enum:
        return f"is never {shown(value)}: its values are {one_of(column.enum[:20])}"
    if column.type is ColumnType.TEXT and column.max_length is not None and len(value) > column.max_length:
        return f"has at most {column.max_length} characters"
    if column.type is ColumnType.BYTES and not re.fullmatch("0x(?:[0-9a-fA-F]{2})*", value):
        return "is bytes: write hexadecimal digits after 0x, in quotes"
    try:
        if column.type is ColumnType.TIMESTAMP:
            datetime.fromisoformat(value)
        elif column.type is ColumnType.DATE:
            date.fromisoformat(value)
    except ValueError:
        return f"is {column.type}: write it as in ISO 8601"
    return None

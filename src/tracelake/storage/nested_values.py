"""Lists and structs in tables of Postgres data: jsonb there, Arrow lists and structs for everybody who writes or reads.

Bytes are text like 0x1f in JSON, and structs are objects with all of their fields. A value comes back exactly as it
went in.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from tracelake.catalogue.direct_schemas import NESTED_ITEMS
from tracelake.catalogue.sql.columns.types import SqlType, parse_type

_Convert: TypeAlias = Callable[[Any], Any] | None
"""Of one value that is not null; None: it stays as it is."""

_ARROW = {"bigint": pa.int64(), "binary": pa.binary()}
_SQL = {"bigint": "BIGINT", "binary": "BLOB"}
assert set(_ARROW) == set(_SQL) == NESTED_ITEMS


@lru_cache(maxsize=64)
def nested_arrow_type(spark_type: str) -> pa.DataType:
    """The Arrow type of a type of Spark like `array<struct<a:bigint>>`."""
    return _arrow(parse_type(spark_type))


@lru_cache(maxsize=64)
def nested_sql_type(spark_type: str) -> str:
    """The DuckDB type of the same values, with the name of every field quoted."""
    return _sql(parse_type(spark_type))


def encode_nested(values: pa.Array, spark_type: str) -> pa.Array:
    """The values as JSON text."""
    convert = _encoder(parse_type(spark_type))
    texts = [None if value is None else msgspec.json.encode(_apply(convert, value)) for value in values.to_pylist()]
    return pa.array([None if text is None else text.decode() for text in texts], pa.string())


def decode_nested(texts: pa.Array, spark_type: str, kind: pa.DataType) -> pa.Array:
    """The values of JSON text that `encode_nested` has written. `kind`: their Arrow type."""
    convert = _decoder(parse_type(spark_type))
    values = [None if text is None else _apply(convert, msgspec.json.decode(text)) for text in texts.to_pylist()]
    return pa.array(values, kind)


def _arrow(kind: SqlType) -> pa.DataType:
    match kind.kind:
        case "array":
            return pa.list_(_arrow(kind.items[0]))
        case "struct":
            fields = zip(kind.names, kind.items, strict=True)
            return pa.struct([(name, _arrow(item)) for name, item in fields])
    return _ARROW[kind.kind]


def _sql(kind: SqlType) -> str:
    match kind.kind:
        case "array":
            return f"{_sql(kind.items[0])}[]"
        case "struct":
            fields = [f'"{name}" {_sql(item)}' for name, item in zip(kind.names, kind.items, strict=True)]
            return f"STRUCT({', '.join(fields)})"
    return _SQL[kind.kind]


def _encoder(kind: SqlType) -> _Convert:
    return _converter(kind, lambda data: f"0x{data.hex()}")


def _decoder(kind: SqlType) -> _Convert:
    return _converter(kind, lambda text: bytes.fromhex(text[2:]))


def _converter(kind: SqlType, convert_bytes: Callable[[Any], Any]) -> _Convert:
    converters = [_converter(item, convert_bytes) for item in kind.items]
    match kind.kind:
        case "binary":
            return convert_bytes
        case "array" if (convert := converters[0]) is not None:
            return lambda values: [_apply(convert, value) for value in values]
        case "struct" if any(converters):
            fields = dict(zip(kind.names, converters, strict=True))
            return lambda value: {name: _apply(convert, value[name]) for name, convert in fields.items()}
    return None


def _apply(convert: _Convert, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)

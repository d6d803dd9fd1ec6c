"""Encodes rows as JSON lines without loss; a type is encoded alike at any depth.

Bytes become hexadecimal text with the prefix `0x`, decimals their digits as text, times have a zone, and maps become
objects whose keys are the JSON text of a key. What JSON cannot express is refused and never replaced: numbers that are
not finite, times without a zone, keys that are lists or objects.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_PLAIN = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_date,
)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
_encode = msgspec.json.Encoder().encode

Convert = Callable[[Any], Any]


class UnwritableError(ValueError):
    """A value that JSON cannot express."""


def encode(batch: pa.RecordBatch) -> bytes:
    """One line for each row."""
    names = batch.schema.names
    columns = [_values(name, batch.column(index)) for index, name in enumerate(names)]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return msgspec.json.Encoder().encode_lines(rows)


def _values(name: str, column: pa.Array) -> list[Any]:
    if pa.types.is_floating(column.type):  # vectorised, since there may be many
        if not pc.all(pc.is_finite(column), skip_nulls=True, min_count=0).as_py():
            raise _not_finite(name)
        convert = None
    else:
        convert = _converter(name, column.type)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converter(name: str, kind: pa.DataType) -> Convert | None:
    """Converts a non-null value of the type to one that is encoded; None: no conversion is needed."""
    if any(is_kind(kind) for is_kind in _PLAIN):
        return None
    if pa.types.is_floating(kind):
        return partial(_finite, name)
    if any(is_kind(kind) for is_kind in _BYTES):
        return lambda value: "0x" + value.hex()
    if pa.types.is_decimal(kind):
        return lambda value: format(value, "f")
    if pa.types.is_timestamp(kind):
        if kind.tz is None:
            raise UnwritableError(f"the column `{name}` is a time without a zone; cast it to TIMESTAMP")
        return None
    if any(is_kind(kind) for is_kind in _LISTS):
        return _list_converter(_converter(name, kind.value_type))
    if pa.types.is_struct(kind):
        return _struct_converter(name, [kind.field(index) for index in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return _map_converter(name, kind)
    raise UnwritableError(f"the column `{name}` holds {kind}, which JSON does not have; cast it to text or a number")


def _list_converter(convert: Convert | None) -> Convert | None:
    if convert is None:
        return None
    return lambda values: [None if value is None else convert(value) for value in values]


def _struct_converter(name: str, fields: Sequence[pa.Field]) -> Convert | None:
    names = [field.name for field in fields]
    if len(set(names)) != len(names):
        twice = next(item for item in names if names.count(item) > 1)
        raise UnwritableError(f"the column `{name}` holds a structure with two fields `{twice}`; rename one")
    converters = {field.name: convert for field in fields if (convert := _converter(name, field.type)) is not None}
    if not converters:
        return None

    def convert_struct(value: dict[str, Any]) -> dict[str, Any]:
        return value | {key: convert(value[key]) for key, convert in converters.items() if value[key] is not None}

    return convert_struct


def _map_converter(name: str, kind: pa.MapType) -> Convert:
    if pa.types.is_nested(kind.key_type):
        raise UnwritableError(f"the column `{name}` holds a map whose keys are {kind.key_type}; cast them to text")
    convert_key, convert = _converter(name, kind.key_type), _converter(name, kind.item_type)

    def convert_map(entries: Sequence[tuple[Any, Any]]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for key, value in entries:
            text = _text(key if convert_key is None else convert_key(key))
            if text in converted:
                raise UnwritableError(f"the column `{name}` holds a map with two keys {text[:60]!r}")
            converted[text] = value if value is None or convert is None else convert(value)
        return converted

    return convert_map


def _text(key: Any) -> str:
    if isinstance(key, str):
        return key
    data = _encode(key).decode()
    return data[1:-1] if data.startswith('"') else data  # dates and times: nothing in them is escaped


def _finite(name: str, value: float) -> float:
    if value - value != 0.0:
        raise _not_finite(name)
    return value


def _not_finite(name: str) -> UnwritableError:
    return UnwritableError(f"the column `{name}` holds a number that is not finite, which JSON does not have")

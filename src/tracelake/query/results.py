"""Results in the formats of the API. What JSON cannot hold exactly is text: decimals, wide integers, bytes, times."""

import io
import math
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

_ENCODER = msgspec.json.Encoder()
_SPECIAL = re.compile(r'[",\r\n]|^\s|\s$')
_EXACT = 2**53 - 1
"""The largest integer that every reader of JSON holds exactly."""


def encode_rows(table: pa.Table, max_bytes: int) -> list[list[Any]]:
    """Rows of JSON values, as many as have at most so many bytes of JSON."""
    columns = [[_json(value) for value in _values(column)] for column in table.columns]
    rows = [list(row) for row in zip(*columns, strict=True)] if columns else [[] for _ in range(table.num_rows)]
    for index, row in enumerate(rows):
        max_bytes -= len(_ENCODER.encode(row)) + 1
        if max_bytes < 0:
            return rows[:index]
    return rows


def encode_parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def encode_csv(table: pa.Table) -> bytes:
    """Values as in JSON; lists and structs as JSON in one field. Null is an empty field, an empty text is `""`."""
    columns = [[_field(_text(_json(value))) for value in _values(column)] for column in table.columns]
    lines = [",".join(_field(name) for name in table.column_names)]
    lines += [",".join(row) for row in zip(*columns, strict=True)]
    return ("\n".join(lines) + "\n").encode()


def _field(text: str | None) -> str:
    if text is None:
        return ""
    if not text or _SPECIAL.search(text):
        return '"' + text.replace('"', '""') + '"'
    return text


ENCODERS: dict[str, Callable[[pa.Table], bytes]] = {
    "csv": encode_csv,
    "parquet": encode_parquet,
}


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Python has no times of nanoseconds: those are text already."""
    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return [
            None if value is None else _nanoseconds(value, column.type.tz)
            for value in column.cast(pa.int64()).to_pylist()
        ]
    values: list[Any] = column.to_pylist()
    return values


def _nanoseconds(value: int, zone: str | None) -> str:
    seconds, rest = divmod(value, 10**9)
    moment = datetime(1970, 1, 1) + timedelta(seconds=seconds)
    return f"{moment.isoformat()}.{rest:09d}" + ("Z" if zone else "")


def _json(value: Any) -> Any:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else str(value)
    if isinstance(value, float):
        return (
            value if math.isfinite(value) else "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        )
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes | memoryview):
        return "0x" + bytes(value).hex()
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return _interval(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    return str(value)


def _interval(value: timedelta) -> str:
    """ISO 8601, in seconds."""
    microseconds = (value.days * 86_400 + value.seconds) * 10**6 + value.microseconds
    seconds, rest = divmod(abs(microseconds), 10**6)
    return f"{'-' if microseconds < 0 else ''}PT{seconds}{f'.{rest:06d}' if rest else ''}S"


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return msgspec.json.encode(value).decode()

"""Results in the formats of the API. What JSON cannot hold exactly is text: decimals, wide integers, bytes, times."""

import io
import itertools
import math
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

_ENCODER = msgspec.json.Encoder()
_SPECIAL = re.compile(r'[",\r\n]|^\s|\s$')
_EXACT = 2**53 - 1
"""The largest integer that every reader of JSON holds exactly."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY = 86_400
_EPOCH_DAYS = date(1970, 1, 1).toordinal() - 1
_CYCLE_DAYS = 146_097
"""Of 400 years, after which the calendar repeats itself."""


def encode_rows(table: pa.Table, max_bytes: int) -> list[list[Any]]:
    """Rows of JSON values, as many as have at most so many bytes of JSON."""
    columns = [_values(column) for column in table.columns]
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
    columns = [[_field(_text(value)) for value in _values(column)] for column in table.columns]
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


def _values(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """JSON values of a column. Python has no times of nanoseconds, no year 10000 and no infinity: times are written
    from the numbers that Arrow has, on every level of nested values."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in _values(chunk)]
    kind = column.type
    if pa.types.is_timestamp(kind):
        unit, zone = _PER_SECOND[kind.unit], "Z" if kind.tz else ""
        return _each(column.cast(pa.int64()), lambda value: format_timestamp(value, unit, zone))
    if pa.types.is_date32(kind):
        return _each(column.cast(pa.int32()), format_date)
    if pa.types.is_time(kind):
        unit = _PER_SECOND[kind.unit]
        return _each(column.cast(pa.int64() if kind.bit_width == 64 else pa.int32()), lambda value: _clock(value, unit))
    if pa.types.is_map(kind):
        pairs = [list(pair) for pair in zip(_values(column.keys), _values(column.items), strict=True)]
        offsets = column.offsets.to_pylist()
        lists = [pairs[start:end] for start, end in itertools.pairwise(offsets)]
        return [item if valid else None for item, valid in zip(lists, column.is_valid().to_pylist(), strict=True)]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        items = iter(_values(column.flatten()))
        lengths = column.value_lengths().to_pylist()
        valid = column.is_valid().to_pylist()
        return [list(itertools.islice(items, lengths[row])) if valid[row] else None for row in range(len(column))]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        rows = zip(*map(_values, column.flatten()), strict=True)
        structs = [dict(zip(names, row, strict=True)) for row in rows] if names else [{} for _ in range(len(column))]
        return [item if valid else None for item, valid in zip(structs, column.is_valid().to_pylist(), strict=True)]
    return [_json(value) for value in column.to_pylist()]


def _each(numbers: pa.Array, write: Callable[[int], str]) -> list[str | None]:
    return [None if number is None else write(number) for number in numbers.to_pylist()]


def format_timestamp(value: int, unit: int, zone: str = "") -> str:
    """ISO 8601, with as many digits as the unit has where the second is not whole."""
    if abs(value) >= 2**63 - 1:
        return "infinity" if value > 0 else "-infinity"
    seconds, fraction = divmod(value, unit)
    days, second_of_day = divmod(seconds, _DAY)
    return f"{_day(days)}T{_clock(second_of_day * unit + fraction, unit)}{zone}"


def format_date(days: int) -> str:
    return ("infinity" if days > 0 else "-infinity") if abs(days) >= 2**31 - 1 else _day(days)


def _day(days: int) -> str:
    """Days since 1970. Years beyond four digits have a sign and six, as ISO 8601 has them."""
    cycles, day = divmod(days + _EPOCH_DAYS, _CYCLE_DAYS)
    moment = date.fromordinal(day + 1)
    year = moment.year + 400 * cycles
    text = f"{year:04d}" if 1 <= year <= 9999 else f"{year:+07d}"
    return f"{text}-{moment.month:02d}-{moment.day:02d}"


def _clock(value: int, unit: int) -> str:
    seconds, fraction = divmod(value, unit)
    digits = max(6, len(str(unit)) - 1)
    rest = f".{fraction * 10**digits // unit:0{digits}d}" if fraction or unit == 10**9 else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{rest}"


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
    if isinstance(value, bytes):
        return "0x" + value.hex()
    return str(value)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return msgspec.json.encode(value).decode()

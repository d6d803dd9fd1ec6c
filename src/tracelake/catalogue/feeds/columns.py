"""The columns of a feed: where each value is found, and the type that it must have."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tracelake.catalogue.feeds.paths import JsonPath, PathError, parse_path
from tracelake.catalogue.spec import ConfigFieldError
from tracelake.model.dag import Column, ColumnType

MAX_COLUMNS = 500
MAX_PRECISION = 38
MAX_TEXT = 10 * 2**20
TIME_UNITS = ("iso", "seconds", "millis", "micros")
"""How a timestamp is written: as text with a zone, or as a number since 1970."""

_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_TYPE = re.compile(r"([a-z0-9]+)(?:\(\s*([0-9]{1,9})\s*(?:,\s*([0-9]{1,9})\s*)?\))?", re.ASCII)
_FIELDS = ("path", "type", "unit", "nullable")


@dataclass(frozen=True, slots=True)
class FeedColumn:
    column: Column
    path: JsonPath
    """In CSV its only step is the name, or the number, of a field."""
    unit: str = "iso"
    """Of a timestamp."""

    @property
    def name(self) -> str:
        return self.column.name


def read_columns(columns: Mapping[str, Any], specials: Collection[str], *, csv: bool) -> tuple[FeedColumn, ...]:
    """Raises ConfigFieldError for the first invalid one. `specials`: the words that `@` may stand before."""
    if not 1 <= len(columns) <= MAX_COLUMNS:
        raise ConfigFieldError("columns", f"there are 1 to {MAX_COLUMNS} columns, not {len(columns)}")
    folded: set[str] = set()
    read = []
    for name, value in columns.items():
        if not _COLUMN_NAME.fullmatch(name):
            raise ConfigFieldError("columns", "the name of a column is letters, digits and _, at most 63 of them")
        if name.lower() in folded:
            raise ConfigFieldError(f"columns.{name}", f"there are two columns `{name.lower()}`; case does not matter")
        folded.add(name.lower())
        read.append(_read_column(name, value, specials, csv=csv))
    return tuple(read)


def _read_column(name: str, value: Any, specials: Collection[str], *, csv: bool) -> FeedColumn:
    field = f"columns.{name}"
    if isinstance(value, str):
        value = {"type": value}
        type_field = field
    else:
        type_field = f"{field}.type"
    if not isinstance(value, Mapping):
        raise ConfigFieldError(field, "a column is a type, or a map like {path: price.usd, type: float64}")
    for key in value:
        if key not in _FIELDS:
            raise ConfigFieldError(field, f"a column has no field `{str(key)[:80]}`; it has {', '.join(_FIELDS)}")
    nullable = value.get("nullable", False)
    if not isinstance(nullable, bool):
        raise ConfigFieldError(f"{field}.nullable", "it must be true or false")
    if "type" not in value:
        raise ConfigFieldError(field, "the field `type` is missing", f"Types are {', '.join(ColumnType)}.")
    column = _read_type(name, value["type"], type_field, nullable=nullable)
    unit = value.get("unit", "iso")
    if unit not in TIME_UNITS:
        raise ConfigFieldError(f"{field}.unit", f"it must be one of {', '.join(TIME_UNITS)}")
    if "unit" in value and column.type is not ColumnType.TIMESTAMP:
        raise ConfigFieldError(f"{field}.unit", "only a timestamp has a unit")
    return FeedColumn(column, _read_path(name, value, field, specials, csv=csv), unit)


def _read_path(name: str, value: Mapping[str, Any], field: str, specials: Collection[str], *, csv: bool) -> JsonPath:
    text = value.get("path")
    if text is None and "path" not in value:
        return JsonPath((name,))
    if not isinstance(text, str):
        raise ConfigFieldError(f"{field}.path", "it must be text")
    if csv and not text.startswith("@"):
        # The name of a field is any text, so a path in CSV is that name, or [0] by its place.
        match = re.fullmatch(r"\[([0-9]{1,4})\]", text, re.ASCII)
        return JsonPath((int(match[1]) if match else text,))
    try:
        path = parse_path(text)
    except PathError as error:
        raise ConfigFieldError(f"{field}.path", str(error)) from None
    if path.special and path.special not in specials:
        words = ", ".join(f"@{word}" for word in sorted(specials))
        raise ConfigFieldError(f"{field}.path", f"there is no `@{path.special}`", f"There are {words}.")
    return path


def _read_type(name: str, text: Any, field: str, *, nullable: bool) -> Column:
    match = _TYPE.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] not in tuple(ColumnType):
        raise ConfigFieldError(field, "it must be a type", f"Types are {', '.join(ColumnType)}.")
    kind = ColumnType(match[1])
    numbers = [int(number) for number in match.groups()[1:] if number is not None]
    if kind is ColumnType.DECIMAL:
        precision, scale = [*numbers, 0, 0][:2]
        if not numbers or not 1 <= precision <= MAX_PRECISION or scale > precision:
            raise ConfigFieldError(field, f"a decimal is decimal(38,18): at most {MAX_PRECISION} digits, some behind")
        return Column(name=name, type=kind, nullable=nullable, precision=precision, scale=scale)
    if kind in (ColumnType.TEXT, ColumnType.BYTES) and len(numbers) == 1 and 1 <= numbers[0] <= MAX_TEXT:
        return Column(name=name, type=kind, nullable=nullable, max_length=numbers[0])
    if numbers:
        raise ConfigFieldError(field, "only decimal(p,s), text(n) and bytes(n) have numbers")
    return Column(name=name, type=kind, nullable=nullable)

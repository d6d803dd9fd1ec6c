"""Types of Spark as values, written as Spark writes them: `bigint`, `decimal(20,0)`, `array<struct<a:int>>`."""

import re
from dataclasses import dataclass

from tracelake.model.dag import Column, ColumnType

MAX_PRECISION = 38
_MIN_SCALE = 6
"""Digits behind the point that Spark keeps when a product or quotient has more digits than a decimal holds."""
_WORD = re.compile(r"[a-z_]+|`[^`]*`|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|[<>(),:]")


@dataclass(frozen=True, slots=True)
class SqlType:
    kind: str
    """The first word of the type; `unknown` if it is not certain."""
    digits: tuple[int, int] = (0, 0)
    """Precision and scale of a decimal."""
    items: tuple["SqlType", ...] = ()
    """The element of an array, key and value of a map, the fields of a struct."""
    names: tuple[str, ...] = ()
    """The fields of a struct."""

    def __str__(self) -> str:
        if self.kind == "decimal":
            return f"decimal({self.digits[0]},{self.digits[1]})"
        if self.kind == "struct":
            fields = (f"{name}:{item}" for name, item in zip(self.names, self.items, strict=True))
            return f"struct<{','.join(fields)}>"
        return f"{self.kind}<{','.join(map(str, self.items))}>" if self.items else self.kind

    @property
    def is_known(self) -> bool:
        return self.kind != "unknown" and all(item.is_known for item in self.items)


UNKNOWN = SqlType("unknown")
TINYINT, SMALLINT, INT, BIGINT = (SqlType(kind) for kind in ("tinyint", "smallint", "int", "bigint"))
FLOAT, DOUBLE = SqlType("float"), SqlType("double")
STRING, BINARY, BOOLEAN = SqlType("string"), SqlType("binary"), SqlType("boolean")
DATE, TIMESTAMP, TIMESTAMP_NTZ = SqlType("date"), SqlType("timestamp"), SqlType("timestamp_ntz")
INTEGRAL = (TINYINT, SMALLINT, INT, BIGINT)
NUMERIC = frozenset(["tinyint", "smallint", "int", "bigint", "float", "double", "decimal"])
TIMES = frozenset(["date", "timestamp", "timestamp_ntz"])
POSITIONS = TIMES | {"tinyint", "smallint", "int", "bigint", "decimal"}
"""Types by which a row is in a window of blocks or of time: see `by` of an input."""
ATOMIC = NUMERIC | TIMES | {"string", "binary", "boolean"}
_WHOLE_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}

DECLARED: dict[ColumnType, SqlType] = {
    ColumnType.BOOL: BOOLEAN,
    ColumnType.INT16: SMALLINT,
    ColumnType.INT32: INT,
    ColumnType.INT64: BIGINT,
    ColumnType.INT256: STRING,
    ColumnType.UINT256: STRING,
    ColumnType.FLOAT64: DOUBLE,
    ColumnType.TEXT: STRING,
    ColumnType.BYTES: BINARY,
    ColumnType.TIMESTAMP: TIMESTAMP,
    ColumnType.DATE: DATE,
    ColumnType.JSON: STRING,
}
"""The types of a table's columns in a query; see `storage.snapshots`. Those of decimals follow from their digits."""


def declared_type(column: Column) -> SqlType:
    """The type that a column of a buffered dataset has in a query."""
    if column.type is ColumnType.DECIMAL:
        return decimal(column.precision or MAX_PRECISION, column.scale or 0)
    if column.nested is not None:
        return parse_type(column.nested)
    return DECLARED[column.type]


def array(item: SqlType) -> SqlType:
    return SqlType("array", items=(item,))


def decimal(precision: int, scale: int) -> SqlType:
    """The decimal with so many digits, or the widest one that there is."""
    return SqlType("decimal", digits=(min(precision, MAX_PRECISION), min(scale, MAX_PRECISION)))


def fitted_decimal(precision: int, scale: int) -> SqlType:
    """As Spark fits the result of arithmetic: digits before the point are kept rather than those behind it."""
    if precision <= MAX_PRECISION:
        return decimal(precision, scale)
    whole = precision - scale
    return decimal(MAX_PRECISION, max(MAX_PRECISION - whole, min(scale, _MIN_SCALE)))


def as_decimal(number: SqlType) -> SqlType | None:
    """The decimal that holds a whole number of the type; None if it is neither whole nor a decimal."""
    if number.kind == "decimal":
        return number
    return decimal(_WHOLE_DIGITS[number.kind], 0) if number.kind in _WHOLE_DIGITS else None


def parse_type(text: str) -> SqlType:
    """Reads what `str` of a type writes; UNKNOWN for anything else."""
    words = _WORD.findall(text.lower() if "<" not in text else text)
    try:
        parsed, end = _parse(words, 0)
    except (IndexError, ValueError):
        return UNKNOWN
    return parsed if end == len(words) else UNKNOWN


def _parse(words: list[str], start: int) -> tuple[SqlType, int]:
    kind = words[start].lower()
    following = words[start + 1 : start + 2]
    if kind == "decimal" and following == ["("]:
        return decimal(int(words[start + 2]), int(words[start + 4])), start + 6
    if following != ["<"]:
        return (SqlType(kind) if kind in ATOMIC else UNKNOWN), start + 1
    items: list[SqlType] = []
    names: list[str] = []
    place = start + 1
    while words[place] in ("<", ","):
        place += 1
        if kind == "struct":
            names.append(words[place].strip("`"))
            place += 2
        item, place = _parse(words, place)
        items.append(item)
    if words[place] != ">" or kind not in ("array", "map", "struct"):
        return UNKNOWN, place + 1
    return SqlType(kind, items=tuple(items), names=tuple(names)), place + 1

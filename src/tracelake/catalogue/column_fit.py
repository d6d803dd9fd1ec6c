"""Which types of Spark a column of a buffered dataset can hold, decided before a row is written.

`rows.encoder` writes rows as JSON and `rows.values` reads them; a type that is refused here is one of which they take
no value. A test compares the two.
"""

from tracelake.catalogue.sql.columns.types import NUMERIC, SqlType, declared_type
from tracelake.model.dag import Column, ColumnType

_WHOLE = frozenset({"tinyint", "smallint", "int", "bigint"})
_ROUNDED = frozenset({"float", "double"})
_TEXT = frozenset({"string"})
_HELD: dict[ColumnType, frozenset[str]] = {
    ColumnType.BOOL: frozenset({"boolean"}),
    **dict.fromkeys((ColumnType.INT16, ColumnType.INT32, ColumnType.INT64), _WHOLE),
    **dict.fromkeys((ColumnType.INT256, ColumnType.UINT256), _WHOLE | _TEXT | {"decimal"}),
    ColumnType.FLOAT64: _WHOLE | _ROUNDED,
    ColumnType.DECIMAL: _WHOLE | _ROUNDED | _TEXT | {"decimal"},
    ColumnType.TEXT: _TEXT | {"binary", "decimal", "date", "timestamp"},
    ColumnType.BYTES: _TEXT | {"binary"},
    ColumnType.TIMESTAMP: _TEXT | {"timestamp"},
    ColumnType.DATE: _TEXT | {"date"},
    ColumnType.JSON: frozenset({"struct", "map"}),
}
_CASTS = {
    ColumnType.BOOL: "BOOLEAN",
    ColumnType.INT16: "SMALLINT",
    ColumnType.INT32: "INT",
    ColumnType.INT64: "BIGINT",
    ColumnType.INT256: "STRING",
    ColumnType.UINT256: "STRING",
    ColumnType.FLOAT64: "DOUBLE",
    ColumnType.TEXT: "STRING",
    ColumnType.TIMESTAMP: "TIMESTAMP",
    ColumnType.DATE: "DATE",
}


def fits_column(column: Column, kind: SqlType) -> bool:
    """False if the column takes no value of the type but null; an unknown type fits."""
    if not kind.is_known:
        return True
    if kind.kind == "decimal" and column.type in (ColumnType.INT256, ColumnType.UINT256):
        return kind.digits[1] == 0
    return kind.kind in _HELD[column.type]


def fits_files(column: Column, kind: SqlType) -> bool:
    """False if values of the type are not what the schema of a dataset in files says. Files keep the types of their
    writer: any number is a number there, and a list may be JSON."""
    declared = declared_type(column).kind
    if fits_column(column, kind) or declared == kind.kind:
        return True
    if column.type is ColumnType.JSON:
        return kind.kind == "array"
    return {declared, kind.kind} <= NUMERIC or {declared, kind.kind} == {"timestamp", "timestamp_ntz"}


def cast_hint(column: Column, kind: SqlType) -> str:
    """What to write in the query instead, or which types to declare."""
    target = f"DECIMAL({column.precision},{column.scale or 0})" if column.type is ColumnType.DECIMAL else ""
    target = target or _CASTS.get(column.type, "")
    change = f"Write `CAST(... AS {target}) AS {column.name}`" if target else "Use another expression"
    fitting = [name for name in ColumnType if fits_column(Column(name=column.name, type=name), kind)]
    return f"{change}, or declare {', '.join(f'`{name}`' for name in fitting) or 'another type'}."

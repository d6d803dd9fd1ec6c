"""Schemas of tables that operators with fixed columns write directly."""

import re
from collections.abc import Sequence

from tracelake.catalogue.sql.columns.types import SqlType, parse_type
from tracelake.model.columns import DatasetColumn
from tracelake.model.dag import Column, ColumnType, Schema

_TYPES = {
    "boolean": ColumnType.BOOL,
    "smallint": ColumnType.INT16,
    "int": ColumnType.INT32,
    "bigint": ColumnType.INT64,
    "double": ColumnType.FLOAT64,
    "string": ColumnType.TEXT,
    "binary": ColumnType.BYTES,
    "timestamp": ColumnType.TIMESTAMP,
    "date": ColumnType.DATE,
}
NESTED_ITEMS = frozenset({"bigint", "binary"})
"""What lists and structs may hold, besides each other: values that JSON of Postgres keeps exactly."""
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
POSITION_TYPES = frozenset({ColumnType.INT16, ColumnType.INT32, ColumnType.INT64})


def table_schema(columns: Sequence[DatasetColumn], unique: Sequence[str], *, newest_wins: bool = False) -> Schema:
    """The table with these columns, given with types of Spark. `unique` begins with the position of a row. See Schema
    about `newest_wins`."""
    position, *key = unique
    schema = Schema(
        columns=tuple(_column(column, column.name in unique) for column in columns),
        unique=tuple(unique),
        indexes=((*key, position),) if newest_wins else (),
        newest_wins=newest_wins,
    )
    if not has_position(schema):
        raise ValueError(f"`unique` must begin with a column of a whole number: {', '.join(unique)}")
    if newest_wins and not key:
        raise ValueError(f"rows whose key is their position have one version: {position}")
    return schema


def has_position(schema: Schema) -> bool:
    """Whether rows of the table have a position, so that tasks can write it directly."""
    column = schema.column(schema.unique[0]) if schema.unique else None
    return column is not None and column.type in POSITION_TYPES


def _is_nested(kind: SqlType) -> bool:
    """Whether a type is a list or a struct that such a table can have."""
    return kind.kind in ("array", "struct") and all(
        item.kind in NESTED_ITEMS or _is_nested(item) for item in kind.items
    )


def _column(column: DatasetColumn, in_key: bool) -> Column:
    nullable = column.nullable and not in_key
    if match := _DECIMAL.fullmatch(column.type):
        digits, scale = int(match[1]), int(match[2])
        return Column(
            name=column.name, type=ColumnType.DECIMAL, nullable=nullable, precision=digits, scale=scale or None
        )
    if _is_nested(parse_type(column.type)):
        return Column(name=column.name, type=ColumnType.JSON, nullable=nullable, nested=column.type)
    return Column(name=column.name, type=_TYPES[column.type], nullable=nullable)

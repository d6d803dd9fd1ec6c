"""Which part of a relation a query needs: a range of blocks for its files, a condition for its rows in Postgres.

Both follow from the filters that the gate found, and for a task from the units and `where` of its inputs. They only
leave out rows that cannot be in the result; the engine applies every condition again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from tracelake.errors import TraceError
from tracelake.model.buffered import quoted
from tracelake.model.dag import ColumnType
from tracelake.wire.query import InputSelection
from tracelake.wire.task_calls import TableColumn
from tracelake.wire.units import Scalar

BLOCK = "block_number"
LAST_BLOCK = 2**63 - 1

_INTEGERS = frozenset({ColumnType.INT16, ColumnType.INT32, ColumnType.INT64})
_WIDE = frozenset({ColumnType.INT256, ColumnType.UINT256, ColumnType.DECIMAL})


class SimpleFilter(Protocol):
    """`ColumnFilter` of the gate: `column operator value`."""

    @property
    def column(self) -> str: ...
    @property
    def operator(self) -> str: ...
    @property
    def value(self) -> int | str | tuple[int | str, ...]: ...


def block_range(filters: Iterable[SimpleFilter], selections: Sequence[InputSelection] = ()) -> tuple[int, int] | None:
    """First and last block that the query can need; None: all. An empty range has its end before its start."""
    first, last = 0, LAST_BLOCK
    for item in filters:
        if item.column.lower() != BLOCK:
            continue
        values = item.value if isinstance(item.value, tuple) else (item.value,)
        numbers = [value for value in values if isinstance(value, int)]
        if len(numbers) != len(values):
            continue
        low, high = _bounds(item.operator, numbers)
        first, last = max(first, low), min(last, high)
    ranges = [selection.unit.blocks for selection in selections]
    if ranges and all(start is not None and end is not None for start, end in ranges):
        first = max(first, min(start for start, _ in ranges if start is not None))
        last = min(last, max(end for _, end in ranges if end is not None))
    return None if (first, last) == (0, LAST_BLOCK) else (first, last)


def _bounds(operator: str, numbers: list[int]) -> tuple[int, int]:
    match operator:
        case "=" | "in":
            return min(numbers), max(numbers)
        case "<":
            return 0, numbers[0] - 1
        case "<=":
            return 0, numbers[0]
        case ">":
            return numbers[0] + 1, LAST_BLOCK
        case ">=":
            return numbers[0], LAST_BLOCK
    return 0, LAST_BLOCK


def table_condition(
    columns: Mapping[str, TableColumn],
    filters: Iterable[SimpleFilter],
    selections: Sequence[InputSelection] = (),
    position: str | None = None,
    boundary: int | None = None,
) -> str:
    """The condition that Postgres applies, with constants that are written here; empty: all rows. `columns` are those
    that the table has. `position`: the column by which units are read, of a table that tasks write directly.
    `boundary`: only rows above this position, of a live dataset.

    The rows of selections are exactly selected; filters of other types than integers and text are left to the engine.
    """
    conditions = [text for item in filters if (text := _filter(columns, item)) is not None]
    if boundary is not None:
        if position is None:
            raise TraceError("query_failed", "The table of a live dataset has no positions.")
        conditions.append(f"{quoted(position)} > {boundary:d}")
    if selections:
        conditions.append("(" + " OR ".join(_selection(columns, selection, position) for selection in selections) + ")")
    return "WHERE " + " AND ".join(conditions) if conditions else ""


def _filter(columns: Mapping[str, TableColumn], item: SimpleFilter) -> str | None:
    column = columns.get(item.column)
    if column is None or item.operator not in ("=", "<", "<=", ">", ">=", "in"):
        return None
    values = item.value if isinstance(item.value, tuple) else (item.value,)
    if column.type in _INTEGERS and all(isinstance(value, int) for value in values):
        literals = [_integer(value) for value in values if isinstance(value, int)]
    elif column.type is ColumnType.TEXT and item.operator in ("=", "in"):
        texts = [value for value in values if isinstance(value, str) and "\0" not in value]
        if len(texts) != len(values):
            return None
        literals = [_text(value) for value in texts]
    else:
        return None
    if item.operator == "in":
        return f"{quoted(column.name)} IN ({', '.join(literals)})"
    return f"{quoted(column.name)} {item.operator} {literals[0]}"


def _selection(columns: Mapping[str, TableColumn], selection: InputSelection, position: str | None) -> str:
    commits = selection.unit.cursor
    if position is not None:
        start, end = selection.unit.blocks
        parts = ["true"] if start is None or end is None else [f"{quoted(position)} BETWEEN {start:d} AND {end:d}"]
    elif commits is None:
        raise TraceError("query_failed", "An input is a table, which is read by commits, and the task's unit is none.")
    else:
        parts = [f"_commit_seq > {commits.after:d}", f"_commit_seq <= {commits.to:d}"]
    for field, value in (selection.where or {}).items():
        column, values = columns.get(field), value if isinstance(value, list) else [value]
        # A column that the table does not have yet is null in every row.
        parts.append(_where(column, values) if column is not None else "true" if None in values else "false")
    return "(" + " AND ".join(parts) + ")"


def _where(column: TableColumn, values: Sequence[Scalar]) -> str:
    name = quoted(column.name)
    literals = [_constant(column, value) for value in values if value is not None]
    condition = f"{name} IN ({', '.join(literals)})" if literals else "false"
    return f"({condition} OR {name} IS NULL)" if len(literals) != len(values) else condition


def _constant(column: TableColumn, value: Scalar) -> str:
    """A constant of the column's own type, so that no conversion changes the comparison."""
    try:
        if column.type is ColumnType.BOOL and isinstance(value, bool):
            return "true" if value else "false"
        if column.type in _INTEGERS and isinstance(value, int) and not isinstance(value, bool):
            return _integer(value)
        if column.type in _WIDE and isinstance(value, int | str) and not isinstance(value, bool):
            return f"{_text(str(value))}::numeric"
        if column.type is ColumnType.FLOAT64 and isinstance(value, int | float) and not isinstance(value, bool):
            return f"{_text(repr(float(value)))}::float8"
        if column.type is ColumnType.BYTES and isinstance(value, str):
            return f"'\\x{bytes.fromhex(value.removeprefix('0x')).hex()}'::bytea"
        if column.type in (ColumnType.TEXT, ColumnType.DATE, ColumnType.TIMESTAMP) and isinstance(value, str):
            kind = {ColumnType.DATE: "::date", ColumnType.TIMESTAMP: "::timestamptz"}.get(column.type, "")
            return _text(value) + kind
    except ValueError:
        pass
    raise TraceError("query_failed", "`where` of an input compares a column with a value of another type.")


def _integer(value: int) -> str:
    return f"{value:d}" if value >= 0 else f"({value:d})"


def _text(value: str) -> str:
    """A string constant. Postgres reads backslashes in it literally (standard_conforming_strings)."""
    if "\0" in value:
        raise ValueError("NUL")
    return "'" + value.replace("'", "''") + "'"

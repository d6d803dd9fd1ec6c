"""Rows of an operator as its table takes them: every column by name, of its type, exactly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from tracelake.model.dag import Column, ColumnType
from tracelake.ports.direct_tables import RangeReplacement, RowsRefusedError
from tracelake.rows.values import kind_of
from tracelake.storage.nested_values import encode_nested, nested_arrow_type
from tracelake.wire.direct import DirectTable

_Check = Callable[[pa.DataType], bool]


def _is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(types.is_timestamp(kind) and kind.tz is not None)


_ACCEPTED: dict[ColumnType, tuple[_Check, ...]] = {
    ColumnType.BOOL: (types.is_boolean,),
    ColumnType.INT16: (types.is_integer,),
    ColumnType.INT32: (types.is_integer,),
    ColumnType.INT64: (types.is_integer,),
    ColumnType.INT256: (types.is_integer, _is_text),
    ColumnType.UINT256: (types.is_integer, _is_text),
    ColumnType.FLOAT64: (types.is_float32, types.is_float64),
    ColumnType.DECIMAL: (types.is_integer, types.is_decimal),
    ColumnType.TEXT: (_is_text,),
    ColumnType.BYTES: (_is_bytes,),
    ColumnType.TIMESTAMP: (_is_moment,),
    ColumnType.DATE: (types.is_date32,),
    ColumnType.JSON: (_is_text,),
}
"""What a column takes. Arrow would cast more, and round: 0.5 becomes the decimal 1."""
_LARGE = frozenset({ColumnType.INT256, ColumnType.UINT256})


@dataclass(frozen=True, slots=True)
class OwnValues:
    """What the internal columns of a table hold in each row of a write."""

    org_id: UUID
    task_id: UUID
    scope_id: int
    commit_seq: int

    def join(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with these columns, as COPY takes them: a uuid is its 16 bytes there."""
        values = {
            "org_id": pa.scalar(self.org_id.bytes, pa.binary(16)),
            "_task_id": pa.scalar(self.task_id.bytes, pa.binary(16)),
            "_scope": pa.scalar(self.scope_id, pa.int32()),
            "_commit_seq": pa.scalar(self.commit_seq, pa.int64()),
        }
        columns = [pa.repeat(value, rows.num_rows) for value in values.values()]
        return pa.RecordBatch.from_arrays([*columns, *rows.columns], names=[*values, *rows.schema.names])


def fit_rows(table: DirectTable, batches: Sequence[pa.RecordBatch], change: RangeReplacement) -> list[pa.RecordBatch]:
    """Columns in the order of the schema; those that the rows lack are null. Raises RowsRefusedError."""
    if not 0 <= change.start <= change.end:
        raise RowsRefusedError(f"A range needs 0 <= start <= end; this one is {change.start} to {change.end}.")
    return [_fit(table, batch, change) for batch in batches if batch.num_rows]


def _fit(table: DirectTable, batch: pa.RecordBatch, change: RangeReplacement) -> pa.RecordBatch:
    names = batch.schema.names
    if len(set(names)) < len(names):
        raise RowsRefusedError(f"Rows of {table.name} have two columns of one name.")
    if unknown := [name for name in names if table.schema.column(name) is None]:
        raise RowsRefusedError(f"Rows of {table.name} have a column {unknown[0]}, which the table lacks.")
    arrays, fields = [], []
    for column in table.schema.columns:
        array = _convert(table, column, batch.column(column.name) if column.name in names else None, batch.num_rows)
        if array.null_count and not (column.nullable and column.name not in table.schema.unique):
            raise RowsRefusedError(f"Rows of {table.name} have no {column.name}, which is never null.")
        arrays.append(array)
        fields.append(pa.field(column.name, array.type))
    fitted = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    ends = pc.min_max(fitted.column(table.position)).as_py()
    if ends["min"] < change.start or ends["max"] > change.end:
        raise RowsRefusedError(
            f"Rows of {table.name} have {table.position} {ends['min']} to {ends['max']}, but the write replaces"
            f" {change.start} to {change.end}."
        )
    return fitted


def _convert(table: DirectTable, column: Column, values: pa.Array | None, count: int) -> pa.Array:
    kind = kind_of(column)
    if values is None:
        return pa.nulls(count, kind.arrow)
    try:
        if column.nested is not None and not types.is_null(values.type):
            if values.type != nested_arrow_type(column.nested):
                raise pa.ArrowInvalid
            return encode_nested(values, column.nested)
        if not (types.is_null(values.type) or any(accepts(values.type) for accepts in _ACCEPTED[column.type])):
            raise pa.ArrowInvalid
        if column.type is ColumnType.DECIMAL and types.is_integer(values.type):
            values = values.cast(pa.decimal128(20, 0))
        converted = values.cast(kind.arrow)
        if column.type in _LARGE and kind.convert is not None:
            converted = pa.array(
                [item if item is None else kind.convert(item) for item in converted.to_pylist()], kind.arrow
            )
        if column.max_length is not None or column.enum is not None:
            _check_values(table, column, converted)
    except (ValueError, pa.ArrowNotImplementedError):  # the first is of Arrow too
        raise RowsRefusedError(
            f"Values of {table.name}.{column.name} are {values.type}, and do not fit {column.nested or column.type}."
        ) from None
    return converted


def _check_values(table: DirectTable, column: Column, values: pa.Array) -> None:
    is_text = pa.types.is_string(values.type)
    if column.max_length is not None:
        lengths = pc.utf8_length(values) if is_text else pc.binary_length(values)
        if pc.any(pc.greater(lengths, column.max_length)).as_py():
            raise RowsRefusedError(f"A value of {table.name}.{column.name} is longer than {column.max_length}.")
    if column.enum is not None:
        accepted = pc.or_kleene(pc.is_in(values, pa.array(column.enum)), pc.is_null(values))
        if not pc.all(accepted).as_py():
            raise RowsRefusedError(f"A value of {table.name}.{column.name} is not one of its `enum`.")

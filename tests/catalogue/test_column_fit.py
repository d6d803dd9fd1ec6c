"""Types that a column of a buffered dataset cannot hold are those of which its sink takes no value."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tracelake.catalogue.column_fit import cast_hint, fits_column
from tracelake.catalogue.sql.columns.types import parse_type
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.rows.encoder import UnwritableError, encode
from tracelake.rows.reader import BadBatchError, BatchReader

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True]),
    "int": (pa.int32(), [1]),
    "bigint": (pa.int64(), [1]),
    "double": (pa.float64(), [1.0, 1e20]),
    "decimal(20,0)": (pa.decimal128(20, 0), [Decimal(1)]),
    "decimal(10,2)": (pa.decimal128(10, 2), [Decimal("1.00")]),
    "string": (pa.string(), ["1", "0x00", "2026-01-31", "2026-01-31T00:00:00Z"]),
    "binary": (pa.binary(), [b"\x01"]),
    "date": (pa.date32(), [date(2026, 1, 31)]),
    "timestamp": (pa.timestamp("us", "UTC"), [datetime(2026, 1, 31, tzinfo=UTC)]),
    "timestamp_ntz": (pa.timestamp("us"), [datetime(2026, 1, 31)]),
    "array<int>": (pa.list_(pa.int32()), [[1]]),
    "struct<a:int>": (pa.struct([("a", pa.int32())]), [{"a": 1}]),
    "map<string,int>": (pa.map_(pa.string(), pa.int32()), [[("a", 1)]]),
}
"""For each type some values, of which a column that can hold the type takes at least one."""


def takes(column: Column, arrow: pa.DataType, value: Any) -> bool:
    key = Column(name="k", type=ColumnType.INT64, nullable=False)
    reader = BatchReader(Schema(columns=(key, column), unique=("k",)))
    batch = pa.RecordBatch.from_arrays([pa.array([1], pa.int64()), pa.array([value], arrow)], ["k", column.name])
    try:
        reader.read(encode(batch), publish_seq=0, org_id=None, record_count=None)
    except (BadBatchError, UnwritableError):
        return False
    return True


@pytest.mark.parametrize("kind", list(ColumnType))
def test_what_fits_is_what_the_sink_takes(kind: ColumnType) -> None:
    column = Column(name="x", type=kind)
    if kind is ColumnType.DECIMAL:
        column = Column(name="x", type=kind, precision=20, scale=2)
    sink = {name: any(takes(column, arrow, value) for value in values) for name, (arrow, values) in VALUES.items()}
    assert {name: fits_column(column, parse_type(name)) for name in VALUES} == sink
    assert fits_column(column, parse_type("unknown"))
    assert cast_hint(column, parse_type("map<string,int>"))

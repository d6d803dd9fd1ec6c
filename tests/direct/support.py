"""Tables of a follower of blocks, and rows for them."""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from uuid import UUID, uuid4

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from tracelake.model.buffered import quoted, table_name
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.model.ids import new_id
from tracelake.ports.direct_tables import TableWriter
from tracelake.wire.direct import DirectTable
from tracelake.wire.units import EventIn, Invalidates

BLOCKS = Schema(
    columns=(
        Column(name="block_number", type=ColumnType.INT64, nullable=False),
        Column(name="block_hash", type=ColumnType.BYTES, nullable=False),
        Column(name="gas_used", type=ColumnType.DECIMAL, precision=20, scale=0),
    ),
    unique=("block_number",),
)
LOGS = Schema(
    columns=(
        Column(name="block_number", type=ColumnType.INT64, nullable=False),
        Column(name="log_index", type=ColumnType.INT64, nullable=False),
        Column(name="amount", type=ColumnType.UINT256),
    ),
    unique=("block_number", "log_index"),
)

TIMED = Schema(
    columns=(
        Column(name="block_number", type=ColumnType.INT64, nullable=False),
        Column(name="timestamp", type=ColumnType.INT64, nullable=False),
    ),
    unique=("block_number",),
)
BALANCES = Schema(
    columns=(
        Column(name="block_number", type=ColumnType.INT64, nullable=False),
        Column(name="holder", type=ColumnType.TEXT, nullable=False),
        Column(name="balance", type=ColumnType.INT64),
    ),
    unique=("block_number", "holder"),
    indexes=(("holder", "block_number"),),
    newest_wins=True,
)
"""Of each holder the newest balance is shown."""


def direct_table(schema: Schema, name: str = "blocks", *, org_id: UUID | None = None, org: str = "acme") -> DirectTable:
    return DirectTable(
        dataset_uuid=uuid4(), org_id=org_id or uuid4(), org=org, name=f"{name}_{uuid4().hex}", schema=schema
    )


_made = count(1)


def new_writer(attempt: int = 1) -> TableWriter:
    """Of a task that is newer than all before, also than those of the same millisecond."""
    return TableWriter(UUID(int=new_id().int + (next(_made) << 80)), attempt)


def block_rows(numbers: Sequence[int], fork: str = "a") -> list[pa.RecordBatch]:
    rows = [
        {"block_number": number, "block_hash": f"{fork}{number}".encode(), "gas_used": number} for number in numbers
    ]
    columns = {
        "block_number": pa.array([row["block_number"] for row in rows], pa.int64()),
        "block_hash": pa.array([row["block_hash"] for row in rows], pa.binary()),
        "gas_used": pa.array([row["gas_used"] for row in rows], pa.uint64()),
    }
    return [pa.RecordBatch.from_pydict(columns)]


def log_rows(numbers: Sequence[int], amount: str = "1") -> list[pa.RecordBatch]:
    columns = {
        "block_number": pa.array(numbers, pa.int64()),
        "log_index": pa.array([0] * len(numbers), pa.int64()),
        "amount": pa.array([amount] * len(numbers), pa.string()),
    }
    return [pa.RecordBatch.from_pydict(columns)]


def timed_rows(times: Mapping[int, int]) -> list[pa.RecordBatch]:
    columns = {
        "block_number": pa.array(list(times), pa.int64()),
        "timestamp": pa.array(list(times.values()), pa.int64()),
    }
    return [pa.RecordBatch.from_pydict(columns)]


def balance_rows(rows: Sequence[tuple[int, str, int]]) -> list[pa.RecordBatch]:
    columns = zip(*rows, strict=True)
    kinds = (pa.int64(), pa.string(), pa.int64())
    arrays = [pa.array(list(values), kind) for values, kind in zip(columns, kinds, strict=True)]
    return [pa.RecordBatch.from_arrays(arrays, names=["block_number", "holder", "balance"])]


def cursor_event(table: DirectTable, cursor: int, invalidates: tuple[int, int] | None = None) -> EventIn:
    return EventIn(
        dataset_uuid=table.dataset_uuid,
        dataset_version=UUID(int=1),
        cursor=cursor,
        invalidates=invalidates and Invalidates(start=invalidates[0], end=invalidates[1], reason="reorganised"),
    )


def range_event(table: DirectTable, start: int, end: int, revision: str = "", *, invalidates: bool = False) -> EventIn:
    return EventIn(
        dataset_uuid=table.dataset_uuid,
        dataset_version=UUID(int=1),
        partition_key=f"{start}-{end}",
        start=start,
        end=end,
        revision=revision,
        invalidates=Invalidates(start=start, end=end, reason="reorganised") if invalidates else None,
    )


def ask(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    with adbc.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows


def stored_rows(dsn: str, table: DirectTable, *columns: str) -> list[tuple[Any, ...]]:
    names = ", ".join(map(quoted, columns))
    return ask(dsn, f"SELECT {names} FROM {quoted(table_name(table.dataset_uuid))} ORDER BY {names}")

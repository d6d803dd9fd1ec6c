"""Two small tables for queries."""

from datetime import UTC, datetime

import pyarrow as pa

TRANSFERS = pa.table(
    {
        "block_number": pa.array([1, 1, 2, 3, 5], pa.uint32()),
        "sender": ["a", "b", "a", "c", None],
        "receiver": ["b", "a", "c", "a", "a"],
        "amount": pa.array([1, 4, 6, 9, 2], pa.int64()),
    }
)
BLOCKS = pa.table(
    {
        "block_number": pa.array([1, 2, 3, 4], pa.uint32()),
        "hash": pa.array([b"\x01", b"\x02\xff", b"\x03", b"\x04"], pa.binary()),
        "ts": pa.array([datetime(2024, 1, 1, hour, tzinfo=UTC) for hour in range(4)], pa.timestamp("us", tz="UTC")),
        "tags": pa.array([["p"], ["p", "q"], ["r"], ["p", "s", "t"]]),
        "info": pa.array([{"miner": "m", "size": 1}] * 4),
    }
)


def signed(table: pa.Table) -> pa.Table:
    """As Spark reads it from a file: it has no unsigned numbers."""
    index = table.schema.get_field_index("block_number")
    return table.set_column(index, "block_number", table["block_number"].cast(pa.int64()))

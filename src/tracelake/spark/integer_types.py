"""Types of whole numbers in Arrow and in Spark."""

import pyarrow as pa


def signed(schema: pa.Schema) -> pa.Schema:
    """Spark has no unsigned numbers: each gets the next larger type, as Spark's own reader does it."""
    larger = {
        pa.uint8(): pa.int16(),
        pa.uint16(): pa.int32(),
        pa.uint32(): pa.int64(),
        pa.uint64(): pa.decimal128(20, 0),
    }
    return pa.schema([field.with_type(larger.get(field.type, field.type)) for field in schema])

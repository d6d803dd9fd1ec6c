"""Schemas, rows and batches for tests of the sink."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa

from tracelake.model.dag import Column, ColumnType, OnConflict, Schema
from tracelake.rows.reader import BatchReader
from tracelake.sink.outcomes import Loaded
from tracelake.wire.buffers import BatchUnit, BufferBatch, BufferedDataset, Producer

EVERY = Schema(
    columns=(
        Column(name="key", type=ColumnType.TEXT, nullable=False, max_length=100),
        Column(name="number", type=ColumnType.INT32, nullable=False),
        Column(name="flag", type=ColumnType.BOOL),
        Column(name="small", type=ColumnType.INT16),
        Column(name="large", type=ColumnType.INT64),
        Column(name="signed", type=ColumnType.INT256),
        Column(name="unsigned", type=ColumnType.UINT256),
        Column(name="ratio", type=ColumnType.FLOAT64),
        Column(name="amount", type=ColumnType.DECIMAL, precision=20, scale=6),
        Column(name="class", type=ColumnType.TEXT, enum=("low", "high")),
        Column(name="data", type=ColumnType.BYTES, max_length=32),
        Column(name="at", type=ColumnType.TIMESTAMP),
        Column(name="day", type=ColumnType.DATE),
        Column(name="more", type=ColumnType.JSON),
    ),
    unique=("key", "number"),
    indexes=(("day",), ("class", "small")),
)

PLAIN = Schema(
    columns=(
        Column(name="key", type=ColumnType.INT64, nullable=False),
        Column(name="value", type=ColumnType.TEXT),
    ),
    unique=("key",),
)


def dataset(schema: Schema = PLAIN, on_conflict: OnConflict = "update", name: str = "rows") -> BufferedDataset:
    uuid = uuid4()
    return BufferedDataset(
        dataset_uuid=uuid,
        org="acme",
        name=name,
        queue=f"buffers.{uuid}",
        on_conflict=on_conflict,
        version_column="version" if on_conflict == "newest" else None,
        schema=schema,
    )


def lines(rows: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@dataclass
class Publisher:
    """Gives batches their numbers, as the Dispatcher does."""

    dataset: BufferedDataset
    org_id: UUID = field(default_factory=uuid4)
    last: int = 0

    def batch(
        self,
        data: bytes = b"",
        *,
        uri: str = "",
        etag: str = "",
        org_id: UUID | None = None,
        producer: Producer | None = None,
        unit: BatchUnit | None = None,
    ) -> BufferBatch:
        self.last += 1
        return BufferBatch(
            publish_id=uuid4(),
            publish_seq=self.last,
            org_id=org_id or self.org_id,
            dataset_uuid=self.dataset.dataset_uuid,
            dataset_version=uuid4(),
            batch_uri=uri or f"s3://scratch/{self.last}",
            size_bytes=len(data),
            etag=etag,
            content_type="application/jsonl",
            producer=producer or Producer(task_id=uuid4(), attempt=1),
            unit=unit,
        )

    def read(self, batch: BufferBatch, data: bytes) -> tuple[Loaded, pa.RecordBatch]:
        rows = BatchReader(self.dataset.schema).read(
            data, publish_seq=batch.publish_seq, org_id=batch.org_id, record_count=batch.record_count
        )
        return Loaded(batch, rows.num_rows), rows

    def loaded(self, rows: Sequence[Any], org_id: UUID | None = None) -> tuple[Loaded, pa.RecordBatch]:
        data = lines(rows)
        return self.read(self.batch(data, org_id=org_id), data)

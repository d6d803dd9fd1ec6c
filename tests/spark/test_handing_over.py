"""Rows of an operator whose output is a buffered dataset: batches that a sink takes as they are."""

import dataclasses
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest

from tests.spark.support import Bench
from tracelake.catalogue.context import Batch, NonRetryableError
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.ports import ObjectMeta
from tracelake.rows.encoder import UnwritableError, encode
from tracelake.rows.reader import BatchReader
from tracelake.spark import batches
from tracelake.spark.operators.spark_sql import run
from tracelake.spark.testing import DirectoryTransfer
from tracelake.spark.work import SparkWork
from tracelake.wire.units import StorageOut, TaskOutput, Unit

PREFIX = "s3://bucket/buffers/task/1/"
SCHEMA = Schema(
    columns=(
        Column(name="tx", type=ColumnType.BYTES, nullable=False),
        Column(name="value", type=ColumnType.UINT256),
        Column(name="amount", type=ColumnType.DECIMAL, precision=38, scale=18),
        Column(name="at", type=ColumnType.TIMESTAMP),
        Column(name="day", type=ColumnType.DATE),
        Column(name="more", type=ColumnType.JSON),
        Column(name="block_number", type=ColumnType.INT64, nullable=False),
    ),
    unique=("tx",),
)
QUERY = """
    SELECT tx, CAST(number AS STRING) AS value, CAST('1.5' AS DECIMAL(38,18)) AS amount,
           TIMESTAMP '2026-01-31 12:00:00.5' AS at, DATE '2026-01-31' AS day,
           named_struct('a', number, 'b', array(1, 2)) AS more, block_number
    FROM transfers"""


def buffered(bench: Bench, query: str, published: list[Batch], schema: Schema | None = None) -> SparkWork:
    bench.add_output("large")
    work = bench.work("spark_sql", {"query": query}, Unit(partition_key="0-9", start=0, end=9), 1, {})
    output = TaskOutput(
        output_index=0,
        dataset_uuid=uuid4(),
        dataset_version=uuid4(),
        name="large",
        storage=StorageOut(kind="buffered", buffer_prefix=PREFIX),
    )
    work.context = dataclasses.replace(
        work.context, outputs=[output], publish=published.append, schema=lambda _output: schema
    )
    return work


def transfers(count: int) -> pa.Table:
    return pa.table(
        {
            "tx": pa.array([number.to_bytes(4, "big") for number in range(count)], pa.binary()),
            "number": pa.array(range(count), pa.int64()),
            "block_number": pa.array([number % 10 for number in range(count)], pa.int64()),
        }
    )


def test_what_a_query_gives_is_what_the_sink_reads(bench: Bench) -> None:
    published: list[Batch] = []
    bench.add_input("transfers", transfers(3))
    result = run(buffered(bench, QUERY, published))
    (batch,) = published
    assert batch.records == 3
    assert batch.uri.startswith(PREFIX)
    data = bench.transfer.path(batch.uri).read_bytes()
    rows = BatchReader(SCHEMA).read(data, publish_seq=1, org_id=uuid4(), record_count=3).to_pylist()
    assert sorted(row["tx"] for row in rows) == [b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\2"]
    last = max(rows, key=lambda row: row["tx"])
    assert (last["value"], last["amount"]) == ("2", Decimal("1.5"))
    assert last["at"] == datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)
    assert last["more"] == '{"a":2,"b":[1,2]}'
    (report,) = result.outputs
    assert (report.row_count, report.size_bytes, report.file_count) == (3, len(data), 1)
    assert not result.events, "what is in the table is for the sink to say"
    assert not result.datasets_published


JUDGED = Schema(
    columns=(
        Column(name="tx", type=ColumnType.BYTES, nullable=False),
        Column(name="memo", type=ColumnType.TEXT, max_length=5),
        Column(name="name", type=ColumnType.TEXT, nullable=False),
        Column(name="more", type=ColumnType.JSON),
    ),
    unique=("tx", "name"),
)
WRONG = {
    "'x' || chr(0) AS memo, 'a' AS name": (
        'memo: holds a zero character, which Postgres does not keep (the row with tx = "0x00000001", name = "a"). '
        "Clean it in the query: replace(memo, chr(0), '')."
    ),
    "'too long' AS memo, 'a' AS name": (
        'memo: is longer than 5 characters (the row with tx = "0x00000001", name = "a"). '
        "Cut it in the query, like left(memo, 5), or declare a larger max_length."
    ),
    "'ok' AS memo, repeat('n', 3000) AS name": "tx, name: longer than 2000 bytes, which no index holds",
    "'ok' AS memo, CAST(NULL AS STRING) AS name": "name: must not be null",
    "'ok' AS memo, 'a' AS name, named_struct('a', chr(0)) AS more": "more: holds a zero character",
}


@pytest.mark.parametrize("columns", WRONG)
def test_a_row_that_does_not_fit_fails_the_task_and_nothing_is_published(bench: Bench, columns: str) -> None:
    published: list[Batch] = []
    bench.add_input("transfers", transfers(2))
    query = f"SELECT tx, {columns} FROM transfers WHERE number = 1"
    with pytest.raises(NonRetryableError) as refusal:
        run(buffered(bench, query, published, JUDGED))
    assert str(refusal.value).startswith(f"a row does not fit the schema of large: {WRONG[columns]}")
    assert published == []


def test_values_can_be_cleaned_in_the_query(bench: Bench) -> None:
    published: list[Batch] = []
    bench.add_input("transfers", transfers(2))
    query = """
        SELECT tx, left(replace('x' || chr(0) || 'yzabc', chr(0), ''), 5) AS memo,
               sha2(repeat('n', 3000), 256) AS name
        FROM transfers"""
    run(buffered(bench, query, published, JUDGED))
    (batch,) = published
    rows = bench.transfer.path(batch.uri).read_bytes().splitlines()
    assert [msgspec.json.decode(row)["memo"] for row in rows] == ["xyzab"] * 2


def test_a_result_without_rows_publishes_nothing(bench: Bench) -> None:
    published: list[Batch] = []
    bench.add_input("transfers", transfers(3))
    result = run(buffered(bench, QUERY + " WHERE number > 100", published))
    assert published == []
    assert result.outputs[0].row_count == 0


def test_batches_stay_below_their_size(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(batches, "MAX_BYTES", 60_000)  # of 2,000 rows, which are encoded at once, 90,000
    sizes = []

    class Counting(DirectoryTransfer):
        def upload(self, path: Path, uri: str) -> ObjectMeta:
            data = path.read_bytes()
            sizes.append(len(data))
            return super().upload(path, uri)

    sink = batches.BatchSink(PREFIX, Counting(tmp_path))
    for batch in transfers(7_000).to_batches(max_chunksize=3_000):
        sink.write(batch)
    sink.finish()
    assert sum(file.rows for file in sink.files) == 7_000
    assert len({file.meta.uri for file in sink.files}) == len(sizes) > 3
    assert all(size <= 60_000 for size in sizes), "however wide the rows are"


def test_values_that_json_does_not_have() -> None:
    with pytest.raises(UnwritableError, match="`x` holds a number that is not finite"):
        encode(pa.record_batch({"x": pa.array([1.0, float("nan")])}))
    with pytest.raises(UnwritableError, match="`t` is a time without a zone"):
        encode(pa.record_batch({"t": pa.array([0], pa.timestamp("us"))}))
    assert encode(pa.record_batch({"x": pa.array([None, 1.5])})) == b'{"x":null}\n{"x":1.5}\n'

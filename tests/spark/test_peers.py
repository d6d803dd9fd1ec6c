"""Files of the one writer, read by others: the same rows, the same types, in order, and skipped by their statistics."""

import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.spark.support import Bench, DirectoryTransfer
from tracelake.catalogue.context import OperatorResult
from tracelake.spark.evm.tables import SCHEMAS
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import ROWS_PER_GROUP, PartWriter, Target

SCHEMA = pa.schema(
    [
        ("block_number", pa.uint32()),
        ("gas", pa.uint64()),
        ("hash", pa.binary()),
        ("amount", pa.decimal128(38, 0)),
        ("price", pa.decimal128(20, 6)),
        ("stamp", pa.timestamp("us", tz="UTC")),
        ("name", pa.string()),
        ("success", pa.bool_()),
        ("topics", pa.list_(pa.binary())),
        ("rate", pa.float64()),
    ]
)
START = datetime(2026, 1, 31, 23, 59, 59, 999_999, tzinfo=UTC)
ODD: list[dict[str, Any]] = [
    {
        "block_number": 2**32 - 1,
        "gas": 2**64 - 1,
        "hash": b"\xff" * 32,
        "amount": Decimal(10**38 - 1),
        "price": Decimal("-99999999999999.999999"),
        "stamp": START,
        "name": "\u2603\U0001f680",
        "success": True,
        "topics": [b"\x00", b""],
        "rate": 1.5,
    },
    dict.fromkeys(SCHEMA.names) | {"block_number": 2**32 - 1},
]


def row(number: int) -> dict[str, Any]:
    return {
        "block_number": number // 100,
        "gas": number,
        "hash": number.to_bytes(32, "big"),
        "amount": Decimal(number),
        "price": Decimal(number) / 1_000_000,
        "stamp": START + timedelta(seconds=number),
        "name": f"n{number}",
        "success": number % 2 == 0,
        "topics": [],
        "rate": number / 2,
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three row groups, of which the last one has the oddest values."""
    transfer = DirectoryTransfer(tmp_path_factory.mktemp("objects"))
    part = PartWriter(Target("s3://bucket-one/datasets/", "rows", transfer), SCHEMA)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracelake.spark.writer.ROWS_PER_GROUP", 5000)
        for first in (0, 5000):
            part.write(pa.Table.from_pylist([row(number) for number in range(first, first + 5000)], SCHEMA))
        part.write(pa.Table.from_pylist(ODD, SCHEMA))
        path = transfer.path(part.upload(0, 2**32 - 1).meta.uri)
    part.discard()
    return path


@pytest.fixture(scope="module")
def wanted() -> list[dict[str, Any]]:
    return [row(number) for number in range(10_000)] + ODD


def test_pyarrow(file: Path, wanted: list[dict[str, Any]]) -> None:
    table = pq.read_table(file)
    assert table.schema == SCHEMA.set(8, pa.field("topics", table.schema.field("topics").type))
    assert table.to_pylist() == wanted
    metadata = pq.ParquetFile(file).metadata
    assert metadata.num_row_groups == 3
    for group in range(3):
        for column in range(metadata.num_columns):
            assert metadata.row_group(group).column(column).compression == "ZSTD"
        numbers = metadata.row_group(group).column(0).statistics
        assert numbers.has_min_max
        assert [one.column_index for one in metadata.row_group(group).sorting_columns] == [0]
    dataset = ds.dataset(file)
    (fragment,) = dataset.get_fragments()
    assert isinstance(fragment, ds.ParquetFileFragment)
    kept = fragment.subset(pc.field("block_number") > 60)
    assert [group.id for group in kept.row_groups] == [1, 2], "statistics leave out the first"


def test_polars(file: Path, wanted: list[dict[str, Any]]) -> None:
    frame = pl.read_parquet(file)
    assert dict(frame.schema) == {
        "block_number": pl.UInt32(),
        "gas": pl.UInt64(),
        "hash": pl.Binary(),
        "amount": pl.Decimal(38, 0),
        "price": pl.Decimal(20, 6),
        "stamp": pl.Datetime("us", "UTC"),
        "name": pl.String(),
        "success": pl.Boolean(),
        "topics": pl.List(pl.Binary()),
        "rate": pl.Float64(),
    }
    assert frame.to_dicts() == wanted
    assert pl.scan_parquet(file).filter(pl.col("block_number") == 7).select(pl.len()).collect().item() == 100


_DUCKDB = """
import pickle, sys, duckdb
connection = duckdb.connect()
connection.execute("SET TimeZone = 'UTC'")
connection.execute(sys.argv[1])
names = [column[0] for column in connection.description]
sys.stdout.buffer.write(pickle.dumps((names, connection.fetchall())))
"""


def duckdb(statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names and rows, by a process of its own: what it says when it ends is nobody's business here."""
    ran = subprocess.run([sys.executable, "-c", _DUCKDB, statement], capture_output=True, check=True)
    names, rows = pickle.loads(ran.stdout)
    return names, rows


def test_duckdb(file: Path, wanted: list[dict[str, Any]]) -> None:
    _, types = duckdb(f"DESCRIBE SELECT * FROM read_parquet('{file}')")
    assert {name: kind for name, kind, *_ in types} == {
        "block_number": "UINTEGER",
        "gas": "UBIGINT",
        "hash": "BLOB",
        "amount": "DECIMAL(38,0)",
        "price": "DECIMAL(20,6)",
        "stamp": "TIMESTAMP WITH TIME ZONE",
        "name": "VARCHAR",
        "success": "BOOLEAN",
        "topics": "BLOB[]",
        "rate": "DOUBLE",
    }
    # Times as numbers: duckdb wants another package to make Python's from them.
    _, rows = duckdb(f"SELECT * REPLACE (epoch_us(stamp) AS stamp) FROM read_parquet('{file}')")
    found = [dict(zip(SCHEMA.names, values, strict=True)) for values in rows]
    assert found == [one | {"stamp": _micros(one["stamp"])} for one in wanted]
    _, least = duckdb(
        f"SELECT stats_min_value, stats_max_value FROM parquet_metadata('{file}')"
        " WHERE path_in_schema = 'block_number' ORDER BY row_group_id"
    )
    assert least == [("0", "49"), ("50", "99"), (str(2**32 - 1), str(2**32 - 1))]


def _micros(at: datetime | None) -> int | None:
    return None if at is None else (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def test_what_spark_wrote_is_read_by_all_alike(bench: Bench) -> None:
    """Through Spark, which has no unsigned numbers: whoever reads it sees the same rows as the others."""
    bench.add_input("raw", pa.Table.from_pylist([row(number) for number in range(1000)][::-1], SCHEMA))
    bench.add_output("copy")

    def copy(work: SparkWork) -> OperatorResult:
        work.write(work.read())
        return work.result()

    bench.run("noop", copy, blocks=(0, 9))
    (path,) = bench.files()
    table = pq.read_table(path)
    assert table["block_number"].to_pylist() == sorted(table["block_number"].to_pylist())
    rows = table.sort_by("gas").to_pylist()
    assert rows == [row(number) for number in range(1000)]
    assert pl.read_parquet(path).sort("gas").to_dicts() == rows
    _, found = duckdb(f"SELECT gas, hash, amount, price FROM read_parquet('{path}') ORDER BY gas")
    assert found == [(one["gas"], one["hash"], one["amount"], one["price"]) for one in rows]


def test_a_table_without_rows(tmp_path: Path) -> None:
    transfer = DirectoryTransfer(tmp_path)
    for name, schema in SCHEMAS.items():
        part = PartWriter(Target("s3://bucket-one/datasets/", name, transfer), schema)
        path = transfer.path(part.upload(0, 9).meta.uri)
        part.discard()
        assert pq.read_table(path).schema == schema
        assert pl.read_parquet(path).columns == schema.names
        assert duckdb(f"SELECT * FROM read_parquet('{path}')") == (schema.names, [])


def test_row_groups_have_a_size_that_readers_like(tmp_path: Path) -> None:
    transfer = DirectoryTransfer(tmp_path)
    schema = pa.schema([("block_number", pa.uint32())])
    part = PartWriter(Target("s3://bucket-one/datasets/", "blocks", transfer), schema)
    for first in range(0, 3 * ROWS_PER_GROUP + 1, 20_000):
        part.write(pa.table({"block_number": pa.array(range(first, first + 20_000), pa.uint32())}))
    metadata = pq.read_metadata(transfer.path(part.upload(0, 9).meta.uri))
    part.discard()
    sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
    assert len(sizes) > 1
    assert all(ROWS_PER_GROUP <= size < 2 * ROWS_PER_GROUP for size in sizes[:-1])
    assert sum(sizes) == part.rows

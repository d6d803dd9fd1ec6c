"""How rows of large units are laid out: side by side, made once, each file with blocks of its own, none lost."""

from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.support import Bench, DirectoryTransfer, plain_name
from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.ports import ObjectMeta
from tracelake.spark import sizes
from tracelake.spark.failures import explain
from tracelake.spark.integer_types import signed
from tracelake.spark.operators import decode_logs
from tracelake.spark.testing import make_unit
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import ROWS_PER_GROUP, PartWriter, Target


@pytest.fixture
def large(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Whatever is read is much: a file for every few bytes, four at most."""
    monkeypatch.setattr(sizes, "SMALL_BYTES", 0)
    monkeypatch.setattr(sizes, "BYTES_PER_FILE", 1)
    monkeypatch.setattr(sizes, "MOST_FILES", 4)
    bench.add_output("out")
    return bench


def written_by(change: Callable[[DataFrame], DataFrame]) -> Callable[[SparkWork], OperatorResult]:
    def operator(work: SparkWork) -> OperatorResult:
        work.write(change(work.read()))
        return work.result()

    return operator


def numbers_of(bench: Bench) -> list[list[int]]:
    return [pq.read_table(path)["block_number"].to_pylist() for path in bench.files()]


def test_a_large_unit_has_several_files_that_share_no_block(large: Bench, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def mark(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("block_number").to_pylist():
                (marks / f"{number}-{uuid4().hex}").touch()
            yield batch

    large.add_input("raw", pa.table({"block_number": [7, 0, 5, 2, 1]}), pa.table({"block_number": [3, 6, 4, 2]}))
    large.run("noop", written_by(lambda rows: rows.mapInArrow(mark, "block_number long")), blocks=(0, 7))
    assert numbers_of(large) == [[0, 1], [2, 2, 3], [4, 5], [6, 7]]
    assert [plain_name(path) for path in large.files()] == [f"out_{n}_{n + 1}.parquet" for n in (0, 2, 4, 6)]
    assert len(list(marks.iterdir())) == 9, "each row was made once"


def test_one_block_with_everything(large: Bench) -> None:
    large.add_input("raw", pa.table({"block_number": [5] * 100}))
    large.run("noop", written_by(lambda rows: rows), blocks=(0, 1000))
    assert [plain_name(path) for path in large.files()] == ["out_0_250.parquet"], "named after its part of the unit"
    assert large.table().num_rows == 100


def test_fewer_blocks_than_files_and_numbers_at_the_end_of_the_world(large: Bench) -> None:
    last = 2**62
    large.add_input("raw", pa.table({"block_number": pa.array([last, last - 1, last - 1], pa.uint64())}))
    large.run("noop", written_by(lambda rows: rows), blocks=(last - 1, last))
    assert numbers_of(large) == [[last - 1, last - 1], [last]]
    large.run("noop", written_by(lambda rows: rows), blocks=(0, last))
    assert numbers_of(large) == [[last - 1, last - 1, last]]


@pytest.mark.parametrize(
    ("odd", "said"), [(-5, "rows of block -5"), (10**18, f"rows of block {10**18}"), (None, "rows of no block")]
)
@pytest.mark.parametrize("files", [1, 4])
def test_rows_of_other_blocks_and_of_none_are_refused(large: Bench, odd: int | None, said: str, files: int) -> None:
    """Whoever reads the unit would never see them."""
    large.add_input("raw", pa.table({"block_number": [100, 103, 107]}))
    moved = large.session.createDataFrame([(odd,)], "block_number long")

    def operator(work: SparkWork) -> OperatorResult:
        work.write(work.read().unionByName(moved), files=files)
        return work.result()

    with pytest.raises(PythonException) as caught:
        large.run("noop", operator, blocks=(100, 107))
    explained = explain(caught.value)
    assert isinstance(explained, NonRetryableError)
    assert str(explained).startswith(said)
    assert "do not belong to the unit 100-107" in str(explained)
    assert large.last is not None
    assert large.last.written == {}


def test_blocks_that_are_no_numbers_are_refused(large: Bench) -> None:
    large.add_input("raw", pa.table({"block_number": [1]}))
    change = written_by(lambda rows: rows.selectExpr("CAST(block_number AS STRING) AS block_number"))
    with pytest.raises(NonRetryableError, match="block_number is string"):
        large.run("noop", change, blocks=(0, 9))


def test_rows_that_know_no_block_are_one_file(large: Bench) -> None:
    large.add_input("raw", pa.table({"block_number": list(range(100))}))
    large.run("noop", written_by(lambda rows: rows.selectExpr("block_number % 10 AS x").distinct()), blocks=(0, 99))
    assert [plain_name(path) for path in large.files()] == ["out_0_99.parquet"]
    assert large.table().num_rows == 10


def test_without_rows(large: Bench) -> None:
    large.add_input("raw", pa.table({"block_number": [1]}))
    large.run("noop", written_by(lambda rows: rows.filter("block_number > 1")), blocks=(0, 99))
    assert [plain_name(path) for path in large.files()] == ["out_0_99.parquet"]
    assert large.table().column_names == ["block_number"]


def test_decoding_a_large_unit_keeps_every_log_and_its_order(large: Bench) -> None:
    """Decoded, undecodable and other logs, in as many files as the blocks ask for."""
    topic = bytes.fromhex("ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef")
    word = bytes(31) + b"\x07"
    kinds = {
        "erc20": (topic, word, word, None, word),
        "erc721": (topic, word, word, word, b""),
        "broken": (topic, word, None, None, word),
        "other": (b"\x01" * 32, None, None, None, b""),
    }
    rows = []
    for block in range(8):
        for index, kind in enumerate(["erc721", "other", "erc20", "broken", "erc20"]):
            names = ("topic0", "topic1", "topic2", "topic3", "data")
            logs = dict(zip(names, kinds[kind], strict=True))
            rows.append({"block_number": block, "log_index": index, "address": word[:20], **logs})
    binary = [(name, pa.binary()) for name in ("address", "topic0", "topic1", "topic2", "topic3", "data")]
    schema = pa.schema([("block_number", pa.int64()), ("log_index", pa.int64()), *binary])
    large.add_input("logs", pa.Table.from_pylist(rows[::-1], schema))
    large.add_output("left")
    large.run("decode_logs", decode_logs.run, {"keep_other": True}, blocks=(0, 7))
    place = [(block, index) for block in range(8) for index in (0, 2, 4)]
    decoded = large.table(0).to_pylist()
    assert [(row["block_number"], row["log_index"]) for row in decoded] == place
    left = large.table(1).to_pylist()
    assert [(row["block_number"], row["log_index"], row["reason"]) for row in left] == [
        (block, index, reason) for block in range(8) for index, reason in ((1, "other_event"), (3, "topic_count"))
    ]
    assert len(large.files(0)) == len(large.files(1)) == 4
    assert large.progress_texts == ["24 logs decoded, 8 undecodable, 8 of other events"]


def test_row_groups_are_filled(tmp_path: Path) -> None:
    schema = pa.schema([("block_number", pa.int64())])
    part = PartWriter(Target("s3://bucket-one/p/", "out", DirectoryTransfer(tmp_path)), schema)
    for start in range(0, 200_000, 20_000):
        part.write(pa.record_batch({"block_number": list(range(start, start + 20_000))}))
    part.upload(0, 199_999)
    part.discard()
    (path,) = tmp_path.glob("bucket-one/p/out_0_199999.*.parquet")
    file = pq.ParquetFile(path)
    groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert sum(groups) == 200_000
    assert ROWS_PER_GROUP <= groups[0] < 2 * ROWS_PER_GROUP
    assert len(groups) == 2
    assert file.read()["block_number"].to_pylist() == list(range(200_000))


def test_empty_batches_are_no_rows(tmp_path: Path) -> None:
    schema = pa.schema([("block_number", pa.int64())])
    part = PartWriter(Target("s3://bucket-one/p/", "out", DirectoryTransfer(tmp_path)), schema)
    part.write(schema.empty_table())
    assert part.upload(0, 9).rows == 0
    part.discard()
    (path,) = tmp_path.glob("bucket-one/p/out_0_9.*.parquet")
    assert pq.read_table(path).schema.names == ["block_number"]


@pytest.mark.parametrize(
    ("names", "unit", "size"),
    [
        (["logs_0_99.parquet"], (0, 99), 1000),
        (["logs_0_99.parquet"], (50, 149), 500),
        (["logs_0_99.00112233aabbccdd.parquet"], (50, 149), 500),
        (["logs_0_99.parquet", "logs_100_199.parquet"], (90, 109), 200),
        (["logs_0_99.parquet"], (200, 299), 0),
        (["other.parquet"], (0, 9), 1000),
        (["logs_0_99.parquet"], (None, None), 1000),
    ],
)
def test_how_much_there_is_to_read(names: list[str], unit: tuple[int | None, int | None], size: int) -> None:
    assert sizes.weigh([ObjectMeta(f"s3://b/{name}", 1000, "") for name in names], *unit) == size


def test_columns_are_told_as_spark_would_find_them(spark: SparkSession, bench: Bench) -> None:
    """Of every type that is told: otherwise a file could be read in two ways."""
    types = {
        **{f"{sign}int{bits}": getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)},
        "float": pa.float32(),
        "double": pa.float64(),
        "flag": pa.bool_(),
        "text": pa.string(),
        "bytes": pa.binary(),
        "small": pa.decimal128(9, 2),
        "wide": pa.decimal128(38, 0),
        "day": pa.date32(),
    }
    values = {"flag": True, "text": "a", "bytes": b"a", "day": date(2026, 3, 2)}
    values |= {name: Decimal(1) for name in ("small", "wide")}
    table = pa.table({name: pa.array([values.get(name, 1)], kind) for name, kind in types.items()})
    bench.add_input("raw", table)
    work = bench.work("noop", {}, make_unit((0, 9)), 1, {})
    told = work.read()
    path = bench.transfer.path(bench.inputs[0][1][0].uri)
    assert told.schema == spark.read.parquet(str(path)).schema
    assert told.collect()[0].asDict() == pa.table(table).cast(signed(table.schema)).to_pylist()[0]

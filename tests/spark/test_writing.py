"""The one writer, and the frames it is given: names, order, empty units, types; read back by others."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.support import Bench, plain_name
from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorResult
from tracelake.spark.work import SparkWork

BLOCKS = pa.table(
    {
        "block_number": pa.array([5, 3, 9, 3, 7], pa.uint32()),
        "hash": pa.array([b"\x05", b"\x03", b"\x09", b"\x33", None], pa.binary()),
        "gas": pa.array([2**64 - 1, 0, 1, 2, 3], pa.uint64()),
    }
)


def copy(work: SparkWork) -> OperatorResult:
    work.write(work.read())
    return work.result()


def test_rows_come_out_sorted_in_one_file_named_after_the_unit(bench: Bench) -> None:
    bench.add_input("raw", BLOCKS.slice(0, 2), BLOCKS.slice(2))
    bench.add_output("copy")
    result = bench.run("noop", copy, blocks=(0, 9))
    assert bench.table()["block_number"].to_pylist() == [3, 3, 5, 7, 9]
    assert list(bench.names()) == ["_SUCCESS", "copy_0_9.parquet"]
    (published,) = result.datasets_published
    assert (published.range_start, published.range_end) == (0, 9)
    assert [(event.partition_key, event.start, event.end) for event in result.events] == [("0-9", 0, 9)]
    assert result.outputs[0].row_count == 5
    assert max(bench.table()["gas"].to_pylist()) == 2**64 - 1, "no number is cut"


def test_only_blocks_of_the_unit_are_read(bench: Bench) -> None:
    bench.add_input("raw", BLOCKS)
    bench.add_output("copy")
    bench.run("noop", copy, blocks=(4, 8))
    assert bench.table()["block_number"].to_pylist() == [5, 7]
    bench.run("noop", copy, cursor=(4, 5))
    assert bench.table()["block_number"].to_pylist() == [5]
    assert list(bench.names()) == ["_SUCCESS", "copy_5_5.parquet"]


def test_several_files_share_no_block(bench: Bench) -> None:
    bench.add_input("raw", BLOCKS)
    bench.add_output("copy")

    def two(work: SparkWork) -> OperatorResult:
        work.write(work.read(), files=2)
        return work.result()

    bench.run("noop", two, blocks=(0, 9))
    found = [pq.read_table(path)["block_number"].to_pylist() for path in bench.files()]
    assert sorted(number for part in found for number in part) == [3, 3, 5, 7, 9]
    assert len(found) == 2
    assert not set(found[0]) & set(found[1])
    assert [plain_name(path) for path in bench.files()] == ["copy_0_4.parquet", "copy_5_9.parquet"]


def test_a_unit_without_rows_has_a_file_with_columns(bench: Bench) -> None:
    bench.add_input("raw", BLOCKS)
    bench.add_output("copy")
    bench.run("noop", copy, blocks=(100, 200))
    assert bench.table().num_rows == 0
    assert bench.table().column_names == ["block_number", "hash", "gas"]


def test_files_are_compressed_and_know_their_order(bench: Bench) -> None:
    bench.add_input("raw", BLOCKS)
    bench.add_output("copy")
    bench.run("noop", copy, blocks=(0, 9))
    group = pq.ParquetFile(bench.files()[0]).metadata.row_group(0)
    assert group.column(0).compression == "ZSTD"
    assert group.column(0).statistics.min == 3
    assert [column.column_index for column in group.sorting_columns] == [0]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"hash": "0x05"}, [5]),
        ({"hash": ["0x05", "0x09"]}, [5, 9]),
        ({"hash": ["0x05", None]}, [5, 7]),
        ({"block_number": 3, "gas": 2}, [3]),
        ({"hash": "0xff"}, []),
    ],
)
def test_where(bench: Bench, where: dict[str, object], expected: list[int]) -> None:
    bench.add_input("raw", BLOCKS, where=where)
    bench.add_output("copy")
    bench.run("noop", copy, blocks=(0, 9))
    assert bench.table()["block_number"].to_pylist() == expected


@pytest.mark.parametrize("where", [{"nothing": 1}, {"hash": "not hex"}])
def test_a_where_that_cannot_be(bench: Bench, where: dict[str, object]) -> None:
    bench.add_input("raw", BLOCKS, where=where)
    bench.add_output("copy")
    with pytest.raises(NonRetryableError, match="`where`"):
        bench.run("noop", copy, blocks=(0, 9))


def test_range_and_where_reach_the_parquet_reader(bench: Bench) -> None:
    bench.add_input("raw", BLOCKS, where={"hash": "0x05"})
    bench.add_output("copy")
    bench.session.conf.set("spark.sql.maxMetadataStringLength", "1000")
    plans: list[str] = []

    def look(work: SparkWork) -> OperatorResult:
        plans.append(work.read()._jdf.queryExecution().executedPlan().toString())
        return OperatorResult()

    bench.run("noop", look, blocks=(4, 8))
    pushed = plans[0].split("PushedFilters: [")[1].split("\n")[0]
    for expected in ("GreaterThanOrEqual(block_number,4)", "LessThanOrEqual(block_number,8)", "EqualTo(hash"):
        assert expected in pushed


def test_an_input_without_files_and_a_unit_without_blocks(bench: Bench) -> None:
    bench.add_output("copy")
    with pytest.raises(NonRetryableError, match="no files"):
        bench.run("noop", copy, blocks=(0, 9))


def test_whoever_is_cancelled_writes_nothing(bench: Bench) -> None:
    bench.add_input("raw", BLOCKS)
    bench.add_output("copy")
    bench.cancel.set()
    with pytest.raises(CanceledError):
        bench.run("noop", copy, blocks=(0, 9))
    assert not bench.transfer.path("s3://bucket-one/datasets/copy/x").parent.exists()

"""What a file says of the order of its rows is so, whatever they are sorted by."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.support import Bench, DirectoryTransfer
from tracelake.catalogue.context import OperatorResult
from tracelake.spark.work import SparkWork
from tracelake.spark.writer import PartWriter, Target

ROWS = pa.table(
    {
        "tags": pa.array([[("a", 1)], [], [("b", 2)], [("c", 3)]], pa.map_(pa.string(), pa.int64())),
        "block_number": [1, 2, 3, 4],
        "token": ["b", None, "a", "b"],
        "part": [{"x": 1, "y": 2}, {"x": 3, "y": 4}, {"x": 5, "y": 6}, {"x": 7, "y": 8}],
        "price": [2.0, 1.0, 3.0, 0.5],
        "amount": [4, 3, 2, 1],
    }
)


def claims(path: Path) -> list[tuple[str, bool, bool]]:
    file = pq.ParquetFile(path)
    found = set()
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        columns = [(group.column(item.column_index).path_in_schema, item) for item in group.sorting_columns]
        found.add(tuple((name, item.descending, item.nulls_first) for name, item in columns))
    (said,) = found
    return list(said)


@pytest.mark.parametrize(
    ("order", "claimed"),
    [
        ((), ["block_number"]),
        (("token", "amount"), ["token", "amount"]),
        (("amount",), ["amount"]),
        (("token", "price", "amount"), ["token"]),
        (("part", "amount"), []),
    ],
    ids=str,
)
def test_a_frame_sorted_by_anything(bench: Bench, order: tuple[str, ...], claimed: list[str]) -> None:
    def copy(work: SparkWork) -> OperatorResult:
        work.write(work.read(), order=order)
        return work.result()

    bench.add_input("raw", ROWS)
    bench.add_output("out")
    bench.run("noop", copy, blocks=(0, 9))
    (path,) = bench.files()
    assert claims(path) == [(name, False, True) for name in claimed]
    rows = pq.read_table(path).to_pylist()

    def key(row: dict[str, Any]) -> list[tuple[bool, Any]]:
        return [(row[name] is not None, row[name]) for name in claimed]

    assert rows == sorted(rows, key=key), "and it is so"


def test_rows_that_are_written_in_the_order_of_blocks(tmp_path: Path) -> None:
    transfer = DirectoryTransfer(tmp_path)
    part = PartWriter(Target("s3://bucket-one/p/", "out", transfer), ROWS.schema)
    part.write(ROWS)
    assert claims(transfer.path(part.upload(0, 9).meta.uri)) == [("block_number", False, True)]
    part.discard()


def test_rows_that_know_no_blocks_claim_nothing(tmp_path: Path) -> None:
    transfer = DirectoryTransfer(tmp_path)
    rows = ROWS.drop(["block_number"])
    part = PartWriter(Target("s3://bucket-one/p/", "out", transfer), rows.schema)
    part.write(rows)
    assert claims(transfer.path(part.upload(0, 9).meta.uri)) == []
    part.discard()

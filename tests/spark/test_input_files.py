"""Spark tasks that read files by themselves: the rows of a unit, `where` applied, and never files of several forms."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracelake.catalogue.context import NonRetryableError
from tracelake.spark.input_files import InputFiles
from tracelake.spark.testing import DirectoryTransfer

ROWS = pa.table({"block_number": [1, 2, 3], "address": [b"\x01", b"\x02", None]})


def open_files(root: Path, *tables: pa.Table, where: dict[str, Any] | None = None) -> InputFiles:
    """As on a cluster: each file is downloaded by the task that reads it."""
    transfer = DirectoryTransfer(root / "objects")
    files = []
    for number, table in enumerate(tables):
        path = root / f"{number}.parquet"
        pq.write_table(table, path)
        files.append(transfer.upload(path, f"s3://bucket-one/{number}.parquet"))
    return InputFiles("logs", tables[0].schema, tuple(files), None, transfer, 1, 2, where or {})


def test_rows_of_the_unit_and_of_a_part_of_it(tmp_path: Path) -> None:
    files = open_files(tmp_path, ROWS)
    assert files.read(["address"])["block_number"].to_pylist() == [1, 2]
    assert files.read(["address"], 2, 2)["address"].to_pylist() == [b"\x02"]
    assert files.read([]).column_names == ["block_number"]


def test_an_empty_input_has_columns_and_no_rows(tmp_path: Path) -> None:
    files = replace(open_files(tmp_path, ROWS), first=1, last=0)
    assert files.read(["address"], 1, 3).to_pydict() == {"block_number": [], "address": []}


@pytest.mark.parametrize(("value", "numbers"), [("0x02", [2]), (["0x01", None], [1, 3]), (None, [3]), (["0x03"], [])])
def test_where(tmp_path: Path, value: Any, numbers: list[int]) -> None:
    files = open_files(tmp_path, ROWS, where={"address": value})
    assert files.read([], 1, 3)["block_number"].to_pylist() == numbers


def test_files_of_several_forms_are_refused(tmp_path: Path) -> None:
    older = ROWS.set_column(1, "address", pa.array(["a", "b", "c"]))
    with pytest.raises(NonRetryableError, match="the files of logs differ: the column address is"):
        open_files(tmp_path, ROWS, older).read(["block_number"])

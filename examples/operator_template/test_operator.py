"""Tests rows_per_block without a stack. Copy it to tests/spark/test_rows_per_block.py."""

import pyarrow as pa
import pytest

from tracelake.catalogue.context import NonRetryableError
from tracelake.spark.operators.rows_per_block import run
from tracelake.spark.testing import Trial


def test_rows_are_counted_by_block(bench: Trial) -> None:
    bench.add_input("transfers", pa.table({"block_number": [3, 1, 3, 7, 99]}))
    bench.add_output("counts")
    bench.run("rows_per_block", run, {"least": 2}, blocks=(0, 9))
    assert bench.table().to_pylist() == [{"block_number": 3, "rows": 2}]
    assert list(bench.names()) == ["_SUCCESS", "counts_0_9.parquet"]


def test_a_unit_without_rows_has_columns(bench: Trial) -> None:
    bench.add_input("transfers", pa.table({"block_number": [3]}))
    bench.add_output("counts")
    bench.run("rows_per_block", run, blocks=(10, 19))
    assert bench.table().column_names == ["block_number", "rows"]
    assert bench.table().num_rows == 0


def test_an_input_without_block_numbers_is_rejected(bench: Trial) -> None:
    bench.add_input("prices", pa.table({"price": [1.0]}))
    bench.add_output("counts")
    with pytest.raises(NonRetryableError, match="no column block_number"):
        bench.run("rows_per_block", run, blocks=(0, 9))

"""Tests rows_per_block without a stack: tables in, tables out, on a real Spark session."""

import pyarrow as pa
import pytest

from acme_operators.rows_per_block import RowsPerBlockConfig
from acme_operators.rows_per_block_work import run
from tracelake.catalogue.context import NonRetryableError
from tracelake.spark.testing import Trial


def test_rows_are_counted_by_block(trial: Trial) -> None:
    trial.add_input("transfers", pa.table({"block_number": [3, 1, 3, 7, 99]}))
    trial.add_output("counts")
    trial.run("rows_per_block", run, {"least": 2}, blocks=(0, 9))
    assert trial.table().to_pylist() == [{"block_number": 3, "rows": 2}]
    assert list(trial.names()) == ["_SUCCESS", "counts_0_9.parquet"]


def test_a_unit_without_rows_has_columns(trial: Trial) -> None:
    trial.add_input("transfers", pa.table({"block_number": [3]}))
    trial.add_output("counts")
    trial.run("rows_per_block", run, blocks=(10, 19))
    known = RowsPerBlockConfig().result(0, []).columns.columns
    assert trial.table().column_names == [column.name for column in known] == ["block_number", "rows"]
    assert trial.table().num_rows == 0


def test_an_input_without_block_numbers_is_rejected(trial: Trial) -> None:
    trial.add_input("prices", pa.table({"price": [1.0]}))
    trial.add_output("counts")
    with pytest.raises(NonRetryableError, match="no column block_number"):
        trial.run("rows_per_block", run, blocks=(0, 9))

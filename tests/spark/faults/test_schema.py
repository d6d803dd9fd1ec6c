"""What writes a dataset was changed: files of several forms are never mixed, and the error says which column it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.support import Bench, DirectoryTransfer
from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.spark.failures import explain
from tracelake.spark.input_files import downloaded
from tracelake.spark.operators.decode_logs import run as decode_logs
from tracelake.spark.operators.integrity_check import run as integrity_check
from tracelake.spark.operators.spark_sql import run as spark_sql
from tracelake.spark.reader import Reader, Selection
from tracelake.spark.work import SparkWork
from tracelake.storage.file_cache import FileCache

OLD = pa.table({"block_number": pa.array([1, 2], pa.uint32()), "value": pa.array([1, 2], pa.uint64())})
NEW = OLD.set_column(0, "block_number", pa.array([11, 12], pa.uint32()))


def count(work: SparkWork) -> OperatorResult:
    work.read().count()
    return OperatorResult()


DIFFER = "the files of flows differ: the column"
CHANGES: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "gone": (lambda table: table.drop_columns(["value"]), "value is uint64 in 0.parquet and missing in 1.parquet"),
    "new": (lambda table: table.append_column("fee", pa.array([1, 2])), "fee is missing in 0.parquet and int64 in 1"),
    "type": (lambda table: table.set_column(1, "value", pa.array(["1", "2"])), "value is uint64 in .* and string in"),
    "wider": (
        lambda table: table.set_column(1, "value", pa.array([1, 2], pa.decimal128(38, 0))),
        r"value is uint64 in 0.parquet and decimal128\(38, 0\) in 1.parquet",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_files_of_two_forms_are_refused(bench: Bench, name: str) -> None:
    change, said = CHANGES[name]
    bench.add_input("flows", OLD, change(NEW))
    with pytest.raises(NonRetryableError, match=f"{DIFFER} {said}.*Trigger the job that writes flows again"):
        bench.run("noop", count, blocks=(0, 20))


def test_executors_that_fetch_for_themselves_refuse_them_too(bench: Bench) -> None:
    bench.add_input("flows", OLD, CHANGES["gone"][0](NEW))
    ((_, files, _),) = bench.inputs
    reader = Reader(bench.session, FileCache(bench.root / "cache", bench.transfer), bench.root / "links", local=False)
    with pytest.raises(PySparkException) as caught:
        reader.read("flows", files, Selection(0, 20)).collect()
    explained = explain(caught.value)
    assert isinstance(explained, NonRetryableError)
    assert str(explained).startswith(f"{DIFFER} {CHANGES['gone'][1]}")


def test_the_order_of_columns_is_no_difference(bench: Bench, spark: SparkSession) -> None:
    bench.add_input("flows", OLD, NEW.select(["value", "block_number"]))
    ((_, files, _),) = bench.inputs
    for local in (True, False):
        cache = FileCache(bench.root / "cache", bench.transfer)
        reader = Reader(spark, cache, bench.root / "links", local=local)
        rows = reader.read("flows", files, Selection(0, 20)).orderBy("block_number").collect()
        assert [row["block_number"] for row in rows] == [1, 2, 11, 12]
        assert [int(row["value"]) for row in rows] == [1, 2, 1, 2]


def test_what_executors_read_has_no_name(tmp_path: Path) -> None:
    """Whoever is killed leaves nothing behind."""
    transfer, scratch, local = DirectoryTransfer(tmp_path / "objects"), tmp_path / "scratch", tmp_path / "local"
    scratch.mkdir()
    pq.write_table(OLD, local)
    meta = transfer.upload(local, "s3://bucket-one/old.parquet")
    with downloaded(transfer, meta, scratch) as path:
        assert list(scratch.iterdir()) == []
        assert pq.read_table(path) == OLD


LOGS = pa.table({"block_number": pa.array([1], pa.uint32()), "address": pa.array([b"\x01"])})
GONE: dict[str, tuple[str, Any, dict[str, Any], pa.Table, str]] = {
    "decode_logs": ("decode_logs", decode_logs, {}, LOGS, "no column log_index, topic0"),
    "integrity_check": (
        "integrity_check",
        integrity_check,
        {},
        OLD.drop_columns(["block_number"]),
        "no column block",
    ),
    "spark_sql": (
        "spark_sql",
        spark_sql,
        {"query": "SELECT block_number, amount FROM flows"},
        OLD,
        "`amount` cannot be resolved",
    ),
    "spark_sql, another type": (
        "spark_sql",
        spark_sql,
        {"query": "SELECT block_number, date_add(value, 1) AS day FROM flows"},
        OLD,
        "value.*DATE",
    ),
}


@pytest.mark.parametrize("name", GONE)
def test_a_column_that_an_operator_needs_is_named(bench: Bench, name: str) -> None:
    operator, run, config, table, said = GONE[name]
    bench.add_input("flows", table)
    bench.add_output("out")
    with pytest.raises(NonRetryableError, match=said):
        bench.run(operator, run, config, blocks=(0, 20))


def test_an_output_keeps_its_form_without_rows(bench: Bench) -> None:
    """Units with and without rows are files of one form: what reads them together takes both."""
    bench.add_input("flows", OLD)
    bench.add_output("sums")
    sql = {
        "query": "SELECT block_number, sum(value) AS total, max(cast(value AS string)) AS most FROM flows GROUP BY 1"
    }
    written = []
    for blocks in ((0, 9), (10, 19)):
        bench.run("spark_sql", spark_sql, sql, blocks=blocks)
        assert bench.last is not None
        written += [file.meta for file in bench.last.written[0].files]
    reader = Reader(bench.session, FileCache(bench.root / "cache", bench.transfer), _links(bench.root), local=True)
    assert reader.read("sums", written, Selection(0, 19)).count() == 2


def _links(root: Path) -> Path:
    name: UUID = uuid4()
    return root / f"links-{name}"

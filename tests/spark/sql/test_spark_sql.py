"""The operator on a real session: joins, parameters, empty inputs, errors, attempts side by side."""

import tempfile
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from tests.spark.sql.tables import BLOCKS, TRANSFERS
from tests.spark.support import Bench
from tracelake.catalogue.context import CanceledError, NonRetryableError
from tracelake.spark.operators import OPERATORS
from tracelake.spark.operators.spark_sql import run
from tracelake.spark.sizes import session_for_small
from tracelake.spark.work import SparkWork


@pytest.fixture
def job(bench: Bench) -> Bench:
    bench.add_input("transfers", TRANSFERS)
    bench.add_input("blocks", BLOCKS)
    bench.add_output("out")
    return bench


def query(job: Bench, sql: str, *, blocks: tuple[int, int] = (0, 10), **config: Any) -> pa.Table:
    job.run("spark_sql", run, {"query": sql, **config}, blocks=blocks)
    return job.table()


def test_it_is_registered() -> None:
    assert OPERATORS["spark_sql"] == run.__module__


def test_two_inputs_joined(job: Bench) -> None:
    table = query(
        job,
        "SELECT t.block_number, t.amount, lower(hex(b.hash)) AS hash"
        " FROM transfers t JOIN blocks b USING (block_number)",
        order_by=["block_number", "amount"],
    )
    assert table.to_pydict() == {
        "block_number": [1, 1, 2, 3],
        "amount": [1, 4, 6, 9],
        "hash": ["01", "01", "02ff", "03"],
    }
    assert job.names() == ["_SUCCESS", "out_0_10.parquet"]


def test_an_aggregate_with_names_of_its_own(job: Bench) -> None:
    table = query(
        job,
        "SELECT sender, sum(amount) AS total FROM moves WHERE sender IS NOT NULL GROUP BY sender",
        inputs={"moves": 0},
        order_by=["sender"],
        unique=["sender"],
    )
    assert table.to_pydict() == {"sender": ["a", "b", "c"], "total": [7, 4, 9]}


def test_parameters_of_a_range_and_of_a_cursor(job: Bench) -> None:
    sql = "SELECT ${start} AS s, ${end} AS e, ${after} AS a, ${to} AS t, count(*) AS n FROM transfers"
    assert query(job, sql, blocks=(1, 2)).to_pylist() == [{"s": 1, "e": 2, "a": 0, "t": 2, "n": 3}]
    job.run("spark_sql", run, {"query": sql}, cursor=(2, 5))
    assert job.table().to_pylist() == [{"s": 3, "e": 5, "a": 2, "t": 5, "n": 2}]
    assert query(job, "SELECT ${partition_key} AS k", blocks=(1, 2)).to_pylist() == [{"k": "1-2"}]
    with pytest.raises(NonRetryableError, match="partition_key"):
        job.run("spark_sql", run, {"query": "SELECT ${partition_key} AS k"}, cursor=(2, 5))


def test_no_rows_come_in_and_columns_go_out(job: Bench) -> None:
    table = query(job, "SELECT block_number, amount * 2 AS twice FROM transfers", blocks=(100, 200))
    assert table.num_rows == 0
    assert table.column_names == ["block_number", "twice"]
    assert query(job, "SELECT count(*) AS n FROM transfers", blocks=(100, 200)).to_pylist() == [{"n": 0}]


def test_several_files_sorted_by_block(job: Bench) -> None:
    query(job, "SELECT block_number, amount FROM transfers", files=2)
    found = [pq.read_table(path)["block_number"].to_pylist() for path in job.files()]
    assert sorted(number for part in found for number in part) == [1, 1, 2, 3, 5]
    assert all(part == sorted(part) for part in found)


def test_unsigned_columns_are_wider_in_spark(bench: Bench) -> None:
    bench.add_input(
        "raw", pa.table({"block_number": pa.array([1], pa.uint32()), "gas": pa.array([2**64 - 1], pa.uint64())})
    )
    bench.add_output("out")
    sql = "SELECT typeof(block_number) AS n, typeof(gas) AS g, gas + 1 AS more FROM raw"
    assert query(bench, sql).to_pylist() == [{"n": "bigint", "g": "decimal(20,0)", "more": 2**64}]


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT amount / (amount - amount) AS x FROM transfers", "DIVIDE_BY_ZERO"),
        ("SELECT CAST(sender AS INT) AS x FROM transfers", "CAST_INVALID_INPUT"),
        ("SELECT CAST(amount * 1000000000000000000 AS BIGINT) * 100 AS x FROM transfers", "ARITHMETIC_OVERFLOW"),
        ("SELECT nothing FROM transfers", "UNRESOLVED_COLUMN"),
        ("SELECT amount FROM transfers GROUP BY sender", "MISSING_AGGREGATION"),
        ("SELECT (SELECT amount FROM transfers) AS x", "SCALAR_SUBQUERY_TOO_MANY_ROWS"),
        ("SELECT * FROM transfers t JOIN blocks b USING (block_number) WHERE hash = 5", "DATATYPE_MISMATCH"),
        ("SELECT * FROM transfers t JOIN blocks b ON t.block_number = b.block_number", "two columns block_number"),
        ("SELECT NULL AS x", "void"),
        ("SELECT map('a', NULL) AS x", "void"),
        ("SELECT INTERVAL 1 DAY AS x", "interval"),
        ("SELECT '../../x' AS block_number FROM transfers", "block_number of the result is not a whole number"),
        ("SELECT * FROM elsewhere", "`elsewhere` is not an input"),
        ("SELECT block_number + 500 AS block_number FROM transfers", "block 501 do not belong to the unit 0-10"),
        ("SELECT IF(amount = 4, NULL, block_number) AS block_number FROM transfers", "block_number is null"),
    ],
)
def test_what_would_fail_again_is_not_tried_again(job: Bench, sql: str, said: str) -> None:
    with pytest.raises(NonRetryableError, match=said) as caught:
        query(job, sql)
    message = str(caught.value)
    scratch = tempfile.gettempdir()
    for leak in (scratch, "/tmp", "trace_", "org.apache", "at java", "Traceback", ".parquet", "LogicalPlan", "\n"):
        assert leak not in message


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"order_by": ["x"]}, "no column x"),
        ({"unique": ["x"]}, "no column x"),
        ({"unique": ["sender"]}, "two rows of the result have the same sender"),
        ({"inputs": {"transfers": 7}}, "names input 7"),
    ],
)
def test_a_config_that_does_not_fit(job: Bench, config: dict[str, Any], said: str) -> None:
    with pytest.raises(NonRetryableError, match=said):
        query(job, "SELECT sender FROM transfers", **config)


def test_the_same_dataset_twice_needs_names(bench: Bench) -> None:
    bench.add_input("transfers", TRANSFERS, where={"sender": "a"})
    bench.add_input("transfers", TRANSFERS, where={"sender": "b"})
    bench.add_output("out")
    with pytest.raises(NonRetryableError, match="two inputs are called transfers"):
        query(bench, "SELECT * FROM transfers")
    sql = "SELECT (SELECT count(*) FROM one) AS a, (SELECT count(*) FROM two) AS b"
    assert query(bench, sql, inputs={"one": 0, "two": 1}).to_pylist() == [{"a": 2, "b": 1}]


def test_views_are_gone_afterwards_also_after_errors(job: Bench, spark: SparkSession) -> None:
    query(job, "SELECT * FROM transfers")
    with pytest.raises(NonRetryableError):
        query(job, "SELECT nothing FROM transfers")
    assert [table.name for table in spark.catalog.listTables() if table.name.startswith("trace_")] == []


def test_two_attempts_at_once_see_their_own_rows(spark: SparkSession, tmp_path: Path) -> None:
    found: dict[str, object] = {}

    def attempt(name: str, table: pa.Table) -> None:
        (tmp_path / name).mkdir()
        job = Bench(spark, tmp_path / name)
        job.add_input("transfers", table)
        job.add_output("out")
        found[name] = query(job, "SELECT sum(amount) AS n FROM transfers").to_pylist()

    threads = [threading.Thread(target=attempt, args=(str(number), TRANSFERS.slice(number, 1))) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"0": [{"n": 1}], "1": [{"n": 4}], "2": [{"n": 6}], "3": [{"n": 9}]}


def test_a_cancelled_task_writes_nothing(job: Bench) -> None:
    job.cancel.set()
    with pytest.raises(CanceledError):
        query(job, "SELECT * FROM transfers")
    assert job.last is not None
    assert job.last.written == {}


def test_work_that_spark_was_told_to_stop_is_cancelled(job: Bench, spark: SparkSession) -> None:
    """The job group is ended while the query runs: that is no failure."""
    started = threading.Event()

    def stop() -> None:
        started.wait(60)
        job.cancel.set()
        spark.sparkContext.cancelJobGroup("to-be-stopped")

    def long_one(work: SparkWork) -> Any:
        spark.sparkContext.setJobGroup("to-be-stopped", "a test", interruptOnCancel=True)
        read = work.read_files

        def tell(session: Any, item: Any, files: Any, live: Any) -> Any:
            frame = read(session, item, files, live)
            started.set()
            return frame

        work.read_files = tell
        try:
            return run(work)
        finally:
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    stopper = threading.Thread(target=stop)
    stopper.start()
    sql = (
        "SELECT count(*) AS n FROM transfers LATERAL VIEW explode(sequence(1, 100000)) x AS k"
        " WHERE exists(sequence(1, 1000), y -> sha2(CAST(k + y AS STRING), 256) = '')"
    )
    with pytest.raises(CanceledError):
        job.run("spark_sql", long_one, {"query": sql}, blocks=(0, 10))
    stopper.join()


def test_settings_of_the_session_that_queries_rely_on(job: Bench, spark: SparkSession) -> None:
    small = session_for_small(spark)
    small.conf.set("spark.sql.ansi.enabled", "false")
    small.conf.set("spark.sql.variable.substitute", "true")
    with pytest.raises(NonRetryableError, match="DIVIDE_BY_ZERO"):
        query(job, "SELECT 1 / (amount - amount) AS x FROM transfers")
    assert small.conf.get("spark.sql.variable.substitute") == "false"
    assert small.conf.get("spark.sql.runSQLOnFiles") == "false"
    assert query(job, "SELECT timestamp_seconds(0) AS t").to_pylist()[0]["t"].isoformat() == "1970-01-01T00:00:00+00:00"

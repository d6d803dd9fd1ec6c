"""The operator of batch queries on a real session: values, order, results of any size, and errors of the catalogue."""

from typing import Any

import pyarrow as pa
import pytest

from tests.spark.sql.hostile import HOSTILE
from tests.spark.sql.tables import BLOCKS, TRANSFERS
from tests.spark.support import Bench
from tracelake.catalogue.context import NonRetryableError, OperatorResult
from tracelake.catalogue.sql.query_config import result_unit
from tracelake.errors import TraceError
from tracelake.query.gate.batch import check_batch_query
from tracelake.query.gate.parameters import QueryParameter
from tracelake.spark import sizes
from tracelake.spark.operators import OPERATORS
from tracelake.spark.operators import query as operator
from tracelake.spark.operators.query import run

INPUTS = {"transfers": 0, "blocks": 1}


@pytest.fixture
def job(bench: Bench) -> Bench:
    bench.add_input("transfers", TRANSFERS)
    bench.add_input("blocks", BLOCKS)
    bench.add_output("_query_results")
    return bench


def execute(job: Bench, sql: str, **config: Any) -> OperatorResult:
    assert OPERATORS["query"] == run.__module__
    return job.run("query", run, {"query": sql, "inputs": INPUTS, **config}, blocks=(0, 10**6))


def test_values_are_bound_with_their_types(job: Bench) -> None:
    parameters = {
        "low": {"type": "int64", "value": 2},
        "most": {"type": "int64", "value": 2**40},
        "hash": {"type": "bytes", "value": "0x03"},
        "half": {"type": "decimal", "value": "0.50"},
        "text": {"type": "text", "value": "x' OR 1 = 1 --"},
        "none": {"type": "int32", "value": None},
        "day": {"type": "date", "value": "2026-03-01"},
        "moment": {"type": "timestamp", "value": "2026-03-01T12:00:00+01:00"},
        "huge": {"type": "uint256", "value": str(2**255)},
    }
    execute(
        job,
        "SELECT b.block_number, $text AS text, $half + 1 AS more, $none IS NULL AS empty, $day AS day, $huge AS huge,"
        " $moment AS moment FROM blocks b WHERE block_number >= $low AND block_number < $most AND hash = $hash",
        parameters=parameters,
    )
    (row,) = job.table().to_pylist()
    assert (row["block_number"], row["text"], str(row["more"]), row["empty"]) == (3, "x' OR 1 = 1 --", "1.50", True)
    assert (row["day"].isoformat(), row["huge"], row["moment"].hour) == ("2026-03-01", str(2**255), 11)


def test_the_result_is_one_unit_with_its_columns_and_announces_nothing(job: Bench) -> None:
    result = execute(job, "SELECT block_number, count(*) AS n FROM transfers GROUP BY 1 ORDER BY n DESC, 1", limit=2)
    (output,) = result.outputs
    assert [(column.name, column.type) for column in output.columns or []] == [
        ("block_number", "bigint"),
        ("n", "bigint"),
    ]
    (published,) = result.datasets_published
    assert published.range_start == published.range_end == result_unit(job.task_id)
    assert result.events == []
    assert job.table().to_pydict() == {"block_number": [1, 2], "n": [2, 1]}
    assert output.row_count == 2


def test_sorted_rows_keep_their_order_and_others_are_spread(job: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator, "is_small", lambda _size: False)
    monkeypatch.setattr(sizes, "SMALL_BYTES", 0)
    rows = 5_000
    job.inputs[1] = ("numbers", [], None)
    job.inputs.pop()
    values = [(number * 7_919) % rows for number in range(rows)]
    job.add_input("blocks", pa.table({"v": values[:2500]}), pa.table({"v": values[2500:]}))
    execute(job, "SELECT v FROM blocks ORDER BY v DESC")
    assert job.table().column("v").to_pylist() == list(range(rows - 1, -1, -1))
    execute(job, "SELECT v FROM blocks")
    assert len(job.files()) == 2
    assert sorted(job.table().column("v").to_pylist()) == list(range(rows))


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT nothing FROM blocks", "query_unknown_column"),
        ("SELECT block_number / 0 AS x FROM blocks", "query_division_by_zero"),
        ("SELECT CAST('secret ' || block_number AS INT) AS x FROM blocks", "query_value_invalid"),
        ("SELECT block_number + hash AS x FROM blocks", "query_invalid"),
        ("SELECT *, 1 AS block_number FROM blocks", "query_invalid"),
        ("SELECT INTERVAL 1 DAY AS x FROM blocks", "query_invalid"),
    ],
)
def test_errors_are_of_the_catalogue_and_quote_no_value(job: Bench, sql: str, code: str) -> None:
    with pytest.raises(NonRetryableError) as failure:
        execute(job, sql)
    message = str(failure.value)
    assert message.startswith(f"{code}: "), message
    assert "secret" not in message
    assert "SELECT" not in message
    assert failure.value.__cause__ is None
    assert failure.value.__context__ is None or failure.value.__suppress_context__, "a log has no more than that"


def test_a_result_that_is_too_large_fails(job: Bench) -> None:
    with pytest.raises(NonRetryableError, match="query_export_too_large"):
        execute(job, "SELECT * FROM blocks", max_bytes=10)


def test_hostile_queries_are_refused_when_they_are_submitted() -> None:
    for sql, _ in HOSTILE:
        with pytest.raises(TraceError) as refusal:
            check_batch_query(sql, {}, ["transfers", "blocks"])
        assert refusal.value.code.startswith("query_"), sql


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT * FROM transfers WHERE a = $b", "query_parameter"),
        ("SELECT '$low' AS a FROM transfers", "query_parameter"),
        ("SELECT explode(sequence(1, $low)) AS a FROM transfers", "query_parameter"),
        ("SELECT * FROM transfers LIMIT $low", "query_not_allowed"),
        ("SELECT * FROM $low", "query_unknown_relation"),
        ("SELECT $low() AS a", "query_syntax"),
        ("SELECT * FROM transfer", "query_unknown_relation"),
        ("SELECT * FROM parquet.`/etc/passwd`", "query_unknown_relation"),
    ],
)
def test_values_stand_for_values_alone(sql: str, code: str) -> None:
    with pytest.raises(TraceError) as refusal:
        check_batch_query(sql, {"low": QueryParameter("int64", 1)}, ["transfers"])
    assert refusal.value.code == code
    assert {"line", "column"} <= refusal.value.details.keys()


def test_lists_are_refused() -> None:
    for parameter in (QueryParameter("int64[]", [1, 2]), QueryParameter("int64[]", None)):
        with pytest.raises(TraceError, match="is a list"):
            check_batch_query("SELECT 1 AS a", {"some": parameter}, [])


def test_a_relation_that_may_have_been_meant() -> None:
    with pytest.raises(TraceError) as refusal:
        check_batch_query("SELECT * FROM transfer", {}, ["transfers", "blocks"])
    assert refusal.value.details["suggestions"] == ["transfers"]
    assert check_batch_query("SELECT 1 AS a FROM Transfers", {}, ["transfers", "blocks"]).relations == ["transfers"]

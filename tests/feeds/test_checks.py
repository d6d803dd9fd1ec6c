"""Checks of a feed's rows without Spark: they say what Spark says, and rows that fail one leave the worker nowhere."""

from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pyarrow as pa
import pytest

from tests.feeds.support import FeedServer, FeedTrial, reply
from tests.support.check_cases import CASES, make_checks
from tracelake.catalogue.check_values import UNIT_KINDS
from tracelake.feeds.checks import CheckedOutput
from tracelake.feeds.files import ParquetOutput
from tracelake.feeds.mapping import arrow_schema
from tracelake.model.dag import CheckKind, Column, ColumnType, OutputCheck, Schema
from tracelake.spark.checks.reports import SampleBudget
from tracelake.wire.task_calls import CheckReport

COLUMNS = (
    Column(name="n", type=ColumnType.INT64),
    Column(name="t", type=ColumnType.TEXT),
    Column(name="f", type=ColumnType.FLOAT64),
    Column(name="d", type=ColumnType.DECIMAL, precision=38, scale=2),
    Column(name="b", type=ColumnType.BYTES),
    Column(name="day", type=ColumnType.DATE),
    Column(name="at", type=ColumnType.TIMESTAMP),
    Column(name="flag", type=ColumnType.BOOL),
)
MOST = Decimal("99999999999999999999999999999999999.99")
ROWS: list[tuple[Any, ...]] = [
    (1, "a", 1.5, Decimal("10.50"), b"\x00\xff", date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), True),
    (2, "b", float("nan"), MOST, b"", date(2024, 6, 1), datetime(2024, 6, 1, 12, tzinfo=UTC), False),
    (2, "c", -1.0, Decimal("-0.01"), b"\xab", date(2025, 1, 1), datetime(2025, 1, 1, tzinfo=UTC), True),
    (None,) * 8,
]
"""Those of the cases for Spark, without the map."""
OF_UNIT = [case for case in CASES if case[0]["kind"] in UNIT_KINDS and case[0].get("columns") != ("m",)]


def evaluate(checks: list[OutputCheck], rows: list[tuple[Any, ...]] = ROWS) -> list[CheckReport]:
    """In batches of two rows."""
    schema = arrow_schema(COLUMNS)
    output = CheckedOutput(ParquetOutput(BytesIO(), COLUMNS), COLUMNS, checks)
    for start in range(0, len(rows), 2):
        values = zip(*rows[start : start + 2], strict=True)
        arrays = [pa.array(list(column), field.type) for column, field in zip(values, schema, strict=True)]
        output.write(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return output.report(SampleBudget())


def test_the_same_is_said_as_by_spark() -> None:
    reports = evaluate(make_checks([case for case, _, _ in OF_UNIT]))
    assert len(OF_UNIT) > 25
    for report, (case, offending, message) in zip(reports, OF_UNIT, strict=True):
        assert report.offending_rows == offending, case
        assert message in report.message, case
        assert report.passed == (message == ""), case


def test_samples_have_the_columns_of_the_check_first_and_are_short() -> None:
    rows = [(number, "x" * 300, 1.0, None, b"\x01" * 99, None, None, None) for number in range(20)]
    accepted = OutputCheck(name="a", kind=CheckKind.ACCEPTED_VALUES, columns=("t",), values=("y",))
    unique = OutputCheck(name="u", kind=CheckKind.UNIQUE, columns=("t", "f"))
    first, second = evaluate([accepted, unique], rows)
    assert (first.offending_rows, len(first.sample)) == (20, 5)
    assert list(first.sample[0]) == ["t", "n", "f", "d", "b", "day", "at", "flag"]
    assert first.sample[0]["t"] == "x" * 100 + "..."
    assert first.sample[0]["b"] == "0x" + "01" * 32 + "..."
    assert (second.offending_rows, second.sample) == (20, [{"t": "x" * 100 + "...", "f": "1.0", "rows": "20"}])


def test_no_rows() -> None:
    least = OutputCheck(name="c", kind=CheckKind.ROW_COUNT, min=1)
    unique = OutputCheck(name="u", kind=CheckKind.UNIQUE, columns=("n",))
    counted, equal = evaluate([least, unique], [])
    assert (counted.passed, counted.message) == (False, "the unit has 0 rows, expected at least 1")
    assert equal.passed


CONFIG = {"columns": {"symbol": "text", "price": {"type": "int64", "nullable": True}}}
DOCUMENT = '[{"symbol":"A","price":1},{"symbol":"B","price":null},{"symbol":"A","price":3}]'
NOT_NULL = OutputCheck(name="not_null_price", kind=CheckKind.NOT_NULL, columns=("price",))
UNIQUE = OutputCheck(name="unique_symbol", kind=CheckKind.UNIQUE, columns=("symbol",), severity="warn")


@pytest.mark.parametrize("buffered", [False, True])
def test_rows_that_fail_a_check_are_neither_uploaded_nor_published(
    server: FeedServer, trial: FeedTrial, buffered: bool
) -> None:
    if buffered:
        columns = (Column(name="symbol", type=ColumnType.TEXT), Column(name="price", type=ColumnType.INT64))
        trial.schemas = [Schema(columns=columns, unique=("symbol",))]
    server.on("/x", reply(DOCUMENT), reply(DOCUMENT))
    trial.checks = [NOT_NULL, UNIQUE]
    result = trial.run("http_fetch", {"url": f"{server.url}/x", **CONFIG})
    assert [(report.name, report.passed, report.offending_rows) for report in result.checks] == [
        ("not_null_price", False, 1),
        ("unique_symbol", False, 2),
    ]
    assert result.checks[0].sample == [{"price": None, "symbol": "B"}]
    assert (result.outputs, result.events, result.datasets_published, trial.published) == ([], [], [], [])
    assert [path for path in trial.root.rglob("*") if path.is_file()] == []

    trial.checks = [UNIQUE]
    result = trial.run("http_fetch", {"url": f"{server.url}/x", **CONFIG})
    assert [report.passed for report in result.checks] == [False]
    assert result.outputs[0].row_count == 3, "a warning stops nothing"


def test_rejected_rows_are_checked_as_an_output_of_their_own(server: FeedServer, trial: FeedTrial) -> None:
    trial.schemas = [None, None]
    server.on("/x", reply('[{"symbol":"A","price":1},{"symbol":7,"price":2}]'))
    few = OutputCheck(name="few", kind=CheckKind.ROW_COUNT, max=0, output_index=1, severity="warn")
    trial.checks = [few]
    result = trial.run("http_fetch", {"url": f"{server.url}/x", **CONFIG})
    (report,) = result.checks
    assert (report.output_index, report.passed, report.rows) == (1, False, 1)

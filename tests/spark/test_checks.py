"""Checks on real rows: which rows offend, what is said of them, and what is collected."""

import dataclasses
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame

from tests.spark.support import Bench
from tests.support.check_cases import CASES, K, make_checks
from tracelake.catalogue.context import Batch
from tracelake.model.dag import OutputCheck, ReadMode
from tracelake.spark.checks.evaluation import CheckEvaluation
from tracelake.spark.operators.spark_sql import run
from tracelake.spark.testing import BUCKET
from tracelake.spark.work import SparkWork
from tracelake.wire.task_calls import CheckReport
from tracelake.wire.units import PayloadInput, ReadScope, StorageOut, TaskOutput, Unit

UNIT = Unit(partition_key="0-9", start=0, end=9)
ROWS = """
    SELECT * FROM VALUES
      (1, 'a',  CAST(1.5 AS DOUBLE),  CAST('10.50' AS DECIMAL(38,2)), X'00ff', DATE'2024-01-01',
       TIMESTAMP'2024-01-01 00:00:00', true,  map('k', 1)),
      (2, 'b',  CAST('NaN' AS DOUBLE), CAST('99999999999999999999999999999999999.99' AS DECIMAL(38,2)), X'',
       DATE'2024-06-01', TIMESTAMP'2024-06-01 12:00:00', false, map('k', 2)),
      (2, 'c',  CAST(-1 AS DOUBLE),   CAST('-0.01' AS DECIMAL(38,2)), X'ab', DATE'2025-01-01',
       TIMESTAMP'2025-01-01 00:00:00', true, map('k', 3)),
      (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
    AS t(n, t, f, d, b, day, at, flag, m)"""


def make_work(bench: Bench, checks: Sequence[OutputCheck], query: str = "SELECT 1 AS a") -> SparkWork:
    bench.add_output("made")
    work = bench.work("spark_sql", {"query": query}, UNIT, 1, {})
    work.context = dataclasses.replace(work.context, checks=checks)
    return work


def check_rows(bench: Bench, frame: DataFrame, checks: Sequence[OutputCheck]) -> dict[str, CheckReport]:
    evaluation = CheckEvaluation(make_work(bench, checks))
    evaluation.check_batch(evaluation.work, 0, frame)
    assert len(evaluation.reports) == len(checks)
    return {report.name: report for report in evaluation.reports}


def test_each_kind_finds_the_rows_that_offend(bench: Bench) -> None:
    checks = make_checks([case for case, _, _ in CASES])
    reports = check_rows(bench, bench.session.sql(ROWS), checks)
    outcomes = {}
    for check, (_, _, message) in zip(checks, CASES, strict=True):
        report = reports[check.name]
        outcomes[check.name] = (check.kind, report.passed, report.offending_rows, message in report.message)
    assert outcomes == {
        check.name: (check.kind, offending == 0, offending, True)
        for check, (_, offending, _) in zip(checks, CASES, strict=True)
    }, [report.message for report in reports.values()]
    first = reports["check_0"]
    assert first.sample == [dict.fromkeys(("n", "t", "f", "d", "b", "day", "at", "flag"))]
    assert reports["check_3"].sample == [{"n": "2", "rows": "2"}]


def test_a_unit_without_rows(bench: Bench) -> None:
    frame = bench.session.sql(ROWS).where("false")
    cases = [*(case for case, offending, _ in CASES if offending is not None)]
    reports = check_rows(bench, frame, make_checks(cases))
    least = {
        f"check_{number}" for number, case in enumerate(cases) if case.get("min") in (1, 5) and "columns" not in case
    }
    assert {name for name, report in reports.items() if not report.passed} == least


def test_hostile_names_and_values(bench: Bench) -> None:
    names = ["a`b", "a.b", "x y; --", "c1", "count"]
    row = ("x" * 2_000_000, bytes(range(200)) * 10_000, "line\nbreak\x00\u202e'\"`", 5, None)
    frame = bench.session.createDataFrame([row, row], "a string, b binary, c string, d int, e int").toDF(*names)
    cases: list[dict[str, Any]] = [
        {"kind": K.NOT_NULL, "columns": ("count",)},
        {"kind": K.RANGE, "columns": ("c1",), "min": 6},
        {"kind": K.ACCEPTED_VALUES, "columns": ("a`b",), "values": ("`) OR 1=1 --",)},
        {"kind": K.UNIQUE, "columns": ("a.b", "x y; --")},
    ]
    reports = check_rows(bench, frame, make_checks(cases))
    assert [reports[f"check_{number}"].offending_rows for number in range(4)] == [2, 2, 2, 2]
    assert list(reports["check_0"].sample[0]) == ["count", "a`b", "a.b", "x y; --", "c1"]
    sample = reports["check_2"].sample[0]
    assert sample["a`b"] == "x" * 100 + "..."
    assert sample["a.b"] == "0x" + bytes(range(32)).hex() + "..."
    assert sample["x y; --"] == "line\ufffdbreak\ufffd\ufffd'\"`"


def add_reference(bench: Bench, work: SparkWork, name: str, table: pa.Table | None, dataset: Any = None) -> None:
    files = []
    if table is not None:
        path = bench.root / f"{name}.parquet"
        pq.write_table(table, path)
        files.append(bench.transfer.upload(path, f"{BUCKET}{name}/{uuid4()}/0.parquet"))
    item = PayloadInput(
        input_index=1000 + len(work.context.references),
        dataset_uuid=dataset or uuid4(),
        dataset_version=uuid4(),
        name=name,
        unit=UNIT,
        revision="",
        where=None,
        scope=ReadScope(mode=ReadMode.ALL),
    )
    inputs, others = work.context.files, {item.input_index: files}
    work.context = dataclasses.replace(
        work.context,
        references=[*work.context.references, item],
        files=lambda asked: others[asked.input_index] if asked.input_index in others else inputs(asked),
    )


def test_relationships_and_other_units(bench: Bench) -> None:
    checks = make_checks(
        [
            {"kind": K.RELATIONSHIP, "columns": ("n",), "dataset": "there", "target": "id"},
            {"kind": K.RELATIONSHIP, "columns": ("t",), "dataset": "nothing_yet", "target": "id"},
            {"kind": K.RELATIONSHIP, "columns": ("n",), "dataset": "there", "target": "other"},
            {"kind": K.RELATIONSHIP, "columns": ("n",), "dataset": "not_given", "target": "id"},
            {"kind": K.UNIQUE, "columns": ("t",), "scope": "dataset"},
        ]
    )
    work = make_work(bench, checks)
    add_reference(bench, work, "there", pa.table({"id": pa.array([1, 3, None, 1], pa.int64())}))
    add_reference(bench, work, "nothing_yet", None)
    own = pa.table({"x": [1, 2], "t": ["b", None], "n": [1, 2]})
    add_reference(bench, work, "made", own, work.output().dataset_uuid)
    evaluation = CheckEvaluation(work)
    assert not evaluation.check_batch(work, 0, bench.session.sql(ROWS))
    reports = {report.name: report for report in evaluation.reports}
    assert [reports[f"check_{number}"].offending_rows for number in range(5)] == [2, 3, None, None, 1]
    assert reports["check_0"].sample == [{"n": "2", "rows": "2"}]
    assert reports["check_0"].message == "n is not in id of there in 2 of 4 rows"
    assert "there has no column other" in reports["check_2"].message
    assert reports["check_4"].sample == [{"t": "b", "rows": "1"}]


def test_files_are_checked_as_they_were_written(bench: Bench) -> None:
    bench.add_input("rows", pa.table({"block_number": [1, 2, 3], "v": [1, None, 3]}))
    checks = make_checks([{"kind": K.NOT_NULL, "columns": ("v",)}, {"kind": K.ROW_COUNT, "min": 1, "severity": "warn"}])
    work = make_work(bench, checks, "SELECT * FROM rows")
    evaluation = CheckEvaluation(work)
    run(work)
    evaluation.check_files()
    assert [(report.passed, report.offending_rows, report.rows) for report in evaluation.reports] == [
        (False, 1, 3),
        (True, 0, 3),
    ]
    assert evaluation.reports[0].sample == [{"v": None, "block_number": "2"}]


@pytest.mark.parametrize(("severity", "batches"), [("error", 0), ("warn", 1)])
def test_rows_for_a_sink_are_checked_before_they_are_published(bench: Bench, severity: str, batches: int) -> None:
    bench.add_input("rows", pa.table({"block_number": [1, 2, 3], "v": [1, None, 3]}))
    checks = make_checks([{"kind": K.NOT_NULL, "columns": ("v",), "severity": severity}])
    work = make_work(bench, checks, "SELECT * FROM rows")
    published: list[Batch] = []
    output = TaskOutput(
        output_index=0,
        dataset_uuid=uuid4(),
        dataset_version=uuid4(),
        name="made",
        storage=StorageOut(kind="buffered", buffer_prefix="s3://bucket/buffers/task/1/"),
    )
    work.context = dataclasses.replace(work.context, outputs=[output], publish=published.append)
    evaluation = CheckEvaluation(work)
    work.check_rows = evaluation.check_batch
    run(work)
    assert len(published) == batches
    assert [report.passed for report in evaluation.reports] == [False]

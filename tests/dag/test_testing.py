"""`tracelake.testing` without Spark: what it says of documents and samples that do not fit."""

from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from tests.support.real_stack import ROOT
from tracelake.model.columns import DatasetColumn, DatasetColumns
from tracelake.model.dag import Input, ReadMode, UnitGrid
from tracelake.model.windows import Window
from tracelake.testing import DocumentError, SampleError, _make_table, _scope, check_document, run_job

FIRST = ROOT / "examples/first_dag/activity.yaml"
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))
DAY = 86_400


def foreign_datasets(path: Path) -> set[str]:
    """What the DAG reads and does not publish; a chain publishes what the jobs beside it read."""
    document = yaml.safe_load(path.read_text())
    if "chains" in document:
        return set()
    inputs = [item.get("from", {}) for job in document["jobs"] for item in job.get("inputs", ())]
    return {item["dataset"] for item in inputs if "dataset" in item} - set(document.get("publish", ()))


@pytest.mark.parametrize(
    "path",
    # Functions have no bundle before somebody uploads it, and the operator of the template is not installed.
    [path for path in EXAMPLES if "BUNDLE" not in path.read_text() and path.parent.name != "operator_template"],
    ids=lambda path: path.stem,
)
def test_every_example_is_valid(path: Path) -> None:
    check_document(path, datasets=sorted(foreign_datasets(path)))


def test_all_mistakes_are_reported_with_their_lines(tmp_path: Path) -> None:
    document = tmp_path / "activity.yaml"
    text = FIRST.read_text().replace("t.from_address", "t.sender").replace("grain: day", "grain: dya")
    document.write_text(text)
    with pytest.raises(DocumentError) as refused:
        check_document(document)
    (grain,) = (number for number, line in enumerate(text.splitlines(), 1) if "dya" in line)
    assert f"{document}:{grain}:" in str(refused.value)
    document.write_text(FIRST.read_text().replace("t.from_address", "t.sender"))
    with pytest.raises(DocumentError, match=r"unknown_column.*sender"):
        check_document(document)


UNREADABLE = """\
name: d
defaults: {runtime: ecs_platform}
chains:
  - {name: chain, chain_id: 1337001, start: 0}
jobs:
  - name: totals
    activation: reactive
    operator: spark_sql
    units: {by: time, grain: day}
    inputs:
      - {from: {dataset: blocks}, by: tymestamp}
      - {from: {dataset: transactions}, by: transaction_hash}
      - {self: previous, columns: {total: binary, sum: int}}
    config: {query: SELECT CAST(count(*) AS INT) AS total FROM blocks, inputs: {blocks: 0, transactions: 1, before: 2}}
publish:
  totals: {from: {job: totals}, storage: s3, schema: {columns: {total: text, other: int64}}}
"""


def test_what_surely_fails_when_it_runs_is_a_mistake_of_the_document(tmp_path: Path) -> None:
    document = tmp_path / "totals.yaml"
    document.write_text(UNREADABLE)
    with pytest.raises(DocumentError) as refused:
        check_document(document)
    lines = [line.removeprefix(f"{document}:").split(": ")[:2] for line in str(refused.value).splitlines()]
    assert lines == [
        ["11:39", "unknown_column"],
        ["12:45", "by_type"],
        ["13:43", "previous_type"],
        ["13:51", "unknown_column"],
        ["14:53", "column_type"],
        ["16:78", "unknown_column"],
    ]


def test_an_assertion_of_a_test_fails_by_it() -> None:
    assert issubclass(DocumentError, AssertionError)


@pytest.mark.parametrize(
    ("job", "inputs", "unit", "message"),
    [
        ("dialy", {}, "2026-03-02", "no job dialy; it has .*daily"),
        ("chain_head", {}, "0-999", "expected a job of spark_sql, received chain_head"),
        ("daily", {"blocks": []}, "2026-03-02", "reads blocks, transactions; the inputs differ in transactions"),
        ("daily", {"blocks": [], "transactions": [], "logs": []}, "2026-03-02", "differ in logs"),
        ("daily", {"blocks": [], "transactions": []}, "0-999", "unit: "),
    ],
)
def test_samples_that_do_not_fit(job: str, inputs: dict[str, list[dict[str, int]]], unit: str, message: str) -> None:
    with pytest.raises(SampleError, match=message):
        run_job(FIRST, job, inputs, unit)


COLUMNS = DatasetColumns(
    columns=(
        DatasetColumn(name="block_number", type="bigint"),
        DatasetColumn(name="gas", type="decimal(20,0)"),
        DatasetColumn(name="token", type="binary"),
        DatasetColumn(name="at", type="timestamp"),
        DatasetColumn(name="words", type="array<string>"),
    )
)


def test_rows_get_the_columns_of_their_dataset() -> None:
    table = _make_table("rows", [{"block_number": 1, "gas": 2}, {"token": b"x"}], COLUMNS)
    assert table.to_pylist()[0]["block_number"] == 1
    assert [str(field.type) for field in table.schema] == [
        "int64", "decimal128(20, 0)", "binary", "timestamp[us, tz=UTC]", "null"]  # fmt: skip
    assert _make_table("rows", [], COLUMNS).num_rows == 0
    with pytest.raises(SampleError, match="rows has no column blok; it has block_number, gas"):
        _make_table("rows", [{"blok": 1}], COLUMNS)
    given = pa.table({"x": [1]})
    assert _make_table("rows", given, COLUMNS) is given


def test_of_unknown_columns_a_row_has_those_that_it_says() -> None:
    table = _make_table("rows", [{"a": 1}, {"b": "x"}], DatasetColumns(complete=False))
    assert table.to_pylist() == [{"a": 1, "b": None}, {"a": None, "b": "x"}]


def test_how_much_of_an_input_is_read() -> None:
    grid, day = UnitGrid(by="time", grain="day"), Window(10 * DAY, 11 * DAY - 1)

    def rows(**fields: object) -> tuple[str | None, int | None, int | None]:
        scope = _scope(grid, Input(dataset="x", **fields), day)  # type: ignore[arg-type]
        assert scope is not None
        assert scope.unit_in_seconds
        return scope.column, scope.first, scope.last

    assert _scope(None, Input(dataset="x"), Window(0, 9)) is None
    assert rows(read=ReadMode.WINDOW) == (None, None, None)
    assert rows(read=ReadMode.WINDOW, by="timestamp") == ("timestamp", 10 * DAY, 11 * DAY - 1)
    assert rows(read=ReadMode.WINDOW, by="timestamp", lookback=2) == ("timestamp", 8 * DAY, 11 * DAY - 1)
    assert rows(read=ReadMode.HISTORY, by="timestamp") == ("timestamp", 0, 11 * DAY - 1)
    assert rows(read=ReadMode.ALL, by="timestamp") == (None, None, None)

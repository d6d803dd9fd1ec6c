"""What inputs and schemas say of columns, compared with those that there are: what could work is accepted."""

import pytest

from tests.dag.support import problems_of
from tracelake.catalogue.column_fit import fits_files
from tracelake.catalogue.sql.columns.types import POSITIONS, parse_type
from tracelake.model.dag import Column, ColumnType


def document(inputs: str, query: str = "SELECT 1 AS a FROM made", publish: str = "") -> str:
    return f"""\
name: d
defaults: {{runtime: ecs_platform}}
jobs:
- name: w
  activation: reactive
  operator: spark_sql
  inputs: [{{from: {{dataset: raw_blocks}}}}]
  config: {{query: "SELECT *, 1 AS n, 'x' AS t FROM raw_blocks"}}
- name: m
  activation: reactive
  operator: spark_sql
  inputs: [{{from: {{dataset: raw_blocks}}}}]
  config:
    query: >-
      SELECT CAST(1 AS BIGINT) AS n, CAST(1 AS DECIMAL(20,0)) AS big, 'x' AS t, DATE'2020-01-01' AS d,
      X'00' AS b, timestamp_seconds(1) AS ts, some AS dark FROM raw_blocks
- name: r
  activation: reactive
  operator: spark_sql
  units: {{by: time, grain: day}}
  inputs: [{inputs}]
  config: {{query: "{query}", inputs: {{made: 0}}}}
publish:
  open: {{from: {{job: w}}, storage: s3}}
  made: {{from: {{job: m}}, storage: s3{publish}}}
"""


def messages(text: str) -> list[str]:
    return [f"{problem.code}: {problem.message} {problem.suggestion}".strip() for problem in problems_of(text)]


@pytest.mark.parametrize("column", ["n", "big", "d", "ts", "dark"])
@pytest.mark.parametrize("read", ["window", "history"])
def test_by_takes_times_dates_and_whole_numbers(column: str, read: str) -> None:
    assert messages(document(f"{{from: {{dataset: made}}, by: {column}, read: {read}}}")) == []


def test_of_a_dataset_whose_columns_are_not_known_any_may_be_named() -> None:
    assert messages(document("{from: {dataset: open}, by: anything}")) == []
    assert messages(document("{from: {dataset: raw_blocks}, by: anything}")) == []


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("nn", "unknown_column: The input has no column `nn`. Did you mean `n`?"),
        ("N", "unknown_column: The input has no column `N`. Did you mean `n`?"),
        ("xyz", "unknown_column: The input has no column `xyz`. Columns that fit: `n`, `big`, `d`, `ts`, `dark`."),
        (
            "t",
            "by_type: The column `t` is string, and `by` takes a time, a date or a whole number."
            " Columns that fit: `n`, `big`, `d`, `ts`, `dark`.",
        ),
        (
            "b",
            "by_type: The column `b` is binary, and `by` takes a time, a date or a whole number."
            " Columns that fit: `n`, `big`, `d`, `ts`, `dark`.",
        ),
    ],
)
def test_by_names_a_column_that_the_reader_takes(column: str, message: str) -> None:
    assert messages(document(f"{{from: {{dataset: made}}, by: {column}}}")) == [message]


def test_the_reader_takes_what_is_accepted_here() -> None:
    kinds = {"tinyint", "smallint", "int", "bigint", "decimal", "date", "timestamp", "timestamp_ntz"}
    assert kinds == POSITIONS


BEFORE = "{{from: {{dataset: made}}, by: n}}, {{self: previous, columns: {{{columns}}}}}"
TOTALS = "SELECT CAST(n AS INT) AS total, d AS day, t AS word, dark AS any FROM made"


@pytest.mark.parametrize(
    "columns",
    [
        "total: int",
        "TOTAL: bigint",
        'total: "decimal(38,0)"',
        "total: double",
        "total: string",
        "total: long, day: timestamp, word: int",
        "any: binary",
    ],
)
def test_columns_of_the_unit_before_that_could_be_read(columns: str) -> None:
    assert messages(document(BEFORE.format(columns=columns), TOTALS)) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("totl: int", "unknown_column: The job writes no column `totl`. Did you mean `total`?"),
        ("zebra: int", "unknown_column: The job writes no column `zebra`. It writes `total`, `day`, `word`, `any`."),
        (
            "total: binary",
            "previous_type: The job writes the column `total` as int, which cannot be compared with binary."
            " Write `total: int`.",
        ),
        (
            "day: boolean",
            "previous_type: The job writes the column `day` as date, which cannot be compared with boolean."
            " Write `day: date`.",
        ),
    ],
)
def test_columns_of_the_unit_before_are_those_that_the_job_writes(columns: str, message: str) -> None:
    assert messages(document(BEFORE.format(columns=columns), TOTALS)) == [message]


def test_of_a_job_with_a_misspelled_column_nothing_else_is_said() -> None:
    (message,) = messages(document(BEFORE.format(columns="total: int"), "SELECT n AS day, totl FROM made"))
    assert message.startswith("unknown_column: There is no column `totl`.")


def test_a_schema_of_files_says_what_its_job_writes() -> None:
    reads = "{from: {dataset: raw_blocks}, by: n}"
    fits = ", schema: {columns: {n: int64, big: int64, t: text, d: date, b: bytes, ts: timestamp, dark: json}}"
    assert messages(document(reads, publish=fits)) == []
    assert messages(document(reads, publish=", schema: {columns: {n: text, tt: text}}")) == [
        "column_type: The column `n` is bigint here, and text in `made`. Write `CAST(... AS STRING) AS n`, or declare"
        " `int16`, `int32`, `int64`, `int256`, `uint256`, `float64`, `decimal`.",
        "unknown_column: The job writes no column `tt`. Did you mean `t`?",
    ]


@pytest.mark.parametrize(
    ("declared", "kind", "fits"),
    [
        (ColumnType.INT64, "decimal(20,0)", True),
        (ColumnType.INT16, "double", True),
        (ColumnType.FLOAT64, "decimal(10,2)", True),
        (ColumnType.TIMESTAMP, "timestamp_ntz", True),
        (ColumnType.JSON, "string", True),
        (ColumnType.JSON, "array<int>", True),
        (ColumnType.JSON, "int", False),
        (ColumnType.TEXT, "int", False),
        (ColumnType.TEXT, "array<string>", False),
        (ColumnType.BOOL, "int", False),
        (ColumnType.TIMESTAMP, "bigint", False),
        (ColumnType.BYTES, "unknown", True),
    ],
)
def test_types_of_files(declared: ColumnType, kind: str, *, fits: bool) -> None:
    assert fits_files(Column(name="x", type=declared), parse_type(kind)) is fits

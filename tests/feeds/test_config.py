"""What a deploy refuses of a feed, and the place that it names."""

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from tests.dag.support import MARK, marked, problems_of, read
from tracelake.catalogue import read_config
from tracelake.catalogue.feeds.mapping import FeedConfig
from tracelake.errors import TraceError
from tracelake.feeds.mapping import REJECTS, arrow_schema
from tracelake.model.dag import ColumnType, SourceKind

FETCH = """name: d
jobs:
- {name: clock, activation: source, source: {kind: cron, schedule: "*/5 * * * *"}}
- name: prices
  activation: reactive
  runtime: ecs_platform
  operator: http_fetch
  secrets: [KEY]
  inputs: [{from: {job: clock}}]
  config:
    url: https://api.example.com/prices?at={end}
    rows: data
    columns: {n: int64}
"""
HOOK = """name: d
jobs:
- {name: hook, activation: source, source: {kind: webhook, webhook_path: a, unit: delivery}}
- name: rows
  activation: reactive
  runtime: ecs_platform
  operator: webhook_rows
  inputs: [{from: {job: hook}}]
  config: {columns: {n: int64}}
"""


def test_good_ones() -> None:
    assert problems_of(FETCH) == problems_of(HOOK) == []
    source = read(HOOK).jobs[0].source
    assert source is not None
    assert (source.kind, source.unit) == (SourceKind.WEBHOOK, "delivery")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("https://api.example.com/prices?at={end}", "§ftp://a.example/"),
        ("https://api.example.com/prices?at={end}", "§https://user:pw@a.example/"),
        ("https://api.example.com/prices?at={end}", "§https://a.example/{slot}"),
        ("https://api.example.com/prices?at={end}", "§https://{end}.example/"),
        ("rows: data", "rows: §data[-1]"),
        ("rows: data", "rows: §'@row'"),
        ("rows: data", "rows: §data\n    format: csv"),
        ("rows: data", "paging: {kind: cursor, path: §'a..b', parameter: c}"),
        ("rows: data", "paging: §{kind: cursor, parameter: c}"),
        ("rows: data", "paging: §{kind: link, parameter: c}"),
        ("rows: data", "query: {a: §[1]}"),
        ("rows: data", "query: {a: {secret: §OTHER}}"),
        ("rows: data", "headers: {Host: §x}"),
        ("rows: data", "headers: {Authorization: §Bearer abc}"),
        ("rows: data", 'headers: {X-A: §"a\\nb"}'),
        ("rows: data", "headers: {X-A: {secret: KEY, §suffix: x}}"),
        ("rows: data", "headers: {X-A: {secret: KEY}, x-a: y}".replace("{secret: KEY}", "§{secret: KEY}")),
        ("rows: data", "body: §{a: 1}"),
        ("rows: data", "method: POST\n    body: §text"),
        ("rows: data", "delimiter: §';'"),
        ("rows: data", "max_bytes: §0"),
        ("{n: int64}", "§{}"),
        ("{n: int64}", "{n: §int65}"),
        ("{n: int64}", "{n: {type: §'decimal(39,2)'}}"),
        ("{n: int64}", "{n: §{path: a}}"),
        ("{n: int64}", "{n: §{type: int64, kind: x}}"),
        ("{n: int64}", "{n: {type: int64, path: §'a[*]'}}"),
        ("{n: int64}", "{n: {type: int64, path: §'@delivery'}}"),
        ("{n: int64}", "{n: {type: int64, unit: §millis}}"),
        ("{n: int64}", "{n: int64, N: §text}"),
        ("{n: int64}", "{block_number: §text}"),
    ],
)
def test_a_fetch_that_is_refused(old: str, new: str) -> None:
    assert old in FETCH
    plain, places = marked(FETCH.replace(old, new))
    (problem,) = problems_of(plain)
    assert (problem.code, (problem.line, problem.column)) == ("config_invalid", places[0]), problem.message
    assert "pw" not in problem.message
    assert "abc" not in problem.message
    assert MARK not in plain


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        (", unit: delivery", "", "delivery_input"),
        ("kind: webhook, webhook_path: a, unit: delivery", "kind: manual", "delivery_input"),
        ("kind: webhook, webhook_path: a, unit: delivery", "kind: manual, unit: delivery", "source_field"),
        ("runtime: ecs_platform", "runtime: ecs_platform\n  execution_strategy: PerPartition", "delivery_input"),
        ("{from: {job: hook}}", "{from: {job: hook}, where: {n: 1}}", "delivery_input"),
        ("{from: {job: hook}}", "{from: {dataset: raw_blocks}}", "delivery_input"),
        ("unit: delivery", "unit: message", "unknown_value"),
    ],
)
def test_deliveries_that_are_refused(old: str, new: str, code: str) -> None:
    assert old in HOOK
    problems = problems_of(HOOK.replace(old, new))
    assert code in {problem.code for problem in problems}
    assert all(problem.suggestion for problem in problems if problem.code == "delivery_input")


def test_a_fetch_needs_an_input() -> None:
    text = FETCH.replace("activation: reactive", "activation: source\n  source: {kind: always_on}")
    (problem,) = problems_of(text.replace("  inputs: [{from: {job: clock}}]\n", ""))
    assert (problem.code, problem.path) == ("config_invalid", "jobs[1].config.url")


def test_columns_are_compared_with_a_buffered_dataset() -> None:
    publish = """publish:
  prices:
    from: {job: prices}
    storage: postgres
    write_mode: buffered
    schema: {columns: [{name: m, type: int64}], unique: [m]}
"""
    problems = problems_of(FETCH + publish)
    assert {(problem.code, problem.path) for problem in problems} >= {("unknown_column", "jobs[1].config.columns")}


def test_columns_are_known_at_deploy() -> None:
    """With the types that files of them have."""
    kinds = {kind: "decimal(20,3)" if kind is ColumnType.DECIMAL else str(kind) for kind in ColumnType}
    config = read_config("webhook_rows", {"columns": {f"c_{kind}": text for kind, text in kinds.items()}})
    assert isinstance(config, FeedConfig)
    for index, columns in enumerate((tuple(item.column for item in config.feed_columns()), REJECTS)):
        written = from_arrow_schema(arrow_schema(columns))
        known_columns = config.result(index, ()).columns
        assert known_columns.complete
        for field, column in zip(written.fields, known_columns.columns, strict=True):
            assert field.name == column.name
            assert column.type in (field.dataType.simpleString(), "unknown")


def test_the_text_of_an_address_is_not_repeated() -> None:
    with pytest.raises(TraceError) as error:
        read_config("http_fetch", {"url": "https://a.example/?key=s3cret value", "columns": {"n": "int64"}})
    assert "s3cret" not in str(error.value)

"""A query and the table that its rows go to: names are compared when the document is read."""

from typing import Any

import pytest
import yaml
from tools.docs import ROOT

from tests.dag.support import GOOD, problems_of, read
from tracelake.dag import KnownDataset, Surroundings
from tracelake.model.dag import Problem
from tracelake.model.runtime import BUILT_IN


def found(query: str, **schema: Any) -> list[Problem]:
    document = {
        "name": "d",
        "jobs": [
            {"name": "tick", "activation": "source", "source": {"kind": "manual"}},
            {
                "name": "work",
                "activation": "reactive",
                "runtime": "ecs_platform",
                "operator": "spark_sql",
                "inputs": [{"from": {"job": "tick"}}],
                "config": {"query": query, "inputs": {"t": 0}},
            },
        ],
        "publish": {
            "x": {
                "from": {"job": "work"},
                "storage": "postgres",
                "write_mode": "buffered",
                "schema": {
                    "columns": [
                        {"name": "key", "type": "int64"},
                        {"name": "value", "type": "text", "nullable": False},
                        {"name": "note", "type": "text"},
                    ],
                    "unique": ["key"],
                }
                | schema,
            }
        },
    }
    return problems_of(yaml.safe_dump(document, sort_keys=False))


@pytest.mark.parametrize(
    "query",
    [
        "SELECT key, value, note FROM t",
        "SELECT t.key, upper(t.name) AS value FROM t",
        "SELECT key, a.b.value FROM t",
        "SELECT *, 1 AS key FROM t",
        "SELECT t.*, 'x' AS note FROM t",
        "SELECT * EXCEPT (other) FROM t",
        "SELECT key, value, org_id FROM t UNION ALL SELECT 1 AS a, 'b' AS b, 'c' AS c FROM t",
        "(SELECT key, value FROM t)",
        "WITH valeu AS (SELECT 1 AS other FROM t) SELECT other AS key, 'a' AS value FROM valeu",
        "SELECT explode(pairs) AS (key, value) FROM t",
    ],
)
def test_columns_that_fit_or_are_not_known(query: str) -> None:
    assert found(query) == []


@pytest.mark.parametrize(
    ("query", "problems"),
    [
        (
            "SELECT key,\n  name AS valeu FROM t",
            [
                "The schema of `x` has no column `valeu`. Did you mean `value`?",
            ],
        ),
        (
            "SELECT *, name AS valeu, 1 AS zebra FROM t",
            [
                "The schema of `x` has no column `valeu`. Did you mean `value`?",
                "The schema of `x` has no column `zebra`. It has `key`, `value`, `note`.",
            ],
        ),
        (
            "SELECT key, t.VALUE FROM t",
            ["The schema of `x` has no column `VALUE`. Did you mean `value`?"],
        ),
        (
            "SELECT key, value, 1 AS _line FROM t",
            [
                "The schema of `x` has no column `_line`. It has `key`, `value`, `note`.",
            ],
        ),
        (
            "SELECT note FROM t",
            ["The result has no columns `key`, `value`, which are never null in `x`. Add them to the query."],
        ),
        (
            "SELECT key FROM t UNION ALL SELECT value FROM t",
            ["The result has no column `value`, which is never null in `x`. Add it to the query, or let it be null."],
        ),
        (
            "SELECT value, explode(pairs) AS (key, zebra) FROM t",
            [
                "The schema of `x` has no column `zebra`. It has `key`, `value`, `note`.",
            ],
        ),
    ],
)
def test_columns_that_no_table_would_take(query: str, problems: list[str]) -> None:
    assert [f"{problem.message} {problem.suggestion}" for problem in found(query)] == problems


def test_one_mistake_in_the_schema_or_the_query_is_one_problem() -> None:
    assert [problem.code for problem in found("SELECT key AS FROM t")] == ["config_invalid"]
    assert [problem.code for problem in found("SELECT a FROM t", columns={"key": "int65"})] == ["unknown_value"]


def test_the_example_fits() -> None:
    assert read((ROOT / "examples/token_flows/flows.yaml").read_bytes()).name == "token_flows"


def test_words_of_the_document() -> None:
    known = Surroundings(
        runtimes=BUILT_IN,
        datasets={"x": KnownDataset(owner_dag="d", schema=None, storage="buffered")},
        bundles={},
    )
    (problem,) = problems_of(GOOD + "publish: {x: {from: {job: work}, storage: postgres}}\n", known)
    assert problem.message == (
        "The dataset `x` has `write_mode: buffered`, which cannot become `storage: postgres` with `write_mode: direct`."
    )
    assert problem.suggestion == "Add `write_mode: buffered`, or publish under another name."
    schema = "schema: {columns: {a: text, b: text}, indexes: [a, [a, b], [a, b]]}"
    (problem,) = problems_of(GOOD + f"publish: {{y: {{from: {{job: work}}, storage: postgres, {schema}}}}}\n", known)
    assert problem.message == "`a, b` is in the list already."

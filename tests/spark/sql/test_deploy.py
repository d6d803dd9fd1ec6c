"""A query in a DAG: what is wrong with it is said where it stands, and it reads inputs that the job has."""

import pytest

from tests.dag.support import HEAD, TICK, problems_of, read

PUBLISH = "publish: {made: {from: {job: first}, storage: s3}}\n"


def document(config: str) -> str:
    """A job that reads a dataset of another DAG, one of this DAG, and an output without a name."""
    job = "activation: reactive, runtime: ecs_platform, operator: spark_sql"
    first = f"- {{name: first, {job}, inputs: [{{from: {{job: tick}}}}], config: {{query: 'SELECT 1 AS a'}}}}\n"
    third = f"- {{name: third, {job}, inputs: [{{from: {{job: tick}}}}], config: {{query: 'SELECT 1 AS a'}}}}\n"
    inputs = "inputs: [{from: {dataset: raw_blocks}}, {from: {job: first}}, {from: {job: third}}]"
    joined = f"name: joined, {job}, execution_strategy: PerPartition, {inputs}, config: {config}"
    return f"{HEAD}{TICK}{first}{third}- {{{joined}}}\n{PUBLISH}"


@pytest.mark.parametrize(
    "config",
    [
        "{query: SELECT * FROM raw_blocks}",
        "{query: SELECT * FROM RAW_BLOCKS JOIN made USING (a)}",
        "{query: SELECT * FROM x, inputs: {x: 2}}",
        "{query: SELECT 1 AS n}",
    ],
)
def test_good_queries(config: str) -> None:
    assert read(document(config)).name == "d"


@pytest.mark.parametrize(
    ("config", "path", "said", "suggestion"),
    [
        (
            "{query: SELECT * FROM raw_block, inputs: {raw_blocks: 0}}",
            "query",
            "`raw_block` is not an input",
            "Did you mean",
        ),
        (
            "{query: SELECT * FROM third}",
            "query",
            "`third` is not an input",
            "Input 2 is not a dataset: name it with `inputs:",
        ),
        ("{query: SELECT 1 AS n, inputs: {x: 3}}", "inputs", "`x` is input 3, and the job has 3", ""),
        (
            "{query: SELECT uper(a) AS b FROM made}",
            "query",
            "may not call `uper` (sql_function)",
            "Did you mean `upper`?",
        ),
        ("{query: SET a = b}", "query", "not with `SET` (sql_statement)", "A query can read, and nothing else."),
        (
            '{query: "SELECT *\\nFROM parquet.`/x`"}',
            "query",
            "Files and other catalogues",
            "It reads inputs alone.",
        ),
    ],
)
def test_bad_queries(config: str, path: str, said: str, suggestion: str) -> None:
    (problem,) = problems_of(document(config))
    assert problem.code == "config_invalid"
    assert problem.path == f"jobs[3].config.{path}"
    assert said in problem.message
    assert problem.suggestion.startswith(suggestion)

"""Checks on a whole stack with Spark: a bad unit stops what reads it, and a corrected one lets it go on."""

import json

import pytest

from tests.support.chain import RECORDING
from tests.support.real_stack import RealStack

pytestmark = pytest.mark.system

DAG = """
name: checked
defaults: {runtime: ecs_platform}
jobs:
  - {name: ranges, activation: source, source: {kind: manual}}
  - {name: split, activation: reactive, operator: range_splitter, runtime: dispatcher, config: {size: 500},
     inputs: [{from: {job: ranges}}]}
  - {name: ingest, activation: reactive, operator: evm_ingest, execution_strategy: PerPartition,
     config: {chain_id: 1337001, tables: [blocks]}, inputs: [{from: {job: split}}],
     checks: [{not_null: block_number}, {row_count: {min: 500, max: 500}}]}
  - name: model
    activation: reactive
    operator: spark_sql
    execution_strategy: PerPartition
    inputs: [{from: {dataset: blocks}}]
    config: {query: "SELECT block_number, QUERY AS size FROM blocks"}
  - name: after
    activation: reactive
    operator: spark_sql
    execution_strategy: PerPartition
    inputs: [{from: {dataset: model}}]
    config: {query: SELECT count(*) AS n FROM model}
publish:
  blocks: {from: {job: ingest}, storage: s3}
  after: {from: {job: after}, storage: s3}
  model:
    from: {job: model}
    storage: s3
    checks:
      - not_null: size
      - {unique: block_number, scope: dataset}
      - relationship: {column: block_number, to: {dataset: blocks, column: block_number}}
      - {sql: "SELECT * FROM output WHERE block_number > ${end}", name: within_the_unit}
      - {range: {column: size, max: 1}, severity: warn}
      - freshness: {max_age: 2h}
"""
BAD = "nullif(block_number, 700)"
GOOD = "block_number"
UNITS = """
    SELECT u.range_start FROM datasets d JOIN dataset_units u ON u.dataset_uuid = d.dataset_uuid
     AND u.dataset_version = d.current_version WHERE d.name = $1 ORDER BY 1"""
UNSETTLED = """
    SELECT EXISTS (SELECT FROM tasks WHERE finished_at IS NULL)
        OR EXISTS (SELECT FROM edges WHERE position IS NOT NULL AND phase <> 'Parked')
        OR EXISTS (SELECT FROM activations WHERE state = 'Building') AS unsettled"""


def units(stack: RealStack, dataset: str) -> list[int]:
    return [row["range_start"] for row in stack.sql(UNITS, dataset)]


def settle(stack: RealStack) -> None:
    stack.wait_until(lambda: not stack.sql(UNSETTLED)[0]["unsettled"], "all units")


def deploy(stack: RealStack, query: str) -> None:
    (stack.files / "dag.yaml").write_text(DAG.replace("QUERY", query))
    stack.shell("trace deploy dag.yaml")


def test_a_bad_unit_stops_what_reads_it_until_it_is_corrected() -> None:
    settings = {"recorded_chain": str(RECORDING), "spark_master": "local[2]", "max_attempts": "3"}
    stack = RealStack(settings={**settings, "query_service": "true"})
    with stack.running():
        deploy(stack, BAD)
        stack.shell("trace trigger checked/ranges --range 0-999")
        settle(stack)
        assert (units(stack, "blocks"), units(stack, "model"), units(stack, "after")) == ([0, 500], [0], [0])
        attempts = stack.sql("SELECT attempt, error FROM tasks WHERE status = 'Failed'")
        assert len(attempts) == 1
        assert attempts[0]["attempt"] == 1, "the same rows would fail again"
        assert attempts[0]["error"].startswith(
            "check_failed: not_null_size of model: size is null in 1 of 500 rows, such as (size: null, "
            "block_number: 700)."
        )
        why = " ".join(stack.shell("trace why model").split())
        assert "not_null_size of model: size is null in 1 of 500 rows" in why
        shown = json.loads(stack.shell("trace checks model --json"))
        states = {check["name"]: check["state"] for check in shown["checks"]}
        assert states == {
            "freshness": "passed",
            "not_null_size": "failed",
            "range_size": "warned",
            "relationship_block_number_blocks": "passed",
            "unique_block_number": "passed",
            "within_the_unit": "passed",
        }
        assert len(shown["results"]) == 10
        print(stack.shell("trace checks model"))
        query = "SELECT unit, offending_rows, sample_rows FROM _check_results WHERE verdict = 'failed'"
        ((unit, offending, sample),) = json.loads(stack.shell(f'trace query "{query}" --json'))["rows"]
        assert (unit, offending, json.loads(sample)) == ("500-999", 1, [{"size": None, "block_number": "700"}])
        blocks = json.loads(stack.shell("trace checks blocks --json"))
        assert {check["state"] for check in blocks["checks"]} == {"passed"}
        deploy(stack, GOOD)
        settle(stack)
        assert (units(stack, "model"), units(stack, "after")) == ([0, 500], [0, 500])
        states = {check["name"]: check["state"] for check in json.loads(stack.shell("trace checks --json"))["checks"]}
        assert states["not_null_size"] == "passed"

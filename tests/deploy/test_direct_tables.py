"""What a deploy records of a table that tasks write directly, and what it refuses."""

import pytest

from tests.support.dags import deploy
from tests.support.dispatcher import DispatcherHarness
from tracelake.errors import TraceError

DOCUMENT = """\
name: d
jobs:
- {name: tick, activation: source, source: {kind: manual}}
- {name: w, activation: reactive, runtime: ecs_platform, operator: %s, inputs: [{from: {job: tick}}]}
publish:
  hot:
    from: {job: w}
    storage: postgres
    write_mode: direct
    schema: {columns: [{name: block_number, type: int64}%s], unique: [block_number]}
"""


def test_a_table_is_recorded_and_grows_within_its_generation(harness: DispatcherHarness) -> None:
    deploy(harness, DOCUMENT % ("noop", ""))
    (first,) = harness.sql("SELECT dataset_uuid, schema, changed_at FROM direct_tables")
    versions = harness.sql("SELECT dataset_version FROM dataset_versions WHERE schema IS NOT NULL")
    deploy(harness, DOCUMENT % ("noop", ", {name: fee, type: int64}"))
    (grown,) = harness.sql("SELECT dataset_uuid, schema, changed_at FROM direct_tables")
    assert grown["dataset_uuid"] == first["dataset_uuid"]
    assert "fee" in grown["schema"]
    assert grown["changed_at"] > first["changed_at"]
    assert harness.sql("SELECT dataset_version FROM dataset_versions WHERE schema IS NOT NULL") == versions


def test_a_column_cannot_be_taken_away(harness: DispatcherHarness) -> None:
    deploy(harness, DOCUMENT % ("noop", ", {name: fee, type: int64}"))
    with pytest.raises(TraceError) as refused:
        deploy(harness, DOCUMENT % ("noop", ""))
    assert "table_change" in str(refused.value.details)


def test_an_operator_that_runs_text_of_users_may_not_write_directly(harness: DispatcherHarness) -> None:
    with pytest.raises(TraceError) as refused:
        deploy(harness, DOCUMENT % ('spark_sql, config: {query: "SELECT 1 AS block_number"}', ""))
    assert "operator_storage" in str(refused.value.details)
    assert harness.sql("SELECT 1 FROM direct_tables") == []

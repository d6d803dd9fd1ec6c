"""Documents that publish tables which an operator writes directly."""

import pytest

from tests.dag.support import HEAD, TICK, problems_of, read
from tracelake.catalogue import CATALOGUE, NoopConfig, OperatorSpec
from tracelake.catalogue.direct_schemas import has_position, table_schema
from tracelake.catalogue.evm_columns import EVM_COLUMNS, EVM_KEYS, EVM_TABLES
from tracelake.dispatcher.deploy.hashes import is_direct_table
from tracelake.model.columns import DatasetColumn
from tracelake.model.dag import ColumnType, Schema

TABLES = [table_schema(EVM_COLUMNS[table], EVM_KEYS[table]) for table in EVM_TABLES]


class FollowConfig(NoopConfig, frozen=True):
    def table(self, output_index: int) -> Schema | None:
        return TABLES[output_index]


FOLLOW = (
    "- {name: follow, activation: reactive, runtime: ecs_platform, operator: test_follow, outputs: 3,"
    " inputs: [{from: {job: tick}}]}\n"
)


@pytest.fixture(autouse=True)
def follow(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = OperatorSpec("test_follow", FollowConfig, "Follows.", fills_tables=True, trusted=True)
    monkeypatch.setitem(CATALOGUE, "test_follow", spec)


@pytest.mark.parametrize("table", EVM_TABLES)
def test_the_tables_of_a_chain_have_positions(table: str) -> None:
    schema = TABLES[EVM_TABLES.index(table)]
    assert has_position(schema)
    assert [column.name for column in schema.columns] == [column.name for column in EVM_COLUMNS[table]]  # type: ignore[index]
    assert all(not schema.column(name).nullable for name in schema.unique)  # type: ignore[union-attr]


def test_a_table_without_a_position_is_refused() -> None:
    columns = [DatasetColumn(name="hash", type="binary", nullable=False)]
    with pytest.raises(ValueError, match="whole number"):
        table_schema(columns, ("hash",))
    assert not has_position(Schema(columns=()))


def test_a_table_of_versions_has_a_key_besides_the_position() -> None:
    columns = [DatasetColumn(name=name, type="bigint", nullable=False) for name in ("block_number", "holder")]
    schema = table_schema(columns, ("block_number", "holder"), newest_wins=True)
    assert schema.newest_wins
    assert schema.indexes == (("holder", "block_number"),), "by it the newest row of a key is found"
    with pytest.raises(ValueError, match="one version"):
        table_schema(columns, ("block_number",), newest_wins=True)


def document(publish: str) -> str:
    return HEAD + TICK + FOLLOW + publish


def test_the_schema_is_that_of_the_operator() -> None:
    dag = read(
        document("publish: {hot: {from: {job: follow, output_index: 2}, storage: postgres, write_mode: direct}}\n")
    )
    assert dag.publish[0].schema == TABLES[2]
    assert is_direct_table(dag.publish[0])
    logs = dag.publish[0].schema
    assert logs is not None
    assert logs.column("chain_id").type is ColumnType.DECIMAL  # type: ignore[union-attr]


def test_a_schema_of_the_author_is_refused() -> None:
    publish = "publish: {hot: {from: {job: follow}, storage: postgres, schema: {columns: [{name: a, type: int64}]}}}\n"
    problems = problems_of(document(publish))
    assert [problem.code for problem in problems] == ["invalid_value"]
    assert "test_follow" in problems[0].message


@pytest.mark.parametrize("operator", ["spark_sql", "udf", "evm_ingest"])
def test_other_operators_may_not_write_directly(operator: str) -> None:
    spec = CATALOGUE[operator]
    assert not spec.fills_tables


def test_only_code_of_the_platform_writes_tables() -> None:
    writers = {spec.name for spec in CATALOGUE.values() if spec.fills_tables and not spec.trusted}
    assert writers <= {"noop", "sleep"}  # which write none

"""Columns of lists and structs: JSON in tables, and the same values on both sides of them."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.direct.support import direct_table
from tracelake.catalogue.direct_schemas import table_schema
from tracelake.catalogue.evm_columns import EVM_OPTIONAL_COLUMNS, EVM_TABLES
from tracelake.catalogue.sql.columns.types import declared_type
from tracelake.catalogue.tables import plan_table
from tracelake.model.columns import DatasetColumn
from tracelake.model.dag import Column, ColumnType, Schema
from tracelake.ports.direct_tables import RangeReplacement, RowsRefusedError
from tracelake.spark.evm.optional_columns import optional_type
from tracelake.storage.direct_rows import fit_rows
from tracelake.storage.nested_values import decode_nested, encode_nested, nested_arrow_type

LISTS = [
    (table, column) for table in EVM_TABLES for column in EVM_OPTIONAL_COLUMNS[table] if column.type.startswith("array")
]
ENTRIES = "array<struct<number:bigint,keys:array<binary>>>"
NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)
KEYS = st.none() | st.lists(st.none() | st.binary(max_size=3), max_size=3)
VALUES = st.lists(
    st.none() | st.lists(st.none() | st.fixed_dictionaries({"number": NUMBERS, "keys": KEYS}), max_size=3)
)


@given(values=VALUES)
def test_values_come_back_as_they_went_in(values: list[object]) -> None:
    kind = nested_arrow_type(ENTRIES)
    array = pa.array(values, kind)
    texts = encode_nested(array, ENTRIES)
    assert texts.null_count == array.null_count
    assert decode_nested(texts, ENTRIES, kind).equals(array)


@pytest.mark.parametrize(("table", "column"), LISTS)
def test_types_are_those_of_the_files_and_of_queries(table: str, column: DatasetColumn) -> None:
    assert nested_arrow_type(column.type) == optional_type(table, column.name)
    key = DatasetColumn(name="block_number", type="bigint")
    declared = table_schema((key, column), ["block_number"]).columns[1]
    assert (declared.type, declared.nested) == (ColumnType.JSON, column.type)
    assert str(declared_type(declared)) == column.type


@pytest.mark.parametrize("kind", ["array<double>", "map<string,bigint>", "struct<a:array<string>>", "array<nothing>"])
def test_values_that_json_does_not_keep_have_no_table(kind: str) -> None:
    columns = (DatasetColumn(name="block_number", type="bigint"), DatasetColumn(name="values", type=kind))
    with pytest.raises(KeyError):
        table_schema(columns, ["block_number"])


def schema_with(nested: str | None) -> Schema:
    key = Column(name="block_number", type=ColumnType.INT64, nullable=False)
    return Schema(columns=(key, Column(name="entries", type=ColumnType.JSON, nested=nested)), unique=("block_number",))


@pytest.mark.parametrize(("before", "after"), [(None, ENTRIES), (ENTRIES, None), (ENTRIES, "array<binary>")])
def test_a_column_keeps_what_it_holds(before: str | None, after: str | None) -> None:
    (refusal,) = plan_table(schema_with(before), schema_with(after)).refusals
    assert f"is {before or 'json'} and cannot become {after or 'json'}" in refusal.text
    assert not plan_table(schema_with(before), schema_with(before)).refusals


@pytest.mark.parametrize(
    "values",
    [pa.array([[1]], pa.list_(pa.int64())), pa.array([5]), pa.array(["[]"]), pa.array([[{"number": 1}]])],
    ids=["items", "number", "text", "fields"],
)
def test_rows_of_another_type_are_refused(values: pa.Array) -> None:
    table = direct_table(schema_with(ENTRIES))
    rows = pa.RecordBatch.from_pydict({"block_number": pa.array([1], pa.int64()), "entries": values})
    change = RangeReplacement(1, 1, {table.dataset_uuid: [rows]})
    with pytest.raises(RowsRefusedError, match="do not fit array<struct"):
        fit_rows(table, [rows], change)

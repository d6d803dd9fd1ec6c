"""What a config of `block_follower` may say of columns and filters, and the tables that follow from it."""

from typing import Any

import pytest

from tracelake.catalogue import read_config
from tracelake.catalogue.block_follower import BlockFollowerConfig
from tracelake.catalogue.evm import CHAIN_PRESETS, EvmIngestConfig
from tracelake.catalogue.evm_columns import EVM_OPTIONAL_COLUMNS, EVM_TABLES
from tracelake.errors import TraceError
from tracelake.model.dag import ColumnType

ADDRESS = "0x" + "ab" * 20
FILTER = {"addresses": [ADDRESS]}


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ({"filter": {"addresses": [ADDRESS]}}, "tables", "all blocks"),
        ({"tables": ["blocks"], "filter": {"addresses": [ADDRESS]}}, "tables", "all blocks"),
        ({"tables": ["blocks", "logs"], "filter": {}}, "filter", "every log"),
        ({"tables": ["blocks", "logs"], "filter": {"topics": [None]}}, "filter", "every log"),
        (
            {"tables": ["blocks", "logs"], "filter": {"addresses": [ADDRESS], "chunk_blocks": 5}},
            "filter",
            "chunk_blocks",
        ),
        ({"tables": ["blocks", "logs"], "filter": FILTER, "chain_kind": "cronos"}, "chain_kind", "renumber"),
        ({"tables": ["blocks", "logs"], "filter": FILTER, "log_index": "renumber"}, "log_index", "renumber"),
        ({"missing_fields": "drop"}, "missing_fields", "there is no `drop`"),
        ({"verify": "root"}, "verify", "there is no `root`"),
        ({"verify": "roots", "chain_kind": "op_stack"}, "verify", "rules of Ethereum"),
        ({"verify": "roots", "phantom_transactions": "drop"}, "verify", "rules of Ethereum"),
        ({"verify": "roots", "tables": ["blocks", "logs"], "filter": FILTER}, "verify", "all logs of a block"),
        ({"columns": {"logs": ["timestamps"]}}, "columns.logs[0]", "no optional column"),
        ({"tables": ["blocks"], "columns": {"logs": ["timestamp"]}}, "columns.logs", "none of the `tables`"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_field(config: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        read_config("block_follower", {"chain_id": 1, **config})
    assert (caught.value.code, caught.value.details["field"]) == ("job_invalid", f"config.{field}")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"chain_kind": "polygon"}, "rules of Ethereum"),
        ({"log_index": "as_given"}, "rules of Ethereum"),
        ({"tables": ["logs"], "filter": FILTER}, "all logs of a block"),
    ],
)
def test_roots_that_cannot_be_computed_are_refused_for_evm_ingest_too(config: dict[str, Any], words: str) -> None:
    with pytest.raises(TraceError, match=words) as caught:
        read_config("evm_ingest", {"chain_id": 1, "verify": "roots", **config})
    assert (caught.value.code, caught.value.details["field"]) == ("job_invalid", "config.verify")
    assert read_config("evm_ingest", {"chain_id": 1, "verify": "hashes", **config})
    assert read_config("evm_ingest", {"chain_id": 1, "verify": "roots", "log_index": "strict"})


def test_deviations_mean_what_they_mean_for_evm_ingest() -> None:
    deviations = {"log_index": "as_given", "phantom_transactions": "drop", "missing_fields": "null"}
    kinds: list[dict[str, Any]] = [{}, {"chain_kind": "cronos"}, {"chain_kind": "tempo", "missing_fields": "fail"}]
    for config in [*kinds, deviations, {"chain_kind": "cronos", "log_index": "strict"}]:
        follower, ingest = (read_config(name, {"chain_id": 1, **config}) for name in ("block_follower", "evm_ingest"))
        assert isinstance(follower, BlockFollowerConfig)
        assert isinstance(ingest, EvmIngestConfig)
        assert follower.preset == ingest.preset
        assert follower.preset.log_index == config.get("log_index", CHAIN_PRESETS[follower.chain_kind].log_index)
    filtered = {"tables": ["blocks", "logs"], "filter": FILTER, "chain_kind": "cronos", "log_index": "as_given"}
    assert read_config("block_follower", {"chain_id": 1, **filtered})


def test_tables_have_the_chosen_columns_behind_the_others() -> None:
    config = read_config("block_follower", {"chain_id": 1, "columns": {"transactions": ["l1_fee", "timestamp"]}})
    schema = config.table(1)
    assert schema is not None
    assert [(column.name, column.type) for column in schema.columns[-2:]] == [
        ("timestamp", ColumnType.INT64),
        ("l1_fee", ColumnType.DECIMAL),
    ]
    result = config.result(1, ())
    assert result is not None
    assert [column.name for column in result.columns.columns] == [column.name for column in schema.columns]
    plain = read_config("block_follower", {"chain_id": 1}).table(1)
    assert plain is not None
    assert [column.name for column in plain.columns] == [column.name for column in schema.columns[:-2]]


def test_every_optional_column_can_be_chosen() -> None:
    columns = {table: [column.name for column in EVM_OPTIONAL_COLUMNS[table]] for table in EVM_TABLES}
    config = read_config("block_follower", {"chain_id": 1, "columns": columns})
    for index, table in enumerate(EVM_TABLES):
        schema = config.table(index)
        assert schema is not None
        assert {*columns[table]} <= {column.name for column in schema.columns}
        lists = {column.name: column.type for column in EVM_OPTIONAL_COLUMNS[table] if "<" in column.type}
        assert {column.name: column.nested for column in schema.columns if column.nested} == lists
        assert all(column.type is ColumnType.JSON for column in schema.columns if column.nested)

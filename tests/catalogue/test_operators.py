"""The operator registry refuses what an operator could not use, and says where."""

import re
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from tracelake.catalogue import (
    CATALOGUE,
    NoopConfig,
    OperatorSpec,
    RangeSplitterConfig,
    SleepConfig,
    UdfConfig,
    read_config,
)
from tracelake.catalogue.evm import CHAIN_PRESETS, ChainPreset, EvmIngestConfig
from tracelake.catalogue.evm_columns import EVM_COLUMNS, EVM_INGEST_TABLES, EVM_OPTIONAL_COLUMNS
from tracelake.catalogue.integrity import FINDING_COLUMNS, IntegrityCheck
from tracelake.errors import TraceError
from tracelake.spark import chain_checks
from tracelake.spark.evm.tables import SCHEMAS, TRACES, schema_of
from tracelake.spark.integer_types import signed
from tracelake.spark.operators import OPERATORS as SPARK_OPERATORS
from tracelake.worker.feeds import FEEDS


def test_names_are_their_keys_and_every_operator_has_a_summary() -> None:
    assert all(name == spec.name and spec.summary for name, spec in CATALOGUE.items())


@pytest.mark.parametrize(
    ("operator", "config"),
    [
        ("decode_logs", {}),
        ("decode_logs", {"events": ["erc20.Approval", "Note(string memo)"], "addresses": ["0x" + "Ab" * 20]}),
        ("decode_logs", {"events": [{"type": "event", "name": "A", "inputs": [{"name": "x", "type": "uint8[]"}]}]}),
        ("integrity_check", {"fail_on": "warning"}),
        ("spark_sql", {"query": "SELECT * FROM transfers"}),
        (
            "spark_sql",
            {"query": "SELECT 1 AS a FROM t", "inputs": {"t": 1}, "files": 64, "order_by": [], "unique": ["a"]},
        ),
        ("noop", {}),
        ("sleep", {"seconds": 0}),
        ("sleep", {"seconds": 1.5, "fail_attempts": 2}),
        ("range_splitter", {"size": 1}),
        ("range_splitter", {"size": 1000, "align": False}),
        ("range_aggregator", {"size": 2**62}),
        ("evm_ingest", {"chain_id": 1}),
        ("cryo_ingest", {"chain_id": 10, "tables": ["logs"], "rpc": "archive", "max_requests_per_second": 0.5}),
        ("evm_ingest", {"chain_id": 1, "max_calls_per_second": 25}),
        ("block_follower", {"chain_id": 1}),
        ("block_follower", {"chain_id": 10, "tables": ["logs", "blocks"], "start": 0, "max_reorg_depth": 7}),
        ("parquet_compact", {}),
        ("parquet_compact", {"tables": ["logs", "blocks"], "columns": {"blocks": ["size"]}, "chunk_blocks": 1000}),
        ("ticker", {"seconds": 0.01}),
        ("ticker", {"seconds": 12, "start": 100, "ticks": 5}),
        ("udf", {}),
        ("udf", {"anything": [1, {"a": None}]}),
    ],
)
def test_good_configs(operator: str, config: dict[str, Any]) -> None:
    read_config(operator, config)


def test_a_config_is_read_with_its_defaults() -> None:
    assert read_config("sleep", {"seconds": 3}) == SleepConfig(seconds=3.0, fail_attempts=0)
    assert read_config("range_splitter", {"size": 3}) == RangeSplitterConfig(size=3, align=True)
    assert read_config("udf", {"values": 3}) == UdfConfig(values={"values": 3})


@pytest.mark.parametrize(
    ("operator", "runtimes"),
    [
        ("evm_ingest", {"ecs_platform"}),
        ("decode_logs", {"ecs_platform"}),
        ("integrity_check", {"ecs_platform"}),
        ("parquet_compact", {"ecs_platform"}),
        ("spark_sql", {"ecs_platform"}),
        ("noop", {"dispatcher", "lambda", "ecs_platform", "one_of_your_own"}),
        ("range_aggregator", {"dispatcher"}),
        ("range_splitter", {"dispatcher"}),
        ("sleep", {"ecs_platform"}),
        ("ticker", {"ecs_platform"}),
        ("udf", {"lambda"}),
    ],
)
def test_where_operators_run(operator: str, runtimes: set[str]) -> None:
    known = {"dispatcher", "lambda", "ecs_platform", "one_of_your_own"}
    assert {runtime for runtime in known if CATALOGUE[operator].runs_on(runtime)} == runtimes


def test_the_dispatcher_runs_control_operators_alone() -> None:
    spec = OperatorSpec("copy", NoopConfig, "Everywhere, but it is no control operator.")
    assert spec.runs_on("lambda")
    assert not spec.runs_on("dispatcher")


def test_what_needs_a_function_in_the_worker() -> None:
    assert {name for name, spec in CATALOGUE.items() if spec.for_workers} == {
        "block_follower",
        "noop",
        "sleep",
        "ticker",
        *FEEDS,
        *SPARK_OPERATORS,
    }


@pytest.mark.parametrize(
    ("operator", "config", "field"),
    [
        ("unheard_of", {}, "operator"),
        ("noop", {"extra": 1}, "config"),
        ("sleep", {}, "config"),
        ("sleep", {"seconds": -1}, "config.seconds"),
        ("sleep", {"seconds": "1"}, "config.seconds"),
        ("sleep", {"seconds": True}, "config.seconds"),
        ("sleep", {"seconds": float("nan")}, "config.seconds"),
        ("sleep", {"seconds": float("inf")}, "config.seconds"),
        ("sleep", {"seconds": 1, "fail_attempts": -1}, "config.fail_attempts"),
        ("sleep", {"seconds": 1, "fail_attempts": 0.5}, "config.fail_attempts"),
        ("ticker", {}, "config"),
        ("ticker", {"seconds": 0}, "config.seconds"),
        ("ticker", {"seconds": 1, "start": -1}, "config.start"),
        ("ticker", {"seconds": 1, "ticks": 0}, "config.ticks"),
        ("block_follower", {"chain_id": 1, "rpc": "https://node/key"}, "config.rpc"),
        ("block_follower", {"chain_id": 1, "tables": ["logs"]}, "config.tables"),
        ("block_follower", {"chain_id": 1, "tables": ["blocks", "blocks"]}, "config.tables"),
        ("block_follower", {"chain_id": 1, "poll_min_seconds": 20}, "config.poll_min_seconds"),
        ("block_follower", {"chain_id": 1, "max_reorg_depth": 0}, "config.max_reorg_depth"),
        ("evm_ingest", {}, "config"),
        ("evm_ingest", {"chain_id": 0}, "config.chain_id"),
        ("evm_ingest", {"chain_id": 1, "tables": []}, "config.tables"),
        ("evm_ingest", {"chain_id": 1, "tables": ["logs", "logs"]}, "config"),
        ("evm_ingest", {"chain_id": 1, "tables": ["uncles"]}, "config.tables[0]"),
        ("evm_ingest", {"chain_id": 1, "columns": {"uncles": []}}, "config.columns"),
        ("evm_ingest", {"chain_id": 1, "columns": {"logs": [7]}}, "config.columns.logs[0]"),
        ("evm_ingest", {"chain_id": 1, "rpc": "https://node/key"}, "config.rpc"),
        ("evm_ingest", {"chain_id": 1, "rpc": "Archive"}, "config.rpc"),
        ("evm_ingest", {"chain_id": 1, "rpc": "archive\n"}, "config.rpc"),
        ("evm_ingest", {"chain_id": 1, "rpc": "a" * 64}, "config.rpc"),
        ("evm_ingest", {"chain_id": 1, "max_requests_per_second": 0}, "config.max_requests_per_second"),
        ("evm_ingest", {"chain_id": 1, "max_calls_per_second": 0}, "config.max_calls_per_second"),
        ("evm_ingest", {"chain_id": 1, "max_calls_per_second": "fast"}, "config.max_calls_per_second"),
        ("evm_ingest", {"chain_id": 1, "endpoint": "x"}, "config"),
        ("decode_logs", {"events": ["erc20.Mint"]}, "config"),
        ("parquet_compact", {"tables": ["logs"]}, "config.tables"),
        ("parquet_compact", {"tables": ["blocks", "blocks"]}, "config"),
        ("parquet_compact", {"chunk_blocks": 0}, "config.chunk_blocks"),
        ("decode_logs", {"events": ["event A(uint7 x)"]}, "config"),
        ("decode_logs", {"events": [""]}, "config.events[0]"),
        ("decode_logs", {"addresses": ["0x12"]}, "config.addresses[0]"),
        ("integrity_check", {"fail_on": "sometimes"}, "config.fail_on"),
        ("integrity_check", {"ignore": ["everything"]}, "config.ignore[0]"),
        ("evm_ingest", {"chain_id": 1, "chain_kind": "solana"}, "config.chain_kind"),
        ("evm_ingest", {"chain_id": 1, "log_index": "loose"}, "config.log_index"),
        ("evm_ingest", {"chain_id": 1, "phantom_transactions": "keep"}, "config.phantom_transactions"),
        (
            "evm_ingest",
            {"chain_id": 1, "tables": ["logs"], "filter": {"addresses": ["0x12"]}},
            "config.filter.addresses[0]",
        ),
        ("evm_ingest", {"chain_id": 1, "tables": ["logs"], "filter": {"topics": ["0x12"]}}, "config.filter.topics[0]"),
        ("evm_ingest", {"chain_id": 1, "tables": ["logs"], "filter": {"topics": [[]]}}, "config.filter.topics[0]"),
        ("evm_ingest", {"chain_id": 1, "tables": ["logs"], "filter": {"events": []}}, "config.filter"),
        ("range_splitter", {}, "config"),
        ("range_splitter", {"size": 0}, "config.size"),
        ("range_splitter", {"size": 10, "align": 1}, "config.align"),
        ("range_aggregator", {"size": 2**63}, "config.size"),
        ("range_aggregator", {"size": 10, "align": True}, "config"),
    ],
)
def test_bad_configs(operator: str, config: dict[str, Any], field: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_config(operator, config)
    assert (caught.value.code, caught.value.details) == ("job_invalid", {"field": field})


@pytest.mark.parametrize(
    ("operator", "config", "said"),
    [
        (
            "evm_ingest",
            {"chain_id": 1, "rpc": "https://node.example/KEY"},
            "it must be a name like `archive`, not an address: addresses go to TRACE_RPC_<NAME> or HOME/rpc.toml,"
            " never into a DAG",
        ),
        (
            "evm_ingest",
            {"chain_id": 1, "tables": ["blocks", "uncles"]},
            "there is no `uncles`; there are `blocks`, `transactions`, `logs`, `traces`",
        ),
        ("evm_ingest", {"chain_id": 1, "tables": []}, "its length must be at least 1"),
        ("evm_ingest", {"chain_id": 1, "columns": {"logs": ["data"]}}, "`logs` has `data` in any case"),
        ("evm_ingest", {"chain_id": 1, "columns": {"blocks": ["size", "size"]}}, "`size` is there twice"),
        (
            "evm_ingest",
            {"chain_id": 1, "tables": ["logs"], "columns": {"blocks": ["size"]}},
            "`blocks` is none of the `tables`, so it has no columns",
        ),
        (
            "parquet_compact",
            {"tables": ["blocks"], "columns": {"logs": ["timestamp"]}},
            "`logs` is none of the `tables`, so it has no columns",
        ),
        ("parquet_compact", {"columns": {"blocks": ["sizes"]}}, "`blocks` has no optional column 'sizes'"),
        ("integrity_check", {"fail_on": "no"}, "there is no `no`; there are `error`, `warning`, `never`"),
    ],
)
def test_what_is_said_of_likely_mistakes(operator: str, config: dict[str, Any], said: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_config(operator, config)
    assert caught.value.message == f"The config of {operator} is not valid: {said}."


@given(
    operator=st.sampled_from([*CATALOGUE, "other"]),
    config=st.dictionaries(
        st.sampled_from(["seconds", "fail_attempts"]) | st.text(max_size=3),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.lists(st.integers()),
    ),
)
def test_nothing_but_job_invalid(operator: str, config: dict[str, Any]) -> None:
    try:
        read_config(operator, config)
    except TraceError as error:
        code = error.code
    else:
        code = "job_invalid"
    assert code == "job_invalid"


def test_known_columns_are_those_that_are_written() -> None:
    declared = {name: [(column.name, column.type) for column in columns] for name, columns in EVM_COLUMNS.items()}
    assert {name: _as_queries_see(schema) for name, schema in {**SCHEMAS, "traces": TRACES}.items()} == declared
    for table, columns in EVM_OPTIONAL_COLUMNS.items():
        names = [column.name for column in columns]
        config = read_config("evm_ingest", {"chain_id": 1, "columns": {table: names[::-1]}})
        result = config.result(EVM_INGEST_TABLES.index(table), [])
        assert result is not None
        declared_columns = [(column.name, column.type) for column in result.columns.columns]
        assert _as_queries_see(schema_of(table, names)) == declared_columns
    findings = [(column.name, column.type) for column in FINDING_COLUMNS.columns]
    assert _as_queries_see(chain_checks.FINDINGS) == findings


def _as_queries_see(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in from_arrow_schema(signed(schema)).fields]


def test_checks_that_can_be_ignored_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operators" / "integrity_check.md").read_text()
    rows = page.partition("## The checks")[2].partition("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)) == sorted(get_args(IntegrityCheck))


def test_kinds_of_chains_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operators" / "evm_ingest.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert {kind: ChainPreset(*rules) for kind, *rules in rows if kind != "chain_kind"} == CHAIN_PRESETS


ADDRESS, TOPIC = "0x" + "ab" * 20, "0x" + "cd" * 32


@pytest.mark.parametrize(
    ("config", "field", "hint"),
    [
        ({"filter": {}}, "filter", "Name addresses or topics, or leave it out."),
        ({"filter": {"topics": [None]}}, "filter", "Name addresses or topics, or leave it out."),
        ({"filter": {"topics": [TOPIC, None]}}, "filter.topics", "Leave it out."),
        ({"filter": {"addresses": [ADDRESS]}, "tables": ["logs", "transactions"]}, "tables", "Use `tables: [logs]`."),
        ({"filter": {"addresses": [ADDRESS]}, "tables": ["blocks"]}, "tables", "Use `tables: [logs]`."),
        ({"filter": {"addresses": [ADDRESS]}, "chain_kind": "cronos"}, "chain_kind", "Use `log_index: as_given`."),
        ({"filter": {"addresses": [ADDRESS]}, "log_index": "renumber"}, "log_index", "Use `log_index: as_given`."),
        ({"filter": {"topics": [TOPIC]}, "chunk_blocks": 7}, "chunk_blocks", "Use `filter: {chunk_blocks: ...}`."),
    ],
)
def test_filters_that_cannot_be_read(config: dict[str, Any], field: str, hint: str) -> None:
    with pytest.raises(TraceError) as caught:
        read_config("evm_ingest", {"chain_id": 1, "tables": ["logs"], **config})
    assert caught.value.details == {"field": f"config.{field}", "suggestion": hint}


def test_filters_in_short_and_long_form() -> None:
    config = {"filter": {"addresses": [ADDRESS], "topics": [TOPIC, None, [TOPIC, "0x" + "00" * 32]]}}
    read_from = read_config("evm_ingest", {"chain_id": 1, "tables": ["logs", "blocks"], **config})
    assert isinstance(read_from, EvmIngestConfig)
    assert read_from.filter is not None
    assert read_from.filter.topic_choices() == ((TOPIC,), (), (TOPIC, "0x" + "00" * 32))
    assert read_from.blocks_per_chunk == 10_000

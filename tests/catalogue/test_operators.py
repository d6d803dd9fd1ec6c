"""The operator registry refuses what an operator could not use, and says where."""

from typing import Any

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
from tracelake.catalogue.evm import EVM_COLUMNS
from tracelake.catalogue.integrity import FINDING_COLUMNS
from tracelake.errors import TraceError
from tracelake.spark import chain_checks
from tracelake.spark.evm.tables import SCHEMAS
from tracelake.spark.operators import OPERATORS as SPARK_OPERATORS
from tracelake.spark.reader import signed
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
        ("evm_ingest", {}, "config"),
        ("evm_ingest", {"chain_id": 0}, "config.chain_id"),
        ("evm_ingest", {"chain_id": 1, "tables": []}, "config.tables"),
        ("evm_ingest", {"chain_id": 1, "tables": ["logs", "logs"]}, "config"),
        ("evm_ingest", {"chain_id": 1, "tables": ["traces"]}, "config.tables[0]"),
        ("evm_ingest", {"chain_id": 1, "rpc": "https://node/key"}, "config.rpc"),
        ("evm_ingest", {"chain_id": 1, "rpc": "Archive"}, "config.rpc"),
        ("evm_ingest", {"chain_id": 1, "rpc": "archive\n"}, "config.rpc"),
        ("evm_ingest", {"chain_id": 1, "rpc": "a" * 64}, "config.rpc"),
        ("evm_ingest", {"chain_id": 1, "max_requests_per_second": 0}, "config.max_requests_per_second"),
        ("evm_ingest", {"chain_id": 1, "max_calls_per_second": 0}, "config.max_calls_per_second"),
        ("evm_ingest", {"chain_id": 1, "max_calls_per_second": "fast"}, "config.max_calls_per_second"),
        ("evm_ingest", {"chain_id": 1, "endpoint": "x"}, "config"),
        ("decode_logs", {"events": ["erc20.Mint"]}, "config"),
        ("decode_logs", {"events": ["event A(uint7 x)"]}, "config"),
        ("decode_logs", {"events": [""]}, "config.events[0]"),
        ("decode_logs", {"addresses": ["0x12"]}, "config.addresses[0]"),
        ("integrity_check", {"fail_on": "sometimes"}, "config.fail_on"),
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
            {"chain_id": 1, "tables": ["blocks", "traces"]},
            "there is no `traces`; there are `blocks`, `transactions`, `logs`",
        ),
        ("evm_ingest", {"chain_id": 1, "tables": []}, "its length must be at least 1"),
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
    assert {name: _as_queries_see(schema) for name, schema in SCHEMAS.items()} == declared
    findings = [(column.name, column.type) for column in FINDING_COLUMNS.columns]
    assert _as_queries_see(chain_checks.FINDINGS) == findings


def _as_queries_see(schema: pa.Schema) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in from_arrow_schema(signed(schema)).fields]

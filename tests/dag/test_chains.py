"""`chains` of a document: what it stands for, and where its problems are."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.dag.support import problems_of, read
from tracelake.catalogue.evm_columns import EVM_OPTIONAL_COLUMNS
from tracelake.model.dag import Dag

FILTER = '{addresses: ["0xabababababababababababababababababababab"]}'
EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = """
name: mainnet
chains:
  - {name: eth, chain_id: 1, start: 0, unit_blocks: 500, publish: {blocks: eth_blocks, logs: eth_logs}}
"""
LONG = """
name: mainnet
defaults: {runtime: ecs_platform}
jobs:
  - name: eth_head
    activation: source
    source: {kind: always_on}
    operator: block_follower
    outputs: 4
    config: {chain_id: 1, start: 0, tables: [blocks, logs], unit_blocks: 500}
  - name: eth_ranges
    activation: reactive
    runtime: dispatcher
    operator: range_splitter
    config: {size: 500, align: true}
    inputs: [{from: {job: eth_head, output_index: 2}}]
  - name: eth_history
    activation: reactive
    operator: evm_ingest
    execution_strategy: PerPartition
    outputs: 2
    config: {chain_id: 1, tables: [blocks, logs]}
    inputs: [{from: {job: eth_ranges}}]
  - name: eth_compact
    activation: reactive
    operator: parquet_compact
    execution_strategy: PerPartition
    outputs: 2
    config: {tables: [blocks, logs]}
    inputs: [{from: {job: eth_head, output_index: 3}}]
publish:
  eth_blocks:
    from: [{job: eth_head}, {job: eth_history}, {job: eth_compact}]
    storage: live
  eth_logs:
    from: [{job: eth_head, output_index: 1}, {job: eth_history, output_index: 1}, {job: eth_compact, output_index: 1}]
    storage: live
"""


def test_a_chain_is_what_its_jobs_are() -> None:
    assert read(SHORT) == read(LONG)


def configs_of(chain: str) -> dict[str, dict[str, Any]]:
    dag = read(f"\nname: mainnet\nchains:\n  - {chain}\n")
    return {job.name.removeprefix("eth_"): json.loads(json.dumps(job.config)) for job in dag.jobs}


def test_how_nodes_are_read_is_the_same_for_the_head_and_for_history() -> None:
    reading = {
        "rpc": "archive",
        "batch_size": 7,
        "max_requests_per_second": 2.5,
        "max_calls_per_second": 40,
        "retry_seconds": 60,
        "log_index": "as_given",
        "phantom_transactions": "drop",
        "missing_fields": "null",
    }
    configs = configs_of(f"{{name: eth, chain_id: 1, chunk_blocks: 50, {flow(reading)}}}")
    for job in ("head", "history"):
        assert {name: configs[job].get(name) for name in reading} == reading
    assert (configs["history"]["chunk_blocks"], configs["compact"]["chunk_blocks"]) == (50, 50)
    assert not configs["compact"].keys() & reading.keys()


def test_the_head_and_history_of_a_chain_are_verified_alike() -> None:
    configs = configs_of("{name: eth, chain_id: 1, verify: roots}")
    assert {job: config.get("verify") for job, config in configs.items() if "verify" in config} == {
        "head": "roots",
        "history": "roots",
    }


def test_tables_of_a_chain_may_have_columns_of_lists() -> None:
    dag = read("\nname: mainnet\nchains:\n  - {name: eth, chain_id: 1, columns: {blocks: [withdrawals]}}\n")
    (blocks,) = (publish for publish in dag.publish if publish.name == "blocks")
    assert blocks.schema is not None
    column = blocks.schema.column("withdrawals")
    assert column is not None
    assert column.nested == next(item.type for item in EVM_OPTIONAL_COLUMNS["blocks"] if item.name == "withdrawals")


def flow(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {json.dumps(value)}" for name, value in values.items())


@pytest.mark.parametrize(("own", "chunk"), [("", 10_000), (", chunk_blocks: 20", 20)])
def test_a_filtered_chain_has_all_blocks_on_both_sides_of_the_boundary(own: str, chunk: int) -> None:
    chain = f"{{name: eth, chain_id: 1, filter: {FILTER}{own}}}"
    configs = configs_of(chain)
    addresses = ["0x" + "ab" * 20]
    assert configs["head"]["filter"] == {"addresses": addresses}
    assert configs["history"]["filter"] == {"addresses": addresses, "blocks": "all", "chunk_blocks": chunk}
    assert "filter" not in configs["compact"]
    assert configs["compact"]["chunk_blocks"] == chunk
    assert {",".join(configs[job]["tables"]) for job in ("head", "history", "compact")} == {"blocks,logs"}
    dag = read(f"\nname: mainnet\nchains:\n  - {chain}\n")
    assert {publish.name for publish in dag.publish} == {"blocks", "logs"}


def names(dag: Dag) -> list[str]:
    return sorted(job.name for job in dag.jobs)


def test_other_jobs_read_its_datasets() -> None:
    reader = """
jobs:
  - name: sums
    activation: reactive
    runtime: ecs_platform
    operator: spark_sql
    units: {by: blocks, size: 100, when: updated}
    config: {query: SELECT count(*) AS blocks FROM eth_blocks}
    inputs: [{from: {dataset: eth_blocks}}]
publish: {sums: {from: {job: sums}, storage: s3}}
"""
    dag = read(SHORT + reader)
    assert names(dag) == ["eth_compact", "eth_head", "eth_history", "eth_ranges", "sums"]
    assert {publish.name for publish in dag.publish} == {"eth_blocks", "eth_logs", "sums"}


@pytest.mark.parametrize(
    ("chain", "code", "line"),
    [
        ("{name: eth}", "missing_field", 4),
        ("{name: eth, chain_id: none}", "wrong_type", 4),
        ("{name: eth, chain_id: 1, unit_blocks: 0}", "out_of_range", 4),
        ("{name: eth, chain_id: 1, publish: {block: x}}", "unknown_field", 4),
        ("{name: eth, chain_id: 1, publish: {logs: eth_logs}}", "config_invalid", 4),
        ("{name: eth, chain_id: 1, columns: {blocks: [nothing]}}", "config_invalid", 4),
        ("{name: eth, chain_id: 1, chain_kind: moon}", "config_invalid", 4),
        ("{name: eth, chain_id: 1, log_index: moon}", "unknown_value", 4),
        ("{name: eth, chain_id: 1, verify: moon}", "unknown_value", 4),
        ("{name: eth, chain_id: 1, verify: roots, chain_kind: polygon}", "config_invalid", 4),
        (f"{{name: eth, chain_id: 1, verify: roots, filter: {FILTER}}}", "config_invalid", 4),
        ("{name: eth, chain_id: 1, max_calls_per_second: 0}", "out_of_range", 4),
        ("{name: eth, chain_id: 1, max_requests_per_second: many}", "wrong_type", 4),
        ("{name: eth, chain_id: 1, filter: {}}", "config_invalid", 4),
        ("{name: eth, chain_id: 1, filter: {blocks: with_logs}}", "config_invalid", 4),
        (f"{{name: eth, chain_id: 1, filter: {FILTER}, chain_kind: cronos}}", "config_invalid", 4),
        (f"{{name: eth, chain_id: 1, filter: {FILTER}, publish: {{blocks: b}}}}", "invalid_value", 4),
        (f"{{name: eth, chain_id: 1, filter: {FILTER}, publish: {{blocks: b, transactions: t}}}}", "invalid_value", 4),
    ],
)
def test_a_problem_is_shown_where_the_chain_is(chain: str, code: str, line: int) -> None:
    problems = problems_of(f"\nname: mainnet\nchains:\n  - {chain}\n")
    assert problems
    assert {problem.code for problem in problems} == {code}
    assert {problem.line for problem in problems} == {line}


def test_a_name_that_the_document_has_already_is_a_problem() -> None:
    taken = "publish: {eth_logs: {from: {job: j}, storage: none}}\n"
    jobs = "jobs:\n  - {name: j, activation: source, source: {kind: manual}}\n"
    (problem,) = problems_of(SHORT + jobs + taken)
    assert problem.code == "duplicate_publish"
    assert problem.line == 4


def test_a_document_needs_jobs_or_chains() -> None:
    (problem,) = problems_of("name: empty\n")
    assert problem.code == "missing_field"


def test_a_chain_beside_jobs_that_are_no_list_is_one_problem() -> None:
    (problem,) = problems_of(SHORT + "jobs: 5\n")
    assert problem.code == "wrong_type"


@pytest.mark.parametrize(
    ("query", "entry"),
    [
        ("SELECT gas_limit FROM blocks", "columns: {blocks: [gas_limit]}"),
        ("SELECT t.V FROM transactions t JOIN blocks b USING (block_number)", "columns: {transactions: [v]}"),
        ("SELECT v FROM blocks", None),
    ],
)
def test_a_query_of_an_optional_column_is_told_how_to_have_it(query: str, entry: str | None) -> None:
    document = f"""
name: d
chains:
  - {{name: eth, chain_id: 1, start: 0}}
jobs:
  - name: gas
    activation: reactive
    runtime: ecs_platform
    operator: spark_sql
    execution_strategy: PerPartition
    inputs: [{{from: {{dataset: blocks}}}}, {{from: {{dataset: transactions}}}}]
    config: {{query: "{query}"}}
"""
    (problem,) = problems_of(document)
    assert problem.code == "unknown_column"
    if entry is None:
        assert "optional" not in problem.suggestion
    else:
        advice = f"It is an optional column: add it to the chain, or to `config` of evm_ingest, as `{entry}`."
        assert problem.suggestion == advice

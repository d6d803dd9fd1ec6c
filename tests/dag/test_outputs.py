"""A job has no outputs that its operator does not write, and those that it cannot do without."""

import pytest

from tests.dag.support import HEAD, TICK, problems_of


def job(operator: str, rest: str) -> str:
    fields = "activation: reactive, runtime: ecs_platform, inputs: [{from: {job: tick}}]"
    return f"{HEAD}{TICK}- {{name: w, {fields}, operator: {operator}{rest}}}\n"


@pytest.mark.parametrize(
    ("operator", "rest"),
    [
        ("evm_ingest", ", config: {chain_id: 1}"),
        ("evm_ingest", ", config: {chain_id: 1}, outputs: 3"),
        ("cryo_ingest", ", config: {chain_id: 1, tables: [logs, blocks]}, outputs: 2"),
        ("decode_logs", ""),
        ("decode_logs", ", config: {keep_other: true}, outputs: 2"),
        ("integrity_check", ""),
        ("spark_sql", ", config: {query: SELECT 1 AS n}"),
        ("noop", ", outputs: 9"),
        ("sleep", ", config: {seconds: 1}, outputs: 0"),
    ],
)
def test_jobs_with_as_many_outputs_as_their_operator_writes_or_fewer(operator: str, rest: str) -> None:
    assert problems_of(job(operator, rest)) == []


@pytest.mark.parametrize(
    ("operator", "rest", "path", "message", "suggestion"),
    [
        (
            "evm_ingest",
            ", config: {chain_id: 1, tables: [logs]}, outputs: 3",
            "outputs",
            "evm_ingest writes 1 table (`tables: [logs]`) and the job has `outputs: 3`.",
            "Use `outputs: 1`.",
        ),
        (
            "cryo_ingest",
            ", config: {chain_id: 1}, outputs: 5",
            "outputs",
            "cryo_ingest writes 4 tables and the job has `outputs: 5`.",
            "Use `outputs: 4`.",
        ),
        (
            "decode_logs",
            ", outputs: 3",
            "outputs",
            "decode_logs writes 2 tables and the job has `outputs: 3`.",
            "Use `outputs: 2`.",
        ),
        (
            "decode_logs",
            ", config: {keep_other: true}",
            "config.keep_other",
            "decode_logs writes 2 tables (`keep_other: true`) and the job has `outputs: 1`.",
            "Use `outputs: 2`.",
        ),
        (
            "integrity_check",
            ", outputs: 0",
            "outputs",
            "integrity_check writes 1 table and the job has `outputs: 0`.",
            "Use `outputs: 1`.",
        ),
        (
            "spark_sql",
            ", config: {query: SELECT 1 AS n}, outputs: 2",
            "outputs",
            "spark_sql writes 1 table and the job has `outputs: 2`.",
            "Use `outputs: 1`.",
        ),
    ],
)
def test_outputs_that_do_not_fit(operator: str, rest: str, path: str, message: str, suggestion: str) -> None:
    (problem,) = problems_of(job(operator, rest))
    assert (problem.code, problem.path) == ("config_invalid", f"jobs[1].{path}")
    assert (problem.message, problem.suggestion) == (message, suggestion)


def test_a_config_or_a_number_that_is_bad_itself_is_told_once() -> None:
    assert len(problems_of(job("evm_ingest", ", config: {chain_id: 0}, outputs: 4"))) == 1
    assert len(problems_of(job("evm_ingest", ", config: {chain_id: 1}, outputs: many"))) == 1


def test_an_address_in_a_config_is_not_repeated() -> None:
    (problem,) = problems_of(job("evm_ingest", ', config: {chain_id: 1, rpc: "https://node.example/KEY"}'))
    assert problem.path == "jobs[1].config.rpc"
    assert problem.message.startswith("It must be a name like `archive`, not an address: ")
    assert "KEY" not in f"{problem}"

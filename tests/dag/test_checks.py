"""Checks in documents: what they mean, and what is the same."""

from tests.dag.support import HEAD, TICK, problems_of, read
from tracelake.dag.checks import MAX_OF_JOB
from tracelake.model.dag import CheckKind, OutputCheck
from tracelake.wire.task_calls import MAX_CHECK_REPORTS

JOB = """- name: w
  activation: reactive
  runtime: ecs_platform
  operator: spark_sql
  inputs: [{from: {dataset: raw_blocks}}]
  config: {query: SELECT CAST(1 AS BIGINT) AS n FROM raw_blocks}
"""
PUBLISH = "publish:\n  made:\n    from: {job: w}\n    storage: s3\n"


def checks_of(text: str) -> tuple[OutputCheck, ...]:
    return read(text).job("w").checks


def test_a_check_of_a_dataset_is_one_of_its_job() -> None:
    of_job = HEAD + TICK + JOB + "  checks: [{not_null: n, severity: error}, {unique: [n], scope: unit}]\n" + PUBLISH
    of_dataset = HEAD + TICK + JOB + PUBLISH + "    checks: [{unique: n}, {not_null: [n]}]\n"
    assert read(of_job) == read(of_dataset)
    assert checks_of(of_job) == (
        OutputCheck(name="not_null_n", kind=CheckKind.NOT_NULL, columns=("n",)),
        OutputCheck(name="unique_n", kind=CheckKind.UNIQUE, columns=("n",)),
    )


def test_every_writer_of_a_dataset_has_its_checks() -> None:
    other = JOB.replace("name: w", "name: v")
    publish = (
        "publish:\n  made:\n    from: [{job: w}, {job: v}]\n    storage: postgres\n    write_mode: buffered\n"
        "    schema: {columns: {n: int64}, unique: [n]}\n    checks: [{range: {column: n, min: 0}}]\n"
    )
    dag = read(HEAD + TICK + JOB + other + publish)
    assert dag.job("w").checks == dag.job("v").checks
    assert [(check.name, check.min, check.max) for check in dag.job("w").checks] == [("range_n", 0, None)]


def test_an_attempt_can_report_all_checks_of_a_job() -> None:
    assert MAX_OF_JOB <= MAX_CHECK_REPORTS
    lines = [
        "\n".join(f"{indent}- {{not_null: n, name: {prefix}{number}}}" for number in range(count))
        for prefix, count, indent in (("a", 100, "    "), ("b", 100, "      "))
    ]
    text = HEAD + TICK + JOB + f"  checks:\n{lines[0]}\n" + PUBLISH + f"    checks:\n{lines[1]}\n"
    assert problems_of(text) == []


def test_freshness_of_commits_and_of_data_are_two_checks() -> None:
    checks = "[{freshness: {max_age: 1h, of: commit}}, {freshness: {max_age: 2h, of: data}}]"
    assert checks_of(HEAD + TICK + JOB + f"  checks: {checks}\n" + PUBLISH) == (
        OutputCheck(name="freshness", kind=CheckKind.FRESHNESS, max_age_seconds=3_600),
        OutputCheck(name="freshness_data", kind=CheckKind.FRESHNESS, max_age_seconds=7_200, age_of="data"),
    )

"""All problems at once, in the order of the text; and no problem that only follows from another one."""

import pytest

from tests.dag.support import GOOD, HEAD, TICK, WORK, problems_of
from tests.dag.test_reading import FULL

BROKEN = """\
name: Bad
jobz: []
defaults:
  runtime: ecs_platfrom
  priority: urgent
jobs:
  - name: tick
    activation: source
    source: {kind: cron, schedule: "0 25 * * *"}
    operator: sleep
  - name: tick
    activation: source
    source: {kind: manual, webhook_path: x}
  - name: first
    activation: reactive
    operator: nop
    timeout_seconds: 1_000
    inputs:
      - from: {job: tik}
      - from: {job: second, output_index: 4}
      - from: {dataset: alert_event}
  - name: second
    activation: reactive
    runtime: lambda
    operator: udf
    update_strategy: append
    secrets: [KEY]
    config: {flag: yes, flag: no}
    inputs:
      - from: {dataset: alert_events}
        where: {severity: 5, sevrity: low}
      - from: {dataset: out}
publish:
  out:
    from: {job: second}
    storage: s3
    write_mode: buffered
    schema:
      columns: {a: int65, b: text}
      unique: [c]
  raw_blocks:
    from: {job: second}
    storage: disk
"""


def test_everything_is_told_at_once() -> None:
    assert [(problem.line, problem.column, problem.code) for problem in problems_of(BROKEN)] == [
        (1, 7, "name_invalid"),
        (2, 1, "unknown_field"),
        (4, 12, "unknown_runtime"),
        (5, 13, "unknown_value"),
        (9, 36, "schedule_invalid"),
        (10, 15, "nothing_runs"),
        (11, 11, "duplicate_job"),
        (13, 42, "source_field"),
        (16, 15, "unknown_operator"),
        (17, 22, "wrong_type"),
        (19, 21, "unknown_job"),
        (20, 43, "unknown_output"),
        (21, 25, "unknown_dataset"),
        (25, 15, "udf_missing"),
        (26, 22, "append_without_unique_key"),
        (27, 14, "udf_secrets"),
        (28, 20, "value_ambiguous"),
        (28, 25, "duplicate_key"),
        (31, 27, "where_type"),
        (31, 39, "where_unknown_field"),
        (32, 9, "cycle"),
        (37, 17, "buffered_storage"),
        (39, 20, "unknown_value"),
        (40, 16, "unknown_column"),
        (42, 11, "duplicate_publish"),
        (43, 14, "unknown_value"),
    ]


def test_suggestions() -> None:
    said = {problem.code: problem.suggestion for problem in problems_of(BROKEN)}
    assert said["unknown_runtime"] == "Did you mean `ecs_platform`?"
    assert said["unknown_operator"] == (
        "Did you mean `noop`? Restart the stack if you have just installed its package."
    )
    assert said["unknown_job"] == "Did you mean `tick`?"
    assert said["unknown_dataset"] == "Did you mean `alert_events`?"
    assert said["where_unknown_field"] == "Did you mean `severity`?"
    assert "reactive" in said["nothing_runs"]


@pytest.mark.parametrize(
    ("text", "suggestion"),
    [
        (WORK.replace("job: tick", "job: raw_blocks"), "It is a dataset: write `from: {dataset: raw_blocks}`."),
        (WORK.replace("job: tick", "dataset: tick"), "It is a job: write `from: {job: tick}`."),
        (WORK.replace("reactive", "Reactive"), "Did you mean `reactive`?"),
        (WORK.replace("inputs", "input"), "Did you mean `inputs`?"),
        (WORK.replace("}]}", "}], execution_strategy: per_partition}"), "Did you mean `PerPartition`?"),
        ("- {name: x, activation: source, source: {kind: cron, schedule: */5 * * * *}}\n", "Quote a value that begins"),
    ],
)
def test_what_people_get_wrong(text: str, suggestion: str) -> None:
    assert any(problem.suggestion.startswith(suggestion) for problem in problems_of(HEAD + TICK + text))


@pytest.mark.parametrize(
    "change",
    [
        ("- name: score\n    activation", "- activation"),
        ("name: score\n    activation: reactive\n", "name: score\n"),
        ("  runtime: ecs_platform\n", "  runtime: [ecs_platform]\n"),
        ("name: hourly", "name: Hourly-1"),
        ("outputs: 3", "outputs: three"),
        ("    storage: postgres\n    schema", "    storage: s4\n    schema"),
        ("type: text(20) }", "type: txt(20) }"),
        ("  - name: follow\n", "  - nmae: follow\n"),
    ],
)
def test_one_mistake_is_not_ten(change: tuple[str, str]) -> None:
    assert FULL.count(change[0]) == 1
    assert 1 <= len(problems_of(FULL.replace(*change))) <= 2


def test_a_tag_or_a_bad_alias_hides_nothing_else() -> None:
    text = GOOD.replace("name: tick", "name: !!str tick").replace("operator: noop", "operator: nop") + "x: *y\n"
    assert {problem.code for problem in problems_of(text)} >= {
        "yaml_tag",
        "unknown_operator",
        "yaml_alias",
        "unknown_field",
    }


def test_texts_are_ours_and_do_not_repeat_the_path() -> None:
    document = """\
name: d
jobs:
- {name: tick, activation: source, source: {kind: manual}}
- name: work
  activation: reactive
  runtime: dispatcher
  operator: range_splitter
  config: {sze: 1, align: 3}
  priority: high
  inputs: [{from: {job: tik}, where: a > 1}]
- {name: rest, activation: reactive, runtime: ecs_platform, operator: sleep, config: {seconds: -1}}
- {name: none, activation: reactive, runtime: ecs_platform, operator: noop, config: {a: 1}, inputs: [{}]}
"""
    found = {problem.path: (problem.message, problem.suggestion) for problem in problems_of(document)}
    assert found["jobs[1].config"] == ("The field `size` is missing.", "")
    assert found["jobs[1].config.sze"] == ("There is no field `sze`.", "Did you mean `size`?")
    assert found["jobs[1].config.align"] == ("It must be true or false, not a whole number.", "")
    assert found["jobs[1].priority"] == ("It cannot be `high`. It takes `normal`, `bulk`.", "")
    assert found["jobs[1].inputs[0].from.job"][1] == "Did you mean `tick`?", "also when `where` is bad"
    assert found["jobs[2].config.seconds"][0] == "It must be at least 0."
    assert found["jobs[3].config.a"] == ("There is no field `a`.", "noop takes no config.")
    assert found["jobs[3].inputs[0].from"][0] == "`from` is missing."


def test_timeouts_are_seconds_or_durations() -> None:
    for field in ("timeout_seconds", "heartbeat_timeout_seconds"):
        for text, good in (("600", True), ("10m", True), ("7d", True), ("8d", False), ("0", False), ("soon", False)):
            document = GOOD.replace("operator: noop", f"operator: noop, {field}: {text}")
            assert document != GOOD
            assert (problems_of(document) == []) is good, text

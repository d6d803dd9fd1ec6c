"""What a deploy says of the table of a buffered dataset: where it refuses, and that rows stay."""

import pytest

from tests.dag.support import marked
from tests.support.dags import activate, deploy
from tests.support.dispatcher import DispatcherHarness
from tracelake.errors import TraceError
from tracelake.model.dag import Problem

HEAD = """\
name: d
jobs:
- {name: tick, activation: source, source: {kind: manual}}
- {name: w, activation: reactive, runtime: ecs_platform, operator: sleep, config: {seconds: 1}, inputs: [{from: {job: tick}}]}
publish:
"""  # noqa: E501 - a document

BEFORE = """\
  rows:
    from: {job: w}
    storage: postgres
    write_mode: buffered
    schema:
      columns:
      - {name: k, type: text, nullable: false}
      - {name: a, type: text, max_length: 9}
      - {name: b, type: text(9)}
      - {name: c, type: text, enum: [x]}
      unique: [k]
"""

AFTER = """\
  rows:
    from: {job: w}
    storage: postgres
    write_mode: buffered
    on_conflict: §nothing
    schema:
      columns:§
      - {name: k, type: text, nullable: false}
      - {name: a, type: text, max_length: §8}
      - {name: b, type: §text(8)}
      - {name: new, type: text, nullable: §false}
      unique: §[k, a]
"""

IN_SHORT = """\
  rows:
    from: {job: w}
    storage: postgres
    write_mode: buffered
    schema:
      columns: {k: text, §a: text(8), b: text(9), c: text}
      unique: [k]
"""


def refused(harness: DispatcherHarness, text: str) -> list[Problem]:
    """By a dry run as by a deploy."""
    found = []
    for dry_run in (True, False):
        with pytest.raises(TraceError) as error:
            deploy(harness, text, dry_run=dry_run)
        found.append(error.value.details["problems"])
    problems: list[Problem] = found[0]
    assert found[1] == problems
    assert {problem.code for problem in problems} == {"table_change"}
    return problems


def test_what_a_table_refuses_has_its_place(harness: DispatcherHarness) -> None:
    deploy(harness, HEAD + BEFORE)
    text, places = marked(HEAD + AFTER)
    found = refused(harness, text)
    schema = "publish.rows.schema"
    assert [problem.path for problem in found] == [
        "publish.rows.on_conflict",
        f"{schema}.columns",
        f"{schema}.columns[1].max_length",
        f"{schema}.columns[2].type",
        f"{schema}.columns[3].nullable",
        f"{schema}.unique",
    ]
    # A list begins with its first item.
    places[1] = (places[1][0] + 1, 7)
    assert [(problem.line, problem.column) for problem in found] == places
    text, places = marked(HEAD + IN_SHORT)
    (problem,) = refused(harness, text)
    assert (problem.path, (problem.line, problem.column)) == (f"{schema}.columns.a", places[0])
    assert problem.message.startswith("The column `a` may hold values of up to 9; it cannot become shorter.")


def test_rows_of_a_writer_that_changed_stay_on_the_way_back_too(harness: DispatcherHarness) -> None:
    stay = ["keep its rows: what `w` no longer makes stays"]
    deploy(harness, HEAD + BEFORE)
    text = HEAD.replace("seconds: 1", "seconds: 2") + BEFORE
    for reply in (deploy(harness, text, dry_run=True), deploy(harness, text), activate(harness, "d")):
        (change,) = [item for item in reply.plan.datasets if item.dataset == "rows"]
        assert (change.change, change.table) == ("unchanged", stay)
    grown = text.replace("enum: [x]", "enum: [x, y]")
    (change,) = [item for item in deploy(harness, grown).plan.datasets if item.dataset == "rows"]
    assert change.table == ["allow `y` in the column `c`", *stay]

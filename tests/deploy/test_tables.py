"""What a deploy says of the table of a buffered dataset: where it refuses, and that rows stay."""

from uuid import UUID

import msgspec
import pytest

from tests.dag.support import marked
from tests.deploy.support import say
from tests.support.dags import activate, deploy, output
from tests.support.dispatcher import DispatcherHarness
from tracelake.errors import TraceError
from tracelake.model.dag import Problem, Schema
from tracelake.wire.dags import DeployReply

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


def test_the_version_column_of_a_table_stays(harness: DispatcherHarness) -> None:
    newest = BEFORE.replace("unique: [k]", "- {name: n, type: int64, nullable: false}\n      unique: [k]").replace(
        "    schema:", "    on_conflict: {newest: n}\n    schema:"
    )
    deploy(harness, HEAD + newest)
    (kept,) = harness.sql("SELECT on_conflict, version_column FROM buffered_tables")
    assert tuple(kept) == ("newest", "n")
    assert not any(change.table for change in deploy(harness, HEAD + newest, dry_run=True).plan.datasets)
    for other, words in (("{newest: m}", "{newest: m}"), ("update", "update")):
        text = newest.replace("{newest: n}", other).replace(
            "name: c", "name: m, type: int64, nullable: false}\n      - {name: c"
        )
        assert any(
            problem.message.startswith(f"`on_conflict` is {{newest: n}} and cannot become {words}: ")
            for problem in refused(harness, HEAD + text)
        )


def row_changes(reply: DeployReply) -> list[str]:
    (change,) = [item for item in reply.plan.datasets if item.dataset == "rows"]
    assert change.change == "unchanged"
    return change.table


def test_the_plan_says_what_becomes_of_rows_of_a_writer_that_changes(harness: DispatcherHarness) -> None:
    deploy(harness, HEAD + BEFORE)
    text = HEAD.replace("seconds: 1", "seconds: 2") + BEFORE
    new = ["rebuild the rows of `w`: the new ones replace the old ones at the cutover"]
    for reply in (deploy(harness, text, dry_run=True), deploy(harness, text)):
        assert row_changes(reply) == new
    assert row_changes(activate(harness, "d")) == ["show the rows again that `w` wrote in an earlier version"]
    grown = text.replace("enum: [x]", "enum: [x, y]").replace("seconds: 2", "seconds: 3")
    assert row_changes(deploy(harness, grown)) == ["allow `y` in the column `c`", *new]
    kept = grown.replace("seconds: 3", "seconds: 4").replace("    schema:", "    on_change: keep\n    schema:")
    assert row_changes(deploy(harness, kept)) == [
        "keep rows of earlier versions from the cutover on (`on_change: keep`)",
        "WARNING: old rows stay (`on_change: keep`): what `w` wrote so far is not removed",
    ]
    (rule,) = harness.sql("SELECT on_change FROM buffered_tables")
    assert rule["on_change"] == "keep"


def test_a_cutover_declares_the_writers_of_tables(harness: DispatcherHarness) -> None:
    def declared() -> tuple[list[UUID], int]:
        (listed,) = harness.run(harness.dispatcher.buffers.list()).datasets
        return listed.writers, listed.revision

    deploy(harness, HEAD + BEFORE)
    (first,), revision = declared()
    deploy(harness, HEAD.replace("seconds: 1", "seconds: 2") + BEFORE, activate=False)
    assert declared() == ([first], revision), "registering a version changes nothing"
    deploy(harness, HEAD.replace("seconds: 1", "seconds: 2") + BEFORE)
    (second,), later = declared()
    assert second != first
    assert later > revision
    activate(harness, "d")
    assert declared()[0] == [first]
    assert declared()[1] > later, "sinks follow the last declaration, also back"


def table(harness: DispatcherHarness) -> Schema | None:
    """The schema of `rows` that the sink keeps, which is also the one that readers are shown."""
    rows = harness.sql(
        """SELECT t.schema AS kept, v.schema AS shown FROM buffered_tables t JOIN datasets d USING (dataset_uuid)
           JOIN dataset_versions v ON v.dataset_uuid = d.dataset_uuid AND v.dataset_version = d.current_version
           WHERE d.name = 'rows'"""
    )
    if not rows:
        return None
    kept = msgspec.json.decode(rows[0]["kept"], type=Schema)
    assert msgspec.json.decode(rows[0]["shown"], type=Schema) == kept
    return kept


def columns(harness: DispatcherHarness) -> list[str]:
    schema = table(harness)
    return [] if schema is None else [f"{column.name} {column.type}" for column in schema.columns]


def with_columns(*added: str) -> str:
    lines = "".join(f"      - {{name: {name}, type: {kind}}}\n" for name, _, kind in (i.partition(" ") for i in added))
    return HEAD + BEFORE.replace("      unique: [k]\n", f"{lines}      unique: [k]\n")


KNOWN = ["k text", "a text", "b text", "c text"]


def test_registering_a_version_leaves_the_table_as_it_is(harness: DispatcherHarness) -> None:
    deploy(harness, HEAD + BEFORE, activate=False)
    assert table(harness) is None, "no version with it is active"
    deploy(harness, HEAD + BEFORE)
    assert columns(harness) == KNOWN
    deploy(harness, with_columns("d int32"), activate=False)
    assert columns(harness) == KNOWN
    (change,) = [item for item in activate(harness, "d", 2).plan.datasets if item.table]
    assert change.table == ["add the column `d` (int32)"]
    assert columns(harness) == [*KNOWN, "d int32"]


def test_a_build_has_the_table_that_it_writes_to(harness: DispatcherHarness) -> None:
    deploy(harness, HEAD + BEFORE)
    say(harness, output(harness, "d", "tick"), 1)
    text = with_columns("d int32").replace("seconds: 1", "seconds: 2")
    assert deploy(harness, text, activate=False).state == "Created"
    assert columns(harness) == KNOWN
    assert activate(harness, "d", 2).state == "Building"
    assert columns(harness) == [*KNOWN, "d int32"]


def test_an_earlier_version_comes_back_to_a_table_that_has_grown(harness: DispatcherHarness) -> None:
    deploy(harness, HEAD + BEFORE)
    deploy(harness, with_columns("d int32"))
    wider = with_columns("d int64", "e date").replace("enum: [x]", "enum: [x, y]")
    deploy(harness, wider.replace("unique:", "indexes: [[a]]\n      unique:"))
    grown = [*KNOWN, "d int64", "e date"]
    for version in (1, 2, 3):
        activate(harness, "d", version)
        assert sorted(columns(harness)) == sorted(grown)
        schema = table(harness)
        assert schema is not None
        assert (schema.column("c") or schema.columns[0]).enum in (("x", "y"), ("y", "x"))
        assert schema.indexes == ((("a",),) if version == 3 else ())


def test_a_version_that_no_longer_fits_the_table_is_not_activated(harness: DispatcherHarness) -> None:
    deploy(harness, HEAD + BEFORE)
    deploy(harness, with_columns("d text"), activate=False)
    deploy(harness, with_columns("d int32"))
    with pytest.raises(TraceError) as error:
        activate(harness, "d", 2)
    (problem,) = error.value.details["problems"]
    assert (problem.code, problem.path) == ("table_change", "publish.rows.schema.columns[4].type")
    assert columns(harness) == [*KNOWN, "d int32"]

"""`docs/dag.md` says what the code does: every field, operator and problem, and its examples are good."""

import re

import pytest
from tools.docs import ROOT

from tests.dag.support import SURROUNDINGS, problems_of
from tracelake.catalogue import document_operators
from tracelake.dag.columns import _COLUMN, SCHEMA
from tracelake.dag.fields import DOCUMENT, FROM, INPUT, JOB, PUBLISH, SHARED_FIELDS, SOURCE, UDF
from tracelake.dag.kinds import Field
from tracelake.dag.problems import CODES
from tracelake.model.dag import ColumnType

PAGE = (ROOT / "docs/dag.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^##+ ([^\n]+)\n(.*?)(?=^##+ |\Z)", PAGE, re.DOTALL | re.MULTILINE))


def rows(section: str) -> dict[str, list[str]]:
    """First cell, without its quotes, to the other cells."""
    cells = [[cell.strip() for cell in row.split(" | ")] for row in re.findall(r"^\| (`.+) \|$", section, re.MULTILINE)]
    return {row[0].strip("`"): row[1:] for row in cells}


TABLES: list[tuple[str, set[str]]] = [
    ("The document", set(DOCUMENT.table)),
    ("Jobs", set(JOB.table) - set(SHARED_FIELDS)),
    ("Fields that `defaults` may hold too", set(SHARED_FIELDS)),
    ("Inputs", set(INPUT.table) | {f"from.{name}" for name in FROM.table}),
    ("Sources", {f"source.{name}" for name in SOURCE.table}),
    ("User functions", {f"udf.{name}" for name in UDF.table}),
    ("Published datasets", set(PUBLISH.table)),
    ("Schemas", set(SCHEMA.table) | set(_COLUMN.table)),
]


@pytest.mark.parametrize(("title", "names"), TABLES, ids=[title for title, _ in TABLES])
def test_every_field_is_documented(title: str, names: set[str]) -> None:
    assert set(rows(SECTIONS[title])) == names


@pytest.mark.parametrize(
    ("title", "table"), [("Jobs", JOB.table), ("The document", DOCUMENT.table), ("Published datasets", PUBLISH.table)]
)
def test_what_must_be_there_is_called_required(title: str, table: dict[str, Field]) -> None:
    documented = {name for name, cells in rows(SECTIONS[title]).items() if cells[1] == "required"}
    assert documented == {name for name, field in table.items() if field.required}


def test_every_problem_is_documented() -> None:
    assert {code: cells[0] for code, cells in rows(SECTIONS["Problems"]).items()} == CODES


def test_every_operator_is_documented() -> None:
    found = {name: (cells[0], cells[2]) for name, cells in rows(SECTIONS["Operators"]).items()}
    assert found == {
        name: (
            "all" if spec.runtimes is None else ", ".join(f"`{item}`" for item in sorted(spec.runtimes)),
            spec.summary,
        )
        for name, spec in document_operators().items()
    }
    for name, spec in document_operators().items():
        if name != "udf":
            described = rows(SECTIONS["Operators"])[name][1]
            assert all(f"`{field}`" in described for field in spec.config_type.__struct_encode_fields__)


def test_every_type_is_documented() -> None:
    line = re.search(r"^Types: ([^.]+)\.$", PAGE, re.MULTILINE)
    assert line is not None
    assert re.findall(r"`(\w+)`", line[1]) == list(ColumnType)


def test_the_example_is_good() -> None:
    (example,) = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "\njobs:" in text]
    assert problems_of(example, SURROUNDINGS) == []
    assert "udf" not in example, "it must run on a stack that has no runner of functions"
    hint = re.search(r"\$schema=(\S+)", example)
    assert hint is not None
    assert (ROOT / "docs" / hint[1]).is_file()

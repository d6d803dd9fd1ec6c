"""Every identifier that the glossary names exists, so that a rename cannot leave it behind."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ROOT / "docs" / "reference" / "commands.md"
PAGE = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| (?P<identifiers>[^|]+) \|$", re.MULTILINE)


def rows() -> list[tuple[str, list[str]]]:
    table = [(match["term"], match["identifiers"]) for match in ROW.finditer(PAGE.read_text())]
    return [(term, re.findall("`([^`]+)`", names)) for term, names in table if term != "term"]


@cache
def code_names() -> frozenset[str]:
    """Names of classes, functions, fields, parameters and string constants in `src/`, and words in its SQL."""
    names: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    names.add(node.name)
                case ast.AnnAssign(target=ast.Name(id=name)) | ast.arg(arg=name):
                    names.add(name)
    for path in (ROOT / "src").rglob("*.sql"):
        names.update(re.findall(r"\w+", path.read_text()))
    return frozenset(names)


@pytest.mark.parametrize(("term", "identifiers"), rows(), ids=[term for term, _ in rows()])
def test_identifiers_of_a_term_exist(term: str, identifiers: list[str]) -> None:
    assert identifiers, f"the row of {term} names no identifier"
    for identifier in identifiers:
        if identifier.startswith("trace "):
            assert f"\n## {identifier}\n" in COMMANDS.read_text()
        else:
            assert identifier in code_names(), f"{identifier} is no name in src/"


def test_a_term_is_explained_once() -> None:
    terms = [term for term, _ in rows()]
    assert len(terms) > 60
    assert sorted(terms) == sorted(set(terms))

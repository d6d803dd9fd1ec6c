"""ARCHITECTURE.md names files and functions that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from tools.docs import ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
SOURCE = ROOT / "src/tracelake"

FILES = sorted(set(re.findall(r"(?<![\w/.-])(?:\w+/)*\w+\.(?:py|sql)\b", PAGE)))
DIRECTORIES = sorted(set(re.findall(r"`((?:\w+/)+)`", PAGE)))
# `path.py` `name`, `name`: what stands behind a file is defined in it.
NAMED = re.findall(r"`((?:\w+/)*\w+\.py)` ((?:`[\w.]+`(?:, )?)+)", PAGE)
FUNCTIONS = sorted({(path, name) for path, names in NAMED for name in re.findall(r"`([\w.]+)`", names)})


def find(path: str) -> Path | None:
    return next((place for place in (SOURCE / path, ROOT / path) if place.exists()), None)


@cache
def definitions(path: str) -> frozenset[str]:
    """Names that a module defines: `function`, `Class`, `NAME`, and `Class.method` also as `method`."""
    found = find(path)
    assert found is not None, f"{path} does not exist"
    names: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str = "") -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.update((prefix + node.name, node.name))
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{node.name}.")
            for target in getattr(node, "targets", [getattr(node, "target", None)]):
                if isinstance(target, ast.Name):
                    names.add(prefix + target.id)

    collect(ast.parse(found.read_text()).body)
    return frozenset(names)


@pytest.mark.parametrize("path", [*FILES, *DIRECTORIES])
def test_a_path_exists(path: str) -> None:
    assert find(path) is not None, f"{path}: written in full from src/tracelake/ or from the root of the repository?"


@pytest.mark.parametrize(("path", "name"), FUNCTIONS)
def test_a_function_is_where_the_page_says(path: str, name: str) -> None:
    assert name in definitions(path)


def test_every_question_names_a_place() -> None:
    table = PAGE.partition("## Where to find a behaviour")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("| question")]
    assert len(rows) >= 20
    for row in rows:
        assert ".py`" in row or "](#" in row, row

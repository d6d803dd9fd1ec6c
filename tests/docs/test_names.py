"""Names in `src/`: a class name is used once, and variables are nouns for what they hold."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"

PARTICIPLES = frozenset(
    {
        *("answered", "asked", "begun", "chosen", "counted", "found", "given", "gone", "got", "heard", "held", "kept"),
        *("known", "made", "meant", "named", "said", "seen", "sent", "shown", "taken", "there", "told", "waits"),
        *("wanted", "who", "written"),
    }
)
"""How a value came about says little about what it is: `matching_edges`, not `found`."""


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCES.rglob("*.py")):
        yield path.relative_to(SOURCES), ast.parse(path.read_text())


def bound_names(function: ast.AST) -> Iterator[tuple[int, str]]:
    """Parameters, local variables and attributes of `self` that a function binds."""
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield node.lineno, name.removeprefix("_")


def participles(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((line, name) for line, name in bound_names(node) if name in PARTICIPLES)


def test_a_class_name_is_used_once() -> None:
    names = Counter(node.name for _, tree in trees() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, number in names.items() if number > 1] == []


def test_variables_are_named_after_their_content() -> None:
    assert [f"{path}:{line} {name}" for path, tree in trees() for line, name in sorted(set(participles(tree)))] == []


def test_the_rule_sees_variables_parameters_and_attributes() -> None:
    tree = ast.parse("def f(told):\n    self._seen = 1\n    for found in told:\n        pass\n    rows = found\n")
    assert sorted(participles(tree)) == [(1, "told"), (2, "seen"), (3, "found")]

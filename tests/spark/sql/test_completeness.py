"""No rule of the gate goes untested: queries of the corpus reach every kind of node, every part that a rule knows, and
every statement of the writers that does not refuse."""

import ast
import inspect
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType
from typing import Any

import pytest

from tests.spark.sql.corpus import CORPUS
from tests.spark.sql.queries import BENIGN
from tracelake.catalogue.sql import calls, expressions, nodes, writer
from tracelake.catalogue.sql.expressions import _BINARY, _RULES, ExpressionWriter
from tracelake.catalogue.sql.gate import gate

WRITERS = (calls, expressions, nodes, writer)
REFUSALS = ("self.refuse(", "self._unknown(", "self._refuse_argument(", "self._refuse_function(")
LEADS_TO_REFUSAL = "part = part.this"
"""The parser adds brackets by itself only around what is refused then."""


def write_all() -> None:
    for query in (*CORPUS, *BENIGN):
        gate.__wrapped__(query, None)


def test_every_kind_of_node_and_every_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: set[type[Any]] = set()
    parts: set[tuple[str, str]] = set()
    unused: set[tuple[str, str]] = set()
    check = ExpressionWriter._only
    write = ExpressionWriter.expression

    def only(writer: ExpressionWriter, node: Any, *names: str) -> None:
        kind = type(node).__name__
        unused.update((kind, name) for name in names)
        parts.update((kind, name) for name, value in node.args.items() if value is not None and value != [])
        check(writer, node, *names)

    def expression(writer: ExpressionWriter, node: Any) -> str:
        kinds.add(type(node))
        return write(writer, node)

    monkeypatch.setattr(ExpressionWriter, "_only", only)
    monkeypatch.setattr(ExpressionWriter, "expression", expression)
    write_all()
    assert set(_RULES) | set(_BINARY) == kinds
    assert unused - parts == set()


def test_every_statement_of_the_writers() -> None:
    reached: set[tuple[str, int]] = set()
    modules = {module.__file__: module for module in WRITERS}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in modules:
            return None
        reached.add((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        write_all()
    finally:
        sys.settrace(before)
    for name, module in modules.items():
        lines = {line for file, line in reached if file == name}
        unreached = [text for line, text in writing_statements(module) if line not in lines]
        assert set(unreached) <= {LEADS_TO_REFUSAL}


def writing_statements(module: ModuleType) -> Iterator[tuple[int, str]]:
    """Those inside of the writers' methods, without the blocks that end in a refusal."""
    for item in ast.parse(inspect.getsource(module)).body:
        if isinstance(item, ast.ClassDef):
            for method in item.body:
                if isinstance(method, ast.FunctionDef) and method.name not in (
                    "refuse",
                    "_refuse_argument",
                    "_refuse_function",
                    "_only",
                    "_unknown",
                    "_readable",
                ):
                    yield from _statements(method.body)


def _statements(block: list[ast.stmt]) -> Iterator[tuple[int, str]]:
    if ast.unparse(block[-1]).removeprefix("return ").startswith(REFUSALS):
        return
    for statement in block:
        inner = [getattr(statement, name) for name in ("body", "orelse", "finalbody") if getattr(statement, name, [])]
        if isinstance(statement, ast.Raise):
            continue
        if not inner and not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
            yield statement.lineno, ast.unparse(statement)
        for part in inner:
            yield from _statements(part)

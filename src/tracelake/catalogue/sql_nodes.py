"""What the writers of all parts of a query share: names, refusals, and where a node stands in the text."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NoReturn

from sqlglot import exp

from tracelake.catalogue.sql_findings import Finding, SqlRefusedError, position, shown

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;/+*()<>=!?@#%&|^~\[\]-]")
_HIDDEN_COLUMNS = ("_metadata",)
_PLAIN_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE]-?[0-9])?")

_CONSTRUCT_HINTS = {
    "joins": "Each JOIN has its ON right behind it; use a subquery for what is joined first.",
    "hint": "Spark decides how a query runs; leave the hint out.",
    "cluster": "Rows of a file are sorted by `order_by` of the config.",
    "distribute": "How many files there are is `files` of the config.",
    "sort": "Rows of a file are sorted by `order_by` of the config.",
    "qualify": "Put the window into a subquery and filter outside of it.",
    "sample": "A task must give the same rows when it is tried again: filter by `hash(column)`.",
    "pivots": "Use `sum(CASE WHEN ... THEN ... END)`.",
    "recursive": "Queries cannot recurse.",
}


@dataclass(slots=True)
class NodeWriter:
    text: str
    """The query as it was written, for positions."""
    inputs: frozenset[str] | None
    """Names of relations in small letters; None: every name is one, and whoever runs the query knows which."""
    parameters: frozenset[str]
    used_parameters: set[str] = field(default_factory=set)

    def refuse(self, node: Any, code: str, message: str, suggestion: str = "") -> NoReturn:
        raise SqlRefusedError(Finding(code, message, *position(self.text, offset(node)), suggestion))

    def _only(self, node: exp.Expression, *fields: str) -> None:
        for name, value in node.args.items():
            if name not in fields and value is not None and value is not False and value != []:
                word = name.rstrip("_").upper().replace("_", " ")
                self.refuse(
                    value if isinstance(value, exp.Expression) else node,
                    "sql_construct",
                    f"{word} is not supported here",
                    _CONSTRUCT_HINTS.get(name, ""),
                )

    def _unknown(self, node: Any) -> NoReturn:
        # The parser loses the items of `array(...)[0]`.
        hint = "Write `get(array(...), 0)`." if isinstance(node, exp.Array) else "The documentation lists what is."
        what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()
        self.refuse(node, "sql_construct", f"{what} is not supported here", hint)

    def query(self, node: Any, *, outermost: bool = False) -> str:
        """A SELECT inside of an expression."""
        raise NotImplementedError

    def name(self, node: Any) -> str:
        if not isinstance(node, exp.Identifier):
            self.refuse(node, "sql_name", "a name should stand here")
        name = str(node.this)
        if not NAME.fullmatch(name):
            hint = "Names are letters, digits and _, beginning with a letter or _."
            self.refuse(node, "sql_name", f"{shown(name)} cannot be a name", hint)
        if name.lower() in _HIDDEN_COLUMNS:
            self.refuse(node, "sql_name", f"{shown(name)} is Spark's own", "Rename it.")
        return name

    def quoted(self, node: Any) -> str:
        return f"`{self.name(node)}`"

    def _path(self, parts: Iterable[Any]) -> str:
        return ".".join(self.quoted(part) for part in parts)

    def expression(self, node: Any) -> str:
        """Any expression, by the rule for its kind."""
        raise NotImplementedError


def text_literal(value: str) -> str:
    """Text as Spark reads it back, whatever is in it."""
    units = memoryview(value.encode("utf-16-be")).cast("B")
    codes = (int.from_bytes(units[index : index + 2], "big") for index in range(0, len(units), 2))
    return "'" + "".join(chr(code) if _PLAIN.match(chr(code)) else f"\\u{code:04X}" for code in codes) + "'"


def plain_number(node: Any) -> Decimal | None:
    """The number that stands there as such, with its sign; None: it is computed, or has a type."""
    if isinstance(node, exp.Neg):
        inner = plain_number(node.this)
        return None if inner is None else -inner
    if isinstance(node, exp.Paren):
        return plain_number(node.this)
    if isinstance(node, exp.Literal) and not node.is_string and _PLAIN_NUMBER.fullmatch(str(node.this)):
        return Decimal(str(node.this))
    return None


def plain_text(node: Any) -> str | None:
    """The text that stands there in quotes; None: it is computed."""
    while isinstance(node, exp.Paren):
        node = node.this
    return str(node.this) if isinstance(node, exp.Literal) and node.is_string else None


def offset(node: Any) -> int:
    """Where a node begins: its own place, that of the first thing in it, or that of what it is in."""
    current = node
    while isinstance(current, exp.Expression):
        places = [item.meta["start"] for item in current.walk() if "start" in item.meta]
        if places:
            return int(min(places))
        current = current.parent
    return 0

"""Writes names, literals, types and intervals; the base of the writers of all other parts of a query."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NoReturn

from sqlglot import exp

from tracelake.catalogue.sql.findings import Finding, SqlRefusedError, position, shown
from tracelake.catalogue.sql.functions.vocabulary import INTERVAL_UNITS

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;/+*()<>=!?@#%&|^~\[\]-]")
_HIDDEN_COLUMNS = ("_metadata",)
_PLAIN_NUMBER = re.compile(r"[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE]-?[0-9])?")

TYPED = "typed"
"""In the `meta` of a cast that is a typed literal in the text."""
MAX_TYPE_DEPTH = 16
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_SUFFIXED_NUMBER = re.compile(_NUMBER.pattern + "[LlSsYyDdFf]")
_SUFFIX_BITS = {"L": 63, "S": 15, "Y": 7}
_DAY = "[0-9]{4}-(?:0?[1-9]|1[0-2])-(?:0?[1-9]|[12][0-9]|3[01])"
_TIME = r"(?:[01]?[0-9]|2[0-3]):[0-5]?[0-9](?::[0-5]?[0-9](?:\.[0-9]{1,6})?)?"
_DATE = re.compile(_DAY)
_TIMESTAMP = re.compile(f"{_DAY}(?:[ T]{_TIME} ?(?:Z|UTC|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?)?")
_TYPES = {
    "BIGINT": "BIGINT",
    "BINARY": "BINARY",
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "DECIMAL": "DECIMAL",
    "DOUBLE": "DOUBLE",
    "FLOAT": "FLOAT",
    "INT": "INT",
    "SMALLINT": "SMALLINT",
    "TEXT": "STRING",
    "TIMESTAMPTZ": "TIMESTAMP",
    "TIMESTAMPLTZ": "TIMESTAMP",
    "TIMESTAMP": "TIMESTAMP_NTZ",
    "TIMESTAMPNTZ": "TIMESTAMP_NTZ",
    "TINYINT": "TINYINT",
}

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
    """The text of the query, for positions."""
    inputs: frozenset[str] | None
    """Names of the inputs in lower case; None: any name may be an input, which is checked later."""
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
        """Write a SELECT."""
        raise NotImplementedError

    def name(self, node: Any) -> str:
        if not isinstance(node, exp.Identifier):
            self.refuse(node, "sql_name", "expected a name")
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
        """Write an expression by the rule for its type."""
        raise NotImplementedError

    # --- literals and types

    def _literal(self, node: Any) -> str:
        value = str(node.this)
        if node.is_string:
            return text_literal(value)
        if len(value) > 100 or not _NUMBER.fullmatch(value):
            self.refuse(node, "sql_syntax", f"{shown(value)} is not a number")
        return value

    def _hex(self, node: Any) -> str:
        value = str(node.this)
        if not re.fullmatch("(?:[0-9A-Fa-f]{2})*", value):
            self.refuse(node, "sql_syntax", f"{shown(value)} is not pairs of hexadecimal digits")
        return f"X'{value}'"

    def _placeholder(self, node: Any) -> str:
        name = str(node.this or "")
        if name not in self.parameters:
            names = ", ".join(f"`${{{item}}}`" for item in sorted(self.parameters))
            self.refuse(node, "sql_parameter", f"there is no parameter {shown(name)}", f"There are {names}.")
        self.used_parameters.add(name)
        return f":{name}"

    def _cast(self, node: Any) -> str:
        self._only(node, "this", "to", *(("safe",) if isinstance(node, exp.TryCast) else ()))
        if (number := self._suffixed_number(node)) is not None:
            return number
        if TYPED in node.meta:
            return self._typed_literal(node)
        word = "TRY_CAST" if isinstance(node, exp.TryCast) else "CAST"
        return f"{word}({self.expression(node.this)} AS {self._type(node.args['to'])})"

    def _typed_literal(self, node: Any) -> str:
        """`DATE '2024-01-01'`. Words like `today` are refused, because their value changes."""
        kind, value = self._type(node.args["to"]), str(node.this.this)
        pattern = _DATE if kind == "DATE" else _TIMESTAMP
        if not isinstance(node.this, exp.Literal) or not pattern.fullmatch(value):
            hint = "Like `DATE '2024-01-31'` and `TIMESTAMP '2024-01-31 12:00:00'`."
            self.refuse(node, "sql_text", f"{shown(value)} is not a valid {kind}", hint)
        return f"{kind} {text_literal(value)}"

    def _suffixed_number(self, node: Any) -> str | None:
        """`5L`, which the parser reads as a cast. A negative number has one more value than a positive one."""
        literal = node.this if isinstance(node, exp.Cast) else None
        if not isinstance(literal, exp.Literal) or literal.is_string or "start" not in literal.meta:
            return None
        raw = self.text[literal.meta["start"] : literal.meta["end"] + 1]
        if not _SUFFIXED_NUMBER.fullmatch(raw):
            return None
        bits = _SUFFIX_BITS.get(raw[-1].upper())
        if bits is not None and not (raw[:-1].isdigit() and int(raw[:-1]) < 2**bits + isinstance(node.parent, exp.Neg)):
            self.refuse(node, "sql_syntax", f"{shown(raw)} is not a number of that type")
        return raw

    def _type(self, node: Any, depth: int = 1) -> str:
        if depth > MAX_TYPE_DEPTH:
            self.refuse(node, "sql_limit", f"a type has at most {MAX_TYPE_DEPTH} levels", "Use a flatter one.")
        if not isinstance(node, exp.DataType):
            self.refuse(node, "sql_construct", "expected a type")
        self._only(node, "this", "expressions", "nested")
        kind = node.this.name if isinstance(node.this, exp.DType) else ""
        if kind == "ARRAY" and len(node.expressions) == 1:
            return f"ARRAY<{self._type(node.expressions[0], depth + 1)}>"
        if kind == "MAP" and len(node.expressions) == 2:
            return f"MAP<{', '.join(self._type(item, depth + 1) for item in node.expressions)}>"
        if kind == "STRUCT" and node.expressions and all(isinstance(item, exp.ColumnDef) for item in node.expressions):
            fields = []
            for item in node.expressions:
                self._only(item, "this", "kind")
                fields.append(f"{self.quoted(item.this)}: {self._type(item.args['kind'], depth + 1)}")
            return f"STRUCT<{', '.join(fields)}>"
        if kind not in _TYPES or (node.expressions and kind != "DECIMAL"):
            self.refuse(node, "sql_construct", f"{shown(kind or str(node))} is not a supported type")
        digits = []
        for item in node.expressions:
            size = plain_number(item.this)
            if size is None or not 0 <= size <= 38 or size != int(size):
                self.refuse(node, "sql_construct", "DECIMAL has at most 38 digits")
            digits.append(str(size))
        return _TYPES[kind] + (f"({', '.join(digits)})" if digits else "")

    def _interval(self, node: Any) -> str:
        self._only(node, "this", "unit")
        unit = node.args.get("unit")
        value = node.this
        word = unit.name.upper() if isinstance(unit, exp.Var) else ""
        if word not in INTERVAL_UNITS or not isinstance(value, exp.Literal | exp.Neg):
            hint = "Write `INTERVAL 3 DAYS`, or `make_dt_interval(days, hours)` for what is counted."
            self.refuse(node, "sql_construct", "an interval is a number and a unit here", hint)
        number = value.this.this if isinstance(value, exp.Neg) else value.this
        sign = "-" if isinstance(value, exp.Neg) else ""
        if not re.fullmatch(r"-?[0-9]{1,12}(?:\.[0-9]{1,9})?", str(number)):
            self.refuse(node, "sql_construct", f"{shown(str(number))} is not the length of an interval")
        if "." in str(number) and word not in ("SECOND", "SECONDS"):
            self.refuse(node, "sql_construct", "only seconds of an interval have a fraction", "Use a smaller unit.")
        return f"INTERVAL '{sign}{number}' {word}"


def text_literal(value: str) -> str:
    """A literal that Spark reads back as this text, whatever it contains."""
    units = memoryview(value.encode("utf-16-be")).cast("B")
    codes = (int.from_bytes(units[index : index + 2], "big") for index in range(0, len(units), 2))
    return "'" + "".join(chr(code) if _PLAIN.match(chr(code)) else f"\\u{code:04X}" for code in codes) + "'"


def plain_number(node: Any) -> Decimal | None:
    """The value of a plain number literal with its sign; None if it is computed or has a type suffix."""
    if isinstance(node, exp.Neg):
        inner = plain_number(node.this)
        return None if inner is None else -inner
    if isinstance(node, exp.Paren):
        return plain_number(node.this)
    if isinstance(node, exp.Literal) and not node.is_string and _PLAIN_NUMBER.fullmatch(str(node.this)):
        return Decimal(str(node.this))
    return None


def plain_text(node: Any) -> str | None:
    """The value of a text literal; None if it is computed."""
    while isinstance(node, exp.Paren):
        node = node.this
    return str(node.this) if isinstance(node, exp.Literal) and node.is_string else None


def offset(node: Any) -> int:
    """The offset of a node in the text: its own, that of its first part, or that of its parent."""
    current = node
    while isinstance(current, exp.Expression):
        places = [item.meta["start"] for item in current.walk() if "start" in item.meta]
        if places:
            return int(min(places))
        current = current.parent
    return 0

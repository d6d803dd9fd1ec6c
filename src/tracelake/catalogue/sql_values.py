"""Writes literals, casts, types and intervals."""

import re
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tracelake.catalogue.sql_findings import shown
from tracelake.catalogue.sql_functions.vocabulary import INTERVAL_UNITS
from tracelake.catalogue.sql_nodes import NodeWriter, plain_number, text_literal

TYPED = "typed"
"""In the `meta` of a cast that is a literal with its type before it in the text."""
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


@dataclass(slots=True)
class ValueWriter(NodeWriter):
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
        """`DATE '2024-01-01'`. Spark also knows words like `today` there, which are another day tomorrow."""
        kind, value = self._type(node.args["to"]), str(node.this.this)
        pattern = _DATE if kind == "DATE" else _TIMESTAMP
        if not isinstance(node.this, exp.Literal) or not pattern.fullmatch(value):
            hint = "Like `DATE '2024-01-31'` and `TIMESTAMP '2024-01-31 12:00:00'`."
            self.refuse(node, "sql_text", f"{shown(value)} is no {kind}", hint)
        return f"{kind} {text_literal(value)}"

    def _suffixed_number(self, node: Any) -> str | None:
        """`5L`, which the parser reads as a cast. With its sign before it, it may be smaller than without."""
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
            self.refuse(node, "sql_construct", "this is no type")
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
            self.refuse(node, "sql_construct", f"{shown(kind or str(node))} is no type here")
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
            self.refuse(node, "sql_construct", f"{shown(str(number))} is no length of an interval")
        if "." in str(number) and word not in ("SECOND", "SECONDS"):
            self.refuse(node, "sql_construct", "only seconds of an interval have a fraction", "Use a smaller unit.")
        return f"INTERVAL '{sign}{number}' {word}"

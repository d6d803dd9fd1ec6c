"""Writes the expressions of a checked query anew, for Spark; see `sql_writer`, which writes the queries around them.

Every kind of node has a rule here that says how it is written, and every rule names the parts it knows; a node without
a rule, or with a part that its rule does not name, is refused.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NoReturn

from sqlglot import exp

from tracelake.catalogue.sql_findings import Finding, SqlRefusedError, position, shown
from tracelake.catalogue.sql_functions import (
    BARE_NAMES,
    EXTRACTED,
    FUNCTIONS,
    INSTEAD,
    INTERVAL_UNITS,
    MAX_SEQUENCE,
    MAX_SIZE,
    SIZES,
    UNIT_FIRST,
    UNITS,
)

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
TYPED = "typed"
"""In the `meta` of a cast that is a literal with its type before it in the text."""
WRITTEN = "written"
"""In the `meta` of brackets that stand in the text."""
_NUMBER = re.compile(r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?")
_SUFFIXED_NUMBER = re.compile(_NUMBER.pattern + "[LlSsYyDdFf]")
_SUFFIX_BITS = {"L": 63, "S": 15, "Y": 7}
_DAY = "[0-9]{4}-(?:0?[1-9]|1[0-2])-(?:0?[1-9]|[12][0-9]|3[01])"
_TIME = r"(?:[01]?[0-9]|2[0-3]):[0-5]?[0-9](?::[0-5]?[0-9](?:\.[0-9]{1,6})?)?"
_DATE = re.compile(_DAY)
_TIMESTAMP = re.compile(f"{_DAY}(?:[ T]{_TIME} ?(?:Z|UTC|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])?)?")
_PLAIN = re.compile(r"[A-Za-z0-9 _.,:;/+*()<>=!?@#%&|^~\[\]-]")
_HIDDEN_COLUMNS = ("_metadata",)

_BINARY: dict[type[exp.Expression], str] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.IntDiv: "DIV",
    exp.Mod: "%",
    exp.EQ: "=",
    exp.NEQ: "<>",
    exp.GT: ">",
    exp.GTE: ">=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.NullSafeEQ: "<=>",
    exp.And: "AND",
    exp.Or: "OR",
    exp.BitwiseAnd: "&",
    exp.BitwiseOr: "|",
    exp.BitwiseXor: "^",
    exp.DPipe: "||",
    exp.Like: "LIKE",
    exp.ILike: "ILIKE",
    exp.RegexpLike: "RLIKE",
}
_ARITHMETIC = frozenset({exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod})
_MIXED_ONLY_IN_BRACKETS = frozenset({exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor, exp.DPipe})
_CONDITIONS = frozenset(
    {exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Is, exp.In, exp.Between}
    | {exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Not, exp.Exists}
)
"""Which of two of these binds first is read differently by parsers of SQL, so brackets have to say it."""
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
class ExpressionWriter:
    text: str
    """The query as it was written, for positions."""
    inputs: frozenset[str] | None
    """Names of relations in small letters; None: every name is one, and whoever runs the query knows which."""
    parameters: frozenset[str]
    used_parameters: set[str] = field(default_factory=set)

    # --- refusing

    def refuse(self, node: Any, code: str, message: str, suggestion: str = "") -> NoReturn:
        raise SqlRefusedError(Finding(code, message, *position(self.text, offset(node)), suggestion))

    def _only(self, node: exp.Expression, *known: str) -> None:
        for name, value in node.args.items():
            if name not in known and value is not None and value is not False and value != []:
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

    # --- columns of a result

    def query(self, node: Any, *, outermost: bool = False) -> str:
        """A SELECT inside of an expression."""
        raise NotImplementedError

    def _item(self, item: Any, outermost: bool) -> str:
        if isinstance(item, exp.Alias | exp.Aliases) and _is_star(item.this):
            self.refuse(item, "sql_syntax", "several columns cannot have one name", "Name them one by one.")
        if isinstance(item, exp.Alias):
            self._only(item, "this", "alias")
            return f"{self.expression(item.this)} AS {self.quoted(item.args['alias'])}"
        if isinstance(item, exp.Aliases):
            names = ", ".join(self.quoted(name) for name in item.expressions)
            return f"{self.expression(item.this)} AS ({names})"
        if _is_star(item):
            return self._star(item)
        if outermost and not isinstance(item, exp.Column | exp.Dot):
            self.refuse(item, "sql_column", "this column of the result has no name", "Write `... AS name`.")
        return self.expression(item)

    def _star(self, item: Any) -> str:
        star = item if isinstance(item, exp.Star) else item.this
        self._only(star, "except_")
        prefix = "" if item is star else self._path(item.parts[:-1]) + "."
        left_out = star.args.get("except_") or []
        names = [self.expression(name) for name in left_out]
        return f"{prefix}*" + (f" EXCEPT ({', '.join(names)})" if names else "")

    # --- expressions

    def expression(self, node: Any) -> str:
        rule = _RULES.get(type(node))
        if (ambiguous := _ambiguous_in(type(node))) is not None:
            self._check_brackets(node, ambiguous)
        if isinstance(node, exp.Neg) and _begins_with_number(node.this) and self._suffixed_number(node.this) is None:
            # Spark takes the sign for a part of the number, others for an operation on everything behind it.
            self.refuse(node, "sql_syntax", "it is not clear what the minus belongs to", "Put brackets around it.")
        if rule is not None:
            return rule(self, node)
        sign = _BINARY.get(type(node))
        if sign is None:
            self._unknown(node)
        return self._operation(node, sign, "")

    def _check_brackets(self, node: Any, ambiguous: frozenset[Any]) -> None:
        for name in ("this", "expression", "low", "high"):
            part = node.args.get(name)
            while isinstance(part, exp.Paren) and WRITTEN not in part.meta:
                part = part.this
            # What ESCAPE belongs to is part of it.
            if type(part) in ambiguous and not isinstance(node, exp.Escape):
                hint = "Put brackets around what belongs together."
                self.refuse(part, "sql_syntax", "it is not clear what is taken together here", hint)

    def _operation(self, node: Any, sign: str, behind: str) -> str:
        """`negate` is how NOT LIKE is said; only patterns have it."""
        own = {exp.Like: ("negate",), exp.ILike: ("negate",), exp.Div: ("typed", "safe"), exp.DPipe: ("safe",)}
        self._only(node, "this", "expression", *own.get(type(node), ()))
        written = f"({self.expression(node.this)} {sign} {self.expression(node.expression)}{behind})"
        return f"(NOT {written})" if node.args.get("negate") else written

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

    def _column(self, node: Any) -> str:
        if isinstance(node.this, exp.Star):
            return self._star(node)
        self._only(node, "this", "table", "db", "catalog")
        parts = node.parts
        if len(parts) == 1 and str(parts[0].this).lower() in BARE_NAMES:
            name = str(parts[0].this).lower()
            hint = INSTEAD.get(name) or f"If it is a column, write its table's name before it: `t.{name}`."
            self.refuse(node, "sql_function", f"{shown(name)} is a function that queries may not call", hint)
        return self._path(parts)

    def _dot(self, node: Any) -> str:
        self._only(node, "this", "expression")
        return f"{self.expression(node.this)}.{self.quoted(node.expression)}"

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
            known = ", ".join(f"`${{{item}}}`" for item in sorted(self.parameters))
            self.refuse(node, "sql_parameter", f"there is no parameter {shown(name)}", f"There are {known}.")
        self.used_parameters.add(name)
        return f":{name}"

    def _function(self, node: Any) -> str:
        self._only(node, "this", "expressions")
        name = str(node.this).lower() if isinstance(node.this, str) else ""
        if name not in FUNCTIONS:
            hint = INSTEAD.get(name, "")
            if not hint and (close := get_close_matches(name[:64], FUNCTIONS, 1, 0.8)):
                hint = f"Did you mean `{close[0]}`?"
            self.refuse(node, "sql_function", f"queries may not call {shown(str(node.this))}", hint)
        arguments = list(node.expressions)
        self._check_size(node, name, arguments)
        if name in UNIT_FIRST and len(arguments) == 3:
            unit = arguments[0].name.upper() if isinstance(arguments[0], exp.Column) else ""
            if unit not in UNITS:
                self.refuse(node, "sql_construct", f"{name} with three arguments begins with a unit", "Like `DAY`.")
            return f"{name}({unit}, {', '.join(self.expression(item) for item in arguments[1:])})"
        return f"{name}({', '.join(self._argument(item, name) for item in arguments)})"

    def _argument(self, node: Any, function: str) -> str:
        if isinstance(node, exp.Alias) and function == "struct":
            return self._item(node, False)
        if isinstance(node, exp.Distinct):
            self._only(node, "expressions")
            return f"DISTINCT {', '.join(self.expression(item) for item in node.expressions)}"
        if isinstance(node, exp.Star):
            return self._star(node)
        return self.expression(node)

    def _check_size(self, node: Any, name: str, arguments: Sequence[Any]) -> None:
        if name in SIZES and len(arguments) > SIZES[name]:
            size = _number(arguments[SIZES[name]])
            if size is None or size > MAX_SIZE:
                what = f"the length that {name} is given must be a plain number of at most {MAX_SIZE:,}"
                self.refuse(arguments[SIZES[name]], "sql_limit", what)
        if name == "sequence" and len(arguments) >= 2:
            first, last = (_number(item) for item in arguments[:2])
            step = _number(arguments[2]) if len(arguments) > 2 else 1
            if first is not None and last is not None and abs(last - first) > MAX_SEQUENCE * abs(step or 1):
                self.refuse(node, "sql_limit", f"a sequence has at most {MAX_SEQUENCE:,} items here")

    def _lambda(self, node: Any) -> str:
        self._only(node, "this", "expressions")
        names = ", ".join(self.quoted(item) for item in node.expressions)
        return f"{names if len(node.expressions) == 1 else f'({names})'} -> {self.expression(node.this)}"

    def _window(self, node: Any) -> str:
        if str(node.args.get("over")).upper() != "OVER":
            self._unknown(node)
        return f"{self.expression(node.this)} OVER {self._window_spec(node)}"

    def _window_spec(self, node: Any) -> str:
        """The name of a window, or a definition in brackets. Spark has no definition that begins with a name."""
        self._only(node, "this", "partition_by", "order", "spec", "over", "alias")
        alias = node.args.get("alias")
        if node.args.get("first") is not None or (alias is None and "partition_by" not in node.args):
            self._unknown(node)
        parts = []
        if by := node.args.get("partition_by"):
            parts.append(f"PARTITION BY {', '.join(self.expression(item) for item in by)}")
        if order := node.args.get("order"):
            parts.append(self._order(order).strip())
        if spec := node.args.get("spec"):
            parts.append(self._frame(spec))
        if alias is None:
            return f"({' '.join(parts)})"
        if parts:
            hint = "Write the whole window in the brackets, or name another one in WINDOW."
            self.refuse(alias, "sql_construct", "a window cannot be built on a named one", hint)
        return f"({self.quoted(alias)})"

    def _frame(self, node: Any) -> str:
        self._only(node, "kind", "start", "start_side", "end", "end_side")
        kind = str(node.args.get("kind") or "ROWS").upper()
        if kind not in ("ROWS", "RANGE"):
            self.refuse(node, "sql_construct", f"{shown(kind)} is no frame here", "Use ROWS or RANGE.")
        start = self._bound(node.args.get("start"), node.args.get("start_side"))
        if node.args.get("end") is None:
            return f"{kind} {start}"
        return f"{kind} BETWEEN {start} AND {self._bound(node.args['end'], node.args.get('end_side'))}"

    def _bound(self, value: Any, side: Any) -> str:
        word = str(side or "").upper()
        if value == "CURRENT ROW" and not word:
            return "CURRENT ROW"
        if value is None or value == "CURRENT ROW" or word not in ("PRECEDING", "FOLLOWING"):
            self.refuse(value, "sql_construct", "this is no bound of a frame", "Like `2 PRECEDING` or `CURRENT ROW`.")
        return f"{'UNBOUNDED' if value == 'UNBOUNDED' else self.expression(value)} {word}"

    def _order(self, node: Any) -> str:
        self._only(node, "expressions")
        return f" ORDER BY {', '.join(self._ordered(item) for item in node.expressions)}"

    def _ordered(self, item: Any) -> str:
        if not isinstance(item, exp.Ordered):
            self._unknown(item)
        self._only(item, "this", "desc", "nulls_first")
        if isinstance(item.this, exp.Column) and not item.this.table and item.this.name.upper() == "ALL":
            self.refuse(item, "sql_construct", "ORDER BY ALL is not supported here", "Name the columns.")
        direction = "DESC" if item.args.get("desc") else "ASC"
        nulls = "FIRST" if item.args.get("nulls_first") else "LAST"
        return f"{self.expression(item.this)} {direction} NULLS {nulls}"

    def _case(self, node: Any) -> str:
        self._only(node, "this", "ifs", "default")
        text = "CASE" + (f" {self.expression(node.this)}" if node.args.get("this") is not None else "")
        for branch in node.args["ifs"]:
            self._only(branch, "this", "true")
            text += f" WHEN {self.expression(branch.this)} THEN {self.expression(branch.args['true'])}"
        if node.args.get("default") is not None:
            text += f" ELSE {self.expression(node.args['default'])}"
        return text + " END"

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

    def _type(self, node: Any) -> str:
        if not isinstance(node, exp.DataType):
            self.refuse(node, "sql_construct", "this is no type")
        self._only(node, "this", "expressions", "nested")
        kind = node.this.name if isinstance(node.this, exp.DType) else ""
        if kind == "ARRAY" and len(node.expressions) == 1:
            return f"ARRAY<{self._type(node.expressions[0])}>"
        if kind == "MAP" and len(node.expressions) == 2:
            return f"MAP<{self._type(node.expressions[0])}, {self._type(node.expressions[1])}>"
        if kind == "STRUCT" and node.expressions and all(isinstance(item, exp.ColumnDef) for item in node.expressions):
            fields = []
            for item in node.expressions:
                self._only(item, "this", "kind")
                fields.append(f"{self.quoted(item.this)}: {self._type(item.args['kind'])}")
            return f"STRUCT<{', '.join(fields)}>"
        if kind not in _TYPES or (node.expressions and kind != "DECIMAL"):
            self.refuse(node, "sql_construct", f"{shown(kind or str(node))} is no type here")
        digits = []
        for item in node.expressions:
            size = _number(item.this)
            if size is None or size > 38:
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

    def _in(self, node: Any) -> str:
        self._only(node, "this", "expressions", "query")
        left = self.expression(node.this)
        if query := node.args.get("query"):
            return f"({left} IN ({self.query(query)}))"
        if not node.expressions:
            self.refuse(node, "sql_syntax", "IN needs at least one value")
        return f"({left} IN ({', '.join(self.expression(item) for item in node.expressions)}))"

    def _like_escape(self, node: Any) -> str:
        self._only(node, "this", "expression")
        inner, mark = node.this, node.expression
        if type(inner) not in (exp.Like, exp.ILike) or not isinstance(mark, exp.Literal):
            self._unknown(node)
        return self._operation(inner, _BINARY[type(inner)], f" ESCAPE {self._literal(mark)}")

    def _is(self, node: Any) -> str:
        self._only(node, "this", "expression")
        what = node.expression
        word = "NULL" if isinstance(what, exp.Null) else str(what.this).upper() if isinstance(what, exp.Boolean) else ""
        if not word:
            self._unknown(node)
        return f"({self.expression(node.this)} IS {word})"

    def _extract(self, node: Any) -> str:
        self._only(node, "this", "expression")
        unit = str(node.this.name).upper()
        if unit not in EXTRACTED:
            self.refuse(node, "sql_construct", f"{shown(unit)} cannot be extracted", "Like `EXTRACT(YEAR FROM ts)`.")
        return f"EXTRACT({unit} FROM {self.expression(node.expression)})"

    def _trim(self, node: Any) -> str:
        self._only(node, "this", "expression", "position")
        words = [str(node.args.get("position") or "").upper()]
        if words[0] not in ("", "BOTH", "LEADING", "TRAILING"):
            self._unknown(node)
        if (what := node.args.get("expression")) is not None:
            words.append(self.expression(what))
        return f"TRIM({' '.join(word for word in words if word)} FROM {self.expression(node.this)})"

    def _bracket(self, node: Any) -> str:
        self._only(node, "this", "expressions")
        if len(node.expressions) != 1:
            self._unknown(node)
        return f"{self.expression(node.this)}[{self.expression(node.expressions[0])}]"

    def _within_group(self, node: Any) -> str:
        self._only(node, "this", "expression")
        if not isinstance(node.expression, exp.Order):
            self._unknown(node)
        return f"{self.expression(node.this)} WITHIN GROUP ({self._order(node.expression).strip()})"

    def _filter(self, node: Any) -> str:
        self._only(node, "this", "expression")
        return f"{self.expression(node.this)} FILTER (WHERE {self.expression(node.expression.this)})"

    def _between(self, node: Any) -> str:
        self._only(node, "this", "low", "high")
        low, high = (self.expression(node.args[name]) for name in ("low", "high"))
        return f"({self.expression(node.this)} BETWEEN {low} AND {high})"

    def _scalar_query(self, node: Any) -> str:
        self._only(node, "this")
        return f"({self.query(node.this)})"

    def _exists(self, node: Any) -> str:
        self._only(node, "this")
        return f"EXISTS ({self.query(node.this)})"

    def _not_distinct(self, node: Any) -> str:
        self._only(node, "this", "expression")
        return f"(NOT ({self.expression(node.this)} <=> {self.expression(node.expression)}))"

    def _after(self, words: str) -> "Callable[[Any], str]":
        def write(node: Any) -> str:
            self._only(node, "this")
            return f"{self.expression(node.this)} {words}"

        return write

    def _tuple(self, node: Any) -> str:
        self._only(node, "expressions")
        if not node.expressions:
            self.refuse(node, "sql_syntax", "there is nothing between the brackets")
        return f"({', '.join(self.expression(item) for item in node.expressions)})"

    def _not(self, node: Any) -> str:
        self._only(node, "this")
        if isinstance(node.this, exp.Is) and isinstance(node.this.expression, exp.Null):
            return self.expression(node.this).removesuffix("NULL)") + "NOT NULL)"
        return self._before(node, "NOT ")

    def _before(self, node: Any, sign: str) -> str:
        self._only(node, "this")
        return f"({sign}{self.expression(node.this)})"


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

_RULES: Mapping[type[Any], Callable[[ExpressionWriter, Any], str]] = {
    exp.Column: ExpressionWriter._column,
    exp.Identifier: ExpressionWriter.quoted,
    exp.Dot: ExpressionWriter._dot,
    exp.Literal: ExpressionWriter._literal,
    exp.HexString: ExpressionWriter._hex,
    exp.Placeholder: ExpressionWriter._placeholder,
    exp.Boolean: lambda _, node: "TRUE" if node.this else "FALSE",
    exp.Null: lambda _, __: "NULL",
    exp.Paren: lambda writer, node: writer._before(node, ""),
    exp.Neg: lambda writer, node: writer._before(node, "- "),
    exp.Not: ExpressionWriter._not,
    exp.BitwiseNot: lambda writer, node: writer._before(node, "~ "),
    exp.Tuple: ExpressionWriter._tuple,
    exp.Anonymous: ExpressionWriter._function,
    exp.Lambda: ExpressionWriter._lambda,
    exp.Window: ExpressionWriter._window,
    exp.Case: ExpressionWriter._case,
    exp.Cast: ExpressionWriter._cast,
    exp.TryCast: ExpressionWriter._cast,
    exp.Interval: ExpressionWriter._interval,
    exp.In: ExpressionWriter._in,
    exp.Escape: ExpressionWriter._like_escape,
    exp.Is: ExpressionWriter._is,
    exp.Extract: ExpressionWriter._extract,
    exp.Trim: ExpressionWriter._trim,
    exp.Bracket: ExpressionWriter._bracket,
    exp.WithinGroup: ExpressionWriter._within_group,
    exp.Filter: ExpressionWriter._filter,
    exp.Between: ExpressionWriter._between,
    exp.Subquery: ExpressionWriter._scalar_query,
    exp.Exists: ExpressionWriter._exists,
    exp.NullSafeNEQ: ExpressionWriter._not_distinct,
    exp.IgnoreNulls: lambda writer, node: writer._after("IGNORE NULLS")(node),
    exp.RespectNulls: lambda writer, node: writer._after("RESPECT NULLS")(node),
}


def _is_star(node: Any) -> bool:
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))


def _ambiguous_in(kind: type[Any]) -> frozenset[Any] | None:
    """What must not stand without brackets inside of this."""
    if kind in (exp.Neg, exp.BitwiseNot):
        return _CONDITIONS | _MIXED_ONLY_IN_BRACKETS | _ARITHMETIC
    if kind in _ARITHMETIC:
        return _CONDITIONS | _MIXED_ONLY_IN_BRACKETS
    if kind in _MIXED_ONLY_IN_BRACKETS:
        return (_CONDITIONS | _MIXED_ONLY_IN_BRACKETS | _ARITHMETIC) - {kind}
    return _CONDITIONS if kind in _CONDITIONS and kind is not exp.Not else None


def _begins_with_number(node: Any) -> bool:
    inner = node
    while type(inner) in (exp.Cast, exp.Bracket, exp.Dot):
        inner = inner.this
    return inner is not node and isinstance(inner, exp.Literal) and not inner.is_string


def text_literal(value: str) -> str:
    """Text as Spark reads it back, whatever is in it."""
    units = memoryview(value.encode("utf-16-be")).cast("B")
    codes = (int.from_bytes(units[index : index + 2], "big") for index in range(0, len(units), 2))
    return "'" + "".join(chr(code) if _PLAIN.match(chr(code)) else f"\\u{code:04X}" for code in codes) + "'"


def _number(node: Any) -> int | None:
    if isinstance(node, exp.Neg):
        inner = _number(node.this)
        return None if inner is None else -inner
    if isinstance(node, exp.Paren):
        return _number(node.this)
    if isinstance(node, exp.Literal) and not node.is_string and re.fullmatch("[0-9]{1,18}", str(node.this)):
        return int(node.this)
    return None


def offset(node: Any) -> int:
    """Where a node begins: its own place, that of the first thing in it, or that of what it is in."""
    current = node
    while isinstance(current, exp.Expression):
        places = [item.meta["start"] for item in current.walk() if "start" in item.meta]
        if places:
            return int(min(places))
        current = current.parent
    return 0

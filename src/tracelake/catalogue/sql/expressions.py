"""Writes the expressions of a checked query anew, for Spark; see `writer`, which writes the queries around them.

Every kind of node has a rule here that says how it is written, and every rule names the parts it knows; a node without
a rule, or with a part that its rule does not name, is refused.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from tracelake.catalogue.sql.calls import CallWriter
from tracelake.catalogue.sql.findings import shown
from tracelake.catalogue.sql.functions.vocabulary import BARE_NAMES, INSTEAD
from tracelake.catalogue.sql.nodes import plain_text

WRITTEN = "written"
"""In the `meta` of brackets that are in the text."""
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
"""SQL parsers disagree about the precedence of these, so brackets are required."""


@dataclass(slots=True)
class ExpressionWriter(CallWriter):
    # --- columns of a result

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
        """Write a binary operation; `negate`, which only patterns have, is NOT LIKE."""
        if isinstance(node, exp.Like | exp.ILike | exp.RegexpLike) and not behind:
            self._pattern(node)
        own = {exp.Like: ("negate",), exp.ILike: ("negate",), exp.Div: ("typed", "safe"), exp.DPipe: ("safe",)}
        self._only(node, "this", "expression", *own.get(type(node), ()))
        text = f"({self.expression(node.this)} {sign} {self.expression(node.expression)}{behind})"
        return f"(NOT {text})" if node.args.get("negate") else text

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

    def _case(self, node: Any) -> str:
        self._only(node, "this", "ifs", "default")
        text = "CASE" + (f" {self.expression(node.this)}" if node.args.get("this") is not None else "")
        for branch in node.args["ifs"]:
            self._only(branch, "this", "true")
            text += f" WHEN {self.expression(branch.this)} THEN {self.expression(branch.args['true'])}"
        if node.args.get("default") is not None:
            text += f" ELSE {self.expression(node.args['default'])}"
        return text + " END"

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
        sign = plain_text(mark)
        if sign is None or len(sign) != 1:
            self.refuse(mark, "sql_pattern", "what is behind ESCAPE is one character", "Like `ESCAPE '!'`.")
        self._pattern(inner, sign)
        return self._operation(inner, _BINARY[type(inner)], f" ESCAPE {self._literal(mark)}")

    def _is(self, node: Any) -> str:
        self._only(node, "this", "expression")
        what = node.expression
        word = "NULL" if isinstance(what, exp.Null) else str(what.this).upper() if isinstance(what, exp.Boolean) else ""
        if not word:
            self._unknown(node)
        return f"({self.expression(node.this)} IS {word})"

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

    def _behind(self, node: Any, words: str) -> str:
        self._only(node, "this")
        return f"{self.expression(node.this)} {words}"

    # --- windows, their frames, and the order of rows

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
            self.refuse(node, "sql_construct", f"{shown(kind)} is not a supported frame", "Use ROWS or RANGE.")
        start = self._bound(node.args.get("start"), node.args.get("start_side"))
        if node.args.get("end") is None:
            return f"{kind} {start}"
        return f"{kind} BETWEEN {start} AND {self._bound(node.args['end'], node.args.get('end_side'))}"

    def _bound(self, value: Any, side: Any) -> str:
        word = str(side or "").upper()
        if value == "CURRENT ROW" and not word:
            return "CURRENT ROW"
        if value is None or value == "CURRENT ROW" or word not in ("PRECEDING", "FOLLOWING"):
            self.refuse(value, "sql_construct", "expected a bound of a frame", "Like `2 PRECEDING` or `CURRENT ROW`.")
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
    exp.IgnoreNulls: lambda writer, node: writer._behind(node, "IGNORE NULLS"),
    exp.RespectNulls: lambda writer, node: writer._behind(node, "RESPECT NULLS"),
}


def _is_star(node: Any) -> bool:
    return isinstance(node, exp.Star) or (isinstance(node, exp.Column) and isinstance(node.this, exp.Star))


def _ambiguous_in(kind: type[Any]) -> frozenset[Any] | None:
    """The types that need brackets inside this one."""
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

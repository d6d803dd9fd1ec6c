"""Writes a checked query anew, for Spark.

Every type of node has a rule that writes it, and every rule names the parts that it knows; a node without a rule, or
with a part that its rule does not name, is refused. So the output contains only what was understood. It leaves nothing
to interpretation: plain ASCII, every name in backticks, every operation in brackets, special characters escaped, common
table expressions renamed, and inputs marked, to be replaced by the names of views.
"""

import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from sqlglot import exp

from tracelake.catalogue.sql.expressions import ExpressionWriter
from tracelake.catalogue.sql.findings import shown
from tracelake.catalogue.sql.functions.signatures import GENERATORS
from tracelake.catalogue.sql.functions.vocabulary import INSTEAD
from tracelake.catalogue.sql.nodes import offset

MARK = "\x00"
"""Encloses the name of an input in the written text; no other part contains it."""
COMMA = "comma"
"""In the `meta` of a join that is a comma in the text."""
_JOINS = frozenset(
    ["", "INNER", "CROSS", "SEMI", "LEFT SEMI", "ANTI", "LEFT ANTI"]
    + [f"{side}{outer}" for side in ("LEFT", "RIGHT", "FULL") for outer in ("", " OUTER")]
)


@dataclass(slots=True)
class QueryWriter(ExpressionWriter):
    used_inputs: set[str] = field(default_factory=set)
    cte_names: dict[str, str] = field(default_factory=dict)
    """The name in the query, in lower case, by the name in the written text."""
    _scopes: list[dict[str, str]] = field(default_factory=list)

    # --- queries

    def query(self, node: Any, *, outermost: bool = False) -> str:
        if isinstance(node, exp.Subquery):
            self._only(node, "this")
            return self.query(node.this, outermost=outermost)
        if not isinstance(node, exp.Select | exp.SetOperation):
            self._unknown(node)
        scope: dict[str, str] = {}
        self._scopes.append(scope)
        try:
            with_clause = self._with(node.args.get("with_"), scope)
            body = self._select(node, outermost) if isinstance(node, exp.Select) else self._set(node, outermost)
            return with_clause + body + self._tail(node)
        finally:
            self._scopes.pop()

    def _with(self, node: Any, scope: dict[str, str]) -> str:
        if node is None:
            return ""
        self._only(node, "expressions")
        texts = []
        for cte in node.expressions:
            self._only(cte, "this", "alias")
            alias = cte.args["alias"]
            self._only(alias, "this", "columns")
            name = self.name(alias.this).lower()
            body = self.query(cte.this)  # its own name is not in reach yet: nothing recurses
            if name in scope:
                self.refuse(alias, "sql_relation", f"{shown(name)} is defined twice", "Rename one of them.")
            scope[name] = f"cte_{len(self.cte_names) + 1}"
            self.cte_names[scope[name]] = name
            texts.append(f"`{scope[name]}`{self._columns(alias)} AS ({body})")
        return f"WITH {', '.join(texts)} "

    def _set(self, node: exp.SetOperation, outermost: bool) -> str:
        self._only(node, "this", "expression", "distinct", "with_", "order", "limit", "offset")
        word = {exp.Union: "UNION", exp.Except: "EXCEPT", exp.Intersect: "INTERSECT"}.get(type(node))
        if word is None:
            self._unknown(node)
        if word == "INTERSECT" and isinstance(node.this, exp.Union | exp.Except):
            hint = "Put brackets around what belongs together."
            self.refuse(node.expression, "sql_syntax", "INTERSECT after UNION or EXCEPT needs brackets", hint)
        kind = "" if node.args.get("distinct") else " ALL"
        left, right = self.query(node.this, outermost=outermost), self.query(node.expression)
        return f"({left}) {word}{kind} ({right})"

    def _select(self, node: exp.Select, outermost: bool) -> str:
        self._only(
            node,
            *("with_", "expressions", "distinct", "from_", "joins", "laterals", "where", "group", "having", "windows"),
            *("order", "limit", "offset"),
        )
        distinct = node.args.get("distinct")
        if distinct is not None:
            self._only(distinct)
        if not node.expressions:
            self.refuse(node, "sql_syntax", "SELECT needs at least one column", "Write `SELECT *`, or name columns.")
        # Relations first, so that an unknown input is reported before anything else.
        relations = self._from(node)
        items = ", ".join(self._item(item, outermost) for item in node.expressions)
        text = f"SELECT {'DISTINCT ' if distinct is not None else ''}{items}{relations}"
        if where := node.args.get("where"):
            text += f" WHERE {self.expression(where.this)}"
        if group := node.args.get("group"):
            text += f" GROUP BY {self._group(group)}"
        if having := node.args.get("having"):
            text += f" HAVING {self.expression(having.this)}"
        if windows := node.args.get("windows"):
            text += " WINDOW " + ", ".join(f"{self.quoted(item.this)} AS {self._window_spec(item)}" for item in windows)
        return text

    def _tail(self, node: exp.Expression) -> str:
        text = ""
        if order := node.args.get("order"):
            text += self._order(order)
        if limit := node.args.get("limit"):
            self._only(limit, "expression")
            text += f" LIMIT {self._count(limit.expression)}"
        if offset := node.args.get("offset"):
            self._only(offset, "expression")
            text += f" OFFSET {self._count(offset.expression)}"
        return text

    def _count(self, node: Any) -> str:
        if not isinstance(node, exp.Literal) or node.is_string or not re.fullmatch("[0-9]{1,9}", node.this):
            self.refuse(node, "sql_construct", "LIMIT and OFFSET take a plain number here")
        return str(node.this)

    def _group(self, node: exp.Group) -> str:
        self._only(node, "expressions", "all")
        if node.args.get("all"):
            return "ALL"
        if not node.expressions:
            self.refuse(node, "sql_syntax", "GROUP BY needs at least one column")
        return ", ".join(self._grouping(item) for item in node.expressions)

    def _grouping(self, item: Any) -> str:
        words = {exp.Rollup: "ROLLUP", exp.Cube: "CUBE", exp.GroupingSets: "GROUPING SETS"}
        if type(item) not in words:
            return self.expression(item)
        self._only(item, "expressions")
        if not isinstance(item, exp.GroupingSets) and any(_is_empty(part) for part in item.expressions):
            self.refuse(item, "sql_syntax", "only GROUPING SETS can have an empty set")
        return f"{words[type(item)]} ({', '.join(self._grouping_set(part) for part in item.expressions)})"

    def _grouping_set(self, part: Any) -> str:
        if isinstance(part, exp.Tuple):
            return f"({', '.join(self.expression(item) for item in part.expressions)})"
        return f"({self.expression(part.this if isinstance(part, exp.Paren) else part)})"

    # --- relations

    def _from(self, node: exp.Select) -> str:
        source = node.args.get("from_")
        text = ""
        if source is not None:
            self._only(source, "this")
            text = f" FROM {self._relation(source.this)}"
        elif node.args.get("joins") or node.args.get("laterals"):
            self.refuse(node, "sql_syntax", "there is nothing to join with", "Begin with FROM.")
        for join in node.args.get("joins") or []:
            text += self._join(join)
        for lateral in node.args.get("laterals") or []:
            text += self._lateral_view(lateral)
        return text

    def _relation(self, node: Any) -> str:
        if isinstance(node, exp.Table):
            return self._table(node)
        if isinstance(node, exp.Subquery):
            self._only(node, "this", "alias")
            return f"({self.query(node.this)}){self._alias(node)}"
        if isinstance(node, exp.Values):
            self._only(node, "expressions", "alias")
            rows = ", ".join(self._row(row) for row in node.expressions)
            return f"(VALUES {rows}){self._alias(node)}"
        if isinstance(node, exp.Lateral) and not node.args.get("view"):
            self._only(node, "this", "alias")
            if not isinstance(node.this, exp.Subquery):
                self.refuse(node, "sql_relation", "functions cannot be read from", "Use `LATERAL VIEW explode(...)`.")
            self._only(node.this, "this")
            return f"LATERAL ({self.query(node.this.this)}){self._alias(node)}"
        return self._unknown(node)

    def _row(self, row: Any) -> str:
        if _is_empty(row):
            self.refuse(row, "sql_syntax", "a row has at least one value")
        items = row.expressions if isinstance(row, exp.Tuple) else [row]
        return f"({', '.join(self.expression(item) for item in items)})"

    def _table(self, node: exp.Table) -> str:
        if not isinstance(node.this, exp.Identifier):
            hint = INSTEAD.get(str(node.this.this).lower() if isinstance(node.this, exp.Anonymous) else "", "")
            self.refuse(node, "sql_relation", "functions cannot be read from", hint or self._readable())
        if node.args.get("db") is not None or node.args.get("catalog") is not None:
            self.refuse(node, "sql_relation", "files and other catalogues cannot be read", self._readable())
        self._only(node, "this", "alias")
        name = self.name(node.this)
        folded = name.lower()
        definition = next((scope[folded] for scope in reversed(self._scopes) if folded in scope), None)
        if definition is not None:
            relation = f"`{definition}`"
        elif self.inputs is None or folded in self.inputs:
            self.used_inputs.add(folded)
            relation = f"{MARK}{folded}{MARK}"
        else:
            self.refuse(node, "sql_relation", f"{shown(name)} is not an input of this job", self._readable(folded))
        alias = self._alias(node) or f" AS `{name}`"
        return relation + alias

    def _readable(self, near: str = "") -> str:
        names = sorted(self.inputs or ())
        if close := get_close_matches(near, names, 1):
            return f"Did you mean `{close[0]}`?"
        return f"It can read {', '.join(f'`{name}`' for name in names[:20])}." if names else "It reads inputs alone."

    def _alias(self, node: exp.Expression) -> str:
        alias = node.args.get("alias")
        if alias is None:
            return ""
        self._only(alias, "this", "columns")
        if alias.this is None:
            self.refuse(node, "sql_name", "a relation needs a name before the names of its columns")
        return f" AS {self.quoted(alias.this)}{self._columns(alias)}"

    def _columns(self, alias: exp.Expression) -> str:
        columns = alias.args.get("columns") or []
        return f"({', '.join(self.quoted(column) for column in columns)})" if columns else ""

    def _join(self, node: Any) -> str:
        self._only(node, "this", "side", "kind", "on", "using", "method")
        side, kind, method = (str(node.args.get(name) or "").upper() for name in ("side", "kind", "method"))
        if f"{side} {kind}".strip() not in _JOINS or method not in ("", "NATURAL"):
            self.refuse(
                node, "sql_construct", f"{shown(' '.join((method, side, kind)).strip())} is not a supported join"
            )
        if COMMA in node.meta:
            return f", {self._relation(node.this)}"
        words = " ".join(word for word in (method, side, kind, "JOIN") if word)
        text = f" {words} {self._relation(node.this)}"
        if method and (node.args.get("on") or node.args.get("using")):
            self.refuse(node, "sql_syntax", "NATURAL says by itself which columns are compared", "Remove ON or USING.")
        if on := node.args.get("on"):
            text += f" ON {self.expression(on)}"
        if using := node.args.get("using"):
            text += f" USING ({', '.join(self.quoted(column) for column in using)})"
        return text

    def _lateral_view(self, node: Any) -> str:
        self._only(node, "this", "view", "outer", "alias")
        call = node.this
        if not node.args.get("view") or not isinstance(call, exp.Anonymous):
            self._unknown(node)
        if str(call.this).lower() not in GENERATORS:
            hint = f"Use one of {', '.join(f'`{name}`' for name in sorted(GENERATORS))}."
            self.refuse(call, "sql_function", f"{shown(str(call.this))} is not a generator of rows", hint)
        alias = node.args.get("alias")
        if alias is None or alias.this is None:
            self.refuse(
                node, "sql_name", "a LATERAL VIEW needs a name", "Write `LATERAL VIEW explode(a) name AS item`."
            )
        self._only(alias, "this", "columns")
        columns = ", ".join(self.quoted(column) for column in alias.args.get("columns") or [])
        outer = "OUTER " if node.args.get("outer") else ""
        view = f" LATERAL VIEW {outer}{self._function(call)} {self.quoted(alias.this)}"
        return view + (f" AS {columns}" if columns else "")


def _is_empty(node: Any) -> bool:
    return isinstance(node, exp.Tuple) and not node.expressions


def result_columns(query: Any) -> tuple[list[tuple[str, int]], bool]:
    """The named columns of a checked query with their offsets, and whether the result has no others.

    Spark names a column as it is written, and the result of a set operation after its first query."""
    while isinstance(query, exp.Subquery | exp.SetOperation):
        query = query.this
    columns: list[tuple[str, int]] = []
    complete = True
    for item in query.expressions:
        if isinstance(item, exp.Aliases):
            names = item.expressions
        elif isinstance(item, exp.Alias):
            names = [item.args["alias"]]
        else:
            last = item.expression if isinstance(item, exp.Dot) else item.this if isinstance(item, exp.Column) else item
            names = [last] if isinstance(last, exp.Identifier) else []
            complete = complete and bool(names)
        columns += [(str(name.this), offset(name)) for name in names]
    return columns, complete

"""Bounds the cost of a query from its text: the growth of values, the number of rows that one row may become, and the
size of the plan when Spark expands the query.

The size of an input is unknown, so everything is relative to it: a cell of an input is 1, a literal of the query its
length divided by 16. Each column of each relation has a `Cost`, and `functions` tells for each function how large
its result is. Names do not hide costs: a column of a subquery costs as much as its expression, so doubling a text
forty times costs 2^40 wherever the forty steps stand.

The bound is coarse. Queries that people write stay far below the limits; see ADR 0023.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from tracelake.catalogue.sql.calls import DEGREE, STEPS
from tracelake.catalogue.sql.functions.signatures import AGGREGATES, GENERATORS, SIGNATURES
from tracelake.catalogue.sql.nodes import plain_number, plain_text

MAX_GROWTH = 100_000
"""The largest growth of a value, relative to a cell of an input."""
MAX_WORK = 10_000_000
"""The most steps for one row."""
MAX_WEIGHT = 20_000
"""Nodes of an expression with the columns of subqueries written out, as Spark does when it moves conditions."""
MAX_LAMBDAS = 3
"""Lambdas inside each other."""
DATA_ITEMS = 10
"""The assumed length of an array of an input."""
_LITERAL_UNIT = 16
_PROBE = MAX_GROWTH // 10
"""The size of an accumulator that probes how a step grows it."""
_QUADRATIC = frozenset(
    {"levenshtein", "array_distinct", "array_except", "array_intersect", "array_union", "arrays_overlap"}
)
"""Functions that compare every part of one argument with every part of another."""
_BRANCHES = (exp.Case, exp.If)
_SCALARS = (
    *(exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.BitwiseAnd, exp.BitwiseOr, exp.BitwiseXor),
    *(exp.BitwiseNot, exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ),
    *(exp.NullSafeNEQ, exp.Is, exp.In, exp.Between, exp.Like, exp.ILike, exp.RegexpLike, exp.Escape, exp.Exists),
    *(exp.Extract, exp.Interval, exp.Boolean, exp.Null),
)
"""Operations whose result is a number, a boolean or a time."""


class CostError(Exception):
    """A part of the query that costs too much."""

    def __init__(self, node: Any, code: str, message: str, suggestion: str) -> None:
        super().__init__(message)
        self.node = node
        self.code = code
        self.suggestion = suggestion


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one value of an expression."""

    growth: int = 1
    work: int = 1
    weight: int = 1

    def __or__(self, other: "Cost") -> "Cost":
        """The cost of a value that is one of two."""
        return Cost(max(self.growth, other.growth), max(self.work, other.work), max(self.weight, other.weight))


UNIT = Cost()


@dataclass(frozen=True, slots=True)
class ColumnCosts:
    """The columns of a relation by their names in small letters; those of an input are not known."""

    named: Mapping[str, Cost] = field(default_factory=dict)
    others: Cost = UNIT

    def largest(self) -> Cost:
        cost = self.others
        for item in self.named.values():
            cost |= item
        return cost


@dataclass(slots=True)
class Scope:
    """The meaning of names at one place of the query."""

    relations: dict[str, ColumnCosts] = field(default_factory=dict)
    aliases: dict[str, Cost] = field(default_factory=dict)
    variables: dict[str, Cost] = field(default_factory=dict)
    outer: "Scope | None" = None
    rows: int = 1
    """The number of rows that one row of the inputs became."""

    def column(self, node: exp.Column) -> Cost:
        parts = [str(part.this).lower() for part in node.parts]
        if parts[0] in self.variables:
            return self.variables[parts[0]]
        name = parts[-1]
        if len(parts) > 1 and parts[0] in self.relations:
            columns = self.relations[parts[0]]
            return columns.named.get(parts[1], columns.others)
        matching = [
            columns.named[part] for columns in self.relations.values() for part in parts if part in columns.named
        ]
        if not matching or any(columns.others != UNIT for columns in self.relations.values()):
            matching += [columns.others for columns in self.relations.values()]
        cost = UNIT
        for item in matching:
            cost |= item
        if name in self.aliases:
            cost |= self.aliases[name]
        if self.outer is not None:
            cost |= self.outer.column(node)
        return cost

    def with_variables(self, variables: Mapping[str, Cost]) -> "Scope":
        return replace(self, variables={**self.variables, **variables})


class ExpressionCost:
    """Measures expressions. `relations` measures the queries inside them."""

    def query(self, node: Any, scope: Scope) -> Cost:
        """The cost of a scalar subquery."""
        raise NotImplementedError

    def measure(self, node: Any, scope: Scope, lambdas: int = 0) -> Cost:
        cost = self._measure(node, scope, lambdas)
        if cost.growth > MAX_GROWTH:
            hint = "Make it in fewer or smaller steps, or from what is in the rows."
            message = f"this value may grow to more than {MAX_GROWTH:,} times what goes into it"
            raise CostError(node, "sql_limit", message, hint)
        if cost.work > MAX_WORK:
            message = f"this may take more than {MAX_WORK:,} steps for each row"
            raise CostError(node, "sql_limit", message, "Use shorter sequences, or fewer lambdas inside each other.")
        if cost.weight > MAX_WEIGHT:
            message = f"with the columns that it is made from written out, this has more than {MAX_WEIGHT:,} operations"
            raise CostError(node, "sql_limit", message, "Use a column of a subquery less often.")
        return cost

    def _measure(self, node: Any, scope: Scope, lambdas: int) -> Cost:
        if isinstance(node, exp.Column):
            return UNIT if isinstance(node.this, exp.Star) else scope.column(node)
        if isinstance(node, exp.Identifier):
            return scope.variables.get(str(node.this).lower(), UNIT)
        if isinstance(node, exp.Literal | exp.HexString):
            return Cost(max(1, len(str(node.this)) // _LITERAL_UNIT))
        if isinstance(node, exp.Subquery | exp.Select | exp.SetOperation):
            return self.query(node, scope)
        if isinstance(node, exp.Anonymous):
            return self._call(node, scope, lambdas)
        parts = [self.measure(item, scope, lambdas) for item in node.iter_expressions()]
        if isinstance(node, _BRANCHES):
            return self._total(parts, max((part.growth for part in parts), default=1))
        if isinstance(node, _SCALARS):
            return self._total(parts, 1, _matching([node.args.get("expression")], parts))
        if isinstance(node, exp.DPipe | exp.Tuple):
            return self._total(parts, sum(part.growth for part in parts))
        # Brackets, casts, fields, windows, aliases, orders: as large as what is inside.
        return self._total(parts, max((part.growth for part in parts), default=1))

    @staticmethod
    def _total(parts: Iterable[Cost], growth: int, work: int = 0, weight: int = 1) -> Cost:
        items = list(parts)
        total_work = growth + work + sum(item.work for item in items)
        return Cost(growth, total_work, weight + sum(item.weight for item in items))

    # --- functions

    def _call(self, node: exp.Anonymous, scope: Scope, lambdas: int) -> Cost:
        name = str(node.this).lower()
        arguments = [
            item
            for argument in node.expressions
            for item in (argument.expressions if isinstance(argument, exp.Distinct) else [argument])
        ]
        values = [self.measure(item, scope, lambdas) for item in arguments if not isinstance(item, exp.Lambda)]
        functions = [item for item in arguments if isinstance(item, exp.Lambda)]
        if functions:
            return self._higher_order(node, name, values, functions, scope, lambdas + 1)
        growth = self._growth(node, name, arguments, values, scope)
        work = _matching(arguments, values)
        if name in _QUADRATIC:
            work = max((item.growth for item in values), default=1) ** 2
        if name in AGGREGATES:
            # An aggregate is computed before what is made from it, and written out nowhere.
            return Cost(growth, growth)
        return self._total(values, growth, work)

    def _growth(self, node: exp.Anonymous, name: str, arguments: list[Any], values: list[Cost], scope: Scope) -> int:
        sizes = [item.growth for item in values] or [1]
        signature = next(item for item in SIGNATURES[name] if item.kinds_of(len(arguments)) is not None)
        result = signature.result
        if result == "made":
            if STEPS in node.meta:
                return int(node.meta[STEPS])
            return max(_numbers(arguments), default=1) + (0 if name == "space" else 1)
        if result == "product":
            return sizes[0] * max(_numbers(arguments[1:]), default=1)
        if result == "joined":
            return _joined(name, arguments, sizes)
        if name in ("format_string", "printf"):
            return sum(sizes) * (1 + (plain_text(arguments[0]) or "").count("%"))
        if name == "array_insert":
            return sum(sizes) + max(_numbers(arguments[1:2]), default=1)
        if result.startswith("x"):
            return sum(sizes) * int(result[1:])
        return {"one": 1, "most": max(sizes), "sum": sum(sizes), "rows": max(sizes) * scope.rows}[result]

    def _higher_order(
        self,
        node: exp.Anonymous,
        name: str,
        values: list[Cost],
        functions: list[exp.Lambda],
        scope: Scope,
        depth: int,
    ) -> Cost:
        if depth > MAX_LAMBDAS:
            hint = "Put the inner array into a subquery, or explode it."
            raise CostError(node, "sql_limit", f"at most {MAX_LAMBDAS} lambdas may stand inside each other", hint)
        items = max(item.growth for item in values)
        times = max(items, DATA_ITEMS)
        if name in ("aggregate", "reduce"):
            return self._fold(values, functions, scope, depth, times)
        # Many small items, or one large one: the larger of both.
        small = self._body(functions[0], scope, UNIT, depth)
        large = self._body(functions[0], scope, Cost(items), depth)
        makes_items = name in ("transform", "transform_keys", "transform_values", "zip_with", "map_zip_with")
        growth = max(items * small.growth, large.growth, items) if makes_items else items
        return self._total(values, growth, times * (1 + small.work) + large.work, max(small.weight, large.weight))

    def _fold(self, values: list[Cost], functions: list[exp.Lambda], scope: Scope, depth: int, times: int) -> Cost:
        """Each step takes the result of the one before: it may add to it, but not multiply it."""
        start = values[1] if len(values) > 1 else UNIT
        merge = functions[0]
        accumulator = str(merge.expressions[0].this).lower()
        names = [str(item.this).lower() for item in merge.expressions]

        def step(size: int) -> Cost:
            inner = scope.with_variables({**dict.fromkeys(names, UNIT), accumulator: Cost(size)})
            return self._measure(merge.this, inner, depth)

        # Each body is measured twice and no more, so that nesting them stays cheap.
        once = step(1)
        try:
            factor = (step(_PROBE).growth - once.growth) / (_PROBE - 1)
        except CostError:
            factor = 2.0
        if factor > 1:
            message = f"each step of this multiplies `{accumulator}`, so it grows exponentially"
            hint = "Use it once in its own step, or as a number."
            raise CostError(merge, "sql_limit", message, hint)
        growth = start.growth + times * once.growth if factor else max(start.growth, once.growth)
        work = times * (once.work + (growth if factor else 0))
        if len(functions) > 1:
            finish = self._body(functions[1], scope, Cost(growth), depth)
            growth, work = finish.growth, work + finish.work
        return self._total(values, growth, work, once.weight)

    def _body(self, function: exp.Lambda, scope: Scope, item: Cost, depth: int) -> Cost:
        names = {str(name.this).lower(): item for name in function.expressions}
        return self.measure(function.this, scope.with_variables(names), depth)


def _matching(arguments: Iterable[Any], parts: Iterable[Cost]) -> int:
    """The cost of matching a pattern among the arguments against the largest of them."""
    degrees = [item.meta[DEGREE] for item in arguments if isinstance(item, exp.Expression) and DEGREE in item.meta]
    return max((part.growth for part in parts), default=1) ** int(max(degrees)) if degrees else 0


def _joined(name: str, arguments: list[Any], sizes: list[int]) -> int:
    """The size of a text with another one between its parts, or in their place."""
    if name in ("replace", "regexp_replace"):
        removed, added = plain_text(arguments[1]), plain_text(arguments[2]) if len(arguments) > 2 else ""
        shortens = name == "replace" and removed is not None and added is not None and len(added) <= len(removed)
        if added == "" or shortens:
            return sizes[0]
        # Each `$1` stands for what was matched.
        return sizes[0] * (1 + sizes[2] + (added or "").count("$"))
    separator = sizes[0] if name == "concat_ws" else sizes[1]
    return sum(sizes) * (1 + separator)


def is_generator(node: Any) -> bool:
    return isinstance(node, exp.Anonymous) and str(node.this).lower() in GENERATORS


def _numbers(arguments: Iterable[Any]) -> list[int]:
    numbers = (plain_number(item) for item in arguments)
    return [abs(int(number)) for number in numbers if number is not None]

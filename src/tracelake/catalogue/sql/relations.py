"""Bounds the number of rows that a query makes from those of its inputs, and the size of its plan; see `cost`.

The relations of a FROM must be joined by equalities, or all but one group of them must be known to be small. Otherwise
Spark compares every row with every other one, which is harmful even for small inputs. Spark expands a common table
expression wherever it is named, so it is counted each time.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sqlglot import exp

from tracelake.catalogue.sql.cost import (
    DATA_ITEMS,
    UNIT,
    ColumnCosts,
    Cost,
    CostError,
    ExpressionCost,
    Scope,
    is_generator,
)
from tracelake.catalogue.sql.functions.signatures import AGGREGATES
from tracelake.catalogue.sql.nodes import plain_number

MAX_ROWS = 1_000_000
"""The most rows that one row of an input may become, or that a query without inputs may make."""
MAX_CROSS = 10_000
"""The most rows of a relation in a join without a condition."""
MAX_OUTPUT = 100_000_000
"""The most rows that one row may become, times their size."""
MAX_RELATIONS = 200
"""The most relations of a query after expanding its common table expressions."""
MAX_GENERATORS = 8
MAX_GROUPING_SETS = 64


@dataclass(frozen=True, slots=True)
class RelationCost:
    columns: ColumnCosts
    rows: int = 1
    """The number of rows that one row of the inputs may become, if there is no `bound`."""
    bound: int | None = None
    """The most rows whatever the inputs have; None: that depends on the inputs."""
    leaves: int = 1


@dataclass(slots=True)
class _Source:
    """A relation of a FROM."""

    node: Any
    name: str
    cost: RelationCost
    group: int
    """Sources that are joined by equalities have the same group."""


@dataclass(slots=True)
class _Frame:
    """The state of measuring one SELECT."""

    scope: Scope
    ctes: dict[str, RelationCost]
    sources: list[_Source] = field(default_factory=list)
    leaves: int = 0
    factor: int = 1
    """The number of rows that generators make of one row."""


class QueryCost(ExpressionCost):
    """Raises `CostError` for a query whose cost is not bounded."""

    def __init__(self) -> None:
        self._frames: list[_Frame] = []
        self._generators = 0

    def check(self, tree: Any) -> None:
        self._query(tree, {}, None)

    def query(self, node: Any, scope: Scope) -> Cost:
        frame = self._frames[-1]
        relation = self._query(node, frame.ctes, scope)
        frame.leaves += relation.leaves
        return relation.columns.largest()

    # --- queries

    def _query(self, node: Any, ctes: dict[str, RelationCost], outer: Scope | None) -> RelationCost:
        while isinstance(node, exp.Subquery):
            node = node.this
        ctes = dict(ctes)
        if with_clause := node.args.get("with_"):
            for cte in with_clause.expressions:
                relation = self._query(cte.this, ctes, outer)
                ctes[str(cte.alias).lower()] = _renamed(relation, cte.args["alias"])
        if isinstance(node, exp.SetOperation):
            relation = self._set(node, ctes, outer)
            self._measure_order(node, relation, ctes, outer)
        else:
            relation = self._select(node, ctes, outer)
        if relation.leaves > MAX_RELATIONS:
            message = f"with WITH written out wherever it is named, the query reads more than {MAX_RELATIONS} relations"
            raise CostError(node, "sql_limit", message, "Name each of them less often.")
        limit = plain_number(node.args["limit"].expression) if node.args.get("limit") else None
        if limit is not None:
            bound = int(limit) if relation.bound is None else min(int(limit), relation.bound)
            relation = RelationCost(relation.columns, 1, bound, relation.leaves)
        return relation

    def _set(self, node: exp.SetOperation, ctes: dict[str, RelationCost], outer: Scope | None) -> RelationCost:
        left, right = (self._query(part, ctes, outer) for part in (node.this, node.expression))
        pairs = zip(left.columns.named.items(), right.columns.named.values(), strict=False)
        widest = left.columns.largest() | right.columns.largest()
        by_name = {name: cost | other for (name, cost), other in pairs}
        columns = ColumnCosts({name: by_name.get(name, widest) for name in left.columns.named}, widest)
        is_union = isinstance(node, exp.Union)
        rows = left.rows + right.rows if is_union else max(left.rows, right.rows)
        bounds = [part.bound for part in (left, right)]
        bound = sum(item or 0 for item in bounds) if is_union and None not in bounds else None
        self._check_rows(node, rows if bound is None else bound, widest.growth)
        return RelationCost(columns, rows if bound is None else 1, bound, left.leaves + right.leaves)

    def _measure_order(
        self, node: Any, relation: RelationCost, ctes: dict[str, RelationCost], outer: Scope | None
    ) -> None:
        if (order := node.args.get("order")) is not None:
            scope = Scope({"": relation.columns}, outer=outer)
            self._frames.append(_Frame(scope, ctes))
            self.measure(order, scope)
            self._frames.pop()

    def _select(self, node: Any, ctes: dict[str, RelationCost], outer: Scope | None) -> RelationCost:
        frame = _Frame(Scope(outer=outer), ctes)
        self._frames.append(frame)
        try:
            self._read_sources(node, frame)
            rows, bound = self._joined(node, frame)
            frame.scope.rows = rows
            for lateral in node.args.get("laterals") or []:
                self._lateral_view(lateral, frame)
            columns, width = self._items(node, frame)
            rows *= frame.factor
            bound = None if bound is None else bound * frame.factor
            for name in ("where", "group", "having", "order", "windows", "qualify"):
                part = node.args.get(name)
                for item in part if isinstance(part, list) else [part] if part is not None else []:
                    self.measure(item, frame.scope)
            if group := node.args.get("group"):
                sets = _grouping_sets(group)
                rows, bound = rows * sets, None if bound is None else bound * sets
            self._check_rows(node, rows if bound is None else bound, width.growth)
            if not group and _aggregates(node):
                bound = 1
            return RelationCost(columns, rows if bound is None else 1, bound, max(1, frame.leaves))
        finally:
            self._frames.pop()

    @staticmethod
    def _check_rows(node: Any, rows: int, width: int) -> None:
        if rows > MAX_ROWS or rows * width > MAX_OUTPUT:
            message = f"this makes more than {MAX_ROWS:,} rows of one, or rows that are too large for so many"
            raise CostError(node, "sql_limit", message, "Use shorter sequences, or fewer generators and sets.")

    def _items(self, node: Any, frame: _Frame) -> tuple[ColumnCosts, Cost]:
        """The columns of the result, and the size of a row."""
        by_name: dict[str, Cost] = {}
        others, width = UNIT, 0
        for item in node.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                for source in frame.sources:
                    by_name |= {
                        name: by_name.get(name, UNIT) | cost for name, cost in source.cost.columns.named.items()
                    }
                    others |= source.cost.columns.others
                width += others.growth
                continue
            value = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
            cost = self._generated(value, frame) if is_generator(value) else self.measure(value, frame.scope)
            names = item.expressions if isinstance(item, exp.Aliases) else []
            for name in [str(name.this) for name in names] or [item.alias_or_name]:
                by_name[name.lower()] = cost
                frame.scope.aliases[name.lower()] = cost
            width += cost.growth
        return ColumnCosts(by_name, others), Cost(max(1, width))

    # --- relations

    def _read_sources(self, node: Any, frame: _Frame) -> None:
        if (source := node.args.get("from_")) is not None:
            self._add_source(source.this, frame)
        for join in node.args.get("joins") or []:
            self._add_source(join.this, frame, join)

    def _add_source(self, node: Any, frame: _Frame, join: Any = None) -> None:
        if isinstance(node, exp.Table):
            relation = frame.ctes.get(node.name.lower()) or RelationCost(ColumnCosts())
        elif isinstance(node, exp.Values):
            relation = self._values(node, frame)
        elif isinstance(node, exp.Lateral):
            relation = self._query(node.this, frame.ctes, frame.scope)
        else:
            relation = self._query(node.this, frame.ctes, frame.scope.outer)
        relation = _renamed(relation, node.args.get("alias"))
        name = node.alias_or_name.lower() or f"relation {len(frame.sources)}"
        frame.leaves += relation.leaves
        frame.scope.relations[name] = relation.columns
        frame.sources.append(_Source(join if join is not None else node, name, relation, len(frame.sources)))

    def _values(self, node: exp.Values, frame: _Frame) -> RelationCost:
        largest = UNIT
        for row in node.expressions:
            for item in row.expressions if isinstance(row, exp.Tuple) else [row]:
                largest |= self.measure(item, frame.scope)
        return RelationCost(ColumnCosts({}, largest), 1, len(node.expressions))

    def _joined(self, node: Any, frame: _Frame) -> tuple[int, int | None]:
        """The number of rows of all sources of a FROM together."""
        for join in node.args.get("joins") or []:
            if (on := join.args.get("on")) is not None:
                self.measure(on, frame.scope)
        _connect(node, frame.sources)
        rows, bound = 1, 1 if all(source.cost.bound is not None for source in frame.sources) else None
        large = [source for source in frame.sources if source.cost.bound is None]
        groups = {source.group for source in large}
        if len(groups) > 1:
            stray = next(source for source in large if source.group != large[0].group)
            message = f"`{stray.name}` is joined without an equality between it and another relation"
            hint = "Write `ON a.key = b.key` with the relations' names; or make one side small, with LIMIT or VALUES."
            raise CostError(stray.node, "sql_join", message, hint)
        for source in frame.sources:
            rows *= source.cost.rows
            size = source.cost.bound
            if size is None:
                continue
            bound = None if bound is None else bound * size
            if source.group in groups or len(frame.sources) == 1:
                continue
            if size > MAX_CROSS:
                message = f"`{source.name}` is joined without an equality, and has more than {MAX_CROSS:,} rows"
                raise CostError(source.node, "sql_join", message, "Make it smaller, or join it by a column.")
            rows *= size if large else 1
        return rows, bound

    # --- generators

    def _lateral_view(self, node: Any, frame: _Frame) -> None:
        cost = self._generated(node.this, frame)
        alias = node.args["alias"]
        names = [str(column.this).lower() for column in alias.args.get("columns") or []]
        frame.scope.relations[str(alias.this.this).lower()] = ColumnCosts(dict.fromkeys(names, cost), cost)

    def _generated(self, call: Any, frame: _Frame) -> Cost:
        self._generators += 1
        if self._generators > MAX_GENERATORS:
            message = f"a query has at most {MAX_GENERATORS} generators like `explode`"
            raise CostError(call, "sql_limit", message, "Each of them multiplies the rows.")
        cost = self.measure(call, frame.scope)
        is_stack = str(call.this).lower() == "stack"
        row_count = plain_number(call.expressions[0]) if is_stack else None
        frame.factor *= int(row_count) if row_count is not None else max(cost.growth, DATA_ITEMS)
        # An item is a part of what it comes from; how large a part is not known. Spark makes it before it goes on.
        return Cost(1 if _is_sequence(call) else cost.growth)


def _is_sequence(call: Any) -> bool:
    argument = next(iter(call.expressions), None)
    return isinstance(argument, exp.Anonymous) and str(argument.this).lower() == "sequence"


def _renamed(relation: RelationCost, alias: Any) -> RelationCost:
    """The relation with the column names of an alias."""
    names = [str(column.this).lower() for column in alias.args.get("columns") or []] if alias is not None else []
    if not names:
        return relation
    costs = list(relation.columns.named.values())
    widest = relation.columns.largest()
    is_known = len(costs) == len(names)
    by_name = {name: costs[index] if is_known else widest for index, name in enumerate(names)}
    return RelationCost(ColumnCosts(by_name, UNIT), relation.rows, relation.bound, relation.leaves)


def _connect(node: Any, sources: list[_Source]) -> None:
    """Assigns the same group to sources that are joined by an equality."""
    where = node.args.get("where")
    conditions = list(_conjuncts(where.this)) if where is not None else []
    for index, source in enumerate(sources):
        join = source.node
        if isinstance(join, exp.Join):
            if join.args.get("using") or join.args.get("method"):
                _merge(sources, source, sources[index - 1])
            if (on := join.args.get("on")) is not None:
                conditions += _conjuncts(on)
            if isinstance(join.this, exp.Lateral):
                inner = join.this.this.this
                inner_where = inner.args.get("where") if isinstance(inner, exp.Select) else None
                for other in sources[:index]:
                    parts = _conjuncts(inner_where.this) if inner_where is not None else iter(())
                    if any(_mentions(part, other) for part in parts if isinstance(part, exp.EQ | exp.NullSafeEQ)):
                        _merge(sources, source, other)
    for condition in conditions:
        if isinstance(condition, exp.EQ | exp.NullSafeEQ):
            _connect_by(condition, sources)


def _connect_by(equality: Any, sources: list[_Source]) -> None:
    """`a.x = b.y` joins a and b. Where one name has no relation, it may be of the relation before."""
    left, right = (_owner(part, sources) for part in (equality.this, equality.expression))
    if left is not None and right is not None and left is not right:
        _merge(sources, left, right)
    elif (left is None) != (right is None):
        owner = left or right
        assert owner is not None
        unknown = equality.this if left is None else equality.expression
        index = sources.index(owner)
        columns = list(unknown.find_all(exp.Column))
        if index and columns and not any(column.table for column in columns):
            _merge(sources, owner, sources[index - 1])


def _merge(sources: list[_Source], one: _Source, other: _Source) -> None:
    old, new = one.group, other.group
    for source in sources:
        if source.group == old:
            source.group = new


def _conjuncts(node: Any) -> Iterator[Any]:
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, exp.Paren):
            waiting.append(item.this)
        elif isinstance(item, exp.And):
            waiting += [item.this, item.expression]
        else:
            yield item


def _mentions(node: Any, source: _Source) -> bool:
    return any(column.table.lower() == source.name for column in node.find_all(exp.Column))


def _owner(node: Any, sources: list[_Source]) -> _Source | None:
    """The one relation whose columns an expression uses; None if there are several or it is unknown."""
    owners: list[_Source] = []
    for column in node.find_all(exp.Column):
        table, name = column.table.lower(), column.name.lower()
        matching = [source for source in sources if source.name == table]
        if not matching:
            # A name alone, or the field of a column.
            names = {str(part.this).lower() for part in column.parts} if table else {name}
            matching = [source for source in sources if names & source.cost.columns.named.keys()]
        if len(matching) != 1:
            return None
        owners += [source for source in matching if source not in owners]
    return owners[0] if len(owners) == 1 else None


def _grouping_sets(group: Any) -> int:
    sets = 1
    for item in group.expressions:
        if isinstance(item, exp.Cube):
            sets *= 2 ** min(len(item.expressions), 20)
        elif isinstance(item, exp.Rollup):
            sets *= len(item.expressions) + 1
        elif isinstance(item, exp.GroupingSets):
            sets *= max(1, len(item.expressions))
    if sets > MAX_GROUPING_SETS:
        message = f"CUBE, ROLLUP and GROUPING SETS make {sets:,} sets; {MAX_GROUPING_SETS} is the limit"
        raise CostError(group, "sql_limit", message, "Name the sets that you need.")
    return sets


def _aggregates(node: Any) -> bool:
    """Whether the SELECT returns one row: it has an aggregate that is not in a window or a subquery."""
    waiting = list(node.expressions)
    while waiting:
        item = waiting.pop()
        if isinstance(item, exp.Subquery | exp.Select | exp.Window):
            continue
        if isinstance(item, exp.Anonymous) and str(item.this).lower() in AGGREGATES:
            return True
        waiting += list(item.iter_expressions())
    return False

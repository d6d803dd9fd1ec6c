"""The blocks that a query can need of each relation, from conditions on `block_number` in its text.

A condition counts if it is joined by AND to the others of its WHERE, compares the column with a whole number, and the
column is certainly the relation's own. It then rejects every row without such a block, so that nothing of the result
depends on rows outside, whatever kind of join the relation is in. A relation that is named several times needs the
blocks of all places; one place without a condition needs all blocks.
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from sqlglot import exp

BLOCK = "block_number"
FIRST, LAST = 0, 2**63 - 1
Blocks: TypeAlias = tuple[int, int]
"""The first and the last one, both included."""

_UNCORRELATED = (exp.CTE, exp.From, exp.Paren, exp.Select, exp.SetOperation, exp.Subquery, exp.With)
"""What may stand around a SELECT whose plain names cannot be columns of a query outside."""
_LEAST = {exp.GT: 1, exp.GTE: 0}
_MOST = {exp.LT: -1, exp.LTE: 0}
_MIRRORED: dict[type, type] = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE, exp.EQ: exp.EQ}


def find_block_bounds(tree: exp.Expr, inputs: frozenset[str], values: Mapping[str, int]) -> dict[str, Blocks]:
    """By relation; those of which all blocks are needed are left out. `values` are of parameters."""
    hidden = {str(cte.alias).lower() for cte in tree.find_all(exp.CTE)}
    places: dict[str, list[Blocks | None]] = {}
    for table in tree.find_all(exp.Table):
        name = table.name.lower()
        if name in inputs and name not in hidden:
            places.setdefault(name, []).append(_bounds_of(table, values))
    bounds: dict[str, Blocks] = {}
    for name, ranges in places.items():
        limits = [blocks for blocks in ranges if blocks is not None]
        if len(limits) == len(ranges):
            bounds[name] = (min(first for first, _ in limits), max(last for _, last in limits))
    return bounds


def _bounds_of(table: exp.Table, values: Mapping[str, int]) -> Blocks | None:
    """The blocks that the WHERE around one place leaves; None: all, or none that are known."""
    select = table.parent.parent if isinstance(table.parent, exp.From | exp.Join) else None
    if not isinstance(select, exp.Select) or select.args.get("where") is None:
        return None
    alone = not select.args.get("joins") and not select.args.get("laterals") and _is_uncorrelated(select)
    first, last = FIRST, LAST
    for condition in _conjuncts(select.args["where"].this):
        low, high = _limits(condition, table.alias_or_name.lower(), values, alone=alone)
        first, last = max(first, low), min(last, high)
    return None if (first, last) == (FIRST, LAST) or first > last else (first, last)


def _is_uncorrelated(select: exp.Expression) -> bool:
    outer = select.parent
    while outer is not None:
        if not isinstance(outer, _UNCORRELATED):
            return False
        outer = outer.parent
    return True


def _conjuncts(condition: Any) -> Iterator[Any]:
    waiting = [condition]
    while waiting:
        item = waiting.pop()
        if isinstance(item, exp.And):
            waiting += [item.this, item.expression]
        elif isinstance(item, exp.Paren):
            waiting.append(item.this)
        else:
            yield item


def _limits(condition: Any, alias: str, values: Mapping[str, int], *, alone: bool) -> Blocks:
    """`alone`: a column without the name of a relation is this one's."""
    everything = (FIRST, LAST)
    if isinstance(condition, exp.Between):
        low, high = _number(condition.args["low"], values), _number(condition.args["high"], values)
        if low is None or high is None or not _is_block(condition.this, alias, alone=alone):
            return everything
        return low, high
    kind, column, other = type(condition), condition.args.get("this"), condition.args.get("expression")
    if kind not in _MIRRORED:
        return everything
    if not _is_block(column, alias, alone=alone):
        kind, column, other = _MIRRORED[kind], other, column
    number = _number(other, values)
    if number is None or not _is_block(column, alias, alone=alone):
        return everything
    if kind is exp.EQ:
        return number, number
    if kind in _LEAST:
        return number + _LEAST[kind], LAST
    return FIRST, number + _MOST[kind]


def _is_block(node: Any, alias: str, *, alone: bool) -> bool:
    if not isinstance(node, exp.Column) or node.args.get("db") is not None or node.name.lower() != BLOCK:
        return False
    return node.table.lower() == alias if node.table else alone


def _number(node: Any, values: Mapping[str, int]) -> int | None:
    if isinstance(node, exp.Placeholder):
        return values.get(str(node.this))
    if isinstance(node, exp.Literal) and not node.is_string and str(node.this).isdecimal():
        return int(node.this)
    return None

"""Whether the relations of each FROM hang together, in Spark's analysed plan.

The first gate tells this from the text, where a name without its relation may be of either side, and NATURAL compares
the columns that there are, which may be none. Here Spark has decided. A group of joined relations is connected by
equalities between two of them; a relation that is known to be small needs none.
"""

from collections.abc import Iterator
from typing import Any

_THROUGH = frozenset({"Distinct", "Filter", "Generate", "Project", "Sort", "SubqueryAlias", "Window"})
"""Plans with one child whose rows are as few as those of the child; what a generator makes of a row is bounded by the
first gate."""
_EQUALITIES = frozenset({"EqualNullSafe", "EqualTo"})
MAX_SMALL = 10_000


def unconnected_join(plan: Any) -> bool:
    """Of a plan whose root is a Join, with the filters right above it: whether some relations hang loose."""
    conditions: list[Any] = []
    while _name(plan) == "Filter":
        conditions += _conjuncts(plan.condition())
        plan = plan.child()
    if _name(plan) != "Join":
        return False
    leaves: list[Any] = []
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        if _name(node) == "Join":
            waiting += [node.left(), node.right()]
            if node.condition().isDefined():
                conditions += _conjuncts(node.condition().get())
        else:
            leaves.append(node)
    large = [index for index, leaf in enumerate(leaves) if not _is_small(leaf)]
    if len(large) < 2:
        return False
    groups = list(range(len(leaves)))
    outputs = [leaf.outputSet() for leaf in leaves]
    for condition in conditions:
        if _name(condition) in _EQUALITIES:
            one, other = (_owner(side.references(), outputs) for side in (condition.left(), condition.right()))
            if one is not None and other is not None:
                old, new = groups[one], groups[other]
                groups = [new if group == old else group for group in groups]
    return len({groups[index] for index in large}) > 1


def _owner(references: Any, outputs: list[Any]) -> int | None:
    """The relation that all columns of one side of an equality are of."""
    if references.isEmpty():
        return None
    return next((index for index, output in enumerate(outputs) if references.subsetOf(output)), None)


def _is_small(plan: Any) -> bool:
    rows = plan.maxRows()
    if rows.isDefined():
        return int(rows.get()) <= MAX_SMALL
    if _name(plan) in _THROUGH:
        return _is_small(plan.child())
    return _name(plan) == "Join" and _is_small(plan.left()) and _is_small(plan.right())


def _conjuncts(condition: Any) -> Iterator[Any]:
    waiting = [condition]
    while waiting:
        item = waiting.pop()
        if _name(item) == "And":
            waiting += [item.left(), item.right()]
        else:
            yield item


def _name(node: Any) -> str:
    return str(node.getClass().getSimpleName()).removesuffix("$")

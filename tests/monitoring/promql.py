"""Just enough of PromQL to say whether an alert's expression is true of two scrapes.

A range is the time between them: `increase` and `delta` are the difference, and a series that the first one does not
have has no increase, as in Prometheus. `rate` is the same per second of that time.
"""

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import promql_parser as promql
from prometheus_client.parser import text_string_to_metric_families

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Value: TypeAlias = float | Vector

SECONDS = 300.0
"""Between two scrapes, as far as `rate` is concerned."""

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
}
_REDUCE: dict[str, Callable[[Iterable[float]], float]] = {
    "sum": sum,
    "max": max,
    "count": lambda values: float(len(list(values))),
}


class Scrape:
    """The samples of a page by name."""

    def __init__(self, page: str) -> None:
        self.samples: dict[str, Vector] = {}
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                self.samples.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value

    def family(self, name: str) -> Vector:
        """Every sample of a metric; of a histogram and a counter whatever is not the time of its making."""
        names = (name, f"{name}_total", f"{name}_count")
        return {labels: value for each in names for labels, value in self.samples.get(each, {}).items()}


@dataclass(frozen=True)
class Window:
    before: Scrape
    now: Scrape

    def evaluate(self, text: str) -> Vector:
        """What an alert with this expression would fire for."""
        found = self._value(promql.parse(text))
        assert isinstance(found, dict)
        return found

    def _value(self, node: Any) -> Value:
        match node:
            case promql.NumberLiteral():
                return node.val
            case promql.ParenExpr():
                return self._value(node.expr)
            case promql.VectorSelector():
                return _select(self.now, node)
            case promql.AggregateExpr():
                return self._aggregate(node)
            case promql.Call():
                return self._call(node)
            case promql.BinaryExpr():
                return self._binary(node)
        raise AssertionError(f"not known here: {node}")

    def _aggregate(self, node: promql.AggregateExpr) -> Vector:
        inner = self._value(node.expr)
        assert isinstance(inner, dict)
        kept = set(node.modifier.labels) if node.modifier else set()
        groups: dict[Labels, list[float]] = {}
        for labels, value in inner.items():
            groups.setdefault(_only(labels, kept), []).append(value)
        return {labels: _REDUCE[str(node.op)](values) for labels, values in groups.items()}

    def _call(self, node: promql.Call) -> Vector:
        name, arguments = node.func.name, node.args
        if name in ("increase", "delta", "rate"):
            selector = arguments[0].vector_selector
            before, now = _select(self.before, selector), _select(self.now, selector)
            per = SECONDS if name == "rate" else 1.0
            return {labels: (value - before[labels]) / per for labels, value in now.items() if labels in before}
        assert name == "histogram_quantile", name
        buckets = self._value(arguments[1])
        assert isinstance(buckets, dict)
        return _quantiles(arguments[0].val, buckets)

    def _binary(self, node: promql.BinaryExpr) -> Value:
        op, left, right = str(node.op), self._value(node.lhs), self._value(node.rhs)
        assert isinstance(left, dict)
        if op in _COMPARE:
            assert isinstance(right, float)
            return {labels: value for labels, value in left.items() if _COMPARE[op](value, right)}
        assert isinstance(right, dict)
        matching = node.modifier.matching if node.modifier else None
        on = None if matching is None else set(matching.labels)
        there = {_only(labels, on): value for labels, value in right.items()}
        if op == "/":
            return {
                labels: value / there[_only(labels, on)] for labels, value in left.items() if there[_only(labels, on)]
            }
        if op == "or":
            return right | left
        assert op in ("and", "unless"), op
        return {labels: value for labels, value in left.items() if (_only(labels, on) in there) == (op == "and")}


def _only(labels: Labels, kept: set[str] | None) -> Labels:
    return labels if kept is None else frozenset(item for item in labels if item[0] in kept)


def _select(scrape: Scrape, selector: promql.VectorSelector) -> Vector:
    assert selector.name is not None
    return {
        labels: value
        for labels, value in scrape.samples.get(selector.name, {}).items()
        if all(_matches(matcher, dict(labels)) for matcher in selector.matchers.matchers)
    }


def _matches(matcher: promql.Matcher, labels: dict[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    if matcher.op == promql.MatchOp.Equal:
        return value == str(matcher.value)
    if matcher.op == promql.MatchOp.NotEqual:
        return value != str(matcher.value)
    wanted: bool = matcher.op == promql.MatchOp.Re
    return (re.fullmatch(matcher.value, value) is not None) == wanted


def _quantiles(share: float, buckets: Vector) -> Vector:
    """The upper end of the bucket: what is compared with it lies well beside a boundary."""
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, value in buckets.items():
        others = frozenset(item for item in labels if item[0] != "le")
        groups.setdefault(others, []).append((float(dict(labels)["le"]), value))
    found = {}
    for labels, items in groups.items():
        items.sort()
        total = items[-1][1]
        found[labels] = next(end for end, value in items if value >= share * total) if total else math.nan
    return found

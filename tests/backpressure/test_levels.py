"""Levels: 80 % stops bulk, 100 % stops all, below 50 % everything goes on, and in between nothing changes."""

from fractions import Fraction
from itertools import permutations
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tracelake.dispatcher.engine.pressure.levels import Level, Thresholds, next_level, share
from tracelake.dispatcher.engine.pressure.upstream import ProducerEdge, Stops, build

SHARES = st.fractions(min_value=0, max_value=3)


@given(st.sampled_from(Level), SHARES)
@example(Level.ALL, Fraction(1, 2))
@example(Level.NONE, Fraction(4, 5))
@example(Level.BULK, Fraction(1))
def test_a_level_follows_the_share(level: Level, full: Fraction) -> None:
    after = next_level(level, full)
    if full >= 1:
        assert after is Level.ALL
    elif full < Fraction(1, 2):
        assert after is Level.NONE
    elif full >= Fraction(4, 5):
        assert after is (Level.ALL if level is Level.ALL else Level.BULK)
    else:
        assert after is level
    assert next_level(after, full) is after


@given(st.integers(0, 500), st.floats(0, 1000), st.none() | st.integers(1, 200), st.none() | st.integers(1, 500))
@example(0, 10.0, 20, 5)
@example(1, 10.0, 20, 5)
def test_the_worse_of_depth_and_age_counts(depth: int, age: float, max_depth: int | None, max_age: int | None) -> None:
    full = share(Thresholds(max_depth, max_age), depth, age)
    by_depth = Fraction(0) if max_depth is None else Fraction(depth, max_depth)
    by_age = Fraction(0) if max_age is None or not depth else Fraction(age) / max_age
    assert full == max(by_depth, by_age)


NODES = [UUID(int=number + 1) for number in range(7)]


Graph = tuple[list[ProducerEdge], list[UUID], dict[UUID, bool]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Edges from smaller to larger numbers, so without circles; some nodes are bulk, some have a threshold."""
    bulk = {node: draw(st.booleans()) for node in NODES}
    pairs = draw(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
    edges = [
        ProducerEdge(NODES[a], NODES[b], (NODES[a], NODES[a]), bulk[NODES[a]], source=False) for a, b in pairs if a < b
    ]
    return edges, draw(st.lists(st.sampled_from(NODES), unique=True)), bulk


def stopped(node: UUID, edges: list[ProducerEdge], levels: dict[UUID, Level], bulk: dict[UUID, bool]) -> bool:
    """By the words of the contract: whatever lies upstream of a full queue, by its own kind."""

    def presses(consumer: UUID, level: Level) -> bool:
        return levels.get(consumer, Level.NONE) >= level or any(
            edge.producer == consumer and presses(edge.consumer, level) for edge in edges
        )

    return any(
        presses(edge.consumer, Level.ALL) or (bulk[node] and presses(edge.consumer, Level.BULK))
        for edge in edges
        if edge.producer == node
    )


@given(graphs(), st.data())
def test_pressure_travels_upstream_by_kind(
    graph: tuple[list[ProducerEdge], list[UUID], dict[UUID, bool]], data: st.DataObject
) -> None:
    edges, limited, bulk = graph
    levels = {node: data.draw(st.sampled_from(Level)) for node in limited}
    upstream = build(edges, limited)
    for node in NODES:
        found = upstream.stopped_by(node, Stops(levels)) is not None
        assert found == stopped(node, edges, levels, bulk), node


@pytest.mark.parametrize("order", list(permutations(range(5))))
def test_bulk_producers_stop_first_also_behind_a_normal_one(order: tuple[int, ...]) -> None:
    """head -> plain -> (maker | bulky) -> queue, where only `plain` is normal: at 80 % all others must stop."""
    head, maker, plain, bulky, queue = NODES[:5]
    ways = [(head, plain), (plain, maker), (plain, bulky), (maker, queue), (bulky, queue)]
    edges = [ProducerEdge(a, b, (a, a), a != plain, source=False) for a, b in (ways[number] for number in order)]
    upstream = build(edges, [queue])
    stopped_first = {node for node in NODES if upstream.stopped_by(node, Stops({queue: Level.BULK})) is not None}
    assert stopped_first == {head, maker, bulky}

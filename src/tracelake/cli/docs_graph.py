"""The picture of a graph of jobs and datasets: layers from left to right, as SVG without styles of its own.

Each node is to the right of everything it is made from; inputs that would close a circle (`self: previous`) bend back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Literal

from tracelake.cli.text import clean

_WIDTH, _HEIGHT = 190, 34
_GAP_X, _GAP_Y = 70, 16
_MARGIN = 12
_LETTERS = 25
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class GraphNode:
    key: str
    text: str
    kind: Literal["job", "source", "dataset"]
    link: str | None = None
    """The anchor of what describes it."""


@dataclass(slots=True)
class DocsGraph:
    nodes: dict[str, GraphNode] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)

    def add(self, node: GraphNode) -> None:
        self.nodes.setdefault(node.key, node)

    def connect(self, start: str, end: str) -> None:
        if (start, end) not in self.edges:
            self.edges.append((start, end))


def assign_layers(keys: Sequence[str], edges: Iterable[tuple[str, str]]) -> dict[str, int]:
    """The layer of each node: one more than the highest of those before it. Edges that close a circle do not count."""
    before: dict[str, list[str]] = {key: [] for key in keys}
    for start, end in edges:
        if start in before and end in before and start != end:
            before[end].append(start)
    layers: dict[str, int] = {}
    for key in keys:
        waiting = [(key, False)]
        path: set[str] = set()
        while waiting:
            node, visited = waiting.pop()
            if visited:
                path.discard(node)
                layers[node] = 1 + max((layers[item] for item in before[node] if item in layers), default=-1)
            elif node not in layers and node not in path:
                path.add(node)
                waiting.append((node, True))
                waiting += [(item, False) for item in before[node] if item not in layers and item not in path]
    return layers


def order_layers(layers: Mapping[str, int], edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Nodes of each layer from top to bottom: each near the middle of its neighbours, so that few edges cross."""
    columns: list[list[str]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for key, layer in layers.items():
        columns[layer].append(key)
    neighbours: dict[str, list[str]] = {key: [] for key in layers}
    for start, end in edges:
        neighbours[start].append(end)
        neighbours[end].append(start)
    for number in range(_ROUNDS):
        places = {key: place / len(column) for column in columns for place, key in enumerate(column)}
        for column in columns[:: 1 if number % 2 == 0 else -1]:
            middles = {
                key: sum(places[item] for item in neighbours[key]) / len(neighbours[key])
                if neighbours[key]
                else places[key]
                for key in column
            }
            column.sort(key=lambda key: (middles[key], key))
            places |= {key: place / len(column) for place, key in enumerate(column)}
    return columns


def draw_graph(graph: DocsGraph, title: str) -> str:
    """The picture; its nodes are links."""
    columns = order_layers(assign_layers(list(graph.nodes), graph.edges), graph.edges)
    tallest = max((len(column) for column in columns), default=1)
    width = 2 * _MARGIN + len(columns) * (_WIDTH + _GAP_X) - _GAP_X
    height = 2 * _MARGIN + tallest * (_HEIGHT + _GAP_Y) - _GAP_Y
    places: dict[str, tuple[int, int]] = {}
    for layer, column in enumerate(columns):
        top = (height - (len(column) * (_HEIGHT + _GAP_Y) - _GAP_Y)) // 2
        for number, key in enumerate(column):
            places[key] = (_MARGIN + layer * (_WIDTH + _GAP_X), top + number * (_HEIGHT + _GAP_Y))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" class="graph"><title>{_text(title)}</title>'
    ]
    parts += [_draw_edge(places[start], places[end]) for start, end in graph.edges]
    parts += [_draw_node(node, *places[key]) for key, node in graph.nodes.items()]
    return "".join([*parts, "</svg>"])


def _draw_edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1, x2, y2 = start[0] + _WIDTH, start[1] + _HEIGHT // 2, end[0], end[1] + _HEIGHT // 2
    if x2 <= x1 - _WIDTH:  # it bends back
        low = max(start[1], end[1]) + _HEIGHT + 8
        bend = f"M{x1} {y1} C{x1 + 30} {low} {x2 - 30} {low} {x2} {y2}"
        return f'<path class="edge back" d="{bend}"/>'
    middle = (x1 + x2) // 2
    tip = f"M{x2 - 6} {y2 - 4}L{x2} {y2}L{x2 - 6} {y2 + 4}"
    return f'<path class="edge" d="M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}{tip}"/>'


def _draw_node(node: GraphNode, x: int, y: int) -> str:
    text = clean(node.text)
    label = text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"
    shape = (
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="{17 if node.kind == "dataset" else 4}"/>'
        f'<text x="{x + _WIDTH // 2}" y="{y + 21}" text-anchor="middle">{_text(label)}</text>'
    )
    body = f'<g class="node {node.kind}"><title>{_text(f"{node.kind} {text}")}</title>{shape}</g>'
    return body if node.link is None else f'<a href="#{_text(node.link)}">{body}</a>'


def _text(text: str) -> str:
    return escape(clean(text), quote=True)

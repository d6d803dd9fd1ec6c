"""The picture of a graph of jobs and datasets in layers, as SVG without styles of its own.

Each node is in a layer after everything it is made from; inputs that would close a circle (`self: previous`) bend back.
Layers go from left to right; if that is wider than the page, from top to bottom, unless that is wider still. An edge
that skips layers has a place of its own in each of them, so that no edge runs behind a node.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import Literal

from tracelake.cli.text import clean

_HEIGHT = 34
_GAP = 20
"""Between neighbours in a layer."""
_GAP_ACROSS, _GAP_DOWN = 56, 44
"""Between layers, from left to right and from top to bottom."""
_BEND = 8
"""What an edge takes in a layer that it skips."""
_MARGIN = 24
_PAGE_WIDTH = 1140
_LETTERS, _LETTER_WIDTH = 25, 8
_LEAST_WIDTH = 96
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class GraphNode:
    key: str
    text: str
    kind: Literal["job", "source", "dataset"]
    link: str | None = None
    """The anchor of what describes it."""
    notes: tuple[str, ...] = ()
    """What to say of it besides its name: `2 running`."""
    level: Literal["", "busy", "warning", "failed"] = ""
    """How the notes are coloured."""


@dataclass(slots=True)
class DocsGraph:
    nodes: dict[str, GraphNode] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)
    back: set[tuple[str, str]] = field(default_factory=set)
    """Those of the edges that lead from a job's output to the job itself."""

    def add(self, node: GraphNode) -> None:
        self.nodes.setdefault(node.key, node)

    def connect(self, start: str, end: str, *, back: bool = False) -> None:
        if (start, end) not in self.edges:
            self.edges.append((start, end))
        if back:
            self.back.add((start, end))


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


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """Where nodes and bends of edges are: along the layers, and across each of them."""

    columns: list[list[str]]
    paths: list[list[str]]
    """For each edge its nodes and the bends between them; an edge that bends back has its two nodes alone."""
    centres: dict[str, float]
    """The middle of each node and bend within its layer."""
    span: float
    """From the first to the last in any layer."""

    @property
    def layers(self) -> dict[str, int]:
        return {key: layer for layer, column in enumerate(self.columns) for key in column}


def lay_out(
    graph: DocsGraph, extent: int | Mapping[str, int], *, gap: int = _GAP, bend: int = _BEND, join: bool = False
) -> GraphLayout:
    """`extent`: what a node, or each of them, takes of its layer. With `join` the edges of a node bend together."""
    layers = assign_layers(list(graph.nodes), [edge for edge in graph.edges if edge not in graph.back])
    paths: list[list[str]] = []
    for number, (start, end) in enumerate(graph.edges):
        # No key of a node begins with a NUL.
        edge_key = f"\0{start if join else number}"
        bends = {f"{edge_key} {layer}": layer for layer in range(layers[start] + 1, layers[end])}
        layers |= bends
        paths.append([start, *bends, end])
    hops = list(dict.fromkeys(hop for path in paths for hop in pairwise(path)))
    columns = order_layers(layers, hops)
    node_extents = dict.fromkeys(graph.nodes, extent) if isinstance(extent, int) else extent
    extents = {key: bend if key.startswith("\0") else node_extents[key] for key in layers}
    centres = _centres(columns, hops, extents, gap)
    span = max((centre + extents[key] / 2 for key, centre in centres.items()), default=0.0)
    return GraphLayout(columns, paths, centres, span)


def _centres(
    columns: Sequence[Sequence[str]], hops: Iterable[tuple[str, str]], extents: Mapping[str, int], gap: int
) -> dict[str, float]:
    """Each key as near to the middle of its neighbours as the others of its layer allow, from 0 on."""
    layers = {key: layer for layer, column in enumerate(columns) for key in column}
    before: dict[str, list[str]] = {key: [] for key in layers}
    after: dict[str, list[str]] = {key: [] for key in layers}
    for start, end in hops:
        if layers[start] < layers[end]:
            before[end].append(start)
            after[start].append(end)
    centres: dict[str, float] = dict.fromkeys(layers, 0.0)
    for number in range(2 * _ROUNDS):
        neighbours = before if number % 2 == 0 else after
        for column in columns[:: 1 if number % 2 == 0 else -1]:
            ideal = {
                key: sum(centres[item] for item in neighbours[key]) / len(neighbours[key])
                if neighbours[key]
                else centres[key]
                for key in column
            }
            last: str | None = None
            for key in column:
                centres[key] = ideal[key]
                if last is not None:
                    least = centres[last] + (extents[last] + extents[key]) / 2 + gap
                    centres[key] = max(ideal[key], least)
                last = key
            shift = sum(ideal[key] - centres[key] for key in column) / len(column)
            for key in column:
                centres[key] += shift
    first = min((centres[key] - extents[key] / 2 for key in centres), default=0.0)
    return {key: centre - first for key, centre in centres.items()}


class GraphPicture:
    """The SVG of a graph: one layout, in one direction."""

    def __init__(self, graph: DocsGraph, *, down: bool) -> None:
        self._graph, self._down = graph, down
        longest = max(
            (len(_label(text)) for node in graph.nodes.values() for text in (node.text, *_note(node))), default=0
        )
        self._node_width = max(_LEAST_WIDTH, longest * _LETTER_WIDTH + 24)
        self._layout = lay_out(graph, self._node_width if down else _HEIGHT)
        self._layers = self._layout.layers
        count = max(1, len(self._layout.columns))
        self._thickness, gap = (_HEIGHT, _GAP_DOWN) if down else (self._node_width, _GAP_ACROSS)
        self._step = self._thickness + gap
        along = 2 * _MARGIN + count * self._step - gap
        across = 2 * _MARGIN + round(self._layout.span)
        self.width, self.height = (across, along) if down else (along, across)

    def draw(self, title: str) -> str:
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" class="graph"><title>{_text(title)}</title>'
        ]
        parts += [self._edge(path) for path in self._layout.paths]
        parts += [self._node(key, node) for key, node in self._graph.nodes.items()]
        return "".join([*parts, "</svg>"])

    def _place(self, key: str) -> tuple[int, int]:
        """Where the layer begins, and the middle of the key in it."""
        return _MARGIN + self._layers[key] * self._step, _MARGIN + round(self._layout.centres[key])

    def _point(self, along: float, across: float) -> str:
        return f"{across:g} {along:g}" if self._down else f"{along:g} {across:g}"

    def _edge(self, path: Sequence[str]) -> str:
        start, end = path[0], path[-1]
        if self._layers[start] >= self._layers[end]:
            return self._edge_back(start, end)
        along, across = self._place(start)
        steps = [f"M{self._point(along + self._thickness, across)}"]
        for before, after in pairwise(path):
            (begin, across), (along, target) = self._place(before), self._place(after)
            begin += self._thickness
            middle = (begin + along) / 2
            steps.append(f"C{self._point(middle, across)} {self._point(middle, target)} {self._point(along, target)}")
            if after != end:
                steps.append(f"L{self._point(along + self._thickness, target)}")
        along, across = self._place(end)
        steps.append(f"M{self._point(along - 6, across - 4)}L{self._point(along, across)}")
        steps.append(f"L{self._point(along - 6, across + 4)}")
        return f'<path class="edge" d="{"".join(steps)}"/>'

    def _edge_back(self, start: str, end: str) -> str:
        """Beside its nodes, in the gap to their neighbours."""
        half = (self._node_width if self._down else _HEIGHT) / 2
        first, across = (
            place + shift for place, shift in zip(self._place(start), (self._thickness / 2, half), strict=True)
        )
        second, target = (
            place + shift for place, shift in zip(self._place(end), (self._thickness / 2, half), strict=True)
        )
        if start == end:
            first, second = first + 10, second - 10
        beside = max(across, target) + _GAP
        bend = f"C{self._point(first, beside)} {self._point(second, beside)} {self._point(second, target)}"
        tip = f"M{self._point(second - 4, target + 6)}L{self._point(second, target)}"
        tip += f"L{self._point(second + 4, target + 6)}"
        return f'<path class="edge back" d="M{self._point(first, across)}{bend}{tip}"/>'

    def _node(self, key: str, node: GraphNode) -> str:
        along, across = self._place(key)
        width = self._node_width
        x, y = (across - width // 2, along) if self._down else (along, across - _HEIGHT // 2)
        shape = (
            f'<rect x="{x}" y="{y}" width="{width}" height="{_HEIGHT}" rx="{17 if node.kind == "dataset" else 4}"/>'
            f'<text x="{x + width // 2}" y="{y + (15 if node.notes else 21)}" text-anchor="middle">'
            f"{_text(_label(node.text))}</text>"
        )
        for note in _note(node):
            shape += f'<text class="note" x="{x + width // 2}" y="{y + 28}" text-anchor="middle">'
            shape += f"{_text(_label(note))}</text>"
        title = ", ".join((f"{node.kind} {clean(node.text)}", *node.notes))
        classes = f"node {node.kind}{f' {node.level}' if node.level else ''}"
        body = f'<g class="{classes}"><title>{_text(title)}</title>{shape}</g>'
        return body if node.link is None else f'<a href="#{_text(node.link)}">{body}</a>'


def draw_graph(graph: DocsGraph, title: str) -> str:
    """The picture; nodes that have a link are links."""
    picture = GraphPicture(graph, down=False)
    if picture.width > _PAGE_WIDTH:
        picture = min(picture, GraphPicture(graph, down=True), key=lambda drawn: drawn.width)
    return picture.draw(title)


def _note(node: GraphNode) -> tuple[str, ...]:
    """The line below the name, if there is one."""
    return (", ".join(node.notes),) if node.notes else ()


def _label(text: str) -> str:
    text = clean(text)
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"


def _text(text: str) -> str:
    return escape(clean(text), quote=True)

"""A graph of jobs and datasets drawn with characters, from top to bottom: jobs in boxes, datasets in brackets.

Every node has one line out of it, which branches to its readers, and every reader has a place of its own on its upper
side for each line that ends there. So lines never join; where two cross, the one from above is unbroken. A graph that
is too wide is drawn with shorter names, and one that is still too wide is written as a list.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from rich.cells import cell_len
from rich.text import Text

from tracelake.cli.docs_graph import DocsGraph, GraphLayout, GraphNode, lay_out
from tracelake.cli.text import clean

_GAP = 2
_BEND = 3
"""Columns of an edge in a layer that it skips: it takes the one below which nothing begins."""
_NAME_LENGTHS = (60, 32, 22, 16)
_NORTH, _EAST, _SOUTH, _WEST = 1, 2, 4, 8
_LINES = " │─└││┌├─┘─┴┐┤┬┼"
"""By the sum of the directions in which a line goes on."""
_ASCII_LINES = " |-+||++-+-+++++"
STYLES = {"": "", "busy": "cyan", "warning": "yellow", "failed": "bold red"}


@dataclass(frozen=True, slots=True)
class _NodeBox:
    """A node as lines of text."""

    lines: list[str]
    is_box: bool
    style: str

    @property
    def width(self) -> int:
        return len(self.lines[0])


@dataclass(slots=True)
class _Canvas:
    """Characters by row and column; lines of different edges in one place are told apart."""

    ascii_only: bool
    lines: dict[tuple[int, int], dict[str, int]] = field(default_factory=dict)
    letters: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)

    def line(self, row: int, column: int, net: str, directions: int) -> None:
        place = self.lines.setdefault((row, column), {})
        place[net] = place.get(net, 0) | directions

    def write(self, row: int, column: int, text: str, style: str = "") -> None:
        for offset, letter in enumerate(text):
            self.letters[row, column + offset] = (letter, style)

    def render(self) -> list[Text]:
        rows = 1 + max((row for row, _ in (*self.lines, *self.letters)), default=-1)
        lines: list[dict[int, tuple[str, str]]] = [{} for _ in range(rows)]
        for (row, column), nets in self.lines.items():
            lines[row][column] = (self._line_character(nets), "dim")
        for (row, column), letter in self.letters.items():
            lines[row][column] = letter
        return [_to_text(line) for line in lines]

    def _line_character(self, nets: Mapping[str, int]) -> str:
        vertical = [bits for bits in nets.values() if bits & (_NORTH | _SOUTH)]
        bits = vertical[0] if len(nets) > 1 and vertical else next(iter(nets.values()))
        return (_ASCII_LINES if self.ascii_only else _LINES)[bits]


def _to_text(line: Mapping[int, tuple[str, str]]) -> Text:
    text = Text(no_wrap=True, overflow="ignore")
    for column in range(max(line, default=-1) + 1):
        text.append(*line.get(column, (" ", "")))
    return text


def draw_text(graph: DocsGraph, width: int, *, ascii_only: bool = False) -> list[Text]:
    """The graph in lines of at most this width."""
    for length in _NAME_LENGTHS:
        drawing = _TextDrawing(graph, length, ascii_only=ascii_only)
        if drawing.fits(width):
            return drawing.draw()
    return list_text(graph, width, ascii_only=ascii_only)


class _TextDrawing:
    def __init__(self, graph: DocsGraph, length: int, *, ascii_only: bool) -> None:
        self._ascii = ascii_only
        flat = DocsGraph(nodes=dict(graph.nodes), edges=[edge for edge in graph.edges if edge not in graph.back])
        inputs = {key: sum(end == key for _, end in flat.edges) for key in flat.nodes}
        self._boxes = {
            key: _make_box(node, length, inputs[key], _back_notes(graph, key), ascii_only=ascii_only)
            for key, node in flat.nodes.items()
        }
        widths = {key: box.width for key, box in self._boxes.items()}
        self._layout = lay_out(flat, widths, gap=_GAP, bend=_BEND, join=True)
        self._widths = {key: widths.get(key, _BEND) for column in self._layout.columns for key in column}

    def fits(self, width: int) -> bool:
        self._lefts = _place_all(self._layout, self._widths, width)
        return self._lefts is not None

    def draw(self) -> list[Text]:
        canvas = _Canvas(self._ascii)
        hops = list(dict.fromkeys(hop for path in self._layout.paths for hop in pairwise(path)))
        entries: dict[tuple[str, str], int] = {}
        exits: dict[str, int] = {}
        row = 0
        for number, column in enumerate(self._layout.columns):
            incoming = [hop for hop in hops if self._layout.layers[hop[1]] == number]
            if number:
                entries = self._choose_entries(column, incoming, exits)
                row = self._draw_edges(canvas, row, incoming, entries, exits)
            height = max((len(self._boxes[key].lines) for key in column if key in self._boxes), default=1)
            goes_on = {start for start, _ in hops}
            exits = {}
            for key in column:
                exits[key] = self._draw_node(canvas, row, height, key, entries, goes_on)
            row += height
        return canvas.render()

    def _left(self, key: str) -> int:
        assert self._lefts is not None
        return self._lefts[key]

    def _choose_entries(
        self, column: Sequence[str], hops: Sequence[tuple[str, str]], exits: Mapping[str, int]
    ) -> dict[tuple[str, str], int]:
        """The column in which each line ends: straight below its beginning, if it can be, and below no other's."""
        entries: dict[tuple[str, str], int] = {}
        for key in column:
            left, width = self._left(key), self._widths[key]
            inside = range(left, left + width) if key not in self._boxes else range(left + 1, left + width - 1)
            arriving = sorted((hop for hop in hops if hop[1] == key), key=lambda hop: exits[hop[0]])
            blocked = set(exits.values())
            used: set[int] = set()
            for hop in arriving:
                if exits[hop[0]] in inside:
                    entries[hop] = exits[hop[0]]
                    used.add(exits[hop[0]])
            middle = left + width // 2
            for place, hop in enumerate(hop for hop in arriving if hop not in entries):
                ideal = middle + 2 * place - (len(arriving) - 1)
                free = [number for number in inside if number not in blocked and number not in used]
                apart = [number for number in free if not {number - 1, number + 1} & used]
                entries[hop] = _nearest(apart or free, ideal)
                used.add(entries[hop])
        return _in_order(entries, exits)

    def _draw_edges(
        self,
        canvas: _Canvas,
        row: int,
        hops: Sequence[tuple[str, str]],
        entries: Mapping[tuple[str, str], int],
        exits: Mapping[str, int],
    ) -> int:
        """Draws the lines between two layers; returns the row where the lower one begins."""
        nets = {start: [entries[start, end] for begin, end in hops if begin == start] for start, _ in hops}
        rows = _assign_rows({start: (exits[start], ends) for start, ends in nets.items()})
        count = max(rows.values(), default=0)
        last = row + count
        for start, ends in nets.items():
            begin, turn = exits[start], row + rows[start] - 1
            if rows[start]:
                for number in range(row, turn):
                    canvas.line(number, begin, start, _NORTH | _SOUTH)
                canvas.line(turn, begin, start, _NORTH)
                for first, second in pairwise(range(min(begin, *ends), max(begin, *ends) + 1)):
                    canvas.line(turn, first, start, _EAST)
                    canvas.line(turn, second, start, _WEST)
                for end in ends:
                    canvas.line(turn, end, start, _SOUTH)
            for end in ends:
                for number in range(turn + 1 if rows[start] else row, last):
                    canvas.line(number, end, start, _NORTH | _SOUTH)
        for (start, target), place in entries.items():
            if target in self._boxes:
                canvas.write(last, place, "v" if self._ascii else "▼", "dim")
            else:
                canvas.line(last, place, start, _NORTH | _SOUTH)
        return last + 1

    def _draw_node(
        self,
        canvas: _Canvas,
        row: int,
        height: int,
        key: str,
        entries: Mapping[tuple[str, str], int],
        goes_on: Iterable[str],
    ) -> int:
        """Returns the column in which the line out of it begins."""
        box = self._boxes.get(key)
        if box is None:
            place = next(place for (_, end), place in entries.items() if end == key)
            for number in range(row, row + height):
                canvas.line(number, place, key, _NORTH | _SOUTH)
            return place
        left = self._left(key)
        middle = left + box.width // 2
        for number, text in enumerate(box.lines):
            edge = not box.is_box or number in (0, len(box.lines) - 1)
            if edge:
                canvas.write(row + number, left, text, box.style if not box.is_box else "")
            else:
                canvas.write(row + number, left, text[0])
                # The first of its states is the worst.
                style = "bold" if number == 1 else box.style if number == 2 else ""
                canvas.write(row + number, left + 1, text[1:-1], style)
                canvas.write(row + number, left + box.width - 1, text[-1])
        if key in goes_on:
            if box.is_box:
                canvas.write(row + len(box.lines) - 1, middle, "+" if self._ascii else "┬")
            for number in range(row + len(box.lines), row + height):
                canvas.line(number, middle, key, _NORTH | _SOUTH)
        return middle


def _nearest(numbers: Sequence[int], ideal: int) -> int:
    return min(numbers, key=lambda number: (abs(number - ideal), number))


def _in_order(entries: dict[tuple[str, str], int], exits: Mapping[str, int]) -> dict[tuple[str, str], int]:
    """The same places, given to the lines of a node from left to right, so that they do not cross before it."""
    ordered = dict(entries)
    for key in {end for _, end in entries}:
        bent = sorted((hop for hop in entries if hop[1] == key and entries[hop] != exits[hop[0]]),
                      key=lambda hop: exits[hop[0]])  # fmt: skip
        ordered |= dict(zip(bent, sorted(entries[hop] for hop in bent), strict=True))
    return ordered


def _assign_rows(nets: Mapping[str, tuple[int, Sequence[int]]]) -> dict[str, int]:
    """The row, from 1, in which each line turns; 0 for one that is straight. Lines that overlap have different ones."""
    spans = {key: (min(begin, *ends), max(begin, *ends)) for key, (begin, ends) in nets.items() if set(ends) != {begin}}
    rows = dict.fromkeys(nets, 0)
    waiting = list(spans)
    ordered: list[str] = []
    while waiting:
        best = min(waiting, key=lambda key: sum(
            _crossings(nets[key], nets[other]) - _crossings(nets[other], nets[key]) for other in waiting if other != key
        ))  # fmt: skip
        waiting.remove(best)
        above = [rows[key] for key in ordered if spans[key][0] <= spans[best][1] and spans[best][0] <= spans[key][1]]
        rows[best] = 1 + max(above, default=0)
        ordered.append(best)
    return rows


def _crossings(upper: tuple[int, Sequence[int]], lower: tuple[int, Sequence[int]]) -> int:
    """How often two lines cross if the first turns above the second."""
    (begin, ends), (other, others) = upper, lower
    first, last = min(begin, *ends), max(begin, *ends)
    low, high = min(other, *others), max(other, *others)
    return (first < other < last) + sum(low < end < high for end in ends)


def _place_all(layout: GraphLayout, widths: Mapping[str, int], width: int) -> dict[str, int] | None:
    """The first column of each node and bend: near where the layout has it, side by side within the width."""
    lefts: dict[str, int] = {}
    for column in layout.columns:
        if sum(widths[key] for key in column) + _GAP * (len(column) - 1) > width:
            return None
        free = 0
        for key in column:
            lefts[key] = max(free, round(layout.centres[key] - widths[key] / 2))
            free = lefts[key] + widths[key] + _GAP
        limit = width
        for key in reversed(column):
            lefts[key] = min(lefts[key], limit - widths[key])
            limit = lefts[key] - _GAP
    return lefts


def _back_notes(graph: DocsGraph, key: str) -> list[str]:
    return [
        f"reads its own {_plain(graph.nodes[start].text, 60, ascii_only=False)}"
        for start, end in sorted(graph.back)
        if end == key
    ]


def _make_box(node: GraphNode, length: int, inputs: int, notes: Sequence[str], *, ascii_only: bool) -> _NodeBox:
    name = _plain(node.text, length, ascii_only=ascii_only)
    texts = [_plain(note, max(length, 22), ascii_only=ascii_only) for note in (*node.notes, *notes)]
    least = 2 * inputs + 5
    style = STYLES[node.level]
    if node.kind == "dataset":
        content = ": ".join([name, ", ".join(texts)]) if texts else name
        return _NodeBox([f"( {content.center(least - 4)} )"], False, style)
    inner = max(len(name), *map(len, texts), least - 4) if texts else max(len(name), least - 4)
    corners = "++++-|" if ascii_only else "┌┐└┘─│"
    edge = corners[4] * (inner + 2)
    lines = [f"{corners[0]}{edge}{corners[1]}"]
    lines += [f"{corners[5]} {text.center(inner)} {corners[5]}" for text in (name, *texts)]
    lines.append(f"{corners[2]}{edge}{corners[3]}")
    return _NodeBox(lines, True, style)


def _plain(text: str, length: int, *, ascii_only: bool) -> str:
    """The text in at most so many columns, each character one of them."""
    text = clean(text)
    if ascii_only or cell_len(text) != len(text):
        text = text.encode("ascii", "backslashreplace").decode()
    mark = "..." if ascii_only else "…"
    return text if len(text) <= length else text[: length - len(mark)] + mark


def list_text(graph: DocsGraph, width: int, *, ascii_only: bool = False) -> list[Text]:
    """The graph as a list: each job with what it reads and what it writes or who reads it."""
    lines: list[Text] = []
    arrow = "->" if ascii_only else "→"
    for key, node in graph.nodes.items():
        if node.kind == "dataset":
            continue
        lines.append(Text.assemble((_plain(node.text, width, ascii_only=ascii_only), "bold")))
        if node.notes:
            note = _plain(", ".join(node.notes), 200, ascii_only=ascii_only)
            lines += [Text(f"    {part}", STYLES[node.level]) for part in textwrap.wrap(note, max(8, width - 4))]
        for word, keys in (
            ("reads ", [start for start, end in graph.edges if end == key]),
            (f"{arrow}".ljust(6), [end for start, end in graph.edges if start == key]),
        ):
            names = ", ".join(_plain(graph.nodes[item].text, width - 12, ascii_only=ascii_only) for item in keys)
            for place, part in enumerate(textwrap.wrap(names, max(8, width - 12), break_on_hyphens=False)):
                lines.append(Text.assemble((f"    {word if not place else ' ' * 6}", "dim"), part))
    return lines

"""Pictures of a terminal for the documents: the cells of a screen become text of an SVG, so that it can be searched."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

_CELL_WIDTH, _CELL_HEIGHT, _FONT_SIZE = 8.4, 19, 14
_MARGIN, _BAR = 14, 30
_BACKGROUND, _TEXT = "#1d1f27", "#d8dbe2"
_COLOURS = {
    "red": "#f07178",
    "green": "#a5d17a",
    "brown": "#e6c07b",
    "blue": "#7aa8f0",
    "magenta": "#c99ae8",
    "cyan": "#6fcbd6",
    "brightblack": "#7d8494",
    "black": "#1d1f27",
    "white": "#ffffff",
}
"""Names of the emulator; others are hex."""


@dataclass(frozen=True, slots=True)
class Cell:
    text: str
    colour: str = "default"
    background: str = "default"
    bold: bool = False
    reverse: bool = False

    @property
    def colours(self) -> tuple[str, str]:
        """Of the text, and behind it."""
        text, background = _hex(self.colour, _TEXT), _hex(self.background, _BACKGROUND)
        return (background, text) if self.reverse else (text, background)


def draw(title: str, lines: Sequence[Sequence[Cell]], columns: int) -> str:
    width = columns * _CELL_WIDTH + 2 * _MARGIN
    height = len(lines) * _CELL_HEIGHT + _BAR + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{_BACKGROUND}"/>',
        f'<g font-family="Menlo, Consolas, DejaVu Sans Mono, monospace" font-size="{_FONT_SIZE}">',
        f'<text x="{width / 2:g}" y="20" text-anchor="middle" fill="#7d8494">{escape(title)}</text>',
    ]
    for number, line in enumerate(lines):
        parts += _draw_line(line, _BAR + _MARGIN + number * _CELL_HEIGHT)
    return "\n".join([*parts, "</g>", "</svg>"]) + "\n"


def _draw_line(line: Sequence[Cell], top: float) -> Iterator[str]:
    place = 0
    while place < len(line):
        end = place + 1
        while end < len(line) and _style(line[end]) == _style(line[place]):
            end += 1
        text = "".join(cell.text for cell in line[place:end])
        left, width = _MARGIN + place * _CELL_WIDTH, (end - place) * _CELL_WIDTH
        blanks = len(text) - len(text.lstrip())  # not every viewer draws them
        colour, background = line[place].colours
        if background != _BACKGROUND:
            yield f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{_CELL_HEIGHT}" fill="{background}"/>'
        if text.strip():
            bold = ' font-weight="bold"' if line[place].bold else ""
            style = f'textLength="{len(text.strip()) * _CELL_WIDTH:g}" fill="{colour}"{bold}'
            # Browsers draw a run of spaces as one, whatever `white-space` says around the text.
            shown = escape(text.strip()).replace(" ", "\N{NO-BREAK SPACE}")
            yield f'<text x="{left + blanks * _CELL_WIDTH:g}" y="{top + 14:g}" {style}>{shown}</text>'
        place = end


def _style(cell: Cell) -> tuple[object, ...]:
    return (*cell.colours, cell.bold)


def _hex(name: str, default: str) -> str:
    if name == "default":
        return default
    return _COLOURS.get(name) or (f"#{name}" if len(name) == 6 else default)

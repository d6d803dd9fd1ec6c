"""Charts as SVG: axes with ticks and names, a grid, a title and a legend. Names are escaped wherever they stand.

Everything is within the view box, and a line has a bounded number of points. There is no script, nothing is loaded.
"""

from html import escape

from rich.cells import cell_len

from tracelake.cli.chart_data import ChartData, bar_groups, downsample, make_x_scale
from tracelake.cli.chart_scale import Number, Scale, format_number, number_scale
from tracelake.cli.query_table import shorten
from tracelake.cli.text import clean, count

MOST_BARS = 200
_MOST_POINTS = 2_000
_WIDTH, _HEIGHT = 760, 420
_MARGIN = 20
_TOP = 64
_LINE = 18
_LETTER = 8
"""What a letter of 12 pixels takes at most, roughly."""
_BAR, _BAR_GAP = 16, 8
_LABEL_CELLS = 28
_COLOURS = ("#0969da", "#bf8700", "#8250df", "#1a7f37", "#cf222e", "#0a8a8a", "#953800", "#57606a")
_STYLE = """
.chart{background:#fff}.chart text{font:12px system-ui,sans-serif;fill:#1b1f24}
.chart .title{font-size:15px;font-weight:bold}.chart .dim{fill:#59636e}
.chart .grid{stroke:#d1d9e0;fill:none}.chart .axis{stroke:#59636e;fill:none}
.chart .line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
@media (prefers-color-scheme:dark){.chart{background:#0d1117}.chart text{fill:#e6edf3}.chart .dim{fill:#9198a1}
.chart .grid{stroke:#30363d}.chart .axis{stroke:#9198a1}}
"""


def draw_svg(data: ChartData, title: str, unit: str = "") -> str:
    """The picture; what it leaves out is added to the notes of `data`."""
    picture = _BarPicture(data, unit) if data.kind == "bar" else _LinePicture(data, unit)
    body = picture.draw()
    title_text = shorten(clean(title), (_WIDTH - 2 * _MARGIN) // 8)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" class="chart" width="{_WIDTH}" height="{picture.height}" '
        f'viewBox="0 0 {_WIDTH} {picture.height}"><title>{_text(title)}</title><style>{_STYLE}</style>'
        f'<text class="title" x="{_MARGIN}" y="{_MARGIN + 8}">{_text(title_text)}</text>{"".join(body)}</svg>\n'
    )


class _Picture:
    """What both kinds have: the legend, and the name of the y axis."""

    height = _HEIGHT

    def __init__(self, data: ChartData, unit: str) -> None:
        self._data, self._unit = data, unit
        self._legend_lines = self._lay_out_legend()
        self._top = _TOP + _LINE * len(self._legend_lines)

    def draw(self) -> list[str]:
        raise NotImplementedError

    def _y_title(self, scale: Scale) -> str:
        parts = [part for part in (self._unit, scale.note) if part]
        return self._data.y_name + (f" ({', '.join(parts)})" if parts else "")

    def _lay_out_legend(self) -> list[list[tuple[int, int, str]]]:
        """Lines of entries: where each begins, its series and its text."""
        if len(self._data.series) == 1:
            return []
        lines: list[list[tuple[int, int, str]]] = [[]]
        x = _MARGIN
        for number, series in enumerate(self._data.series):
            text = shorten(clean(series.name), 40)
            width = 24 + _LETTER * cell_len(text) + 12
            if x + width > _WIDTH - _MARGIN and lines[-1]:
                lines.append([])
                x = _MARGIN
            lines[-1].append((x, number, text))
            x += width
        return lines

    def _legend(self) -> list[str]:
        parts = []
        for line, entries in enumerate(self._legend_lines):
            y = _MARGIN + 12 + _LINE * (line + 1)
            for x, number, text in entries:
                parts.append(f'<rect x="{x}" y="{y - 9}" width="14" height="10" rx="2" fill="{_COLOURS[number]}"/>')
                parts.append(f'<text x="{x + 20}" y="{y}">{_text(text)}</text>')
        return parts


class _LinePicture(_Picture):
    def draw(self) -> list[str]:
        data = self._data
        values = data.values
        y_scale = number_scale(min(values), max(values), 8)
        x_scale = make_x_scale(data, 9)
        left = _MARGIN + 8 + _LETTER * max(map(len, y_scale.labels))
        right, bottom = _WIDTH - _MARGIN - 16, _HEIGHT - 56
        parts = self._legend()
        for place, label in zip(y_scale.places, y_scale.labels, strict=True):
            y = bottom - place * (bottom - self._top)
            parts.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
            parts.append(f'<text class="dim" x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{_text(label)}</text>')
        for place, label in zip(x_scale.places, x_scale.labels, strict=True):
            x = left + place * (right - left)
            half = _LETTER * len(label) / 2
            parts.append(f'<path class="axis" d="M{x:.1f} {bottom}v5"/>')
            centre = min(max(x, half + 2), _WIDTH - half - 2)
            parts.append(
                f'<text class="dim" x="{centre:.1f}" y="{bottom + 20}" text-anchor="middle">{_text(label)}</text>'
            )
        parts.append(f'<path class="axis" d="M{left} {self._top}V{bottom}H{right}"/>')
        x_title = data.x_name + (f" ({x_scale.note})" if x_scale.note else "")
        parts.append(_middle(x_title, (left + right) / 2, _HEIGHT - 14))
        parts.append(
            f'<text class="dim" x="{_MARGIN}" y="{self._top - 8}">{_text(shorten(self._y_title(y_scale), 90))}</text>'
        )
        for number, series in enumerate(data.series):
            points = downsample(series.points, _MOST_POINTS)
            if len(points) < len(series.points):
                data.notes.append(
                    f"{series.name}: {count(len(series.points), 'point')} drawn as {len(points):,}; the lowest and "
                    "highest of each stretch are kept."
                )
            spots = [
                None
                if value is None
                else (left + x_scale.place(x) * (right - left), bottom - y_scale.place(value) * (bottom - self._top))
                for x, value in points
            ]
            parts += _line(spots, _COLOURS[number])
        return parts


def _line(spots: list[tuple[float, float] | None], colour: str) -> list[str]:
    """A path with a gap where a value lacks; a value between two gaps is a dot."""
    steps: list[str] = []
    dots: list[str] = []
    for number, spot in enumerate(spots):
        if spot is None:
            continue
        x, y = spot
        before = spots[number - 1] if number else None
        after = spots[number + 1] if number + 1 < len(spots) else None
        steps.append(f"{'M' if before is None else 'L'}{x:.1f} {y:.1f}")
        if before is None and after is None:
            dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    return [f'<path class="line" stroke="{colour}" d="{"".join(steps)}"/>', *dots] if steps else []


class _BarPicture(_Picture):
    """Bars from left to right, one below the other: long names have room, and any number of bars."""

    def draw(self) -> list[str]:
        data = self._data
        groups = bar_groups(data)
        most = max(1, MOST_BARS // max(len(bars) for _, bars in groups))
        if len(groups) > most:
            data.notes.append(f"The first {most} of {len(groups):,} categories; aggregate the others in SQL.")
            groups = groups[:most]
        values = [value for _, bars in groups for _, value in bars if value is not None]
        scale = number_scale(min(0, *values), max(0, *values), 8) if values else number_scale(0, 1, 3)
        labels = [shorten(clean(name), _LABEL_CELLS) for name, _ in groups]
        texts = {value: format_number(value, 16) for value in values}
        left = _MARGIN + 8 + _LETTER * max(map(cell_len, labels))
        right = _WIDTH - _MARGIN - 8 - _LETTER * max(map(len, texts.values()), default=0)
        bottom = self._top + sum(_BAR * len(bars) + _BAR_GAP for _, bars in groups) + _BAR_GAP
        self.height = bottom + 56
        parts = self._legend()
        for place, label in zip(scale.places, scale.labels, strict=True):
            x = left + place * (right - left)
            parts.append(f'<path class="grid" d="M{x:.1f} {self._top}V{bottom}"/>')
            parts.append(f'<text class="dim" x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_text(label)}</text>')
        zero = left + scale.place(0) * (right - left)
        y = self._top + _BAR_GAP
        for label, (_, bars) in zip(labels, groups, strict=True):
            middle = y + _BAR * len(bars) / 2 + 4
            parts.append(f'<text x="{left - 8}" y="{middle:.1f}" text-anchor="end">{_text(label)}</text>')
            for number, value in bars:
                parts += self._bar(scale, value, texts, number, left, right, zero, y)
                y += _BAR
            y += _BAR_GAP
        parts.append(f'<path class="axis" d="M{zero:.1f} {self._top}V{bottom}"/>')
        parts.append(_middle(self._y_title(scale) or self._unit, (left + right) / 2, bottom + 42))
        return parts

    def _bar(
        self,
        scale: Scale,
        value: Number | None,
        texts: dict[Number, str],
        number: int,
        left: float,
        right: float,
        zero: float,
        y: float,
    ) -> list[str]:
        if value is None:
            return [f'<text class="dim" x="{zero + 6:.1f}" y="{y + 12}">NULL</text>']
        end = left + scale.place(value) * (right - left)
        first, width = min(zero, end), max(abs(end - zero), 0.5)
        return [
            f'<rect x="{first:.1f}" y="{y + 1}" width="{width:.1f}" height="{_BAR - 2}" fill="{_COLOURS[number]}"/>',
            f'<text x="{max(zero, end) + 6:.1f}" y="{y + 12}">{_text(texts[value])}</text>',
        ]


def _middle(text: str, x: float, y: float) -> str:
    return f'<text class="dim" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">{_text(shorten(clean(text), 90))}</text>'


def _text(text: str) -> str:
    return escape(clean(text), quote=True)

"""Charts drawn with characters: bars of blocks, lines of braille dots; of ASCII characters where that is all there is.

Nothing is wider than the given width. Bars have their exact values beside them. The lines of several series are told
apart by colours, and where there are none, by letters.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from rich.cells import cell_len
from rich.text import Text

from tracelake.cli.chart_data import ChartData, Series, bar_groups, downsample, make_x_scale
from tracelake.cli.chart_scale import Number, format_number, number_scale
from tracelake.cli.query_table import shorten
from tracelake.cli.text import clean, count

LEAST_WIDTH = 40
MOST_BARS = 40
_MOST_POINTS = 2_000
_HEIGHT = 16
_LEAST_TICKS = 3
_LABEL_WIDTH = 24
_STYLES = ("cyan", "yellow", "magenta", "green", "red", "blue", "bright_cyan", "bright_yellow")
_LETTERS = "ox+*#@%&"
_BLOCKS = " ▏▎▍▌▋▊▉█"
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Of a braille character: by row, the left and the right dot."""


def draw_chart(data: ChartData, width: int, *, ascii_only: bool, has_colours: bool) -> list[Text]:
    """The chart in lines; what they leave out is added to the notes of `data`."""
    width = max(width, LEAST_WIDTH)
    if data.kind == "bar":
        return list(_draw_bars(data, width, ascii_only=ascii_only))
    return _LineChart(data, width, ascii_only=ascii_only, has_colours=has_colours).draw()


# --- bars


def _draw_bars(data: ChartData, width: int, *, ascii_only: bool) -> Iterator[Text]:
    groups = bar_groups(data)
    per_group = max(len(bars) for _, bars in groups)
    most = max(1, MOST_BARS // per_group)
    if len(groups) > most:
        data.notes.append(f"The first {most} of {len(groups):,} categories; --output FILE.svg draws more.")
        groups = groups[:most]
    labels = [_fit(name, min(_LABEL_WIDTH, width // 3), ascii_only=ascii_only) for name, _ in groups]
    room = max(map(cell_len, labels))
    names = [_fit(series.name, 12, ascii_only=ascii_only) for series in data.series]
    name_room = 0 if len(names) == 1 else 1 + max(map(cell_len, names))
    values = [value for _, bars in groups for _, value in bars if value is not None]
    texts = {value: format_number(value) for value in values}
    value_room = max(map(len, texts.values()), default=len("NULL"))
    value_room = max(value_room, len("NULL"))
    bar_room = width - room - name_room - value_room - 3
    scale = _zero_scale(values)
    for label, (_, bars) in zip(labels, groups, strict=True):
        for number, (place, value) in enumerate(bars):
            line = Text(no_wrap=True, overflow="ignore")
            line.append(_pad("" if number else label, room))
            if name_room:
                line.append(" " + names[place].ljust(name_room - 1), _STYLES[place])
            line.append(" ")
            line.append(_bar(scale, value, bar_room, ascii_only=ascii_only), _STYLES[place])
            line.append(" " + ("NULL" if value is None else texts[value]), "dim" if value is None else "")
            yield line


def _zero_scale(values: Sequence[Number]) -> tuple[Number, Number]:
    return min(0, *values) if values else 0, max(0, *values) if values else 0


def _bar(scale: tuple[Number, Number], value: Number | None, room: int, *, ascii_only: bool) -> str:
    """A bar from zero, padded to the room; not shorter than the thinnest block, unless it is zero."""
    low, high = scale
    if value is None or low == high:
        return " " * room
    span = Fraction(high) - Fraction(low)
    zero = round(room * -Fraction(low) / span)
    eighths = round(abs(Fraction(value)) / span * room * 8)
    if value and not eighths:
        eighths = 1
    if value < 0:
        cells = min(zero, max(1, round(eighths / 8)))
        return (" " * (zero - cells) + ("#" if ascii_only else "█") * cells).ljust(room)
    eighths = min(eighths, 8 * (room - zero))
    if ascii_only:
        bar = "#" * max(round(eighths / 8), 1 if value else 0)
    else:
        bar = "█" * (eighths // 8) + (_BLOCKS[eighths % 8] if eighths % 8 else "")
    return (" " * zero + bar).ljust(room)


def _fit(text: str, width: int, *, ascii_only: bool) -> str:
    text = clean(text)
    if ascii_only:
        text = text.encode("ascii", "backslashreplace").decode()
        return text if len(text) <= width else text[: width - 3] + "..."
    return shorten(text, width)


def _pad(text: str, room: int) -> str:
    return " " * (room - cell_len(text)) + text


# --- lines


class _LineChart:
    def __init__(self, data: ChartData, width: int, *, ascii_only: bool, has_colours: bool) -> None:
        self._data = data
        self._ascii = ascii_only
        self._letters = ascii_only or (len(data.series) > 1 and not has_colours)
        values = data.values
        self._y = number_scale(min(values), max(values), 6)
        self._label_room = max(map(len, self._y.labels))
        self._columns = width - self._label_room - 2
        most = max(_LEAST_TICKS, self._columns // 10)
        self._x = make_x_scale(data, most)
        while most > _LEAST_TICKS and len(self._place_labels()) < len(self._x.labels):
            most -= 1  # fewer ticks, rather than some without their labels
            self._x = make_x_scale(data, most)
        self._cells: dict[tuple[int, int], tuple[int, int]] = {}
        """By row and column: dots, and the series that was drawn last."""

    def draw(self) -> list[Text]:
        for place, series in enumerate(self._data.series):
            self._draw_series(place, series)
        lines = [self._row(row) for row in range(_HEIGHT)]
        return [*lines, *self._axis(), *self._legend()]

    def _draw_series(self, number: int, series: Series) -> None:
        points = downsample(series.points, _MOST_POINTS)
        if len(points) < len(series.points):
            self._data.notes.append(
                f"{clean(series.name)}: {count(len(series.points), 'point')} drawn as {len(points):,}; the lowest and "
                "highest of each stretch are kept."
            )
        across, down = (1, 1) if self._letters else (2, 4)
        last: tuple[int, int] | None = None
        for x, value in points:
            if value is None:
                last = None
                continue
            place = (
                round(self._x.place(x) * (self._columns * across - 1)),
                round((1 - self._y.place(value)) * (_HEIGHT * down - 1)),
            )
            for column, row in _steps(last or place, place):
                self._dot(number, column, row)
            last = place

    def _dot(self, number: int, column: int, row: int) -> None:
        if self._letters:
            self._cells[row, column] = (0, number)
            return
        cell = (row // 4, column // 2)
        dots, _ = self._cells.get(cell, (0, 0))
        self._cells[cell] = (dots | _DOTS[row % 4][column % 2], number)

    def _row(self, row: int) -> Text:
        places = {
            round((1 - place) * (_HEIGHT - 1)): label
            for place, label in zip(self._y.places, self._y.labels, strict=True)
        }
        line = Text(no_wrap=True, overflow="ignore")
        line.append(places.get(row, "").rjust(self._label_room), "dim")
        line.append((" +" if self._ascii else " ┤") if row in places else (" |" if self._ascii else " │"), "dim")
        for column in range(self._columns):
            dots, number = self._cells.get((row, column), (0, -1))
            if number < 0:
                line.append(" ")
            else:
                line.append(_LETTERS[number] if self._letters else chr(0x2800 + dots), _STYLES[number])
        return line

    def _axis(self) -> list[Text]:
        """The line of the axis, the labels of its ticks as far as they have room, and the names."""
        line, corner, tick = ("-", "+", "+") if self._ascii else ("─", "└", "┬")
        start = self._label_room + 2
        columns = {round(place * (self._columns - 1)) for place in self._x.places}
        drawn = "".join(tick if column in columns else line for column in range(self._columns))
        axis = Text(" " * (start - 1) + corner + drawn, "dim", no_wrap=True, overflow="ignore")
        labels = ""
        for column, label in self._place_labels():
            labels = labels.ljust(column) + label
        return [axis, Text(labels, "dim", no_wrap=True, overflow="ignore"), self._names(start)]

    def _place_labels(self) -> list[tuple[int, str]]:
        """The labels of the x axis that have room, each with the column where it begins."""
        start = self._label_room + 2
        placed: list[tuple[int, str]] = []
        end = -1
        for place, label in zip(self._x.places, self._x.labels, strict=True):
            column = start + round(place * (self._columns - 1)) - len(label) // 2
            column = max(0, min(column, start + self._columns - len(label)))
            if column > end:
                placed.append((column, label))
                end = column + len(label)
        return placed

    def _names(self, start: int) -> Text:
        x = self._data.x_name + (f" ({self._x.note})" if self._x.note else "")
        y = self._data.y_name + (f" ({self._y.note})" if self._y.note else "")
        arrow = "->" if self._ascii else "→"
        text = f"{arrow} {x}" + (f"    ^ {y}" if self._ascii else f"    ↑ {y}" if y else "")
        width = start + self._columns
        return Text(_fit(text, width, ascii_only=self._ascii), "dim", no_wrap=True, overflow="ignore")

    def _legend(self) -> list[Text]:
        if len(self._data.series) == 1:
            return []
        width = self._label_room + 2 + self._columns
        lines, line = [], Text(no_wrap=True, overflow="ignore")
        for number, series in enumerate(self._data.series):
            mark = _LETTERS[number] if self._letters else "━"
            entry = f"{mark} {_fit(series.name, width - 4, ascii_only=self._ascii)}"
            if line.plain and cell_len(line.plain) + 3 + cell_len(entry) > width:
                lines.append(line)
                line = Text(no_wrap=True, overflow="ignore")
            if line.plain:
                line.append("   ")
            line.append(entry, _STYLES[number])
        return [*lines, line]


def _steps(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """The dots from one to the other, both included."""
    across, down = end[0] - start[0], end[1] - start[1]
    steps = max(abs(across), abs(down), 1)
    for step in range(steps + 1):
        yield start[0] + round(across * step / steps), start[1] + round(down * step / steps)

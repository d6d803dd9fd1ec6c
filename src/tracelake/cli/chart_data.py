"""From the rows of a query to the series of a chart: which column is which axis, and what is left out.

Values stay exact; whatever draws them rounds.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, Literal

import click

from tracelake.cli.chart_scale import DAY, LEAST_TIME, MOST_TIME, Number, Scale, number_scale, time_scale
from tracelake.cli.names import suggestion
from tracelake.cli.query_table import is_number_type
from tracelake.cli.text import clean, count
from tracelake.wire.query import ResultColumn

ChartKind = Literal["bar", "line"]
AxisKind = Literal["time", "number", "category"]
MOST_SERIES = 8
_NUMBER = re.compile(r"[+-]?[0-9]{1,100}(\.[0-9]{0,100})?([eE][+-]?[0-9]{1,3})?")
_TIME_TYPE = re.compile(r"TIMESTAMP.*|DATE", re.IGNORECASE)
_TEXT_TYPE = re.compile(r"VARCHAR|UUID|BLOB|BOOLEAN|ENUM\(.*\)|TIME( WITH TIME ZONE)?", re.IGNORECASE | re.DOTALL)
NULL = "NULL"


@dataclass(slots=True)
class Series:
    name: str
    points: list[tuple[Any, Number | None]] = field(default_factory=list)
    """A place on the x axis (a number, seconds since 1970, or a text) and a value; None leaves a gap."""

    @property
    def values(self) -> list[Number]:
        return [value for _, value in self.points if value is not None]


@dataclass(slots=True)
class ChartData:
    kind: ChartKind
    x_name: str
    x_kind: AxisKind
    y_name: str
    """Of one column its name, else empty: each series has its own."""
    series: list[Series]
    notes: list[str] = field(default_factory=list)
    """What is not drawn, and what was chosen."""

    @property
    def title(self) -> str:
        names = [self.y_name] if self.y_name else [series.name for series in self.series]
        listed = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
        return f"{listed} by {self.x_name}"

    @property
    def values(self) -> list[Number]:
        return [value for series in self.series for value in series.values]

    @property
    def categories(self) -> list[Any]:
        """Places on the x axis, in the order of the rows."""
        return list(dict.fromkeys(x for series in self.series for x, _ in series.points))


@dataclass(frozen=True, slots=True)
class PlotChoices:
    """What the person asked for; None leaves it to the columns."""

    x: str | None = None
    y: tuple[str, ...] = ()
    by: str | None = None
    kind: ChartKind | None = None


class _Table:
    """The columns and rows of a result."""

    def __init__(self, columns: Sequence[ResultColumn], rows: Sequence[Sequence[Any]]) -> None:
        self.names = [column.name for column in columns]
        self._types = [column.type for column in columns]
        self._rows = rows

    def find(self, option: str, name: str) -> int:
        for place, column in enumerate(self.names):
            if column == name or column.lower() == name.lower():
                return place
        listed = ", ".join(clean(column) for column in self.names)
        raise click.UsageError(
            f"{option}: the result has no column {clean(name)}; it has {listed}.{suggestion(name, self.names)}"
        )

    def kind(self, place: int) -> AxisKind | None:
        """None: nothing that an axis could show."""
        if is_number_type(self._types[place]):
            return "number"
        if _TIME_TYPE.fullmatch(self._types[place]):
            return "time"
        return "category" if _TEXT_TYPE.fullmatch(self._types[place]) else None

    def values(self, place: int) -> list[Any]:
        return [row[place] for row in self._rows]

    def describe(self) -> str:
        return ", ".join(
            f"{clean(name)} ({clean(kind.lower())})" for name, kind in zip(self.names, self._types, strict=True)
        )


def make_chart(columns: Sequence[ResultColumn], rows: Sequence[Sequence[Any]], choices: PlotChoices) -> ChartData:
    """Raises click.UsageError if the columns do not fit, and click.ClickException if there is nothing to draw."""
    table = _Table(columns, rows)
    if not rows:
        raise click.ClickException("the query has no rows, so there is nothing to draw: check its WHERE and its LIMIT")
    x, ys, by = _choose(table, choices)
    notes: list[str] = []
    x_kind: AxisKind = "number" if x is None else table.kind(x) or "category"
    kind = choices.kind or ("bar" if x_kind == "category" else "line")
    if kind == "line" and x_kind == "category":
        raise click.UsageError(
            f"--kind line: expected a time or a number on the x axis, and {clean(table.names[x or 0])} is text: name "
            "another column with --x, or use --kind bar."
        )
    x_values = _x_values(table, x, x_kind, kind, notes)
    if by is None and choices.by is None and len(ys) == 1 and kind == "line":
        by = _series_column(table, x, ys, x_values, notes)
    series = _make_series(table, x_values, ys, by, notes)
    _drop_series(series, notes)
    for each in series:
        if kind == "line":
            each.points.sort(key=lambda point: point[0])
    data = ChartData(
        kind=kind,
        x_name="row" if x is None else clean(table.names[x]),
        x_kind="category" if kind == "bar" else x_kind,
        y_name=clean(table.names[ys[0]]) if len(ys) == 1 else "",
        series=series,
        notes=notes,
    )
    if not data.values:
        raise click.ClickException("every value is null or not a number, so there is nothing to draw")
    return data


def make_x_scale(data: ChartData, most: int) -> Scale:
    """The x axis of a line chart, of at most `most` ticks. Times that are all whole days are dates."""
    places = [x for series in data.series for x, _ in series.points]
    low, high = min(places), max(places)
    if data.x_kind == "time":
        scale = time_scale(low, high, most, whole_days=all(place % DAY == 0 for place in places))
    else:
        scale = number_scale(low, high, most)
    return scale.cut(low, high)


def _choose(table: _Table, choices: PlotChoices) -> tuple[int | None, list[int], int | None]:
    """The columns of x (None: the number of the row), of y and of the series."""
    by = None if choices.by is None else table.find("--by", choices.by)
    y_places = [table.find("--y", name) for name in choices.y]
    x = None if choices.x is None else table.find("--x", choices.x)
    numbers = [place for place in range(len(table.names)) if table.kind(place) == "number"]
    if x is None:
        x = _default_x(table, y_places, by, numbers)
    ys = y_places or [place for place in numbers if place not in (x, by)]
    if not ys:
        raise click.UsageError(
            f"the result has no column of numbers to draw: it has {table.describe()}. Select one, cast one "
            "(amount::double), or name a text of digits with --y."
        )
    return x, ys, by


def _default_x(table: _Table, ys: Sequence[int], by: int | None, numbers: Sequence[int]) -> int | None:
    """The first time; else the first column, unless it is the only one of numbers; else the first text."""
    free = [place for place in range(len(table.names)) if place not in ys and place != by and table.kind(place)]
    times = [place for place in free if table.kind(place) == "time"]
    if times:
        return times[0]
    if free and (table.kind(free[0]) == "category" or ys or any(place != free[0] for place in numbers)):
        return free[0]
    return next((place for place in free if table.kind(place) == "category"), None)


def _x_values(table: _Table, x: int | None, x_kind: AxisKind, kind: ChartKind, notes: list[str]) -> list[Any]:
    """The place of each row on the x axis; None if it has none."""
    if x is None:
        return list(range(1, len(table.values(0)) + 1))
    if kind == "bar":
        return [NULL if value is None else clean(_text(value)) for value in table.values(x)]
    read = read_time if x_kind == "time" else read_number
    values = [None if value is None else read(value) for value in table.values(x)]
    if missing := sum(value is None for value in values):
        notes.append(f"{count(missing, 'row')} without {clean(table.names[x])} left out.")
    return values


def _series_column(
    table: _Table, x: int | None, ys: Sequence[int], x_values: Sequence[Any], notes: list[str]
) -> int | None:
    """The only column of texts, where the x axis has places more than once."""
    texts = [
        place for place in range(len(table.names)) if place != x and place not in ys and table.kind(place) == "category"
    ]
    if len(texts) != 1 or len(set(x_values)) == len(x_values):
        return None
    notes.append(f"One line for each {clean(table.names[texts[0]])}; --by chooses another column.")
    return texts[0]


def _make_series(
    table: _Table, x_values: Sequence[Any], ys: Sequence[int], by: int | None, notes: list[str]
) -> list[Series]:
    series: dict[tuple[int, str], Series] = {}
    infinite = 0
    groups = [""] * len(x_values) if by is None else [
        NULL if value is None else clean(_text(value)) for value in table.values(by)
    ]  # fmt: skip
    for y in ys:
        name = clean(table.names[y])
        for number, (x, group, value) in enumerate(zip(x_values, groups, table.values(y), strict=True), 1):
            if x is None:
                continue
            parsed = None if value is None else read_number(value)
            if value is not None and parsed is None:
                if not _is_not_finite(value):
                    raise click.UsageError(
                        f"--y: expected numbers in {name}, received {clean(_text(value))[:40]!r} in row {number}."
                    )
                infinite += 1
            label = name if by is None else group if len(ys) == 1 else f"{group} {name}"
            series.setdefault((y, group), Series(label)).points.append((x, parsed))
    if infinite:
        notes.append(f"{count(infinite, 'value')} that {'is' if infinite == 1 else 'are'} not finite left out.")
    return list(series.values())


def _drop_series(series: list[Series], notes: list[str]) -> None:
    if len(series) > MOST_SERIES:
        notes.append(f"The first {MOST_SERIES} of {len(series)} series; choose others with WHERE.")
        del series[MOST_SERIES:]


def read_number(value: Any) -> Number | None:
    """The exact number; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = repr(value) if isinstance(value, float) else value
    if not isinstance(text, str) or not _NUMBER.fullmatch(text.strip()):
        return None
    number = Fraction(text.strip())
    return number.numerator if number.denominator == 1 else number


def _is_not_finite(value: Any) -> bool:
    return value in ("NaN", "Infinity", "-Infinity")


def read_time(value: Any) -> Number | None:
    """Seconds since 1970; None for what no calendar has."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since.days * 86_400 + since.seconds + Fraction(since.microseconds, 10**6)
    return seconds if LEAST_TIME <= seconds <= MOST_TIME else None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def downsample(points: Sequence[tuple[Number, Number | None]], most: int) -> list[tuple[Number, Number | None]]:
    """At most about `most` points of a line, in their order: of each stretch the first, the last, the lowest, the
    highest and a gap, if it has one. Everything, if there are no more."""
    if len(points) <= most:
        return list(points)
    stretches = max(1, most // 5)
    points_left: list[tuple[Number, Number | None]] = []
    for number in range(stretches):
        first, last = len(points) * number // stretches, len(points) * (number + 1) // stretches
        places = range(first, last)
        solid = [place for place in places if points[place][1] is not None]
        extremes = {first, last - 1}
        if solid:
            extremes |= {
                min(solid, key=lambda place: points[place][1] or 0),
                max(solid, key=lambda place: points[place][1] or 0),
            }
        gap = next((place for place in places if points[place][1] is None), None)
        if gap is not None:
            extremes.add(gap)
        points_left += [points[place] for place in sorted(extremes)]
    return points_left


def bar_groups(data: ChartData) -> list[tuple[str, list[tuple[int, Number | None]]]]:
    """Each category with its bars: the place of the series, and the value. Of one series every row is a group."""
    if len(data.series) == 1:
        return [(str(x), [(0, value)]) for x, value in data.series[0].points]
    groups: dict[str, list[tuple[int, Number | None]]] = {str(x): [] for x in data.categories}
    for place, series in enumerate(data.series):
        for x, value in series.points:
            groups[str(x)].append((place, value))
    return list(groups.items())

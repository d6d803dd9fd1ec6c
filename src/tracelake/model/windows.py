"""Windows: the units of jobs that choose their own, as ranges of blocks or of seconds since 1970.

A grid divides its axis without gaps and overlaps: every position lies in exactly one window, the window after another
begins right behind it. Days, weeks (from Monday on) and months follow the clock of a time zone, so a day has 23 or 25
hours when the clock changes, and a date that a zone left out has no window.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from tracelake.model.dag import UnitGrid
from tracelake.model.time_zones import time_zone

HOUR = 3600
LAST_POSITION = 2**63 - 1
LAST_SECOND = 253_370_592_000 - 1
"""Of the year 9998 in every zone: calendars end in the year after."""
LAST_TIME = 2**32 - 1
"""The latest time that a block may have, in the year 2106: as far as the column `timestamp` of `evm_ingest` counts. It
bounds how many windows a unit can lie in, and calendars have all windows around it."""
MOST_LOOKBACK = 10_000
_SPELLINGS = {
    "hour": (re.compile(r"\d{4}-\d{2}-\d{2}[ T]\d{2}:00"), "2026-03-03 13:00"),
    "day": (re.compile(r"\d{4}-\d{2}-\d{2}"), "2026-03-03"),
    "week": (re.compile(r"\d{4}-W\d{2}"), "2026-W10"),
    "month": (re.compile(r"\d{4}-\d{2}"), "2026-03"),
}


class Window(NamedTuple):
    """Both ends are included."""

    start: int
    end: int

    def overlaps(self, other: "Window") -> bool:
        return self.start <= other.end and other.start <= self.end


def window_at(grid: UnitGrid, position: int) -> Window:
    """The window that holds the position. Raises ValueError for a time that calendars do not have."""
    if grid.by == "blocks":
        assert grid.size is not None
        start = position - position % grid.size
        return Window(start, min(start + grid.size - 1, LAST_POSITION))
    if not 0 <= position <= LAST_SECOND:
        raise ValueError(f"expected a time from 1970 to 9998, received {position} seconds")
    if grid.grain == "hour":
        start = position - position % HOUR
        return Window(start, start + HOUR - 1)
    zone = time_zone(grid.time_zone)
    day = datetime.fromtimestamp(position, zone).date()
    first = _first_day(grid, day)
    # Of a midnight that the clock skips or repeats, the earlier moment counts.
    return Window(max(0, _midnight(first, zone)), _midnight(_next_first_day(grid, first), zone) - 1)


def next_window(grid: UnitGrid, window: Window) -> Window:
    return window_at(grid, window.end + 1)


def previous_window(grid: UnitGrid, window: Window) -> Window | None:
    """None for the first window of the axis."""
    return None if window.start <= 0 else window_at(grid, window.start - 1)


def shift_window(grid: UnitGrid, window: Window, grains: int) -> Window:
    """The window so many grains later by the calendar; earlier if negative, at most back to the first of the axis."""
    size = HOUR if grid.grain == "hour" else grid.size
    if size is not None:
        return window_at(grid, max(0, min(window.start + grains * size, LAST_POSITION)))
    zone = time_zone(grid.time_zone)
    first = _first_day(grid, datetime.fromtimestamp(window.start, zone).date())
    return window_at(grid, max(0, _midnight(_shift_day(grid, first, grains), zone)))


def iterate_windows(grid: UnitGrid, start: int, end: int) -> Iterator[Window]:
    """All windows that overlap the range, in order, each made when it is asked for: there may be millions."""
    window = window_at(grid, start)
    yield window
    while window.end < end:
        window = next_window(grid, window)
        yield window


def windows_between(grid: UnitGrid, start: int, end: int) -> list[Window]:
    """All windows that overlap the range, in order, for ranges that are known to be short."""
    return list(iterate_windows(grid, start, end))


def count_windows(grid: UnitGrid, start: int, end: int) -> int:
    """How many windows overlap the range, by the calendar: a date that a zone left out counts."""
    size = HOUR if grid.grain == "hour" else grid.size
    if size is not None:
        return end // size - start // size + 1
    zone = time_zone(grid.time_zone)
    first, last = (_first_day(grid, datetime.fromtimestamp(second, zone).date()) for second in (start, end))
    if grid.grain == "month":
        return (last.year - first.year) * 12 + last.month - first.month + 1
    return (last - first).days // (7 if grid.grain == "week" else 1) + 1


def dates_between(name: str, start: int, end: int) -> tuple[date, date]:
    """The first and the last date whose first moment in the time zone is in the range; in the wrong order if none."""
    zone = time_zone(name)
    first, last = (datetime.fromtimestamp(second, zone).date() for second in (start, end))
    if start > 0 and _midnight(first, zone) < start:
        first += timedelta(days=1)
    return first, last


def describe_window(grid: UnitGrid, window: Window) -> str:
    """The window as people write it: `2026-03-03`, `2026-03-03 13:00`, `2026-W10`, `2026-03`, `5000-9999`."""
    if grid.by == "blocks":
        return f"{window.start}-{window.end}"
    moment = datetime.fromtimestamp(window.start, UTC if grid.grain == "hour" else time_zone(grid.time_zone))
    if grid.grain == "hour":
        return f"{moment:%Y-%m-%d %H:00}"
    if grid.grain == "day":
        return f"{moment:%Y-%m-%d}"
    if grid.grain == "month":
        return f"{moment:%Y-%m}"
    year, week, _ = moment.isocalendar()
    return f"{year}-W{week:02d}"


def describe_grid(grid: UnitGrid) -> str:
    """A unit in words: `hour`, `day of Europe/Berlin`, `1,000 blocks`."""
    if grid.by == "blocks":
        return f"{grid.size:,} blocks"
    return f"{grid.grain}" if grid.time_zone == "UTC" else f"{grid.grain} of {grid.time_zone}"


def describe_range(grid: UnitGrid, start: int, end: int) -> str:
    """Windows side by side as people write them: `2026-03-03`, or the first and last, `2026-03-01..2026-03-03`."""
    try:
        first, last = describe_window(grid, window_at(grid, start)), describe_window(grid, window_at(grid, end))
    except ValueError:
        return f"{start}-{end}"  # a range that no calendar has
    return first if first == last else f"{first}..{last}"


def parse_range(grid: UnitGrid, text: str) -> Window:
    """Reads what `describe_range` writes, for windows of time. Raises ValueError with what was expected."""
    first, dots, last = text.strip().partition("..")
    start = _parse_window(grid, first)
    end = _parse_window(grid, last) if dots else start
    if start.start > end.start:
        raise ValueError(f"expected windows in their order, received {text.strip()}")
    return Window(start.start, end.end)


def _parse_window(grid: UnitGrid, text: str) -> Window:
    assert grid.grain is not None
    pattern, example = _SPELLINGS[grid.grain]
    problem = f"expected a window like {example}, received {text.strip() or 'nothing'}"
    if not pattern.fullmatch(text.strip()):
        raise ValueError(problem)
    try:
        if grid.grain == "hour":
            return window_at(grid, int(datetime.fromisoformat(f"{text.strip()}+00:00").timestamp()))
        day = date.fromisoformat(
            {"week": f"{text.strip()}-1", "month": f"{text.strip()}-01"}.get(grid.grain, text.strip())
        )
        window = window_at(grid, max(0, _midnight(day, time_zone(grid.time_zone))))
    except (ValueError, OverflowError):
        raise ValueError(problem) from None
    if describe_window(grid, window) != text.strip():
        raise ValueError(f"{text.strip()} is no window: the clock of {grid.time_zone} leaves it out")
    return window


def _first_day(grid: UnitGrid, day: date) -> date:
    if grid.grain == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if grid.grain == "month" else day


def _next_first_day(grid: UnitGrid, first: date) -> date:
    return _shift_day(grid, first, 1)


def _shift_day(grid: UnitGrid, first: date, grains: int) -> date:
    if grid.grain == "month":
        years, month = divmod(first.month - 1 + grains, 12)
        return first.replace(year=first.year + years, month=month + 1)
    return first + timedelta(days=grains * (7 if grid.grain == "week" else 1))


def _midnight(day: date, zone: ZoneInfo) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=zone).timestamp())

"""What each dataset of a random DAG must consist of, in plain Python, by the definition of `units` and `read`.

The model knows only which units the chains have in the end, and which units people gave up. It knows nothing of
events, revisions, tasks or their order, and finds the windows of a grid in its own way: it asks the clock of the zone
every quarter of an hour.
"""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from tests.windows.random_dags import Chain, InputShape, JobShape
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import Window

_STEP = 900
_MARGIN = 160 * 86_400
"""Before and behind what is there: room for `lookback`, and for inputs whose windows are months."""


def digest(parts: list[str]) -> str:
    """Stands for what was read. Texts of running state and histories would grow without end."""
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


@lru_cache(maxsize=200)
def _labelled_windows(grain: str, zone: str, start: int, end: int) -> list[Window]:
    """The windows between two moments. A window is the time in which the clock shows the same hour, date and so on."""
    begins = [start]
    current = _label(grain, ZoneInfo(zone), start)
    for moment in range(start + _STEP, end, _STEP):
        if (following := _label(grain, ZoneInfo(zone), moment)) != current:
            begins.append(moment)
            current = following
    windows = [Window(first, second - 1) for first, second in pairwise(begins)]
    return windows if start == 0 else windows[1:]  # elsewhere the first window began before


def _label(grain: str, zone: ZoneInfo, moment: int) -> tuple[int, ...]:
    clock = datetime.fromtimestamp(moment, zone)
    if grain == "hour":
        return (moment // 3_600,)
    if grain == "week":
        return clock.isocalendar()[:2]
    return (clock.year, clock.month, clock.day)[: 3 if grain == "day" else 2]


class Grid:
    """The windows of a job over everything that there is."""

    def __init__(self, grid: UnitGrid, first: int, last: int) -> None:
        if grid.by == "blocks":
            assert grid.size is not None
            size = grid.size
            self.windows = [Window(start, start + size - 1) for start in range(0, last + 20 * size, size)]
        else:
            margin = 8 * 86_400 if grid.grain == "hour" else _MARGIN
            start = max(0, first - margin) // _STEP * _STEP
            assert grid.grain is not None
            self.windows = _labelled_windows(grid.grain, grid.time_zone, start, (last + margin) // _STEP * _STEP)
        self._index = {window: number for number, window in enumerate(self.windows)}

    def between(self, start: int, end: int) -> list[Window]:
        return [window for window in self.windows if window.start <= end and window.end >= start]

    def shift(self, window: Window, by: int) -> Window:
        return self.windows[max(0, self._index[window] + by)]

    def before(self, window: Window) -> Window | None:
        return self.windows[self._index[window] - 1] if self._index[window] else None


class Model:
    def __init__(
        self, chains: Mapping[str, Chain], jobs: list[JobShape], given_up: Mapping[tuple[str, Window], str | None]
    ) -> None:
        """`given_up`: the tasks that people skipped or canceled, and what their units consisted of before."""
        self.rows: dict[str, dict[Window, str]] = {}
        self.begins: dict[str, int | None] = {}
        """The first position of each dataset; None as long as it is unknown."""
        self._times: dict[str, dict[Window, tuple[int, int]]] = {}
        self._in_seconds = dict.fromkeys(chains, False)
        self._given_up = given_up
        for name, chain in chains.items():
            units = [Window(*unit) for unit in chain.units if unit[0] in chain.texts]
            self.rows[name] = {unit: chain.texts[unit.start] for unit in units}
            self._times[name] = {unit: chain.times[unit.start] for unit in units}
            self.begins[name] = chain.begin
        moments = [moment for times in self._times.values() for pair in times.values() for moment in pair]
        self._extent = (min(moments), max(moments))
        for job in jobs:
            self._in_seconds[job.name] = job.in_seconds
            extents = [item.parent for item in job.inputs if item.read in ("unit", "window", "history")]
            self.rows[job.name] = self._compute(job, extents)
            self._times[job.name] = {} if job.in_seconds else self._find_times(job, extents)
            self.begins[job.name] = self._find_begin(job, extents)

    def _find_times(self, job: JobShape, extents: list[str]) -> dict[Window, tuple[int, int]]:
        """Those of the units of its input, where no unit of it is partly in another."""
        times: dict[Window, tuple[int, int]] = {}
        for unit in self.rows[job.name]:
            made_of = [
                part for part in sorted(self.rows[extents[0]]) if part.start <= unit.end and part.end >= unit.start
            ]
            known = [self._times[extents[0]].get(part) for part in made_of]
            whole = all(part.start >= unit.start and part.end <= unit.end for part in made_of)
            moments = [moment for pair in known if pair is not None for moment in pair]
            if whole and moments and None not in known:
                times[unit] = (moments[0], moments[-1])
        return times

    # --- where datasets begin

    def _find_begin(self, job: JobShape, extents: list[str]) -> int | None:
        begins = [self._begin_second(name) if job.in_seconds else self.begins[name] for name in extents]
        known = [begin for begin in begins if begin is not None]
        if not known or (job.in_seconds and job.grid is not None and len(known) < len(begins)):
            return None
        return min(known) if job.grid is None else self._grid(job).between(min(known), min(known))[0].start

    def _begin_second(self, name: str) -> int | None:
        begin = self.begins[name]
        if begin is None or self._in_seconds[name]:
            return begin
        return next((times[0] for unit, times in self._times[name].items() if unit.start <= begin <= unit.end), None)

    # --- which windows there are

    def _grid(self, job: JobShape) -> Grid:
        assert job.grid is not None
        first, last = self._extent if job.in_seconds else (0, 60)
        return Grid(job.grid, first, last)

    def _candidates(self, job: JobShape) -> set[Window]:
        """The windows in which an input has anything, and those that look back at them."""
        windows: set[Window] = set()
        if job.grid is None:
            return set(self.rows[job.inputs[0].parent])
        grid = self._grid(job)
        for item in job.inputs:
            if item.read in ("all", "latest") or not self.rows[item.parent]:
                continue
            spans = [(start, end) for start, end, _ in self._positions(job, item)]
            if not spans:
                continue
            if self._by_time(job, item):  # between two blocks there are windows without any
                spans = [(spans[0][0], spans[-1][1])]
            for start, end in spans:
                for window in grid.between(start, end):
                    windows |= {grid.shift(window, number) for number in range(item.lookback + 1)}
        return windows

    def _has_begun(self, job: JobShape, window: Window) -> bool:
        """Whether any input knows something of a window that is computed as its inputs grow."""
        return job.complete or any(
            self._is_known(job, item, window) for item in job.inputs if item.read not in ("all", "latest")
        )

    def _is_known(self, job: JobShape, item: InputShape, window: Window) -> bool:
        """Whether an input has reached the window, and it does not lie in a gap."""
        if not self._by_time(job, item):
            units = sorted(self.rows[item.parent])
            nearest = next((unit for unit in reversed(units) if unit.start <= window.end), None)
            return bool(units) and units[-1].end >= window.start and (nearest is None or nearest.end >= window.start)
        units, times = sorted(self._times[item.parent]), self._times[item.parent]
        behind = next((unit for unit in units if times[unit][1] >= window.start), None)
        if behind is None:
            return False
        begin = self.begins[item.parent]
        adjoins = any(unit.end == behind.start - 1 for unit in self.rows[item.parent])
        return times[behind][0] <= window.end or begin is None or behind.start <= begin or adjoins

    def _compute(self, job: JobShape, extents: list[str]) -> dict[Window, str]:
        rows: dict[Window, str] = {}
        waiting = sorted(self._candidates(job))
        for window in waiting:
            parts = [self._read(job, item, window) for item in job.inputs]
            if not self._has_begun(job, window):
                parts.append(None)
            if job.running:
                parts.append(self._read_previous(job, extents, window, rows))
            if None not in parts:
                rows[window] = digest([part for part in parts if part is not None])
            if (job.name, window) in self._given_up:
                rows.pop(window, None)
                before = self._given_up[job.name, window]
                if before is not None:
                    rows[window] = before
            if job.running and window in rows and job.grid is not None:
                following = self._grid(job).shift(window, 1)
                if following not in waiting:  # the loop goes on with it
                    waiting.insert(waiting.index(window) + 1, following)
        return rows

    # --- what a task reads

    def _by_time(self, job: JobShape, item: InputShape) -> bool:
        return job.in_seconds and not self._in_seconds[item.parent]

    def _positions(self, job: JobShape, item: InputShape) -> list[tuple[int, int, str]]:
        """The units of an input, in positions of the job's own units; without those whose times are not known."""
        units = sorted(self.rows[item.parent].items())
        if self._by_time(job, item):
            times = self._times[item.parent]
            return [(*times[unit], text) for unit, text in units if unit in times]
        return [(*unit, text) for unit, text in units]

    def _read(self, job: JobShape, item: InputShape, window: Window) -> str | None:
        """None: the window waits."""
        units = self.rows[item.parent]
        if item.read == "unit":
            return units.get(window)
        begin = self.begins[item.parent]
        if not units:
            return None
        if item.read == "all":
            return ",".join(text for _, text in sorted(units.items()))
        if begin is None:
            return None
        start = 0
        if item.read == "window":
            start = self._grid(job).shift(window, -item.lookback).start if item.lookback else window.start
        positions = self._positions(job, item)
        if self._by_time(job, item) and not self._is_timed(item, start, window.end):
            return None
        if job.complete and self._by_time(job, item) and positions[-1][1] <= window.end:
            return None
        if item.read == "latest":
            return next((text for first, _, text in reversed(positions) if first <= window.end), "")
        if job.complete and not self._is_covered(job, item, begin, start, window.end):
            return None
        return ",".join(text for first, last, text in positions if first <= window.end and last >= start)

    def _is_timed(self, item: InputShape, start: int, end: int) -> bool:
        """Whether every unit has times that may have blocks of these seconds: each from that before the first to that
        behind the last. Of `latest`, the first is the last."""
        units, times = sorted(self.rows[item.parent]), self._times[item.parent]
        behind = next((n for n, unit in enumerate(units) if unit in times and times[unit][1] > end), len(units) - 1)
        first = next((n for n, unit in enumerate(units) if unit in times and times[unit][1] >= start), behind)
        if item.read == "latest":
            ends_in = units[behind] in times and times[units[behind]][0] <= end
            first = behind if ends_in or behind == 0 else behind - 1
        return all(unit in times for unit in units[max(0, first - 1) : behind + 1])

    def _is_covered(self, job: JobShape, item: InputShape, begin: int, start: int, end: int) -> bool:
        """Whether no unit is missing from `start` to `end`; of an input that is read by times, from the last block
        before to the first one behind."""
        units = sorted(self.rows[item.parent])
        if self._by_time(job, item):
            times = self._times[item.parent]
            low = next(unit for unit in units if times[unit][1] >= start)
            behind = next(unit for unit in units if times[unit][1] > end)
            start, end = low.start if times[low][0] < start else low.start - 1, behind.end
        position = max(start, begin)
        for unit in units:
            if unit.start <= position <= unit.end:
                position = unit.end + 1
        return position > end

    def _read_previous(self, job: JobShape, extents: list[str], window: Window, rows: dict[Window, str]) -> str | None:
        begins = [self._begin_second(name) if job.in_seconds else self.begins[name] for name in extents]
        known = [begin for begin in begins if begin is not None]
        if job.in_seconds and len(known) < len(begins):
            return None
        if not known or window.start <= min(known):
            return ""
        if job.grid is not None:
            before = self._grid(job).before(window)
        else:
            before = next((unit for unit in self.rows[job.inputs[0].parent] if unit.end == window.start - 1), None)
        return None if before is None else rows.get(before)

"""Windows far away are computed, not counted one by one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.windows.test_window_dates import GRIDS
from tracelake.model import windows
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import (
    LAST_TIME,
    MOST_LOOKBACK,
    Window,
    count_windows,
    next_window,
    previous_window,
    shift_window,
    window_at,
    windows_between,
)

STEADY = [grid for grid in GRIDS if grid.time_zone != "Pacific/Apia"] + [UnitGrid(by="blocks", size=7)]
"""No date was left out in these zones."""


@given(st.sampled_from(STEADY), st.integers(86_400 * 40, LAST_TIME), st.integers(-12, 12))
def test_a_shift_is_as_many_windows(grid: UnitGrid, second: int, grains: int) -> None:
    first = expected = window_at(grid, second)
    for _ in range(abs(grains)):
        expected = next_window(grid, expected) if grains > 0 else previous_window(grid, expected) or expected
    assert shift_window(grid, first, grains) == expected


@given(st.sampled_from(STEADY), st.integers(0, 2_000_000_000), st.integers(0, 86_400 * 200))
def test_windows_are_counted(grid: UnitGrid, second: int, more: int) -> None:
    if grid.by == "time":
        assert count_windows(grid, second, second + more) == len(windows_between(grid, second, second + more))


@pytest.mark.parametrize("grid", [*GRIDS, UnitGrid(by="blocks", size=2**40)])
def test_the_farthest_shift_is_one_step(grid: UnitGrid, monkeypatch: pytest.MonkeyPatch) -> None:
    first = window_at(grid, LAST_TIME)
    calls: list[int] = []

    def count_calls(grid: UnitGrid, position: int) -> Window:
        calls.append(position)
        return window_at(grid, position)

    monkeypatch.setattr(windows, "window_at", count_calls)
    last = shift_window(grid, first, MOST_LOOKBACK)
    assert last.start > first.end
    assert shift_window(grid, last, -2 * MOST_LOOKBACK).end < last.start
    assert len(calls) == 2

"""The times of a unit of blocks. The genesis of a chain may have the timestamp 0, which stands for none."""

from collections.abc import Iterable


def first_time(times: Iterable[int]) -> int:
    """The first time of consecutive blocks; 0 if they have none. Only block 0 has none, so two blocks are enough."""
    return next((time for time in times if time), 0)


def unit_times(ranges: Iterable[tuple[int, int]]) -> tuple[int, int] | None:
    """The times of the first and the last block, from those of parts of the unit; None if no block has one."""
    timed = [(first, last) for first, last in ranges if last]
    return (min(first for first, _ in timed), max(last for _, last in timed)) if timed else None

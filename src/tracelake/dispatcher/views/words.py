"""Words that views and explanations share: spans of time, units, full queues."""

from datetime import datetime
from functools import lru_cache

import msgspec

from tracelake.dispatcher.views.paging import CAP
from tracelake.model.dag import UnitGrid
from tracelake.model.windows import describe_range

_SPANS = ((86400, "d"), (3600, "h"), (60, "m"))


def span(seconds: float) -> str:
    """`3m`; the largest whole unit is enough for people."""
    for size, letter in _SPANS:
        if seconds >= size:
            return f"{int(seconds // size)}{letter}"
    return f"{max(0, int(seconds))}s"


def since(at: datetime | None, now: datetime) -> str:
    """`3m`, from then to now; `0s` for a time that never was."""
    return span(0.0 if at is None else (now - at).total_seconds())


def counted(number: int, noun: str, *, most: int | None = None) -> str:
    """`1 task`, `1,200 batches`; `10,000 or more tasks` where counting stopped."""
    several = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    if most is not None and number >= most:
        return f"{number:,} or more {several}"
    return f"{number:,} {noun if number == 1 else several}"


def waiting(events: int) -> str:
    """What waits before an edge: `3 events wait`."""
    if not events:
        return "nothing waits"
    return f"{counted(events, 'event', most=CAP)} {'waits' if events == 1 else 'wait'}"


def unit_words(unit_key: str, units: str | None = None) -> str:
    """A unit's key for people: `c:12` is cursor 12, `p:10-19` is 10-19; of windows of time, their date.

    `units`: the grid of the generation, as `dataset_versions.units` has it.
    """
    kind, _, text = unit_key.partition(":")
    if kind == "c":
        return f"cursor {text}"
    start, _, end = text.partition("-")
    if units is not None and start.isdigit() and end.isdigit():
        return window_words(units, int(start), int(end)) or text
    return text or unit_key


def window_words(units: str | None, start: int | None, end: int | None) -> str | None:
    """The dates of windows of time side by side, like `2026-03-03`; None for units that are no windows of time."""
    grid = decode_grid(units)
    if grid is None or grid.by != "time" or start is None or end is None:
        return None
    return describe_range(grid, start, end)


@lru_cache(maxsize=256)
def decode_grid(units: str | None) -> UnitGrid | None:
    """The grid of a generation from `dataset_versions.units`."""
    return None if units is None else msgspec.json.decode(units, type=UnitGrid)


def full_state(
    depth: int,
    max_depth: int | None,
    age_seconds: float,
    max_age_seconds: int | None,
    *,
    bulk_alone: bool,
    lasted: str | None,
    noun: str = "queued",
) -> str:
    """`full for 3m (1,200 of 1,000 queued; goes on below 50 %)`: by whichever threshold is nearer.

    `bulk_alone`: it stops only what is bulk, and is `filling`. A queue stays what it is until it is below half, so it
    may be full with fewer tasks than its threshold.
    """
    state = "filling" if bulk_alone else "full"
    end = "; bulk work goes on below 50 %" if bulk_alone else "; goes on below 50 %"
    if lasted is not None:
        state += f" for {lasted}"
    by_depth = 0.0 if max_depth is None else depth / max_depth
    by_age = 0.0 if max_age_seconds is None or not depth else age_seconds / max_age_seconds
    if max_depth is None or by_age > by_depth:
        return f"{state} (the oldest has waited {span(age_seconds)} of {span(max_age_seconds or 0)}{end})"
    return f"{state} ({depth:,} of {max_depth:,} {noun}{end})"

"""Words that views and explanations share: spans of time, units, full queues."""

from datetime import datetime

from tracelake.dispatcher.views.paging import CAP

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


def unit_words(unit_key: str) -> str:
    """A unit's key for people: `c:12` is cursor 12, `p:10-19` is 10-19."""
    kind, _, text = unit_key.partition(":")
    return f"cursor {text}" if kind == "c" else text or unit_key


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

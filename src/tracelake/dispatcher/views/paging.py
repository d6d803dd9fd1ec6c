"""One list out of many sorted ones: the newest rows of an org, from those of each of its jobs or datasets.

Each source gives its newest rows below the cursor, at most `per_source`. A source that gave that many may have more, so
the merged list is complete only down to its last row: the horizon. A page never shows what lies below it, and goes on
from there. Filters that no index knows are applied to rows that were taken, so a page may be short, or empty, and still
have a `next`: that is the price of a bounded cost.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

CAP = 10_000
"""Where counts for people stop counting."""
LOOKED_AT = 20_000
"""Rows that one page may look at, over all sources, when a filter has no index."""


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


K = TypeVar("K", bound=_Ordered)


@dataclass(frozen=True, slots=True)
class Page(Generic[K]):
    keys: list[K]
    next: K | None


def per_source(limit: int, sources: int, *, filtered: bool) -> int:
    """How many rows to take of each: enough for a page, and no more than the budget when many will be thrown away."""
    return max(limit + 1, LOOKED_AT // max(sources, 1)) if filtered else limit + 1


def merge(rows: Iterable[tuple[Hashable, K, bool]], limit: int, share: int) -> Page[K]:
    """Merge rows of (source, key, fits), largest keys first; `share` is the result of `per_source`."""
    counts: dict[Hashable, int] = {}
    last: dict[Hashable, K] = {}
    selected: list[K] = []
    for source, key, fits in rows:
        counts[source] = counts.get(source, 0) + 1
        if source not in last or key < last[source]:
            last[source] = key
        if fits:
            selected.append(key)
    cut = [last[source] for source, count in counts.items() if count >= share]
    horizon = max(cut) if cut else None
    selected.sort(reverse=True)
    if horizon is not None:
        selected = [key for key in selected if not key < horizon]
    if len(selected) > limit:
        return Page(selected[:limit], selected[limit - 1])
    return Page(selected, horizon)

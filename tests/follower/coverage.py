"""What random chains had of all that they are made for. A generator that goes weak fails here, not silently."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.follower.world import DEEPEST

LEAST_REORGANISATIONS = 2
BANDS = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 32), (33, 48), (49, DEEPEST))
"""Depths, together all that a chain may have."""


@dataclass
class RewriteRecord:
    """Writes that replaced stored blocks, told one after another as they are committed."""

    depths: list[int] = field(default_factory=list)
    """How many blocks each of them removed."""
    nested: int = 0
    """How many removed blocks that a reorganisation before had put there."""
    first: int | None = None
    """The first block that was ever stored."""
    newest: int | None = None
    """The newest stored block."""
    writes: int = 0
    _rewritten: set[int] = field(default_factory=set)

    def add(self, first: int, last: int) -> None:
        """Blocks from `first` to `last` are stored now, and none above."""
        if self.newest is not None and first <= self.newest:
            self.depths.append(self.newest - first + 1)
            self.nested += any(number in self._rewritten for number in range(first, self.newest + 1))
            self._rewritten = {number for number in self._rewritten if number < first} | set(range(first, last + 1))
        self.first = first if self.first is None else self.first
        self.newest = last
        self.writes += 1


@dataclass
class Coverage:
    """Of one chain, or of many together."""

    chains: int = 0
    depths: list[int] = field(default_factory=list)
    nested: int = 0
    crashes: int = 0
    stale_looks: int = 0
    """Looks of attempts that had been replaced."""
    repeated: int = 0
    reordered: int = 0

    def add(self, other: "Coverage") -> None:
        self.chains += other.chains
        self.depths += other.depths
        self.nested += other.nested
        self.crashes += other.crashes
        self.stale_looks += other.stale_looks
        self.repeated += other.repeated
        self.reordered += other.reordered

    def check(self) -> None:
        """As much of everything as so many chains must have."""
        for first, last in BANDS:
            assert sum(first <= depth <= last for depth in self.depths) >= self.chains / 25, f"depths {first} to {last}"
        assert max(self.depths) >= DEEPEST - 4
        assert self.nested >= self.chains / 2
        assert self.crashes >= self.chains / 2
        assert self.stale_looks >= self.chains / 10
        assert self.repeated >= 5 * self.chains
        assert self.reordered >= 5 * self.chains


def seeds_of_run(count: int) -> Sequence[int]:
    """The seeds of a run; with `TRACE_SEED`, that one alone."""
    return [int(os.environ["TRACE_SEED"])] if "TRACE_SEED" in os.environ else range(count)


def seeds_of_soak(chains: int) -> Sequence[int]:
    """`TRACE_CHAINS` says how many, and `TRACE_SEED` the first."""
    first = int(os.environ.get("TRACE_SEED", 1_000))
    return range(first, first + int(os.environ.get("TRACE_CHAINS", chains)))


def check_chains(seeds: Iterable[int], check: Callable[[int], Coverage]) -> Coverage:
    """Of all these chains. A failure names the seed that repeats it."""
    total = Coverage()
    for seed in seeds:
        try:
            chain = check(seed)
            assert len(chain.depths) >= LEAST_REORGANISATIONS
        except BaseException as error:
            error.add_note(f"TRACE_SEED={seed}")
            raise
        total.add(chain)
    return total

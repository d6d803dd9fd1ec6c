"""A chain that grows and is reorganised, and what each dependant of it must consist of.

The model knows nothing of events, revisions or tasks: it computes every unit from the blocks that the chain has now.
"""

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from tracelake.model.dag import UnitGrid
from tracelake.model.windows import Window, shift_window, windows_between

FIRST_BLOCKS = 40
"""Blocks that a chain of a random schedule begins with."""


class Block(NamedTuple):
    number: int
    hash: str
    time: int


@dataclass
class LiveChain:
    """The newest blocks of a table. Its newest block never goes back, as a follower's table does not."""

    chance: random.Random
    first: int
    blocks: list[Block] = field(default_factory=list)
    made: int = 0

    @property
    def tip(self) -> int:
        return self.first + len(self.blocks) - 1

    def append(self, count: int) -> None:
        for _ in range(count):
            self._grow()

    def reorganise(self, depth: int, more: int) -> Window:
        """Replaces the last blocks and adds some; returns the range of those that changed."""
        changed = Window(self.tip - depth + 1, self.tip)
        del self.blocks[-depth:]
        self.append(depth + more)
        return changed

    def pass_all(self, time: int) -> None:
        """A block behind all windows that any fork has reached."""
        self._grow(max(time, self.blocks[-1].time) + 1)

    def _grow(self, time: int | None = None) -> None:
        before = self.blocks[-1].time if self.blocks else 7_000
        self.made += 1
        time = before + self.chance.choice([0, 12, 12, 400, 1_500, 4_000]) if time is None else time
        self.blocks.append(Block(self.tip + 1, f"h{self.made}", time))

    def between(self, first: int, last: int) -> list[Block]:
        return self.blocks[max(0, first - self.first) : max(0, last - self.first + 1)]


@dataclass(frozen=True)
class Dependant:
    """A job with units of its own that reads the table, or another dependant."""

    name: str
    grid: UnitGrid
    read: str = ""
    parent: str = "live"
    running: bool = False

    @property
    def reads_blocks(self) -> bool:
        """From the table, or from the copy of a reader that has the units of its updates."""
        return self.parent in ("live", "copy")

    @property
    def inputs(self) -> str:
        origin = f"{{from: {{job: {'head' if self.parent == 'live' else self.parent}}}{self.read}}}"
        return f"[{origin}{', {self: previous, columns: {total: bigint}}' if self.running else ''}]"


def rows_text(blocks: Iterable[Block]) -> str:
    """The rows of a result, in their order."""
    return json.dumps([list(block) for block in blocks])


def digest(parts: Iterable[str]) -> str:
    """Stands for rows that are made from all rows that were read."""
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def model(chain: LiveChain, dependants: Iterable[Dependant]) -> dict[str, dict[Window, str]]:
    """Every unit of each dependant, computed from scratch."""
    results: dict[str, dict[Window, str]] = {}
    for job in dependants:
        results[job.name] = _compute(chain, job, results)
    return results


def _windows(chain: LiveChain, job: Dependant, units: dict[Window, str] | None) -> list[Window]:
    """Those that are complete: nothing can be missing."""
    if units is not None:
        first, last = min(units).start, max(units).end
    elif job.grid.by == "time":
        first, last = chain.blocks[0].time, chain.blocks[-1].time - (job.grid.when == "complete")
    else:
        first, last = chain.first, chain.tip
    windows = windows_between(job.grid, first, max(first, last))
    return [window for window in windows if window.end <= last or job.grid.when == "updated"]


def _compute(chain: LiveChain, job: Dependant, results: dict[str, dict[Window, str]]) -> dict[Window, str]:
    units = None if job.reads_blocks else results[job.parent]
    rows: dict[Window, str] = {}
    before = ""
    for window in _windows(chain, job, units):
        span = window
        if "lookback" in job.read:
            span = Window(shift_window(job.grid, window, -1).start, window.end)
        elif "history" in job.read:
            span = Window(0, window.end)
        if units is None:
            by_time = job.grid.by == "time"
            blocks = [
                block for block in chain.blocks if span.start <= (block.time if by_time else block.number) <= span.end
            ]
            parts = [rows_text(blocks)]
        else:
            parts = [",".join(text for unit, text in sorted(units.items()) if _overlap(unit, span))]
        before = rows[window] = digest([*parts, before] if job.running else parts)
    return rows


def _overlap(one: Window, other: Window) -> bool:
    return one.start <= other.end and one.end >= other.start

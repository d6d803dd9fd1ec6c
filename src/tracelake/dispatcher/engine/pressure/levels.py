"""Levels of pressure: how full a job's queue is, and who must stop for it.

Pure. A queue at 80 % of its depth or age stops `bulk` producers, at 100 % all of them, recursively up to the sources;
they go on below 50 %. In between nothing changes, so a queue at its limit does not flap.
"""

from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction

SHED_BULK = Fraction(80, 100)
SHED_ALL = Fraction(1)
RESUME = Fraction(50, 100)


class Level(IntEnum):
    NONE = 0
    BULK = 1
    ALL = 2


@dataclass(frozen=True, slots=True)
class Thresholds:
    max_depth: int | None
    max_age_seconds: int | None


def share(thresholds: Thresholds, depth: int, age_seconds: float) -> Fraction:
    """How full the queue is, by whichever of depth and age is worse. An empty queue has no age."""
    shares = [Fraction(0)]
    if thresholds.max_depth is not None:
        shares.append(Fraction(depth, thresholds.max_depth))
    if thresholds.max_age_seconds is not None and depth:
        shares.append(Fraction(age_seconds) / thresholds.max_age_seconds)
    return max(shares)


def next_level(level: Level, full: Fraction) -> Level:
    if full >= SHED_ALL:
        return Level.ALL
    if full < RESUME:
        return Level.NONE
    if full >= SHED_BULK:
        return max(level, Level.BULK)
    return level

"""When blocks come and how much happens in them: days with busy hours and quiet nights, surges, and missed slots."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

SLOT_SECONDS = 12
BUSIEST = 40
_DAYS = (0.8, 1.2, 0.9, 1.1, 0.6)
"""How lively each day is; the days repeat."""


@dataclass(frozen=True, slots=True)
class Moment:
    timestamp: int
    hour: float
    transactions: int
    base_fee: int


def moments(random: Random, start: int, count: int) -> Iterator[Moment]:
    timestamp, surge, warmth = start, 1.0, 0.3
    for _ in range(count):
        hour = (timestamp - start) / 3600 % 24
        liveliness = _liveliness(hour) * _DAYS[(timestamp - start) // 86_400 % len(_DAYS)]
        slots = 1 + int(random.expovariate(1 / (2.8 + 13 * (1 - min(1.0, liveliness)) ** 2)))
        timestamp += SLOT_SECONDS * slots
        surge = 5.0 if random.random() < 0.004 else max(1.0, surge * 0.85)
        expected = 9.5 * liveliness * surge
        transactions = 0 if random.random() < 0.06 else min(BUSIEST, _poisson(random, expected))
        warmth += 0.08 * (min(1.0, transactions / 20) - warmth)
        yield Moment(timestamp, hour, transactions, int((0.4 + 24 * warmth**1.5) * 1e9) + random.randrange(10**6))


def _liveliness(hour: float) -> float:
    """Least at four in the morning, most in the afternoon, with a second peak in the evening."""
    day = max(0.0, math.sin(math.pi * (hour - 6) / 14)) if 6 <= hour <= 20 else 0.0
    evening = 0.6 * math.exp(-((hour - 21) ** 2) / 2)
    return 0.06 + 0.94 * math.pow(day, 1.5) + evening


def _poisson(random: Random, expected: float) -> int:
    count, left = -1, expected
    while left >= 0:
        left -= random.expovariate(1)
        count += 1
    return count

"""Interleaved measurement: these machines move by half, so nothing is compared across time."""

import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field


@dataclass
class Series:
    """Repeated readings of one quantity."""

    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> list[float]:
        """Lower and upper quartile."""
        if len(self.values) < 2:
            return [self.values[0], self.values[0]]
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return [round(low, 3), round(high, 3)]


def ratio(above: Series, below: Series) -> Series:
    """Round by round: readings of the same round saw the same machine."""
    return Series([a / b for a, b in zip(above.values, below.values, strict=True)])


async def interleave(
    subjects: Mapping[str, Callable[[], Awaitable[float]]],
    rounds: int,
    say: Callable[[str], None],
    *,
    show: Callable[[float], str] = lambda rate: f"{rate:,.0f}/s",
) -> dict[str, Series]:
    """ABBA: every other round runs in reverse order, so that a drift touches all subjects alike."""
    series = {name: Series() for name in subjects}
    for number in range(rounds):
        names = list(subjects)[:: 1 if number % 2 == 0 else -1]
        readings = {}
        for name in names:
            readings[name] = await subjects[name]()
            series[name].values.append(readings[name])
        say(f"round {number + 1}/{rounds}: " + "  ".join(f"{name} {show(readings[name])}" for name in subjects))
    return series


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

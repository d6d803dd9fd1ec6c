"""How long to wait: exponential with full spread over the upper half, so that retries do not march in step."""

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    min_seconds: float
    max_seconds: float

    def seconds(self, tries: int) -> float:
        """The wait after the `tries`-th failure (1 is the first)."""
        doubled = self.min_seconds * 2.0 ** min(max(tries - 1, 0), 62)
        top = min(doubled, self.max_seconds)
        return max(self.min_seconds, top * random.uniform(0.75, 1.0))  # noqa: S311 - spread, not secrecy

    def delay(self, tries: int) -> timedelta:
        return timedelta(seconds=self.seconds(tries))

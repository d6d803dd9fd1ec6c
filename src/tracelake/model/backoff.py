"""How long to wait: exponential, each wait spread over a range, so that retries do not march in step."""

import random
from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class Backoff:
    min_seconds: float
    max_seconds: float

    def seconds(self, tries: int) -> float:
        """The wait after the `tries`-th failure (1 is the first): up to half longer than the doubled one."""
        doubled = self.min_seconds * 2.0 ** min(max(tries - 1, 0), 62)
        # The first wait is spread too (an outage fails many tasks at once), and the longest one downwards.
        low = max(self.min_seconds, min(doubled, 0.75 * self.max_seconds))
        high = min(1.5 * doubled, self.max_seconds)
        return random.uniform(low, max(low, high))  # noqa: S311 - spread, not secrecy

    def delay(self, tries: int) -> timedelta:
        return timedelta(seconds=self.seconds(tries))


@dataclass(frozen=True, slots=True)
class Retry:
    """The next attempt of a task that failed."""

    after: timedelta
    forgiven: int
    """How many attempts no later wait counts: those up to the last healthy one, and those that were stopped."""

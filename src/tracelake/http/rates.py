"""How fast one user may ask: a token bucket each, in this process's memory.

A limit of one process, not of the system: with several Dispatchers a user has as many buckets. It keeps one user's loop
from taking the others' time, which needs no more than that.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from tracelake.errors import TraceError

MAX_BUCKETS = 10_000


class RateLimiter:
    def __init__(
        self,
        per_second: float,
        burst: float,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        buckets: int = MAX_BUCKETS,
    ) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._monotonic = monotonic
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._most = buckets

    def take(self, user: Hashable) -> None:
        """One request of this user: 429 when the bucket is empty, with the seconds until it is not."""
        now = self._monotonic()
        left, updated_at = self._buckets.pop(user, (self._burst, now))
        left = min(self._burst, left + (now - updated_at) * self._per_second)
        allowed = left >= 1
        self._buckets[user] = (left - 1 if allowed else left, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)  # whoever was silent for longest: the fullest bucket but for bursts
        if not allowed:
            wait = math.ceil((1 - left) / self._per_second)
            raise TraceError("rate_limited", retry_after_seconds=max(wait, 1))

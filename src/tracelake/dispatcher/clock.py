"""The store's time, between two looks at it.

All time is `trace_now()`. Where a decision needs the time and has no transaction (is this token expired?), the last
answer of the store is carried forward by a monotonic clock.
"""

import time
from datetime import UTC, datetime, timedelta


class StoreClock:
    def __init__(self) -> None:
        self._store_time = datetime.now(UTC)
        self._at = time.monotonic()

    def observe(self, now: datetime, asked_at: float | None = None) -> None:
        """The store's answer to a statement sent at `asked_at` (monotonic): `trace_now()` is when a statement began."""
        self._store_time = now
        self._at = time.monotonic() if asked_at is None else asked_at

    def now(self) -> datetime:
        return self.at(time.monotonic())

    def at(self, moment: float) -> datetime:
        """The store's time at that moment of the monotonic clock."""
        return self._store_time + timedelta(seconds=moment - self._at)

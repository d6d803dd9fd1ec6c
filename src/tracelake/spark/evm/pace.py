"""How fast a node may be asked. Without a limit of ours, as fast as it answers; a node that says it is too much makes
the pace slower than what it answered in the last second, and time without a refusal lets it grow again.

The unit is whatever is counted: requests, or calls.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

_SLOWEST = 0.2
_CUT = 0.7
_GROWTH_PER_SECOND = 1.05
_MEASURED_SECONDS = 1.0
_MOST_MEASURED = 4096


class Pace:
    def __init__(self, most: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`most`: units a second that are never exceeded."""
        self._most = most
        self._rate = most
        self._clock = clock
        self._next = clock()
        self._grown_at = clock()
        self._cut_at = float("-inf")
        self._answers: deque[tuple[float, int]] = deque(maxlen=_MOST_MEASURED)
        self._lock = threading.Lock()

    @property
    def rate(self) -> float | None:
        """Units a second; None: as they come."""
        return self._rate

    def wait(self, units: int = 1) -> float:
        """How long to wait before the next units, whose place is taken by asking."""
        if self._rate is None:
            return 0.0
        with self._lock:
            now = self._clock()
            at = max(now, self._next)
            self._next = at + units / self._rate
            return at - now

    def answered(self, units: int = 1) -> None:
        with self._lock:
            now = self._clock()
            self._answers.append((now, units))
            if self._rate is None or self._rate == self._most:
                return
            self._rate *= _GROWTH_PER_SECOND ** (now - self._grown_at)
            self._grown_at = now
            if self._most is not None:
                self._rate = min(self._rate, self._most)

    def slower(self, sent_at: float | None = None) -> None:
        """`sent_at`: when the request was sent that was too much. Those of before the last cut say nothing new."""
        with self._lock:
            now = self._clock()
            if sent_at is not None and sent_at < self._cut_at:
                return
            rate = self._measured(now) if self._rate is None else self._rate
            self._rate = max(_SLOWEST, rate * _CUT)
            if self._most is not None:
                self._rate = min(self._rate, self._most)
            self._next = max(self._next, now)
            self._cut_at = self._grown_at = now

    def _measured(self, now: float) -> float:
        """What was answered in the last second; at least one."""
        return float(max(1, sum(units for at, units in self._answers if now - at <= _MEASURED_SECONDS)))

"""How fast a node may be asked. Without a limit of ours, as fast as it answers; a node that says it is too much halves
the pace, and each good answer lets it grow a little again."""

import threading
import time
from collections import deque
from collections.abc import Callable

_SLOWEST = 0.2
_GROWTH = 1.02
_MEASURED = 64


class Pace:
    def __init__(self, most: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """`most`: requests a second that are never exceeded."""
        self._most = most
        self._rate = most
        self._clock = clock
        self._next = clock()
        self._sent: deque[float] = deque(maxlen=_MEASURED)
        self._lock = threading.Lock()

    @property
    def rate(self) -> float | None:
        """Requests a second; None: as they come."""
        return self._rate

    def wait(self) -> float:
        """How long to wait before the next request, whose place is taken by asking."""
        with self._lock:
            now = self._clock()
            if self._rate is None:
                self._sent.append(now)
                return 0.0
            at = max(now, self._next)
            self._next = at + 1 / self._rate
            self._sent.append(at)
            return at - now

    def slower(self) -> None:
        with self._lock:
            known = self._measured() if self._rate is None else self._rate
            self._rate = max(_SLOWEST, known / 2)
            if self._most is not None:
                self._rate = min(self._rate, self._most)
            self._next = max(self._next, self._clock())

    def faster(self) -> None:
        with self._lock:
            if self._rate is None:
                return
            self._rate = self._rate * _GROWTH
            if self._most is not None:
                self._rate = min(self._rate, self._most)

    def _measured(self) -> float:
        """Of the latest requests; one a second if there were too few to say."""
        if len(self._sent) < 2:
            return 1.0
        passed = self._sent[-1] - self._sent[0]
        return (len(self._sent) - 1) / passed if passed > 0.001 else float(_MEASURED)

"""How many calls one request to a node carries.

A batch is as large as the job allows until the node objects. What it objects to decides what follows:

- too large: half of it, or what the node named; that size is a ceiling until it expires
- too many calls at a time: half of it, for a minute; then it grows back with each answered batch
- an answer that did not arrive whole or in time: half of it, and it grows back
- no batches at all: single calls for a while, then a batch is tried again, after longer and longer pauses
- requests that fail without a reason: after two of them one call is sent alone. If that is answered, the batch was the
  reason; if not, the node is in trouble, and the size stays.
"""

import threading
import time
from collections.abc import Callable

_GROWTH = 1.05
_STRIKES = 2
_CEILING_SECONDS = 300.0
_SLOW_SECONDS = 60.0
_CERTAIN_PAUSE, _SUSPECTED_PAUSE, _LONGEST_PAUSE = 300.0, 2.0, 1800.0


class BatchSize:
    """Safe to use from several threads."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = float(most)
        self._clock = clock
        self._size = self._most
        self._ceiling = self._most
        self._ceiling_until = float("-inf")
        self._single_until = float("-inf")
        self._pause = 0.0
        self._strikes = 0
        self._lock = threading.Lock()

    @property
    def current(self) -> int:
        if self._strikes >= _STRIKES or self._clock() < self._single_until:
            return 1
        return max(1, int(self._size))

    def answered(self, count: int) -> None:
        """A request of so many calls was answered in full."""
        with self._lock:
            if count > 1:
                self._strikes = 0
                self._pause = 0.0
                if self._size < self._most:
                    self._grow()
            elif self._strikes >= _STRIKES:
                self._go_single(_SUSPECTED_PAUSE)
            elif self._size < 2:
                self._grow()

    def shrink(self, count: int, *, limit: int | None = None) -> None:
        """A request of so many calls was too large; `limit`: the node named what is not."""
        with self._lock:
            self._set_ceiling(float(limit or max(1, count - 1)), _CEILING_SECONDS)
            self._size = max(1.0, min(self._size, float(limit or count // 2)))

    def slow(self, count: int, answer_count: int) -> None:
        """Of a request of so many calls only some were answered, since there were too many at a time."""
        with self._lock:
            self._size = max(1.0, min(self._size, float(answer_count or count // 2)))
            if not answer_count:
                self._set_ceiling(self._size, _SLOW_SECONDS)

    def halve(self, count: int) -> None:
        """A request of so many calls was perhaps too large."""
        with self._lock:
            self._size = max(1.0, min(self._size, float(count // 2)))

    def refuse(self, *, certain: bool) -> None:
        """The node does not take batches."""
        with self._lock:
            self._go_single(_CERTAIN_PAUSE if certain else _SUSPECTED_PAUSE)

    def strike(self, count: int) -> None:
        """A request of so many calls failed, and nobody knows whether its size had to do with it."""
        if count > 1:
            with self._lock:
                self._strikes += 1

    def _go_single(self, pause: float) -> None:
        self._pause = min(_LONGEST_PAUSE, max(pause, self._pause * 2))
        self._single_until = self._clock() + self._pause
        self._strikes = _STRIKES - 1  # when it is tried again, one more failure is enough

    def _set_ceiling(self, size: float, seconds: float) -> None:
        self._ceiling = size
        self._ceiling_until = self._clock() + seconds

    def _grow(self) -> None:
        if self._clock() >= self._ceiling_until:
            self._ceiling = self._most
        self._size = min(self._size * _GROWTH, max(1.0, self._ceiling))

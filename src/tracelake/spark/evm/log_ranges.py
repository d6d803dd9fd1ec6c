"""How many blocks one eth_getLogs may span at a node.

Nodes limit the blocks of a query, the logs of its answer, or both, and few say so before they refuse one. A range grows
with each answer until the node objects:

- it names a limit of blocks, or a range that it would answer: that many; a limit is kept for ten minutes
- it does not: half of it, and no more than that for a minute, since denser blocks are often behind each other.
"""

import threading
import time
from collections.abc import Callable, Sequence

_FIRST, _MOST = 2_000, 10_000
_GROWTH = 1.5
_LIMIT_SECONDS, _DENSE_SECONDS = 600.0, 60.0


class LogRangeSize:
    """Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._size = float(_FIRST)
        self._ceiling = float(_MOST)
        self._ceiling_until = float("-inf")
        self._lock = threading.Lock()

    @property
    def current(self) -> int:
        return max(1, int(self._size))

    def answered(self, blocks: int) -> None:
        """A query of so many blocks was answered."""
        with self._lock:
            if blocks < self.current:
                return
            ceiling = self._ceiling if self._clock() < self._ceiling_until else float(_MOST)
            self._size = max(self._size, min(blocks * _GROWTH, ceiling))

    def refused(self, blocks: int, *, limits: Sequence[int] = (), proposed: int | None = None) -> int:
        """A query of so many blocks was too large; `limits`: numbers that the node named; `proposed`: a range that it
        would answer. What to ask for instead."""
        with self._lock:
            limit_of_node = max((limit for limit in limits if 1 <= limit < blocks), default=None)
            if proposed is not None and 1 <= proposed < blocks:
                size, seconds = proposed, _DENSE_SECONDS
            elif limit_of_node is not None:
                size, seconds = limit_of_node, _LIMIT_SECONDS
            else:
                size, seconds = max(1, blocks // 2), _DENSE_SECONDS
            self._size = min(self._size, float(size))
            self._ceiling, self._ceiling_until = float(size), self._clock() + seconds
            return size

"""What subscriptions say to the follower: a new block may be there, look at once.

A signal decides nothing but when the nodes are asked. One that is false, repeated, late or missing costs a request or a
wait, and never a row.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

_STEP_SECONDS = 0.25
"""How long a stop may go unnoticed."""
_KNOWN_BLOCKS = 64


class HeadSignal:
    """Safe to use from several threads."""

    def __init__(self, cancel: threading.Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._cancel = cancel
        self._clock = clock
        self._lock = threading.Lock()
        self._announced = threading.Event()
        self._latest: str | None = None
        self._stored: deque[str] = deque(maxlen=_KNOWN_BLOCKS)

    def announce(self, block_hash: str) -> None:
        """A node says that this is its newest block."""
        with self._lock:
            if block_hash in self._stored:
                pending = self._latest is not None and self._latest not in self._stored
                if block_hash == self._stored[-1] and not pending:
                    self._latest = block_hash
                return
            self._latest = block_hash
            self._announced.set()

    def lose(self) -> None:
        """A subscription ended."""
        with self._lock:
            self._latest = None

    def store(self, block_hash: str) -> None:
        """The tables end with this block."""
        with self._lock:
            self._stored.append(block_hash)
            if self._latest == block_hash:
                self._announced.clear()

    @property
    def is_followed(self) -> bool:
        """Whether the newest stored block is the one that was announced last: then the next one will be as well.

        Not so after a block that was found without an announcement, or one that no node has."""
        with self._lock:
            return bool(self._stored) and self._latest == self._stored[-1]

    def forget(self) -> None:
        """The nodes are about to be asked: from now on, announcements are news."""
        self._announced.clear()

    def wait(self, seconds: float) -> bool:
        """Until a block is announced (true), the work should stop, or the time is over."""
        until = self._clock() + seconds
        while not self._cancel.is_set():
            left = max(0.0, until - self._clock())
            if self._announced.wait(min(left, _STEP_SECONDS)):
                return True
            if not left:
                return False
        return False

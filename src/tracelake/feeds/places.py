"""Places for processes of feeds in one worker: so many at a time, and no org takes all of them."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tracelake.catalogue.context import CanceledError

_LOOK_SECONDS = 0.5


class FeedPlaces:
    def __init__(self, places: int) -> None:
        self._places = places
        self._per_org = max(1, places - 1)
        self._changed = threading.Condition()
        self._in_use: Counter[str] = Counter()

    @contextmanager
    def take(self, org: str, cancel: threading.Event) -> Iterator[None]:
        """Waits for a place. Raises CanceledError if the attempt should stop before there is one."""
        with self._changed:
            while self._in_use.total() >= self._places or self._in_use[org] >= self._per_org:
                if cancel.is_set():
                    raise CanceledError
                self._changed.wait(_LOOK_SECONDS)
            self._in_use[org] += 1
        try:
            yield
        finally:
            with self._changed:
                self._in_use[org] -= 1
                self._changed.notify_all()

"""`ticker`: the clock as an always_on source. Each period of `seconds` since 1970 has a number; when one begins, its
number plus `start` is emitted as the cursor of every output.

Cursors are domain time and need no memory: an attempt begins with the period after the one it was started in, which no
attempt before it can have emitted, so a restart neither repeats nor goes back (as far as the clocks of workers agree).
While it runs no cursor is left out, also if `emit` had to wait for the Dispatcher. The periods of a pause, or of the
time between two attempts, have no event of their own: whoever reads cursors gets them with the next one.
"""

import math
import time
from collections.abc import Callable

from tracelake.catalogue import TickerConfig
from tracelake.catalogue.announce import ANNOUNCED
from tracelake.catalogue.context import CanceledError, NonRetryableError, OperatorContext, OperatorResult
from tracelake.wire.units import EventIn

_LOOK_SECONDS = 0.5
"""How often a paused ticker looks whether it may go on."""
_AT_ONCE = 1000


class Ticks:
    """Which cursors are due, by a clock that may also jump back."""

    def __init__(self, seconds: float, start: int, now: float) -> None:
        self._seconds = seconds
        self._start = start
        self._last = self._period(now)

    def due(self, now: float, most: int) -> range:
        """The cursors that nobody has taken yet, at most so many; they count as taken."""
        first = self._last + 1
        self._last = max(self._last, min(self._period(now), self._last + most))
        return range(self._start + first, self._start + self._last + 1)

    def leave_out(self, now: float) -> None:
        """What is due has no event of its own."""
        self._last = max(self._last, self._period(now))

    def wait(self, now: float) -> float:
        """Seconds to the next one."""
        return max(0.0, (self._last + 1) * self._seconds - now)

    def _period(self, now: float) -> int:
        return math.floor(now / self._seconds)


def ticker(context: OperatorContext, clock: Callable[[], float] = time.time) -> OperatorResult:
    config = context.config
    assert isinstance(config, TickerConfig)
    outputs = [output for output in context.outputs if output.storage.kind in ANNOUNCED]
    if not outputs:
        raise NonRetryableError("no output takes events alone: a ticker has no files and no rows to write")
    ticks = Ticks(config.seconds, config.start, clock())
    left = config.ticks
    while left is None or left > 0:
        if context.paused.is_set():
            if context.cancel.wait(_LOOK_SECONDS):
                raise CanceledError
            ticks.leave_out(clock())
            continue
        cursors = ticks.due(clock(), _AT_ONCE if left is None else min(left, _AT_ONCE))
        if cursors:
            context.emit(
                [
                    EventIn(dataset_uuid=output.dataset_uuid, dataset_version=output.dataset_version, cursor=cursor)
                    for cursor in cursors
                    for output in outputs
                ]
            )
            left = None if left is None else left - len(cursors)
        elif context.cancel.wait(ticks.wait(clock())):
            raise CanceledError
    return OperatorResult()

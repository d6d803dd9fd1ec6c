"""The pace of background work: how much of the time it may take while live calls come in.

Draining edges and making large invalidations good use the same core of the Dispatcher and the same commits as live
calls. While live calls come in, background work takes smaller pages and then rests for several times as long as the
page took. Without them it runs at full speed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from tracelake.db.routing_gate import RoutingBusyError

Row = TypeVar("Row")

SHARE = 0.1
"""Of the time, for background work beside live calls."""
SMALLER = 10
"""A page beside live calls is smaller by this factor: nobody waits behind a large one."""
_LONGEST_REST_SECONDS = 0.5
_sleep = asyncio.sleep


class BackgroundPace:
    """Slows background work down while `live_calls`, the number of live calls so far, grows."""

    def __init__(self, live_calls: Callable[[], int]) -> None:
        self._live_calls = live_calls
        self._calls_before = 0
        self._beside_live_calls = False

    def page(self, size: int) -> int:
        return max(1, size // SMALLER) if self._beside_live_calls else size

    async def work_through(self, rows: Iterable[Row], process: Callable[[Row], Awaitable[int]]) -> int:
        """Processes a page of each row and rests after it; a busy org has its turn in the next round. Returns the sum
        of what `process` returns."""
        done = 0
        for row in rows:
            began = time.monotonic()
            with suppress(RoutingBusyError):
                done += await process(row)
            await self.rest(time.monotonic() - began)
        return done

    async def rest(self, worked_seconds: float) -> None:
        """Rests after a page, for longer the longer it took."""
        calls = self._live_calls()
        self._beside_live_calls = calls != self._calls_before
        self._calls_before = calls
        if self._beside_live_calls:
            await _sleep(min(worked_seconds * (1 / SHARE - 1), _LONGEST_REST_SECONDS))

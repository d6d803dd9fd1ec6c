"""The thin timer around `run_once`: repeats it for ever, backs off while a store is away, never dies."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tracelake.dispatcher.metrics import Metrics
from tracelake.errors import StoreUnavailableError
from tracelake.model.backoff import Backoff

logger = logging.getLogger(__name__)

RunOnce: TypeAlias = Callable[[], Awaitable[int]]
"""One round of a loop; answers how much it did."""

_AWAY = Backoff(0.2, 5.0)


class Loop:
    """`run_once` answers how much it did; a full round is followed at once by the next one."""

    def __init__(
        self, name: str, run_once: RunOnce, *, every_seconds: float, metrics: Metrics, full_round: int = 0
    ) -> None:
        self.name = name
        self._run_once = run_once
        self._every = every_seconds
        self._full_round = full_round
        self._nudged = asyncio.Event()
        self._stopped = False
        self._failures = 0
        self._seconds = metrics.loop_seconds.labels(name)
        self._rounds_done, self._rounds_failed = metrics.loop_rounds.labels(name), metrics.loop_failures.labels(name)

    def nudge(self) -> None:
        """There is work now: do not wait for the timer."""
        self._nudged.set()

    def stop(self) -> None:
        self._stopped = True
        self._nudged.set()

    async def run(self) -> None:
        while not self._stopped:
            pause = await self._round()
            if pause > 0 and not self._stopped:
                await self._wait(pause)

    async def _round(self) -> float:
        self._nudged.clear()
        began = time.monotonic()
        try:
            done = await self._run_once()
        except StoreUnavailableError as away:
            self._failures += 1
            if self._failures == 1:
                logger.warning("loop waits for its store", extra={"loop": self.name, "reason": str(away)})
        except Exception:
            self._failures += 1
            logger.exception("loop round failed", extra={"loop": self.name})
        else:
            if self._failures:
                logger.info("loop goes on", extra={"loop": self.name, "failed_rounds": self._failures})
            self._failures = 0
            self._rounds_done.inc()
            self._seconds.observe(time.monotonic() - began)
            return 0.0 if self._full_round and done >= self._full_round else self._every
        self._rounds_failed.inc()
        self._nudged.clear()
        return max(self._every, _AWAY.seconds(self._failures))

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._nudged.wait()
        except TimeoutError:
            pass

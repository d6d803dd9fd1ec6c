"""Retries in place: a call that meets something away is repeated until it succeeds, or until the sink stops."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.model.backoff import Backoff
from tracelake.ports import QueueUnavailableError
from tracelake.sink.outcomes import StoreAwayError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StoppedError(Exception):
    """Told to stop before it was done: what is held comes back to somebody else."""


class Retrying:
    """Repeats calls of one dataset while what they need is away."""

    def __init__(self, owner: str, backoff: Backoff, stop: asyncio.Event, on_signal: Callable[[str], None]) -> None:
        self._owner = owner
        self._backoff = backoff
        self._stop = stop
        self._signal = on_signal

    async def until_done(self, call: Callable[[], Awaitable[T]]) -> T:
        """Only what can be otherwise in a moment is tried again, and what a person can mend."""
        tries = 0
        while True:
            level = logging.WARNING
            try:
                return await call()
            except StoreAwayError as away:
                reason: Exception = away
                level = logging.ERROR if away.lasting else level
            except (StoreUnavailableError, QueueUnavailableError) as away:
                reason = away
            except TraceError as refusal:
                if not refusal.retryable:
                    raise
                reason = refusal
            tries += 1
            logger.log(level, "waiting", extra={"dataset": self._owner, "reason": str(reason), "tries": tries})
            self._signal("waiting")
            try:
                await asyncio.wait_for(self._stop.wait(), self._backoff.seconds(tries))
            except TimeoutError:
                continue
            raise StoppedError

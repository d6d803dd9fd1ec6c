"""Repeats a call while a service that it needs is away, until it succeeds or the sink stops."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from tracelake.errors import StoreUnavailableError, TraceError
from tracelake.model.backoff import Backoff
from tracelake.ports import QueueUnavailableError
from tracelake.storage.data_connection import StoreAwayError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class StoppedError(Exception):
    """The sink stops before the work is done; its messages become visible to other sinks."""


class Retrying:
    """Repeats the calls of one dataset."""

    def __init__(self, owner: str, backoff: Backoff, stop: asyncio.Event, on_signal: Callable[[str], None]) -> None:
        self._owner = owner
        self._backoff = backoff
        self._stop = stop
        self._signal = on_signal

    async def until_done(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retries errors that are transient or that an operator can fix; raises all others."""
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

"""Readiness: can this Dispatcher reach what it needs? Asked at most once a second, however many ask."""

import asyncio
import time

from tracelake.db.transaction import Store
from tracelake.errors import StoreUnavailableError
from tracelake.ports import Queue, QueueUnavailableError

_KEEP_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0


class Health:
    def __init__(self, store: Store, queue: Queue) -> None:
        self._store = store
        self._queue = queue
        self._checks: dict[str, str] = {}
        self._at = -_KEEP_SECONDS
        self._lock = asyncio.Lock()

    async def check(self) -> dict[str, str]:
        """By part: `ok` or `unavailable`."""
        async with self._lock:
            if time.monotonic() - self._at >= _KEEP_SECONDS:
                state, queue = await asyncio.gather(self._state(), self._queue_state())
                self._checks = {"state": state, "queue": queue}
                self._at = time.monotonic()
            return self._checks

    async def _state(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS), self._store.connection() as connection:
                await connection.fetchval("SELECT 1")
        except (StoreUnavailableError, TimeoutError):
            return "unavailable"
        return "ok"

    async def _queue_state(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                await self._queue.absent("readiness", [])
        except (QueueUnavailableError, TimeoutError):
            return "unavailable"
        return "ok"

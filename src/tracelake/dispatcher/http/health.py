"""Liveness: does this Dispatcher still work off its calls? Readiness: can it also reach what it needs?

The stores are asked at most once a second, however many ask.
"""

import asyncio
import time

from tracelake.db.transaction import Store
from tracelake.dispatcher.engine.group_commit import GroupCommit
from tracelake.errors import StoreUnavailableError
from tracelake.ports import Queue, QueueUnavailableError

_KEEP_SECONDS = 1.0
_PATIENCE_SECONDS = 3.0


class HealthChecks:
    def __init__(self, store: Store, queue: Queue, group: GroupCommit, stall_seconds: float) -> None:
        self._group = group
        self._stall_seconds = stall_seconds
        self._store = store
        self._queue = queue
        self._checks: dict[str, str] = {}
        self._at = -_KEEP_SECONDS
        self._lock = asyncio.Lock()

    def is_alive(self) -> bool:
        """False: calls wait and a lane makes no progress, which only a new process can change. Asks no store."""
        return not self._group.stalled(self._stall_seconds)

    async def check(self) -> dict[str, str]:
        """By part: `ok`, `unavailable` or `stalled`."""
        lifecycle = {"lifecycle": "ok" if self.is_alive() else "stalled"}
        return await self._check_stores() | lifecycle

    async def _check_stores(self) -> dict[str, str]:
        async with self._lock:
            if time.monotonic() - self._at >= _KEEP_SECONDS:
                state, queue = await asyncio.gather(self._state(), self._queue_state())
                self._checks = {"state": state, "queue": queue}
                self._at = time.monotonic()
            return self._checks

    async def _state(self) -> str:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS), self._store.connection(reserved=True) as connection:
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

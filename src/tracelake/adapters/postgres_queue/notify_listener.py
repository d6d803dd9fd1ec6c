"""One LISTEN connection per adapter; it wakes the receive buffers whose queue has news.

Notifications are hints. While the connection is away none arrive, and receivers fall back to polling; when it
is back every buffer is woken once, because any number of hints may have been missed.
"""

import asyncio
import contextlib
import logging
import random
from collections import defaultdict

from tracelake.db.queue.lane import connect
from tracelake.db.queue.statements import CHANNEL
from tracelake.ports.queue import QueueUnavailableError

logger = logging.getLogger(__name__)

EVERY_QUEUE = "*"
_MAX_PAYLOAD = 7000  # Postgres takes just under 8000 bytes
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0


def payload_for(queues: set[str]) -> str:
    names = ",".join(sorted(queues))
    return names if len(names) <= _MAX_PAYLOAD else EVERY_QUEUE


class NotifyListener:
    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._events: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    def subscribe(self, queue: str, event: asyncio.Event) -> None:
        self._events[queue].add(event)
        if self._task is None:
            self._task = asyncio.create_task(self._listen())

    def unsubscribe(self, queue: str, event: asyncio.Event) -> None:
        self._events[queue].discard(event)
        if not self._events[queue]:
            del self._events[queue]

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _listen(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            try:
                connection = await connect(self._dsn, {"application_name": "trace-queue-bell"})
            except QueueUnavailableError as error:
                logger.info("queue notifications are away, polling instead", extra={"error": str(error)})
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                pause = min(pause * 2, _LONGEST_PAUSE)
                continue
            lost = asyncio.Event()
            try:
                connection.add_termination_listener(lambda _connection, lost=lost: lost.set())
                await connection.add_listener(CHANNEL, self._on_notify)
                pause = _FIRST_PAUSE
                self._ring(EVERY_QUEUE)
                await lost.wait()
            except Exception as error:
                # Hints are optional: whatever broke, listening again is the whole remedy.
                logger.info("queue notifications were lost", extra={"error": type(error).__name__})
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter
                pause = min(pause * 2, _LONGEST_PAUSE)
            finally:
                connection.terminate()

    def _on_notify(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        for name in str(payload).split(","):
            self._ring(name)

    def _ring(self, name: str) -> None:
        if name == EVERY_QUEUE:
            for events in self._events.values():
                for event in events:
                    event.set()
        else:
            for event in self._events.get(name, ()):
                event.set()

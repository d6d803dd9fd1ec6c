"""One connection for one kind of statement, opened when first needed and again after it was lost.

A lane runs one statement at a time: the adapter gathers concurrent calls into one statement instead of
spreading them over a pool. Whatever goes wrong with the database is one of the two errors the port declares.
"""

import asyncio
from typing import Any

import asyncpg

from tracelake.ports.queue import QueueRejectedError, QueueUnavailableError

CONNECT_SECONDS = 10.0
STATEMENT_SECONDS = 30.0

# The tables are empty one minute and hold a million rows the next, so statistics and cached plans are always
# wrong. Each statement has exactly one good plan, an index walk; everything else is switched off.
_PLANNER = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    "enable_material": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}


class Lane:
    def __init__(self, dsn: str, name: str, *, durable: bool) -> None:
        self._dsn = dsn
        self._settings = {
            **_PLANNER,
            "application_name": f"trace-queue-{name}",
            "synchronous_commit": "on" if durable else "off",
        }
        self._lock = asyncio.Lock()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._closed = False

    async def fetch(self, statement: str, *arguments: object) -> list[Any]:
        async with self._lock:
            connection = await self._ready()
            try:
                return await connection.fetch(statement, *arguments, timeout=STATEMENT_SECONDS)
            except (asyncpg.DataError, asyncpg.IntegrityConstraintViolationError) as error:
                raise QueueRejectedError(f"the queue database refuses this: {type(error).__name__}") from error
            except asyncpg.DeadlockDetectedError:
                # Nothing was changed, and whoever won has let go by now.
                return await self._again(connection, statement, arguments)
            except _UNAVAILABLE as error:
                await self._drop()
                raise QueueUnavailableError(f"the queue database failed: {type(error).__name__}") from error

    async def _again(
        self, connection: "asyncpg.Connection[asyncpg.Record]", statement: str, arguments: tuple[object, ...]
    ) -> list[Any]:
        try:
            return await connection.fetch(statement, *arguments, timeout=STATEMENT_SECONDS)
        except _UNAVAILABLE as error:
            await self._drop()
            raise QueueUnavailableError(f"the queue database failed: {type(error).__name__}") from error

    async def close(self) -> None:
        self._closed = True
        await self._drop()

    async def _ready(self) -> "asyncpg.Connection[asyncpg.Record]":
        if self._closed:
            raise QueueUnavailableError("the queue is closed")
        if self._connection is not None and self._connection.is_closed():
            self._connection = None
        if self._connection is None:
            self._connection = await connect(self._dsn, self._settings)
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()


async def connect(dsn: str, settings: dict[str, str]) -> "asyncpg.Connection[asyncpg.Record]":
    try:
        return await asyncpg.connect(dsn, timeout=CONNECT_SECONDS, server_settings=settings)
    except _UNAVAILABLE as error:
        raise QueueUnavailableError(f"no connection to the queue database: {type(error).__name__}") from error


# A queue that cannot be used right now, for whatever reason, is away: callers retry and count nothing.
_UNAVAILABLE = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError)

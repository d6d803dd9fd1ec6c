"""Pools and transactions of one store.

Every way in which a database can be away becomes `StoreUnavailableError`, here and nowhere else; what
remains are errors of a statement, which are bugs or bad input. Transactions open in routes, loops and the
group commit alone.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg

from tracelake.errors import StoreUnavailableError

AWAY = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ObjectNotInPrerequisiteStateError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""A closed or refused connection, a server that stops, starts, is full or read-only, or one that does not answer; a
database that takes no connections for now."""

_PATIENCE = {"lock_timeout": "2s", "idle_in_transaction_session_timeout": "60s"}
"""A row that somebody sits on costs its own caller a 503, not everybody the whole command timeout; and a process that
was stopped in the middle of a transaction loses its locks."""

_PLANS = {"jit": "off", "plan_cache_mode": "force_generic_plan"}
"""Every statement is prepared once and runs by its index, whatever it is given: planning it anew would cost more than
running it."""

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

    Connection = PoolConnectionProxy[asyncpg.Record]
else:
    Connection = Any


async def _keep_session(_connection: object) -> None:
    """Nothing is ever SET on these sessions, so the reset round trip at every release would be waste."""


@contextmanager
def unavailable_when_away(store: str) -> Iterator[None]:
    try:
        yield
    except asyncpg.LockNotAvailableError:
        raise  # one row is held up, not the store
    except AWAY as error:
        raise StoreUnavailableError(f"The {store} store is not available right now.") from error


HELD_UP = (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)
"""A transaction met another one's locks and gave way. Nothing of it was kept, so it may be made again."""


@contextmanager
def unavailable_when_held_up(message: str) -> Iterator[None]:
    """The caller may repeat what gave way; `message` says so in its own words."""
    try:
        yield
    except HELD_UP:
        raise StoreUnavailableError(message) from None


async def _roll_back(connection: Connection) -> None:
    """A session that cannot say it is out of its transaction must not go back to the pool."""
    try:
        await connection.execute("ROLLBACK", timeout=5.0)
    except Exception:
        connection.terminate()


_BUSY = "TR001"  # of try_routing_lock


class RoutingBusyError(Exception):
    """The org's pointers are being moved; nothing was done."""

    def __init__(self, org_id: UUID) -> None:
        super().__init__(f"the pointers of org {org_id} are being moved")
        self.org_id = org_id


class Store:
    """A pool that connects on first use and again after every outage."""

    def __init__(self, dsn: str, *, size: int, name: str, command_timeout: float = 15.0) -> None:
        self.name = name
        self._pool = asyncpg.create_pool(
            dsn,
            min_size=0,
            max_size=size,
            command_timeout=command_timeout,
            timeout=5.0,
            max_inactive_connection_lifetime=0,
            max_queries=10_000_000,
            reset=_keep_session,
            server_settings={"application_name": f"trace-{name}"} | _PLANS | _PATIENCE,
        )

    async def open(self) -> None:
        with unavailable_when_away(self.name):
            await self._pool

    async def close(self) -> None:
        with suppress(*AWAY):
            await asyncio.wait_for(self._pool.close(), timeout=5.0)
        self._pool.terminate()

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection outside any transaction: each statement commits by itself."""
        with unavailable_when_away(self.name):
            async with self._pool.acquire(timeout=10.0) as connection:
                yield connection

    @asynccontextmanager
    async def transaction(
        self, *, routing: Collection[UUID] = (), moving: UUID | None = None, wait: bool = True
    ) -> AsyncIterator[Connection]:
        """`routing`: orgs whose events it routes. `moving`: the org whose pointers it moves. Without `wait` an org
        whose pointers are being moved right now is a `RoutingBusyError`.

        These locks are the first thing a transaction takes, with the same round trip as BEGIN: whoever moves pointers
        then waits for nobody who waits for it.
        """
        begin = "BEGIN"
        for org_id in sorted(routing):
            take = "pg_advisory_xact_lock_shared(routing_lock_key('{}'))" if wait else "try_routing_lock('{}')"
            begin += "; SELECT " + take.format(org_id)
        if moving is not None:
            begin += f"; SELECT pg_advisory_xact_lock(routing_lock_key('{moving}'))"
        async with self.connection() as connection:
            try:
                await self._begin(connection, begin)
                yield connection
                await self.commit(connection)
            except BaseException:
                await _roll_back(connection)
                raise

    async def _begin(self, connection: Connection, begin: str) -> None:
        try:
            await connection.execute(begin)
        except asyncpg.PostgresError as error:
            if error.sqlstate != _BUSY:
                raise
            raise RoutingBusyError(UUID(error.detail)) from None

    async def commit(self, connection: Connection) -> None:
        """Apart, so that tests can crash the process on either side of it."""
        await connection.execute("COMMIT")

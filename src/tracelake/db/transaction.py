"""Pools and transactions of one store.

Every way in which a database can be away becomes `StoreUnavailableError`, here and nowhere else; what
remains are errors of a statement, which are bugs or bad input. Transactions open in routes, loops and the
group commit alone.

Two rules keep one org's deploy from stopping the others. Part of the pool is reserved for lifecycle calls. And a
transaction that finds an org's routing lock taken gives its connection back before it waits (`routing_gate.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

import asyncpg

from tracelake.db.routing_gate import RoutingBusyError, RoutingGates
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


class StatementTimeoutError(StoreUnavailableError):
    """A statement took too long and its transaction was rolled back: nothing of it was kept, and the store answers."""


HELD_UP = (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError, RoutingBusyError)
"""A transaction met another one's locks and gave way. Nothing of it was kept, so it may be made again."""


@contextmanager
def unavailable_when_held_up(message: str) -> Iterator[None]:
    """The caller may repeat what gave way; `message` says so in its own words."""
    try:
        yield
    except HELD_UP:
        raise StoreUnavailableError(message) from None


async def _roll_back(connection: Connection) -> bool:
    """False: the session did not confirm the end of its transaction, and must not go back to the pool."""
    try:
        await connection.execute("ROLLBACK", timeout=5.0)
    except Exception:
        connection.terminate()
        return False
    return True


_BUSY = "TR001"  # of try_routing_lock
_ACQUIRE_SECONDS = 10.0
_ROUTING_PATIENCE_SECONDS = 2.0
"""How long a transaction waits for an org's routing lock; the same as `lock_timeout`."""
_TOO_LATE = (asyncio.TimeoutError, asyncpg.QueryCanceledError)


class Store:
    """A pool that connects on first use and again after every outage.

    `reserved` connections serve only those who ask with `reserved=True`; the others share the rest.
    """

    def __init__(self, dsn: str, *, size: int, name: str, command_timeout: float = 15.0, reserved: int = 0) -> None:
        if not 0 <= reserved < size:
            raise ValueError(f"expected 0 to {size - 1} reserved connections of {size}, received {reserved}")
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
        self._shared = asyncio.Semaphore(size - reserved)
        self._gates = RoutingGates(movers=max(1, (size - reserved) // 2))

    def is_waited_for(self, org_id: UUID) -> bool:
        """Whether a transaction of this process waits for the org's routing lock."""
        return self._gates.is_waited_for(org_id)

    async def open(self) -> None:
        with unavailable_when_away(self.name):
            await self._pool

    async def close(self) -> None:
        with suppress(*AWAY):
            await asyncio.wait_for(self._pool.close(), timeout=5.0)
        self._pool.terminate()

    @asynccontextmanager
    async def connection(self, *, reserved: bool = False) -> AsyncIterator[Connection]:
        """A connection outside any transaction: each statement commits by itself."""
        with unavailable_when_away(self.name):
            if reserved:
                async with self._pool.acquire(timeout=_ACQUIRE_SECONDS) as connection:
                    yield connection
                return
            async with asyncio.timeout(_ACQUIRE_SECONDS):
                await self._shared.acquire()
            try:
                async with self._pool.acquire(timeout=_ACQUIRE_SECONDS) as connection:
                    yield connection
            finally:
                self._shared.release()

    @asynccontextmanager
    async def transaction(
        self,
        *,
        routing: Collection[UUID] = (),
        moving: UUID | None = None,
        wait: bool = True,
        reserved: bool = False,
        lock_milliseconds: int | None = None,
    ) -> AsyncIterator[Connection]:
        """`routing`: orgs whose events it routes. `moving`: the org whose pointers it moves. An org whose pointers are
        being moved right now is a `RoutingBusyError`: at once, or with `wait` after a while without a connection.
        `lock_milliseconds`: how long a statement waits for a lock, if not as long as everywhere.

        These locks are the first thing a transaction takes, with the same round trip as BEGIN: whoever moves pointers
        then waits for nobody who waits for it.
        """
        begin = "BEGIN"
        if lock_milliseconds is not None:
            begin += f"; SET LOCAL lock_timeout = {lock_milliseconds}"
        for org_id in sorted(routing):
            begin += f"; SELECT try_routing_lock('{org_id}')"
        if moving is not None:
            async with self._gates.move(moving, _ROUTING_PATIENCE_SECONDS):
                # This one does wait with a connection, and so goes ahead of all who only try; each org has one here.
                begin += f"; SELECT pg_advisory_xact_lock(routing_lock_key('{moving}'))"
                async with self._begun(begin, reserved) as connection:
                    yield connection
            return
        if not wait or not routing:
            async with self._begun(begin, reserved) as connection:
                yield connection
            return
        waiting = self._gates.enter(routing, _ROUTING_PATIENCE_SECONDS)
        async with AsyncExitStack() as stack:
            async with waiting:
                while True:
                    try:
                        connection = await stack.enter_async_context(self._begun(begin, reserved))
                        break
                    except RoutingBusyError as busy:
                        await waiting.pause(busy)
            yield connection

    @asynccontextmanager
    async def _begun(self, begin: str, reserved: bool) -> AsyncIterator[Connection]:
        async with self.connection(reserved=reserved) as connection:
            try:
                await self._begin(connection, begin)
                yield connection
            except _TOO_LATE as late:
                if not await _roll_back(connection):
                    raise
                raise StatementTimeoutError(f"A statement of the {self.name} store took too long.") from late
            except BaseException:
                await _roll_back(connection)
                raise
            # The outcome of a COMMIT without an answer is open: never a StatementTimeoutError.
            try:
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

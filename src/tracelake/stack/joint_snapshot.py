"""One moment of two databases: snapshots of the state and of the data that fit each other.

No transaction spans both, and neither may be older than the other: tables that are newer than the state have fences and
removed rows that the state does not know of, and tables that are older lack batches that the state has as committed.
What the databases hold at one moment is always right: it is what a power cut at that moment would leave.

So the moment is found, and nobody waits: a snapshot of the data, then one of the state, and then a look whether a
transaction of the data has ended in between (`pg_current_snapshot` would differ). If one has, it is tried again.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg

from tracelake.db.migrate import Connection
from tracelake.stack.dumps import BackupError

_TRIES = 2_000
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_EXPORT = "SELECT pg_export_snapshot() AS name, pg_current_snapshot()::text AS ended, statement_timestamp() AS at"
_ENDED = "SELECT pg_current_snapshot()::text"


@dataclass(frozen=True, slots=True)
class JointSnapshot:
    """Names for `pg_dump --snapshot`; they hold as long as the snapshot is open."""

    state: str
    data: str
    made_at: str
    connection: Connection
    """A transaction that sees the state as of the snapshot."""


@asynccontextmanager
async def open_joint_snapshot(state_dsn: str, data_dsn: str) -> AsyncIterator[JointSnapshot]:
    async with _connected(state_dsn) as state, _connected(data_dsn) as data, _connected(data_dsn) as observer:
        for _ in range(_TRIES):
            await data.execute(_BEGIN)
            data_snapshot = await data.fetchrow(_EXPORT)
            await state.execute(_BEGIN)
            state_snapshot = await state.fetchrow(_EXPORT)
            assert data_snapshot is not None
            assert state_snapshot is not None
            if await observer.fetchval(_ENDED) == data_snapshot["ended"]:
                made_at = state_snapshot["at"].isoformat(timespec="seconds")
                yield JointSnapshot(state_snapshot["name"], data_snapshot["name"], made_at, state)
                return
            await data.execute("ROLLBACK")
            await state.execute("ROLLBACK")
    raise BackupError("the data database never rested for a moment: repeat the backup when less is written")


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[Connection]:
    try:
        connection = await asyncpg.connect(dsn, timeout=30.0, server_settings=_SESSION)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise BackupError(
            f"a database does not answer ({type(error).__name__}); a backup needs a running stack "
            "(`trace status`, `trace up`)"
        ) from None
    try:
        yield connection
    finally:
        await connection.close(timeout=10.0)


# A dump takes as long as it takes, and the snapshot must live for as long.
_SESSION = {"idle_in_transaction_session_timeout": "0", "statement_timeout": "0"}

"""The two databases that a restore has beside the state, and what a killed one leaves of them.

A dump is loaded into `<state>_restored`; what it replaces is called `<state>_replaced` until it is dropped. Neither
outlives a restore that ends by itself. A killed one may leave either, as large as the state: the next restore drops it,
and so does `trace up` in its own cluster. On a server of somebody else `trace up` drops nothing; it says what is there.
"""

import asyncpg

from tracelake.db.migrate import Connection
from tracelake.model.buffered import quoted
from tracelake.stack.dumps import database_of
from tracelake.stack.postgres import EmbeddedPostgres
from tracelake.stack.provision import connected

_SIZES = """
    SELECT datname::text AS name, pg_size_pretty(pg_database_size(oid)) AS size FROM pg_database
    WHERE datname = ANY($1) ORDER BY datname"""
_NAMES = "SELECT datname::text AS name FROM pg_database WHERE datname = ANY($1) ORDER BY datname"
_IS_THERE = "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)"


def restored(state: str) -> str:
    return f"{state}_restored"


def replaced(state: str) -> str:
    return f"{state}_replaced"


async def drop(administrator: Connection, state: str) -> list[str]:
    """Drop both, if they are there; answers the names of those that were."""
    names = [row["name"] for row in await administrator.fetch(_NAMES, [restored(state), replaced(state)])]
    for name in names:
        await administrator.execute(f"DROP DATABASE IF EXISTS {quoted(name)} WITH (FORCE)")
    return names


async def clear(cluster: EmbeddedPostgres | None, dsn: str | None) -> list[str]:
    """Drops at a start what a killed restore left in the cluster of this home, or finds it beside the database of this
    DSN. Returns sentences for people, because it takes as much disk as the state."""
    if cluster is not None:
        return await drop_from(cluster, cluster.databases[0].name)
    return [] if dsn is None else await find(dsn)


async def drop_from(cluster: EmbeddedPostgres, state: str) -> list[str]:
    """Drops what a killed restore left in an embedded cluster; returns a sentence for each."""
    async with connected(cluster.superuser_dsn()) as administrator:
        if not await administrator.fetchval(_IS_THERE, state):
            return []  # no restore leaves that: whatever it is, it may be all that there is
        rows = await administrator.fetch(_SIZES, [restored(state), replaced(state)])
        await drop(administrator, state)
    return [f"Dropped the database {row['name']} ({row['size']}), left by a restore that was killed." for row in rows]


async def find(dsn: str) -> list[str]:
    """Finds what a killed restore left beside this state database; returns a sentence for each."""
    state = database_of(dsn)
    try:
        async with connected(dsn) as connection:
            rows = await connection.fetch(_NAMES, [restored(state), replaced(state)])
    except (OSError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError):
        return []  # whoever needs this database says what is wrong with it
    return [
        f"The database {row['name']} may be what a killed `trace restore` left; the next restore drops it."
        for row in rows
    ]

"""Roles and databases of an embedded cluster. Idempotent: it runs at every start and repairs what drifted.

Who may do what:

- Nobody gets anything by being PUBLIC: neither CONNECT nor TEMPORARY on any database, templates included.
- A database belongs to its owner role, which runs its migrations.
- A user role of a database (`trace_queue`) reads and writes the rows of tables that the owner makes, uses
  sequences and calls functions there. It creates nothing and cannot touch the record of migrations.
- A reader role of a database (`trace_data_reader`) reads its tables and views, also those that are made later.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tracelake.db import Database, migrate, migrations
from tracelake.db.migrate import Connection
from tracelake.model.buffered import quoted
from tracelake.stack.postgres import DatabaseSpec, EmbeddedPostgres

# Workers share the cluster with the control plane: however many there are, they leave it connections.
_USER_CONNECTIONS = 60


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    """A connection that is closed at the end."""
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def provision(cluster: EmbeddedPostgres) -> None:
    """Makes the cluster's roles and databases what they should be."""
    async with connected(cluster.superuser_dsn()) as conn:
        for role in sorted({role for database in cluster.databases for role in database.roles}):
            await _ensure_role(conn, role, cluster.password(role))
        for database in cluster.databases:
            await _ensure_database(conn, database)
            for user in database.users:
                await conn.execute(f"ALTER ROLE {quoted(user)} CONNECTION LIMIT {_USER_CONNECTIONS}")
        for row in await conn.fetch("SELECT datname FROM pg_database"):
            await conn.execute(f"REVOKE ALL ON DATABASE {quoted(row['datname'])} FROM PUBLIC")
    for database in cluster.databases:
        await _grant_inside(cluster, database)


async def grant_connect(conn: Connection, database: DatabaseSpec) -> None:
    """Lets only the named roles connect to the database."""
    await conn.execute(f"REVOKE ALL ON DATABASE {quoted(database.name)} FROM PUBLIC")
    for user in (*database.users, *database.readers):
        await conn.execute(f"GRANT CONNECT ON DATABASE {quoted(database.name)} TO {quoted(user)}")


async def migrate_dsn(dsn: str, database: Database, *, users: tuple[str, ...] = ()) -> list[str]:
    """Apply the migrations of one database by its owner's DSN; user roles keep off the record of them."""
    async with connected(dsn) as conn:
        applied = await migrate(conn, migrations(database))
        for user in users:
            await conn.execute(f"REVOKE INSERT, UPDATE, DELETE ON schema_migrations FROM {quoted(user)}")
        return applied


async def _ensure_role(conn: Connection, role: str, password: str) -> None:
    if not await conn.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", role):
        await conn.execute(f"CREATE ROLE {quoted(role)}")
    # The password is ours (URL-safe base64), so it needs no escaping; a role cannot take a parameter here.
    attributes = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS"
    await conn.execute(f"ALTER ROLE {quoted(role)} {attributes} PASSWORD '{password}'")


async def _ensure_database(conn: Connection, database: DatabaseSpec) -> None:
    exists = await conn.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", database.name)
    if not exists:
        await conn.execute(f"CREATE DATABASE {quoted(database.name)} OWNER {quoted(database.owner)}")
    await grant_connect(conn, database)


async def _grant_inside(cluster: EmbeddedPostgres, database: DatabaseSpec) -> None:
    owner = quoted(database.owner)
    async with connected(cluster.superuser_dsn(database.name)) as conn:
        await conn.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        await conn.execute(f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
        for user in map(quoted, database.users):
            await conn.execute(f"GRANT USAGE ON SCHEMA public TO {user}")
            for what in (
                "SELECT, INSERT, UPDATE, DELETE ON TABLES",
                "USAGE ON SEQUENCES",
                "EXECUTE ON FUNCTIONS",
            ):
                await conn.execute(f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT {what} TO {user}")
        for reader in map(quoted, database.readers):
            await conn.execute(f"GRANT USAGE ON SCHEMA public TO {reader}")
            await conn.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}")
            await conn.execute(f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON TABLES TO {reader}")

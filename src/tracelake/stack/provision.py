"""Roles and databases of an embedded cluster. Idempotent: it runs at every start and repairs what drifted.

Who may do what:

- Nobody gets anything by being PUBLIC: neither CONNECT nor TEMPORARY on any database, templates included.
- A database belongs to its owner role, which runs its migrations.
- A user role of a database (`trace_queue`) reads and writes the rows of tables that the owner makes, uses
  sequences and calls functions there. It creates nothing and cannot touch the record of migrations.
- A reader role of a database (`trace_data_reader`) reads its tables and views, also those that are made later.
"""

import asyncpg

from tracelake.db import Database, migrate, migrations
from tracelake.db.migrate import Connection
from tracelake.stack.postgres import DatabaseSpec, EmbeddedPostgres

# Workers share the cluster with the control plane: however many there are, they leave it connections.
_USER_CONNECTIONS = 60


async def provision(cluster: EmbeddedPostgres) -> None:
    """Make the cluster's roles and databases what they should be."""
    conn = await asyncpg.connect(cluster.superuser_dsn())
    try:
        for role in sorted({role for database in cluster.databases for role in database.roles}):
            await _ensure_role(conn, role, cluster.password(role))
        for database in cluster.databases:
            await _ensure_database(conn, database)
            for user in database.users:
                await conn.execute(f"ALTER ROLE {_name(user)} CONNECTION LIMIT {_USER_CONNECTIONS}")
        for row in await conn.fetch("SELECT datname FROM pg_database"):
            await conn.execute(f"REVOKE ALL ON DATABASE {_name(row['datname'])} FROM PUBLIC")
    finally:
        await conn.close()
    for database in cluster.databases:
        await _grant_inside(cluster, database)


async def grant_connect(conn: Connection, database: DatabaseSpec) -> None:
    """Who may connect to the database: the named roles alone."""
    await conn.execute(f"REVOKE ALL ON DATABASE {_name(database.name)} FROM PUBLIC")
    for user in (*database.users, *database.readers):
        await conn.execute(f"GRANT CONNECT ON DATABASE {_name(database.name)} TO {_name(user)}")


async def migrate_dsn(dsn: str, database: Database, *, users: tuple[str, ...] = ()) -> list[str]:
    """Apply the migrations of one database by its owner's DSN; user roles keep off the record of them."""
    conn = await asyncpg.connect(dsn)
    try:
        applied = await migrate(conn, migrations(database))
        for user in users:
            await conn.execute(f"REVOKE INSERT, UPDATE, DELETE ON schema_migrations FROM {_name(user)}")
        return applied
    finally:
        await conn.close()


async def _ensure_role(conn: Connection, role: str, password: str) -> None:
    if not await conn.fetchval("SELECT EXISTS (SELECT FROM pg_roles WHERE rolname = $1)", role):
        await conn.execute(f"CREATE ROLE {_name(role)}")
    # The password is ours (URL-safe base64), so it needs no escaping; a role cannot take a parameter here.
    attributes = "LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS"
    await conn.execute(f"ALTER ROLE {_name(role)} {attributes} PASSWORD '{password}'")


async def _ensure_database(conn: Connection, database: DatabaseSpec) -> None:
    exists = await conn.fetchval("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", database.name)
    if not exists:
        await conn.execute(f"CREATE DATABASE {_name(database.name)} OWNER {_name(database.owner)}")
    await grant_connect(conn, database)


async def _grant_inside(cluster: EmbeddedPostgres, database: DatabaseSpec) -> None:
    conn = await asyncpg.connect(cluster.superuser_dsn(database.name))
    owner = _name(database.owner)
    try:
        await conn.execute("REVOKE ALL ON SCHEMA public FROM PUBLIC")
        await conn.execute(f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
        for user in map(_name, database.users):
            await conn.execute(f"GRANT USAGE ON SCHEMA public TO {user}")
            for what in (
                "SELECT, INSERT, UPDATE, DELETE ON TABLES",
                "USAGE ON SEQUENCES",
                "EXECUTE ON FUNCTIONS",
            ):
                await conn.execute(f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT {what} TO {user}")
        for reader in map(_name, database.readers):
            await conn.execute(f"GRANT USAGE ON SCHEMA public TO {reader}")
            await conn.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}")
            await conn.execute(f"ALTER DEFAULT PRIVILEGES FOR ROLE {owner} GRANT SELECT ON TABLES TO {reader}")
    finally:
        await conn.close()


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'

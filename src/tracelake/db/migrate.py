"""Forward-only SQL migrations.

A directory holds `0001_name.sql`, `0002_name.sql`, ... Each file runs once, in a transaction of its own
together with the row that records it, so a crash leaves a file either applied and recorded or neither. A
session advisory lock makes a second starter wait and then find nothing to do.

A statement that waits for a table makes every later one on that table wait behind it, so none waits long:
a dump holds every table until it ends, and work must go on meanwhile. After a few tries it is given up.

Nothing is guessed: a changed file, a gap, a duplicate number, or a database that is ahead of this code is
refused before any statement runs.
"""

import asyncio
import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeAlias

import asyncpg

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

# Any constant will do as long as nothing else takes it; advisory locks are per database.
_LOCK_KEY = 0x7472_6163_6531

_LOCK_TIMEOUT = "3s"
_LOCK_TRIES = 5
_LOCK_PAUSE_SECONDS = 2.0
"""Between two tries: what waited behind this gets its turn."""

_FILE_NAME = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")

_CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    integer     PRIMARY KEY CHECK (version > 0),
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT statement_timestamp()
)
"""


class MigrationError(Exception):
    """The files and the database do not fit together; nothing was changed by the file that is named."""


class LockedError(MigrationError):
    """Somebody else uses a table that must be changed; it may be tried again later."""


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    sql: str
    checksum: str

    @property
    def file_name(self) -> str:
        return f"{self.version:04d}_{self.name}.sql"


def read_migrations(directory: Traversable | Path) -> list[Migration]:
    """Every migration of the directory in order. Raises MigrationError unless the numbers run 1, 2, 3, ..."""
    if not directory.is_dir():
        raise MigrationError(f"there is no migrations directory {directory}")
    migrations = []
    for entry in directory.iterdir():
        if not entry.name.endswith(".sql"):
            continue
        match = _FILE_NAME.match(entry.name)
        if match is None:
            raise MigrationError(f"{entry.name}: a migration is named NNNN_lower_case.sql")
        # Line ends may change in a checkout without the SQL changing.
        text = entry.read_bytes().decode("utf-8").replace("\r\n", "\n")
        checksum = hashlib.sha256(text.encode()).hexdigest()
        migrations.append(Migration(int(match[1]), match[2], text, checksum))
    migrations.sort(key=lambda migration: (migration.version, migration.name))
    for before, after in itertools.pairwise(migrations):
        if before.version == after.version:
            raise MigrationError(f"two migrations share a number: {before.file_name}, {after.file_name}")
    for expected, migration in enumerate(migrations, start=1):
        if migration.version != expected:
            raise MigrationError(f"migration {expected:04d} is missing, found {migration.file_name} instead")
    return migrations


async def migrate(conn: Connection, directory: Traversable | Path) -> list[str]:
    """Bring the database up to the last migration; answers the file names that this call applied."""
    migrations = read_migrations(directory)
    await conn.execute("SELECT pg_advisory_lock($1)", _LOCK_KEY)
    try:
        await conn.execute(_CREATE_TABLE)
        pending = await _pending(conn, migrations)
        for migration in pending:
            await _apply_unless_locked(conn, migration)
    finally:
        if not conn.is_closed():
            await conn.execute("SELECT pg_advisory_unlock($1)", _LOCK_KEY)
    return [migration.file_name for migration in pending]


async def _pending(conn: Connection, migrations: Sequence[Migration]) -> list[Migration]:
    rows = await conn.fetch("SELECT version, name, checksum FROM schema_migrations ORDER BY version")
    by_version = {migration.version: migration for migration in migrations}
    for position, row in enumerate(rows, start=1):
        version: int = row["version"]
        if version not in by_version:
            raise MigrationError(
                f"the database is newer than this code: it has migration {version:04d}_{row['name']}, "
                f"this code ends at {len(migrations):04d}; use the newer release"
            )
        if version != position:
            raise MigrationError(f"the database has migration {version:04d} but not {position:04d}")
        if by_version[version].checksum != row["checksum"]:
            raise MigrationError(
                f"{by_version[version].file_name} was changed after it was applied; "
                "put the file back as it was and write a new migration instead"
            )
    return list(migrations[len(rows) :])


async def _apply_unless_locked(conn: Connection, migration: Migration) -> None:
    for tries in itertools.count(1):
        try:
            await _apply(conn, migration)
            return
        except LockedError:
            if tries == _LOCK_TRIES:
                raise
        await _pause()


async def _pause() -> None:
    await asyncio.sleep(_LOCK_PAUSE_SECONDS)


async def _apply(conn: Connection, migration: Migration) -> None:
    try:
        async with conn.transaction():
            await conn.execute("SELECT set_config('lock_timeout', $1, true)", _LOCK_TIMEOUT)
            await conn.execute(migration.sql)
            if not conn.is_in_transaction():
                raise MigrationError(f"{migration.file_name} must not COMMIT or ROLLBACK by itself")
            await conn.execute(
                "INSERT INTO schema_migrations (version, name, checksum) VALUES ($1, $2, $3)",
                migration.version,
                migration.name,
                migration.checksum,
            )
    except asyncpg.LockNotAvailableError:
        raise LockedError(
            f"{migration.file_name} changed nothing, since somebody else uses a table that it needs: a dump that is "
            "being taken (`trace backup`), or a transaction that was left open; let it end, then start again"
        ) from None
    except asyncpg.PostgresError as error:
        if isinstance(error, asyncpg.PostgresConnectionError):
            raise
        raise MigrationError(f"{migration.file_name} failed: {error}") from error

"""The databases: `state` (truth), `queue` (wake-ups) and `data` (hot tables), each with its own migrations.

`migrations("state")` names the directory that `migrate` applies; the SQL files travel inside the package.
"""

from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

from tracelake.db.migrate import LockedError, MigrationError, migrate

__all__ = ["Database", "LockedError", "MigrationError", "migrate", "migrations"]

Database = Literal["state", "queue", "data"]


def migrations(database: Database) -> Traversable:
    return files("tracelake.db").joinpath(database, "migrations")

"""Connections of the Postgres driver that share what it knows about the types of a database.

For each connection the driver otherwise opens another one first and reads all of `pg_type`: more than half of the time
of a test that opens hundreds of them. The connections themselves stay apart, as in the product.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

import adbc_driver_manager
import adbc_driver_postgresql
import pytest


class SharedDatabase(adbc_driver_manager.AdbcDatabase):
    """Closing a connection leaves it open for the next one."""

    def close(self) -> None:
        pass


@contextmanager
def shared_types() -> Iterator[None]:
    """A database that does not answer is not kept: whoever connects to it next tries again."""
    with ExitStack() as opened, pytest.MonkeyPatch.context() as patch:

        @cache
        def connect(uri: str, db_kwargs: None = None) -> SharedDatabase:
            database = SharedDatabase(driver=adbc_driver_postgresql._driver_path(), uri=uri)
            opened.callback(super(SharedDatabase, database).close)
            return database

        patch.setattr(adbc_driver_postgresql, "connect", connect)
        yield

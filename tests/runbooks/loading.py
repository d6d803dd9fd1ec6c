"""Dumps and restores of databases in the test cluster, without a stack around them."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.configs import dispatcher_config
from tests.support.postgres import TestCluster
from tracelake.model.backoff import Backoff
from tracelake.stack import dumps, restore
from tracelake.stack.restore import Report, RestorePlace

CONFIG = dispatcher_config(retry=Backoff(0.001, 0.001))


def dump_of(dsn: str, file: Path) -> dumps.Dump:
    done = dumps.run_program("pg_dump", "--format=custom", "--no-privileges", f"--file={file}", dsn=dsn)
    assert done.returncode == 0, done
    return dumps.inspect(file)


def place_of(cluster: TestCluster, state: str, queue: str) -> RestorePlace:
    """Databases of one's own: the role may create databases, and nobody provisions them."""
    return RestorePlace(
        state=dumps.database_of(state),
        administer=cluster.cluster.superuser_dsn(),
        owner=cluster.cluster.superuser_dsn,
        queue=dumps.with_database(cluster.cluster.superuser_dsn(), dumps.database_of(queue)),
        queue_users=(),
        cluster=None,
    )


def load(place: RestorePlace, dump: dumps.Dump) -> Report:
    return asyncio.run(restore._restore(place, dump, CONFIG))


def ask(dsn: str, statement: str) -> list[dict[str, Any]]:
    async def fetch() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(dsn)
        try:
            return [dict(row) for row in await connection.fetch(statement)]
        finally:
            await connection.close()

    return asyncio.run(fetch())


def databases(cluster: TestCluster) -> set[str]:
    rows = ask(cluster.cluster.superuser_dsn(), "SELECT datname::text AS name FROM pg_database")
    return {row["name"] for row in rows}

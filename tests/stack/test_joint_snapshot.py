"""Snapshots of two databases fit each other while a program writes to one after the other."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from tests.support.postgres import TestCluster, run
from tracelake.stack import joint_snapshot
from tracelake.stack.dumps import BackupError
from tracelake.stack.joint_snapshot import open_joint_snapshot


@asynccontextmanager
async def writing(state_dsn: str, data_dsn: str) -> AsyncIterator[None]:
    """Counts in the state, then in the data, and so on: the data is never ahead, and at most one behind."""
    state, data = await asyncpg.connect(state_dsn), await asyncpg.connect(data_dsn)
    for connection in (state, data):
        await connection.execute("CREATE TABLE counter (n int); INSERT INTO counter VALUES (0)")
    stop = asyncio.Event()

    async def write() -> None:
        while not stop.is_set():
            await state.execute("UPDATE counter SET n = n + 1")
            await data.execute("UPDATE counter SET n = n + 1")
            await asyncio.sleep(0)

    writer = asyncio.create_task(write())
    try:
        yield
    finally:
        stop.set()
        await writer
        await state.close()
        await data.close()


async def read_at(dsn: str, snapshot: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            await connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            return int(await connection.fetchval("SELECT n FROM counter"))
    finally:
        await connection.close()


def test_neither_database_is_ahead_of_the_other(cluster: TestCluster) -> None:
    async def check(state_dsn: str, data_dsn: str) -> list[int]:
        differences = []
        async with writing(state_dsn, data_dsn):
            for _ in range(30):
                async with open_joint_snapshot(state_dsn, data_dsn) as snapshot:
                    state = await read_at(state_dsn, snapshot.state)
                    assert await snapshot.connection.fetchval("SELECT n FROM counter") == state
                    differences.append(state - await read_at(data_dsn, snapshot.data))
        return differences

    assert set(run(check(cluster.empty(), cluster.empty()))) <= {0, 1}


def test_a_moment_that_is_never_found_is_an_error(cluster: TestCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_snapshot, "_TRIES", 3)
    monkeypatch.setattr(joint_snapshot, "_ENDED", "SELECT 'another'")

    async def check(state_dsn: str, data_dsn: str) -> None:
        async with open_joint_snapshot(state_dsn, data_dsn):
            raise AssertionError

    with pytest.raises(BackupError, match="never rested"):
        run(check(cluster.empty(), cluster.empty()))


def test_a_database_that_is_away_is_named_without_its_address() -> None:
    async def check() -> None:
        async with open_joint_snapshot("postgresql://u:secret@127.0.0.1:1/x", "postgresql://u:secret@127.0.0.1:1/x"):
            raise AssertionError

    with pytest.raises(BackupError, match="needs a running stack") as refused:
        run(check())
    assert "secret" not in str(refused.value)

"""Migrations: applied once, in order, by one starter at a time, and never guessed."""

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from tests.support.postgres import TestCluster, run
from tracelake.db import Database, migrate, migrations
from tracelake.db.migrate import Connection, LockedError, MigrationError, read_migrations
from tracelake.stack import clusters
from tracelake.stack.provision import migrate_dsn
from tracelake.stack.supervisor import StartError

# `tracelake.db.migrate` is a function as an attribute, and a module by its name.
migrate_module = sys.modules[migrate.__module__]


@pytest.fixture
def empty_dsn(cluster: TestCluster) -> Iterator[str]:
    """A database with nothing in it."""
    dsn = cluster.empty()
    yield dsn
    run(cluster.drop(dsn))


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[Connection]:
    conn = await asyncpg.connect(dsn)
    try:
        yield conn
    finally:
        await conn.close()


async def apply(dsn: str, directory: Path) -> list[str]:
    async with connected(dsn) as conn:
        return await migrate(conn, directory)


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        (directory / f"{name.removeprefix('m')}.sql").write_text(text)
    return directory


def test_each_file_is_applied_once_in_order(empty_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, m0002_more="ALTER TABLE thing ADD COLUMN b int", m0001_first="CREATE TABLE thing (a int)")
    assert run(apply(empty_dsn, tmp_path)) == ["0001_first.sql", "0002_more.sql"]
    assert run(apply(empty_dsn, tmp_path)) == []
    write(tmp_path, m0003_last="ALTER TABLE thing ADD COLUMN c int")
    assert run(apply(empty_dsn, tmp_path)) == ["0003_last.sql"]


def test_two_starters_at_once_apply_each_file_once(empty_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, m0001_first="CREATE TABLE thing (a int); SELECT pg_sleep(0.2)")
    write(tmp_path, m0002_more="CREATE TABLE other (a int)")

    async def both() -> list[list[str]]:
        return await asyncio.gather(*(apply(empty_dsn, tmp_path) for _ in range(4)))

    answers = run(both())
    assert sorted(answers, key=len)[-1] == ["0001_first.sql", "0002_more.sql"]
    assert sum(len(answer) for answer in answers) == 2


def test_a_changed_file_is_refused(empty_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, m0001_first="CREATE TABLE thing (a int)")
    run(apply(empty_dsn, tmp_path))
    write(tmp_path, m0001_first="CREATE TABLE thing (a bigint)", m0002_more="CREATE TABLE other (a int)")
    with pytest.raises(MigrationError, match=r"0001_first\.sql was changed"):
        run(apply(empty_dsn, tmp_path))


def test_line_ends_are_no_change(empty_dsn: str, tmp_path: Path) -> None:
    (tmp_path / "0001_first.sql").write_bytes(b"CREATE TABLE thing\n(a int)\n")
    run(apply(empty_dsn, tmp_path))
    (tmp_path / "0001_first.sql").write_bytes(b"CREATE TABLE thing\r\n(a int)\r\n")
    assert run(apply(empty_dsn, tmp_path)) == []


def test_a_newer_database_is_refused(empty_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, m0001_first="SELECT 1", m0002_more="SELECT 2")
    run(apply(empty_dsn, tmp_path))
    (tmp_path / "0002_more.sql").unlink()
    with pytest.raises(MigrationError, match="newer than this code"):
        run(apply(empty_dsn, tmp_path))


def test_a_failing_file_leaves_nothing_behind(empty_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, m0001_good="CREATE TABLE good (a int)", m0002_bad="CREATE TABLE bad (a int); SELECT 1/0")
    with pytest.raises(MigrationError, match=r"0002_bad\.sql failed: division by zero"):
        run(apply(empty_dsn, tmp_path))

    async def look() -> tuple[object, object, object]:
        async with connected(empty_dsn) as conn:
            row = await conn.fetchrow(
                "SELECT to_regclass('good') IS NOT NULL, to_regclass('bad') IS NOT NULL, "
                "(SELECT max(version) FROM schema_migrations)"
            )
            assert row is not None
            return row[0], row[1], row[2]

    assert run(look()) == (True, False, 1)
    write(tmp_path, m0002_bad="CREATE TABLE bad (a int)")
    assert run(apply(empty_dsn, tmp_path)) == ["0002_bad.sql"]


async def read_thing(conn: Connection) -> None:
    await conn.execute("SELECT FROM thing")


def test_a_table_in_use_is_waited_for_in_turns(empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(apply(empty_dsn, write(tmp_path, m0001_first="CREATE TABLE thing (a int)")))
    write(tmp_path, m0002_more="CREATE TABLE other (a int); ALTER TABLE thing ADD COLUMN b int")
    monkeypatch.setattr(migrate_module, "_LOCK_TIMEOUT", "1ms")
    pauses = 0

    async def during_a_dump(*, ends: bool) -> list[str]:
        async with connected(empty_dsn) as dump, connected(empty_dsn) as worker:
            transaction = dump.transaction()
            await transaction.start()
            await read_thing(dump)

            async def pause() -> None:
                nonlocal pauses
                pauses += 1
                await read_thing(worker)  # it has its turn
                if ends and pauses == 2:
                    await transaction.rollback()

            monkeypatch.setattr(migrate_module, "_pause", pause)
            return await apply(empty_dsn, tmp_path)

    with pytest.raises(LockedError, match=r"0002_more\.sql changed nothing, since .* a dump") as refused:
        run(during_a_dump(ends=False))
    assert isinstance(refused.value, MigrationError)
    assert pauses == migrate_module._LOCK_TRIES - 1
    pauses = 0
    assert run(during_a_dump(ends=True)) == ["0002_more.sql"]
    assert pauses == 2


def test_a_start_says_that_a_table_is_in_use(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def locked(*_arguments: object, **_options: object) -> None:
        raise LockedError("0002_more.sql changed nothing")

    monkeypatch.setattr(clusters, "migrate_dsn", locked)
    with pytest.raises(StartError, match=r"the state database cannot be brought to this release now: 0002_more\.sql"):
        run(clusters._migrate(empty_dsn, "state"))


def test_a_file_may_not_commit_by_itself(empty_dsn: str, tmp_path: Path) -> None:
    write(tmp_path, m0001_first="CREATE TABLE thing (a int); COMMIT; CREATE TABLE other (a int)")
    with pytest.raises(MigrationError, match="must not COMMIT"):
        run(apply(empty_dsn, tmp_path))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["0001_a", "0003_c"], "migration 0002 is missing"),
        (["0002_b"], "migration 0001 is missing"),
        (["0001_a", "0001_b"], "share a number"),
        (["0001_a", "2_b"], "NNNN_lower_case"),
        (["0001_A"], "NNNN_lower_case"),
        (["0000_a", "0001_b"], "0001 is missing"),
    ],
)
def test_the_numbers_must_run_without_gaps(tmp_path: Path, names: list[str], message: str) -> None:
    for name in names:
        (tmp_path / f"{name}.sql").write_text("SELECT 1")
    with pytest.raises(MigrationError, match=message):
        read_migrations(tmp_path)


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MigrationError, match="no migrations directory"):
        read_migrations(tmp_path / "absent")


@pytest.mark.parametrize("database", ["state", "queue", "data"])
def test_our_own_migrations_apply(empty_dsn: str, database: Database) -> None:
    assert run(migrate_dsn(empty_dsn, database)) == [m.file_name for m in read_migrations(migrations(database))]

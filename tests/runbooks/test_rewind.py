"""A dump that is loaded where nobody knows what became of it: into an empty database, as into a new home."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.postgres import TestCluster
from tracelake.db import migrations
from tracelake.db.migrate import _CREATE_TABLE, _apply, read_migrations
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.model.retry import Backoff
from tracelake.processes import dumps, restore
from tracelake.processes.backup import write_dump
from tracelake.processes.restore import Place, Report
from tracelake.processes.rewind import ATTEMPT_GAP, SEQUENCE_GAP
from tracelake.processes.settings import Settings

CONFIG = DispatcherConfig(retry=Backoff(0.001, 0.001))


@pytest.fixture
def harness(state_dsn: str, fresh_queue_dsn: Callable[[], str], tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, fresh_queue_dsn(), tmp_path, CONFIG)
    try:
        yield running
    finally:
        running.stop()


def dump_of(dsn: str, file: Path) -> dumps.Dump:
    done = dumps.run_program("pg_dump", "--format=custom", "--no-privileges", f"--file={file}", dsn=dsn)
    assert done.returncode == 0, done
    return dumps.inspect(file)


def place_of(cluster: TestCluster, state: str, queue: str) -> Place:
    """Databases of one's own: the role may create databases, and nobody provisions them."""
    return Place(
        state=dumps.database_of(state),
        administer=cluster.cluster.superuser_dsn(),
        owner=cluster.cluster.superuser_dsn,
        queue=dumps.with_database(cluster.cluster.superuser_dsn(), dumps.database_of(queue)),
        queue_users=(),
        cluster=None,
    )


def load(place: Place, dump: dumps.Dump) -> Report:
    return asyncio.run(restore._restore(place, dump, CONFIG))


def databases(cluster: TestCluster) -> set[str]:
    async def ask() -> set[str]:
        connection = await asyncpg.connect(cluster.cluster.superuser_dsn())
        try:
            return {row["datname"] for row in await connection.fetch("SELECT datname FROM pg_database")}
        finally:
            await connection.close()

    return asyncio.run(ask())


def test_numbers_go_on_far_above_the_dump(
    harness: DispatcherHarness, cluster: TestCluster, fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> None:
    job = harness.make_job()["job_id"]
    ready, running, timed_out, done = (harness.make_task(job) for _ in range(4))
    harness.use_movable_clock()
    late = harness.claim(timed_out).body
    harness.reap()
    harness.advance(1000)
    assert harness.reap() == 1
    held = harness.claim(running).body
    finished = harness.claim(done).body
    completed = fence(done, finished, status="Completed")
    assert harness.task("complete", finished["capability_token"], completed).status == 200
    harness.relay()
    dump = dump_of(harness.state_dsn, tmp_path / "state.dump")
    lost = harness.claim(ready).body

    empty = cluster.empty()
    report = load(place_of(cluster, empty, fresh_queue_dsn()), dump)
    assert not report.rewound.continued
    assert (report.tasks, report.rewound.leases_ended, report.rewound.attempts_moved) == (4, 1, 3)
    assert report.wake_ups == 1, "one is ready; the others are retried by and by"
    assert not any(name.endswith(("_restored", "_replaced")) for name in databases(cluster))

    home = tmp_path / "new"
    shutil.copytree(tmp_path / "keys", home / "keys")
    restored = cluster.cluster.superuser_dsn(dumps.database_of(empty))
    again = DispatcherHarness.start(restored, fresh_queue_dsn(), home, CONFIG)
    try:
        for task_id, claimed in ((ready, lost), (running, held), (timed_out, late)):
            said = again.task("heartbeat", claimed["capability_token"], fence(task_id, claimed))
            assert (said.status, said.code) == (409, "fenced")
        repeated = again.task("complete", finished["capability_token"], completed)
        assert (repeated.status, repeated.body["duplicate"]) == (200, True), "what the dump knows as done stays done"
        again.advance(10)
        while again.requeue_due():
            pass
        waits = again.sql("SELECT attempt - forgiven AS counted, max_attempts - attempt AS left FROM tasks")
        assert sorted((row["counted"], row["left"]) for row in waits)[:2] == [(0, 3), (1, 2)], "they count as before"
        numbers = {task_id: again.claim(task_id).body for task_id in (ready, running, timed_out)}
        assert {reply["attempt"] for reply in numbers.values()} == {ATTEMPT_GAP + 1, ATTEMPT_GAP + 2}
        for task_id, reply in numbers.items():
            said = again.task("complete", reply["capability_token"], fence(task_id, reply, status="Completed"))
            assert said.status == 200
        again.sql("INSERT INTO audit_log (org_id, subject, action, target) SELECT org_id, 'a', 'b', 'c' FROM orgs")
        assert again.sql("SELECT audit_id FROM audit_log")[0]["audit_id"] > SEQUENCE_GAP
    finally:
        again.stop()


def test_a_database_of_ones_own_is_dumped_whole_or_not_at_all(
    state_dsn: str, queue_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.load(
        {"home": tmp_path / "home"}, environ={"TRACE_STATE_DSN": state_dsn, "TRACE_QUEUE_DSN": queue_dsn}
    )
    file = tmp_path / "dumps" / "own.dump"
    file.parent.mkdir()
    size = write_dump(settings, file, replace=False)
    assert file.stat().st_size == size
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(dumps.BackupError, match="is there already"):
        write_dump(settings, file, replace=False)
    monkeypatch.setenv("PGHOST", "nowhere.invalid")  # of somebody's shell: it does not matter here
    write_dump(settings, file, replace=True)
    away = Settings.load(
        {"home": tmp_path / "home"},
        environ={"TRACE_STATE_DSN": "postgresql://me:secret@127.0.0.1:1/x", "TRACE_QUEUE_DSN": queue_dsn},
    )
    kept = file.read_bytes()
    with pytest.raises(dumps.BackupError, match="does not answer") as refused:
        write_dump(away, file, replace=True)
    assert "secret" not in str(refused.value)
    assert file.read_bytes() == kept
    assert [path.name for path in file.parent.iterdir()] == ["own.dump"]


def test_a_state_in_use_is_not_replaced(
    harness: DispatcherHarness, cluster: TestCluster, fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> None:
    harness.make_job()
    dump = dump_of(harness.state_dsn, tmp_path / "state.dump")
    with pytest.raises(dumps.BackupError, match="the state database is still used"):
        load(place_of(cluster, harness.state_dsn, fresh_queue_dsn()), dump)
    assert harness.sql("SELECT FROM jobs")


def test_a_dump_of_an_older_release_is_brought_up_to_date(
    cluster: TestCluster, fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> None:
    async def first_release(dsn: str) -> None:
        connection: Any = await asyncpg.connect(dsn)
        try:
            await connection.execute(_CREATE_TABLE)
            await _apply(connection, read_migrations(migrations("state"))[0])
        finally:
            await connection.close()

    old = cluster.empty()
    asyncio.run(first_release(old))
    report = load(place_of(cluster, cluster.empty(), fresh_queue_dsn()), dump_of(old, tmp_path / "old.dump"))
    assert report.migrated
    assert report.migrated[0].startswith("0002_")

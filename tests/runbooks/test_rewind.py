"""A dump that is loaded where nobody knows what became of it: into an empty database, as into a new home."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.http.support import user_token
from tests.runbooks.loading import CONFIG, ask, databases, dump_of, load, place_of
from tests.sources.webhook_support import Hook
from tests.support.dispatcher import DispatcherHarness, fence
from tests.support.postgres import TestCluster
from tracelake.db import migrations
from tracelake.db.migrate import _CREATE_TABLE, _apply, read_migrations
from tracelake.settings import Settings
from tracelake.stack import dumps
from tracelake.stack.backup import write_dump
from tracelake.stack.rewind import ATTEMPT_GAP, SEQUENCE_GAP


@pytest.fixture
def harness(state_dsn: str, fresh_queue_dsn: Callable[[], str], tmp_path: Path) -> Iterator[DispatcherHarness]:
    running = DispatcherHarness.start(state_dsn, fresh_queue_dsn(), tmp_path, CONFIG)
    try:
        yield running
    finally:
        running.stop()


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
    own = dumps.database_of(empty)
    assert not {f"{own}_restored", f"{own}_replaced"} & set(databases(cluster))

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


def test_a_last_attempt_that_runs_is_tried_once_more(
    harness: DispatcherHarness, cluster: TestCluster, fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> None:
    job = harness.make_job(limits={"max_attempts": 1})["job_id"]
    running, unwanted = harness.make_task(job), harness.make_task(job)
    assert harness.claim(running).status == 200
    assert harness.claim(unwanted).status == 200
    harness.service("POST", f"/internal/tasks/{unwanted}/cancel")
    empty = cluster.empty()
    report = load(place_of(cluster, empty, fresh_queue_dsn()), dump_of(harness.state_dsn, tmp_path / "state.dump"))
    assert report.rewound.leases_ended == 2
    rows = {str(row["task_id"]): row for row in ask(superuser(cluster, empty), "SELECT * FROM tasks")}
    assert rows[unwanted]["status"] == "Canceled"
    assert rows[unwanted]["max_attempts"] == rows[unwanted]["attempt"]
    assert rows[running]["status"] == "Failed"
    assert rows[running]["next_retry_at"] is not None
    assert rows[running]["max_attempts"] - rows[running]["attempt"] == 1, "one more, and not more than that"


def superuser(cluster: TestCluster, dsn: str) -> str:
    return cluster.cluster.superuser_dsn(dumps.database_of(dsn))


def test_numbers_that_another_life_of_the_dump_gave_out_are_not_given_out_again(
    harness: DispatcherHarness, cluster: TestCluster, fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> None:
    audit = """INSERT INTO audit_log (org_id, subject, action, target) SELECT org_id, 'a', 'b', 'c' FROM orgs
        RETURNING audit_id"""
    task = harness.make_task(harness.make_job()["job_id"])
    harness.sql(audit)
    harness.sql("INSERT INTO webhooks (path, org_id, dag_name, job_name) SELECT 'w', org_id, 'd', 'j' FROM orgs")
    older = dump_of(harness.state_dsn, tmp_path / "older.dump")
    home = tmp_path / "new"
    shutil.copytree(tmp_path / "keys", home / "keys")
    new, queue = cluster.empty(), fresh_queue_dsn()
    given: list[tuple[int, int, int]] = []
    for _ in range(3):
        report = load(place_of(cluster, new, queue), older)
        assert not report.rewound.continued
        assert report.rewound.webhook_secrets_kept == (1 if given else 0)
        again = DispatcherHarness.start(superuser(cluster, new), queue, home, CONFIG)
        try:
            (epoch,) = again.sql("SELECT max(routing_epoch) AS epoch FROM orgs")
            given.append((again.claim(task).body["attempt"], again.sql(audit)[0]["audit_id"], epoch["epoch"]))
            # As a rotation of its secret, for which the webhook needs a deployed DAG.
            again.sql("UPDATE webhooks SET rotation = rotation + 1")
        finally:
            again.stop()
    for before, after in pairwise(given):
        assert all(new > old for old, new in zip(before, after, strict=True)), given
    assert ask(superuser(cluster, new), "SELECT rotation FROM webhooks") == [{"rotation": 4}]


def test_a_replaced_state_of_another_release_tells_what_it_can(
    harness: DispatcherHarness, cluster: TestCluster, fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> None:
    task = harness.make_task(harness.make_job()["job_id"])
    dump = dump_of(harness.state_dsn, tmp_path / "state.dump")
    new, queue = cluster.empty(), fresh_queue_dsn()
    load(place_of(cluster, new, queue), dump)
    # Numbers that thousands of claims would give out.
    ask(superuser(cluster, new), "UPDATE tasks SET attempt = 5000, max_attempts = 5003")
    ask(superuser(cluster, new), "DROP TABLE webhooks; ")
    report = load(place_of(cluster, new, queue), dump)
    assert not report.rewound.continued
    (row,) = ask(superuser(cluster, new), "SELECT task_id, attempt FROM tasks")
    assert (str(row["task_id"]), row["attempt"]) == (task, 5000 + ATTEMPT_GAP)


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
    with pytest.raises(dumps.BackupError, match="exists; name another"):
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
    with pytest.raises(dumps.BackupError, match="is still used"):
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


def test_a_secret_that_leaked_stays_given_up_if_the_dump_is_older_than_its_webhook(
    harness: DispatcherHarness, cluster: TestCluster, fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> None:
    harness.make_job(org="acme")  # the org is older than the dump
    dump = dump_of(harness.state_dsn, tmp_path / "state.dump")
    home = tmp_path / "new"
    shutil.copytree(tmp_path / "keys", home / "keys")
    new, queue = cluster.empty(), fresh_queue_dsn()
    given_up: set[str] = set()
    for path in ("hooks/a", "hooks/a", "hooks/b"):
        load(place_of(cluster, new, queue), dump)
        again = DispatcherHarness.start(superuser(cluster, new), queue, home, CONFIG)
        try:
            hook = Hook(again, org="acme", path=path).deploy()
            assert hook.secret() not in given_up
            for _ in range(2):  # the second one ends the first
                given_up.add(hook.secret())
                assert hook.user("POST", "/webhook/rotate").status == 200
        finally:
            again.stop()
    load(place_of(cluster, new, queue), dump)
    rows = ask(superuser(cluster, new), "SELECT job_name, rotation FROM webhook_floors")
    assert rows == [{"job_name": "hook", "rotation": 7}], "the floor of an earlier restore goes on"


def test_a_revoked_token_is_not_good_again_by_an_older_dump(
    harness: DispatcherHarness, cluster: TestCluster, fresh_queue_dsn: Callable[[], str], tmp_path: Path
) -> None:
    admin = {"authorization": f"Bearer {user_token(harness, org='acme')}"}

    def create(running: DispatcherHarness, subject: str) -> dict[str, Any]:
        reply = running.call("public", "POST", "/v1/tokens", {"subject": subject, "role": "reader"}, admin)
        assert reply.status == 200, reply
        return dict(reply.body)

    def status(running: DispatcherHarness, token: str) -> int:
        return running.call("public", "GET", "/v1/whoami", None, {"authorization": f"Bearer {token}"}).status

    home, new, queue = tmp_path / "new", cluster.empty(), fresh_queue_dsn()
    shutil.copytree(tmp_path / "keys", home / "keys")
    old = create(harness, "old")
    dump = dump_of(harness.state_dsn, tmp_path / "older.dump")
    load(place_of(cluster, new, queue), dump)
    later = DispatcherHarness.start(superuser(cluster, new), queue, home, CONFIG)
    try:
        young = create(later, "young")
        for made in (old, young):
            path = f"/v1/tokens/{made['row']['token_id']}"
            assert later.call("public", "DELETE", path, None, admin).status == 200
        assert later.call("public", "POST", "/v1/token-revocations", {"subject": "eve"}, admin).status == 200
    finally:
        later.stop()
    report = load(place_of(cluster, new, queue), dump)
    assert report.rewound.revocations_kept == 3
    again = DispatcherHarness.start(superuser(cluster, new), queue, home, CONFIG)
    try:
        assert [status(again, made["token"]) for made in (old, young)] == [401, 401]
        rows = again.call("public", "GET", "/v1/tokens", None, admin).body["tokens"]
        assert {row["subject"] for row in rows if "revoked_at" in row} == {"old", "young"}
    finally:
        again.stop()

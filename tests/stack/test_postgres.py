"""The embedded Postgres: isolation of roles, interrupted making, leftovers of a kill."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.postgres import (
    TestCluster,
    make_cluster,
    pid_alive,
    run,
    scratch_directory,
    stop,
    wait_ready,
    wait_until,
)
from tracelake.stack.machine import (
    PostgresError,
    ensure_socket_directory,
    postgres_processes_in,
    socket_directory,
)
from tracelake.stack.postgres import STATE_DATABASES, EmbeddedPostgres
from tracelake.stack.provision import provision


@pytest.fixture
def root() -> Iterator[Path]:
    directory = scratch_directory()
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


async def fetchval(dsn: str, query: str) -> Any:
    conn = await asyncpg.connect(dsn)
    try:
        return await conn.fetchval(query)
    finally:
        await conn.close()


async def execute(dsn: str, query: str) -> None:
    conn = await asyncpg.connect(dsn)
    try:
        await conn.execute(query)
    finally:
        await conn.close()


def test_queue_role_reaches_the_queue_database_alone(cluster: TestCluster) -> None:
    postgres = cluster.cluster
    assert run(fetchval(postgres.dsn("trace_queue", "queue"), "SELECT current_database()")) == "queue"
    for database in ("state", "postgres", "template1"):
        for tcp in (False, True):
            with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
                run(fetchval(postgres.dsn("trace_queue", database, tcp=tcp), "SELECT 1"))


def test_privileges_hold_even_where_the_access_rules_do_not(cluster: TestCluster) -> None:
    query = "SELECT has_database_privilege('trace_queue', datname, 'CONNECT') FROM pg_database WHERE datname = "
    allowed = {
        database: run(fetchval(cluster.cluster.superuser_dsn(), f"{query}'{database}'"))
        for database in ("state", "queue", "postgres", "template0", "template1")
    }
    assert allowed == {
        "state": False,
        "queue": True,
        "postgres": False,
        "template0": False,
        "template1": False,
    }


def test_queue_role_writes_rows_but_makes_nothing(cluster: TestCluster) -> None:
    owner = cluster.fresh("queue")
    user = cluster.user_dsn(owner, "trace_queue")
    run(execute(owner, "CREATE TABLE thing (id bigserial PRIMARY KEY, text text)"))
    run(execute(user, "INSERT INTO thing (text) VALUES ('a'); UPDATE thing SET text = ''; DELETE FROM thing"))
    for refused in (
        "CREATE TABLE mine (id int)",
        "CREATE TEMPORARY TABLE mine (id int)",
        "DROP TABLE thing",
        "TRUNCATE thing",
        "ALTER TABLE thing ADD COLUMN more int",
        "DELETE FROM schema_migrations",
        "SET ROLE trace_state",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            run(execute(user, refused))


def test_the_reader_of_data_reads_every_table_and_writes_nothing(cluster: TestCluster) -> None:
    owner = cluster.fresh("data")
    reader = cluster.user_dsn(owner, "trace_data_reader")
    run(execute(owner, "CREATE TABLE thing (id int); INSERT INTO thing VALUES (7); CREATE VIEW seen AS TABLE thing"))
    assert run(fetchval(reader, "SELECT id FROM thing")) == 7
    assert run(fetchval(reader, "SELECT id FROM seen")) == 7
    for refused in (
        "INSERT INTO thing VALUES (1)",
        "UPDATE thing SET id = 1",
        "DELETE FROM thing",
        "DROP TABLE thing",
        "CREATE TABLE mine (id int)",
        "CREATE TEMPORARY TABLE mine (id int)",
        "DELETE FROM schema_migrations",
        "SET ROLE trace_data",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            run(execute(reader, refused))
    with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
        run(fetchval(cluster.cluster.dsn("trace_data_reader", "state"), "SELECT 1"))


def test_a_wrong_password_is_refused(cluster: TestCluster) -> None:
    dsn = cluster.cluster.dsn("trace_state", "state")
    with pytest.raises(asyncpg.InvalidPasswordError):
        run(fetchval(dsn.replace(cluster.cluster.password("trace_state"), "guess"), "SELECT 1"))


def test_provisioning_twice_changes_nothing(cluster: TestCluster) -> None:
    query = "SELECT string_agg(datname || coalesce(datacl::text, ''), ';' ORDER BY datname) FROM pg_database"
    run(provision(cluster.cluster))  # databases that other tests made here are closed by it, too
    before = run(fetchval(cluster.cluster.superuser_dsn(), query))
    run(provision(cluster.cluster))
    assert run(fetchval(cluster.cluster.superuser_dsn(), query)) == before


def test_files_are_private_and_defaults_are_durable(root: Path) -> None:
    postgres = make_cluster(root, STATE_DATABASES)
    process = postgres.start()
    try:
        wait_ready(postgres, process)
        assert (root / "cluster").stat().st_mode & 0o777 == 0o700
        assert postgres.socket_dir.stat().st_mode & 0o777 == 0o700
        assert all(path.stat().st_mode & 0o777 == 0o600 for path in postgres.secrets_dir.iterdir())
        assert run(fetchval(postgres.superuser_dsn(), "SHOW data_checksums")) == "on"
    finally:
        stop(process)
    durable = EmbeddedPostgres(
        name="state",
        data_dir=root / "cluster",
        socket_dir=postgres.socket_dir,
        secrets_dir=postgres.secrets_dir,
        log_file=postgres.log_file,
        port=postgres.port,
        databases=STATE_DATABASES,
    )
    process = durable.start()
    try:
        wait_ready(durable, process)
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            assert run(fetchval(durable.superuser_dsn(), f"SHOW {setting}")) == "on"
    finally:
        stop(process)


def test_an_interrupted_making_starts_over(root: Path) -> None:
    half_made = root / "cluster.new"
    half_made.mkdir()
    (half_made / "PG_VERSION").write_text("18\n")
    (half_made / "base").mkdir()
    postgres = make_cluster(root, STATE_DATABASES)
    process = postgres.start()
    try:
        wait_ready(postgres, process)
    finally:
        stop(process)
    assert not half_made.exists()


def test_a_foreign_directory_is_left_alone(root: Path) -> None:
    (root / "cluster").mkdir()
    (root / "cluster" / "thesis.txt").write_text("mine")
    with pytest.raises(PostgresError, match="did not make"):
        make_cluster(root, STATE_DATABASES).start()
    assert (root / "cluster" / "thesis.txt").read_text() == "mine"


def test_it_starts_again_after_kill_9_of_the_postmaster(root: Path) -> None:
    postgres = make_cluster(root, STATE_DATABASES)
    first = postgres.start()
    wait_ready(postgres, first)
    os.kill(first.pid, signal.SIGKILL)
    first.wait(timeout=30)
    second = postgres.start()
    try:
        wait_ready(postgres, second)
    finally:
        stop(second)


def test_a_postmaster_that_outlived_its_supervisor_is_stopped_first(root: Path) -> None:
    postgres = make_cluster(root, STATE_DATABASES)
    orphan = postgres.start()
    wait_ready(postgres, orphan)
    second = postgres.start()
    try:
        orphan.wait(timeout=30)  # in what way, depends on how long its checkpoint takes
        wait_ready(postgres, second)
        assert second.pid in postgres_processes_in(postgres.data_dir.resolve())
    finally:
        stop(second)


def test_a_recycled_process_id_in_the_pid_file_is_no_obstacle(root: Path) -> None:
    postgres = make_cluster(root, STATE_DATABASES)
    postgres.prepare()
    (postgres.data_dir / "postmaster.pid").write_text(f"1\n{postgres.data_dir}\n")
    process = postgres.start()
    try:
        wait_ready(postgres, process)
    finally:
        stop(process)


def test_paths_may_be_long_and_hold_spaces_and_quotes(root: Path) -> None:
    deep = root / "a 'quoted' \"name\" with spaces" / ("x" * 120) / ("y" * 120)
    deep.mkdir(parents=True)
    postgres = make_cluster(root, STATE_DATABASES)
    awkward = EmbeddedPostgres(
        name="state",
        data_dir=deep / "cluster",
        socket_dir=root / "s p",
        secrets_dir=deep / "secrets",
        log_file=deep / "log",
        port=postgres.port,
        databases=STATE_DATABASES,
        durable=False,
    )
    process = awkward.start()
    try:
        wait_ready(awkward, process)
        run(provision(awkward))
        assert run(fetchval(awkward.dsn("trace_state", "state"), "SELECT 1")) == 1
        assert run(fetchval(awkward.dsn("trace_state", "state", tcp=True), "SELECT 1")) == 1
    finally:
        stop(process)


def test_the_socket_directory_is_short_stable_and_ours(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(root))
    assert socket_directory(root / "home") == (root / "home" / "run" / "sockets").resolve()
    directory = socket_directory(root / ("long" * 100))
    assert directory == socket_directory(root / ("long" * 100))
    assert directory.parent == root
    ensure_socket_directory(directory)
    directory.chmod(0o755)
    ensure_socket_directory(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.rmdir()
    directory.symlink_to(root)
    with pytest.raises(PostgresError, match="somebody else"):
        ensure_socket_directory(directory)


_STARTER = """
import os, pickle, signal, sys, time
from tracelake.stack.machine import postgres_processes_in
postgres = pickle.loads(bytes.fromhex(sys.argv[1]))
postgres.start()
while not postgres_processes_in(postgres.data_dir.resolve()):
    time.sleep(0.02)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_server_ends_with_the_process_that_started_it(root: Path) -> None:
    postgres = make_cluster(root, STATE_DATABASES)
    postgres.prepare()
    starter = subprocess.run([sys.executable, "-c", _STARTER, pickle.dumps(postgres).hex()], check=False)
    assert starter.returncode == -signal.SIGKILL
    wait_until(lambda: not postgres_processes_in(postgres.data_dir.resolve()), "the server to end")


_FORKER = """
import signal, subprocess, sys
from tracelake.stack.machine import wrap
signal.signal(signal.SIGINT, signal.SIG_IGN)
program = subprocess.Popen(wrap(["/bin/sleep", "600"], death_signal=signal.SIGINT), stdout=subprocess.DEVNULL)
print(program.pid, flush=True)
sys.stdin.read()
"""


def test_a_program_ends_with_its_starter_also_where_interrupts_are_ignored() -> None:
    """A shell ignores them for what it starts in the background, and a server that just begins has no handler yet."""
    with subprocess.Popen(
        [sys.executable, "-c", _FORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        comm = Path(f"/proc/{pid}/comm")
        wait_until(lambda: comm.read_text().strip() == "sleep", "the program to run")
    try:
        wait_until(lambda: not pid_alive(pid), "the program to end", 20)
    finally:
        if pid_alive(pid):
            os.kill(pid, signal.SIGKILL)

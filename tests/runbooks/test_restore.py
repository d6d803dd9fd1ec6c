"""docs/runbooks/restore.md: from a dump, after everything went on and died."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.runbooks.page import follow
from tests.support.real_stack import ROOT, RealStack
from tracelake.settings import Settings
from tracelake.stack import dumps
from tracelake.stack.clusters import Clusters
from tracelake.stack.postgres import STATE_DATABASES
from tracelake.stack.restore import _running

PAGE = "restore.md"
DAG = """\
name: chain
jobs:
  - name: head
    activation: source
    source: { kind: webhook, webhook_path: heads }
  - name: quick
    activation: reactive
    runtime: ecs_platform
    operator: noop
    execution_strategy: PerPartition
    inputs: [{ from: { job: head } }]
  - name: slow
    activation: reactive
    runtime: by_hand
    operator: noop
    execution_strategy: PerPartition
    heartbeat_timeout_seconds: 600
    inputs: [{ from: { job: head } }]
"""

# Tables of which a restore changes nothing.
KEPT = ("events", "dag_versions", "activations", "datasets", "edges", "audit_log", "triggers", "manifests")


@pytest.fixture
def stack() -> Iterator[RealStack]:
    with RealStack().running() as stack:
        yield stack


def picture(stack: RealStack) -> dict[str, Any]:
    rows = {name: stack.sql(f"SELECT to_json(t)::text FROM {name} t ORDER BY 1") for name in KEPT}
    tasks = stack.sql("SELECT task_id, job_id, unit_key, status = 'Completed' AS done FROM tasks ORDER BY 1")
    return rows | {"tasks": tasks, "rotation": stack.sql("SELECT path, rotation FROM webhooks")}


def numbers(stack: RealStack) -> dict[str, int]:
    rows = stack.sql("SELECT sequencename, coalesce(last_value, 0) FROM pg_sequences WHERE schemaname = 'public'")
    return dict(map(tuple, rows))


@contextmanager
def state_cluster(stack: RealStack) -> Iterator[None]:
    """The state database of a stack that is down, for a look."""
    cluster = Clusters.plan(Settings.load({"home": stack.home.root}, environ={})).state
    assert cluster is not None
    with _running(cluster):
        dsn = cluster.dsn(STATE_DATABASES[0].owner, "state")
        stack.home.state_dsn_file.write_text(dsn + "\n")
        yield


def picture_when_down(stack: RealStack) -> dict[str, Any]:
    with state_cluster(stack):
        return picture(stack)


def test_the_page(stack: RealStack) -> None:
    stack.deploy("chain", DAG)
    for start in (0, 10, 20):
        stack.shell(f"trace trigger chain/head --range {start}-{start + 9}")
    stack.await_tasks("chain", "quick", "completed", 3)
    first, second, third = stack.tasks("chain", "slow")
    running = stack.claim(first)

    follow(stack, PAGE, section="Preparation", words={"FILE": "state.dump"})
    dump = stack.files / "state.dump"
    assert dump.stat().st_mode & 0o777 == 0o600
    assert "state.dump exists" in stack.shell("trace backup state.dump", fine=(1,))
    at_dump = picture(stack)

    # Life goes on: completions, events, a claim, a rotated secret.
    assert stack.say("complete", first, running, status="Completed")[0] == 200
    lost = stack.claim(second)
    stack.shell("trace trigger chain/head --range 30-39")
    stack.shell("trace webhook chain/head --rotate")
    unknown = stack.tasks("chain", "slow")[-1]
    never = stack.claim(unknown)
    bad_dumps(stack, dump)
    given_out, before = numbers(stack), picture(stack)
    stack.kill()
    assert "a dump needs a running stack" in stack.shell("trace backup late.dump", fine=(1,))
    assert not list(stack.files.glob(".late*")), "nothing half done is left behind"

    for name, said in (
        ("cut.dump", "it is incomplete"),
        ("short.dump", "cannot be loaded, and nothing was changed"),
        ("noise.dump", "not a dump that `trace backup` wrote"),
        ("other.dump", "some other database"),
        ("newer.dump", "the database is newer than this code"),
    ):
        refused = stack.shell(f"trace restore --yes {name}", fine=(1,))
        assert said in refused, name
        assert len(refused.splitlines()) == 1, refused
    assert "Aborted" in stack.shell("trace restore state.dump < /dev/null", fine=(1,))
    crash(stack, "before")
    assert picture_when_down(stack) == before, "neither a refusal nor a crash touched what was there"
    crash(stack, "after")
    assert picture_when_down(stack)["events"] == at_dump["events"]

    followed = follow(stack, PAGE, section="What to do", words={"FILE": "state.dump"})
    assert any("wake-ups written" in text for text in followed.printed)
    assert any("left by a restore that was killed: state_replaced." in text for text in followed.printed)
    restored = picture(stack)
    assert restored.pop("rotation")[0]["rotation"] == 2, "a secret that was given up stays so"
    assert at_dump.pop("rotation")[0]["rotation"] == 1
    assert restored == at_dump

    for task_id, claimed, status in ((first, running, 409), (second, lost, 409), (unknown, never, 404)):
        assert stack.say("heartbeat", task_id, claimed)[0] == status
        assert stack.say("complete", task_id, claimed, status="Completed")[0] == status
    stack.shell("trace trigger chain/head --range 40-49")
    for name, number in numbers(stack).items():
        assert number >= given_out[name], name
    (newest,) = stack.sql("SELECT min(event_id) AS id FROM events WHERE unit = 'p:40-49'")
    assert newest["id"] > given_out["events_event_id_seq"]

    # Everything that is ready runs by its wake-up alone, each unit once, in places that nobody had before.
    worker = subprocess.Popen(
        ["sh", "-c", "exec trace worker --runtime by_hand"], env=stack.environment, stderr=subprocess.DEVNULL
    )
    try:
        done = stack.await_tasks("chain", "slow", "completed", 4)
    finally:
        worker.terminate()
        worker.wait(timeout=60)
    rows = {row["task_id"]: row for row in stack.sql("SELECT task_id::text, attempt, unit_key FROM tasks")}
    attempts = {task_id: row["attempt"] for task_id, row in rows.items()}
    assert len(done) == len({rows[task_id]["unit_key"] for task_id in done}) == 4
    assert (attempts[first], attempts[second], attempts[third]) == (2, 2, 1)
    follow(stack, PAGE, section="Verify")
    assert stack.trace("outbox list")["failed"] == 0


def bad_dumps(stack: RealStack, dump: Path) -> None:
    whole = dump.read_bytes()
    (stack.files / "cut.dump").write_bytes(whole[: len(whole) * 2 // 3])
    (stack.files / "short.dump").write_bytes(whole[:-10])
    (stack.files / "noise.dump").write_bytes(bytes(range(256)) * 64)
    data = stack.home.data_dsn_file.read_text().strip()
    other = dumps.run_program("pg_dump", "--format=custom", f"--file={stack.files / 'other.dump'}", dsn=data)
    assert other.returncode == 0, other
    stack.sql("INSERT INTO schema_migrations (version, name, checksum) VALUES (9999, 'later', 'x')")
    stack.shell("trace backup newer.dump")
    stack.sql("DELETE FROM schema_migrations WHERE version = 9999")


def crash(stack: RealStack, moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runbooks.crash", moment, "restore", "--yes", str(stack.files / "state.dump")],
        env=stack.environment | {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -9, done


def test_a_backup_of_a_stack_that_is_down_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tracelake", "backup", str(tmp_path / "x.dump"), "--home", str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "has no state database yet" in done.stderr
    assert not list(tmp_path.iterdir())


def test_database_names_and_passwords() -> None:
    dsn = "postgresql://me:p%40ss@db.example:5432/state?sslmode=require"
    assert dumps.without_password(dsn) == ("postgresql://me@db.example:5432/state?sslmode=require", "p@ss")
    assert dumps.with_database(dsn, "postgres") == "postgresql://me:p%40ss@db.example:5432/postgres?sslmode=require"
    assert dumps.database_of(dsn) == "state"
    assert dumps.with_database("postgresql:///state?host=/run/s", "a") == "postgresql:///a?host=/run/s"
    embedded = "postgresql://me:x@/state?host=/run/s&port=5"
    assert dumps.without_password(embedded) == ("postgresql://me@/state?host=/run/s&port=5", "x")
    assert dumps.database_of(dumps.with_database(embedded, "other")) == "other"


@pytest.mark.parametrize(
    ("dsn", "address", "password"),
    [
        ("postgresql://u@h/db?password=x%26y", "postgresql://u@h/db", "x&y"),
        ("postgresql://u@h/db?a=%20&password=x&passfile=/p", "postgresql://u@h/db?a=%20&passfile=/p", "x"),
        ("postgresql://u@h/db?pass%77ord=x", "postgresql://u@h/db", "x"),
        ("postgresql://u:before@h/db?password=x", "postgresql://u@h/db", "before"),
        ("postgresql://u:@h/db?password=x", "postgresql://u@h/db", "x"),
        ("postgresql://h/db", "postgresql://h/db", None),
        ("postgresql:///db?host=/run/s", "postgresql:///db?host=/run/s", None),
        ("postgresql://u@h/db?passfile=/p", "postgresql://u@h/db?passfile=/p", None),
    ],
)
def test_a_password_anywhere_in_an_address_stays_off_the_command_line(
    dsn: str, address: str, password: str | None
) -> None:
    assert dumps.without_password(dsn) == (address, password)


def test_addresses_that_cannot_be_used_are_refused_without_their_secrets() -> None:
    with pytest.raises(dumps.BackupError, match="sslpassword") as refused:
        dumps.without_password("postgresql://u@h/db?sslpassword=hidden")
    assert "hidden" not in str(refused.value)
    assert dumps.single_database_of("postgresql://u@h/db?sslmode=require") == "db"
    for dsn in ("postgresql://u:hidden@h/db?dbname=other", "postgresql://u:hidden@h/?database=db", "postgresql://h"):
        with pytest.raises(dumps.BackupError, match="must name its database after the host") as refused:
            dumps.single_database_of(dsn)
        assert "hidden" not in str(refused.value)

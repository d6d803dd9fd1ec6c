"""`trace up`, `status` and `down` as real processes; only the work of its own children is a stand-in."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.postgres import TestCluster, pid_alive, run, scratch_directory, wait_until
from tracelake.settings.home import Home
from tracelake.stack.machine import postgres_processes_in, socket_directory
from tracelake.stack.postgres import SUPERUSER

ROOT = Path(__file__).resolve().parent.parent.parent
STOP_SECONDS = 180


class FakeStack:
    """A home below a directory with spaces in its name, and the processes started on it."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root / "a home with spaces" / ("deep" * 30))
        self.home.root.parent.mkdir()
        self.started: list[subprocess.Popen[str]] = []

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "tests.support.fake_stack", *arguments, "--home", str(self.home.root)]

    def up(self, *arguments: str) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            self.command("up", *arguments),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def up_ready(self, *arguments: str) -> "tuple[subprocess.Popen[str], dict[str, Any]]":
        process = self.up("--json", *arguments)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"not ready: {process.communicate()}")
        return process, json.loads(line)

    def call(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=STOP_SECONDS, check=False
        )

    def parts(self) -> dict[str, Any]:
        return {part["name"]: part for part in json.loads(self.home.parts_file.read_text())}

    def wait_running(self, name: str, restarts: int) -> int:
        def running() -> bool:
            part = self.parts()[name]
            return bool(part["state"] == "running" and part["restarts"] >= restarts)

        wait_until(running, f"{name} to run again")
        return int(self.parts()[name]["pid"])

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for directory in (self.home.postgres_state, self.home.postgres_data):
            wait_until(lambda d=directory: not postgres_processes_in(d.resolve()), "postgres to end")  # type: ignore[misc]
        shutil.rmtree(socket_directory(self.home.root), ignore_errors=True)


@pytest.fixture
def stack() -> Iterator[FakeStack]:
    root = scratch_directory()
    fake = FakeStack(root)
    try:
        yield fake
    finally:
        fake.close()
        shutil.rmtree(root, ignore_errors=True)


async def execute(dsn_file: str, query: str) -> Any:
    conn = await asyncpg.connect(Path(dsn_file).read_text().strip())
    try:
        return await conn.fetchval(query)
    finally:
        await conn.close()


def test_the_whole_life_of_a_stack(stack: FakeStack) -> None:
    assert stack.call("status").returncode == 3
    process, ready = stack.up_ready("--workers", "2")
    home = stack.home
    assert json.loads(home.stack_file.read_text()) == ready
    assert home.stack_file.stat().st_mode & 0o777 == 0o600
    assert ready["pid"] == process.pid
    assert run(execute(ready["queue_dsn_file"], "SELECT current_user")) == "trace_queue"
    assert run(execute(ready["data_dsn_file"], "SELECT current_user")) == "trace_data"

    shown = stack.call("status", "--json")
    assert shown.returncode == 0, shown
    assert json.loads(shown.stdout)["listeners"] == {"public": True, "task": True, "internal": True}
    readable = stack.call("status")
    assert readable.returncode == 0
    assert "Ready." in readable.stdout
    assert "scheduler" in readable.stdout
    assert "\x1b" not in readable.stdout

    second = stack.call("up")
    assert second.returncode == 1
    assert f"already running on {home.root} (process {process.pid})" in second.stderr
    assert "Traceback" not in second.stderr

    for name in ("dispatcher", "scheduler", "worker-2", "postgres-state", "postgres-data"):
        os.kill(stack.parts()[name]["pid"], signal.SIGKILL)
        stack.wait_running(name, restarts=1)
    assert json.loads(home.stack_file.read_text()) == ready
    wait_until(lambda: stack.call("status").returncode == 0, "the stack to be ready again")
    assert "running  killed by SIGKILL, " in stack.call("status").stdout, "why there was a restart stays to be seen"

    dispatcher = stack.parts()["dispatcher"]["pid"]
    os.kill(dispatcher, signal.SIGSTOP)
    hung = stack.call("status")
    assert hung.returncode == 1
    assert "the Dispatcher does not answer (public, task, internal)" in hung.stdout
    assert f"kill -KILL {dispatcher}" in hung.stdout
    os.kill(dispatcher, signal.SIGCONT)

    pids = [part["pid"] for part in stack.parts().values()]
    stopped = stack.call("down")
    assert (stopped.returncode, stopped.stdout.splitlines()[-1]) == (0, "Stopped.")
    assert process.wait(timeout=STOP_SECONDS) == 0
    assert not any(pid_alive(pid) for pid in pids)
    assert not home.stack_file.exists()
    assert stack.call("status").returncode == 3
    again = stack.call("down")
    assert again.returncode == 0
    assert "not running" in again.stdout

    process, next_run = stack.up_ready("--no-workers")
    addresses = ("public_url", "task_url", "internal_url")
    assert {name: next_run[name] for name in addresses} == {name: ready[name] for name in addresses}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=STOP_SECONDS) == 0


def test_a_home_left_by_kill_9_or_a_power_cut_starts_again_with_its_data(stack: FakeStack) -> None:
    process, ready = stack.up_ready()
    state_file = str(stack.home.state_dsn_file)
    run(execute(state_file, "CREATE TABLE kept AS SELECT 42 AS answer"))
    # As a restore that was killed leaves it: a database as large as the state, of which nobody would know.
    password = (stack.home.secrets / f"{SUPERUSER}-state.password").read_text().strip()
    superuser = stack.home.root / "superuser.dsn"
    _, _, address = stack.home.state_dsn_file.read_text().partition("@")
    superuser.write_text(f"postgresql://{SUPERUSER}:{password}@{address}")
    run(execute(str(superuser), "CREATE DATABASE state_replaced"))
    pids = [part["pid"] for part in stack.parts().values()]
    process.kill()
    process.wait(timeout=STOP_SECONDS)
    assert stack.home.stack_file.exists()
    assert stack.call("status").returncode == 3
    process, again = stack.up_ready()
    assert again["pid"] != ready["pid"]
    assert not any(pid_alive(pid) for pid in pids)
    assert run(execute(state_file, "SELECT answer FROM kept")) == 42
    assert run(execute(state_file, "SELECT count(*) FROM pg_database WHERE datname = 'state_replaced'")) == 0

    # The power cut: no process gets to end by itself, so the supervisor is held still while its children die.
    servers = [part["pid"] for name, part in stack.parts().items() if name.startswith("postgres")]
    process.send_signal(signal.SIGSTOP)
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    process.kill()
    _, errors = process.communicate(timeout=STOP_SECONDS)
    assert errors.startswith("Dropped the database state_replaced (")
    shutil.rmtree(socket_directory(stack.home.root))
    process, _ = stack.up_ready("--no-workers")
    assert run(execute(state_file, "SELECT answer FROM kept")) == 42
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=STOP_SECONDS) == 0


def test_plain_lines_elsewhere_than_on_a_terminal_and_a_port_in_use(stack: FakeStack) -> None:
    process = stack.up("--no-workers")
    wait_until(stack.home.stack_file.exists, "the stack to be ready")
    port = json.loads(stack.home.stack_file.read_text())["public_url"].rsplit(":", 1)[1]
    other = FakeStack(scratch_directory())
    try:
        refused = other.call("up", "--public-port", port)
    finally:
        other.close()
        shutil.rmtree(other.home.root.parent.parent, ignore_errors=True)
    assert refused.returncode == 1
    assert f"the public listener cannot bind 127.0.0.1:{port}" in refused.stderr
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=STOP_SECONDS)
    assert errors == ""
    assert "\x1b" not in output
    lines = output.splitlines()
    assert any(line.startswith("dispatcher: running, process ") for line in lines)
    assert any(line.startswith("ready: public https://127.0.0.1:") for line in lines)
    assert lines[-1] == "Stopped."
    order = [line.split(":")[0] for line in lines if line.endswith(": stopped")]
    assert order[:2] == ["scheduler", "dispatcher"]


def test_a_second_signal_hurries(stack: FakeStack) -> None:
    stack.home.root.with_name("stubborn").touch()
    process, _ = stack.up_ready()
    wait_until((stack.home.root / "ignores SIGTERM").exists, "the worker to turn a deaf ear")
    process.send_signal(signal.SIGTERM)
    wait_until(lambda: stack.parts()["worker"]["state"] == "stopping", "the worker to be asked")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=STOP_SECONDS) == 0


def test_a_signal_during_the_start_stops_what_was_started(stack: FakeStack) -> None:
    process = stack.up()
    wait_until(stack.home.parts_file.exists, "the first part to start")
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=STOP_SECONDS)
    assert (process.returncode, errors) == (0, "")
    assert output.splitlines()[-1] == "Stopped."


def test_a_dispatcher_that_cannot_start_is_explained(stack: FakeStack) -> None:
    stack.home.root.with_name("broken").touch()
    failed = stack.call("up")
    assert failed.returncode == 1
    assert "dispatcher ended with status 1 at start" in failed.stderr
    assert "this dispatcher is broken" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert not stack.home.stack_file.exists()


def test_bad_settings_are_one_line(stack: FakeStack) -> None:
    for arguments, text in (
        (("--public-port", "99999"), "public_port (from the command line): expected a whole number"),
        (("--set", "lease_second=1"), "did you mean lease_seconds?"),
        (("--set", "nonsense"), "--set: expected NAME=VALUE"),
        (("--bind-host", "203.0.113.1"), "bind_host: 203.0.113.1 is not an address of this machine"),
    ):
        failed = stack.call("up", *arguments)
        assert failed.returncode == 1
        assert text in failed.stderr
        assert len(failed.stderr.splitlines()) == 1


def test_databases_of_ones_own_replace_the_embedded_clusters(
    stack: FakeStack, cluster: TestCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = cluster.cluster.password("trace_state")
    monkeypatch.setenv("TRACE_STATE_DSN", cluster.fresh("state"))
    monkeypatch.setenv("TRACE_QUEUE_DSN", cluster.fresh("queue"))
    monkeypatch.setenv("TRACE_DATA_DSN", cluster.empty())
    process, ready = stack.up_ready()
    assert sorted(stack.parts()) == ["dispatcher", "object-store", "scheduler", "worker"]
    assert not any(stack.home.postgres.iterdir())
    assert run(execute(ready["data_dsn_file"], "SELECT count(*) FROM schema_migrations")) >= 1
    for part in stack.parts().values():
        assert secret not in Path(f"/proc/{part['pid']}/environ").read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=STOP_SECONDS) == 0


def test_an_unreachable_database_is_explained_without_its_address(
    stack: FakeStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("STATE", "QUEUE", "DATA"):
        monkeypatch.setenv(f"TRACE_{name}_DSN", "postgresql://u:very-secret@127.0.0.1:1/x")
    failed = stack.call("up")
    assert failed.returncode == 1
    assert "the state database cannot be used" in failed.stderr
    assert "very-secret" not in failed.stderr + failed.stdout
    assert "Traceback" not in failed.stderr


def test_a_directory_with_other_things_in_it_does_not_become_a_home(stack: FakeStack) -> None:
    stack.home.root.mkdir(mode=0o755)
    (stack.home.root / "thesis.txt").touch()
    failed = stack.call("up")
    assert failed.returncode == 1
    assert "not a home of trace and not empty (thesis.txt)" in failed.stderr
    assert stack.home.root.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in stack.home.root.iterdir()] == ["thesis.txt"]


def test_a_bad_settings_file_does_not_keep_anybody_from_looking_or_stopping(stack: FakeStack) -> None:
    stack.home.make()
    stack.home.settings_file.write_text("workerz = 3\n")
    assert "did you mean workers?" in stack.call("up").stderr
    assert stack.call("status").returncode == 3
    assert stack.call("down").returncode == 0

"""`trace up --detach` as a real process: it returns when the stack is ready, and the stack outlives it."""

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.stack.test_up import ROOT, STOP_SECONDS, FakeStack
from tests.support.postgres import pid_alive, scratch_directory, wait_until
from tests.support.terminal import CTRL_C, TerminalSession
from tracelake.stack import lock


@pytest.fixture
def stack() -> Iterator[FakeStack]:
    root = scratch_directory()
    fake = FakeStack(root)
    try:
        yield fake
    finally:
        holder = lock.holder(fake.home.lock_file)
        if holder is not None:
            os.kill(holder, signal.SIGKILL)
        fake.close()
        shutil.rmtree(root, ignore_errors=True)


def test_a_stack_in_the_background(stack: FakeStack) -> None:
    started = stack.call("up", "--detach", "--no-workers")
    assert (started.returncode, started.stderr) == (0, "")
    lines = started.stdout.splitlines()
    assert any(line.startswith("dispatcher: running, process ") for line in lines), "progress"
    assert any(line.startswith("ready: public https://127.0.0.1:") for line in lines)
    assert lines[-3:] == [
        "Next:",
        "  `trace init DIRECTORY` makes a project to start from",
        f"  `trace deploy FILE --home '{stack.home.root}'` deploys its DAG",
    ]
    pid = json.loads(stack.home.stack_file.read_text())["pid"]
    assert os.getsid(pid) == pid, "a session of its own, so that no terminal ends it"
    assert stack.call("status").returncode == 0
    assert stack.home.log_file("up").stat().st_mode & 0o777 == 0o600

    again = stack.call("up", "--detach", "--workers", "3", "--json")
    assert again.returncode == 0
    assert json.loads(again.stdout)["pid"] == pid
    told = stack.call("up", "--detach")
    assert told.returncode == 0
    assert f"Trace already runs on {stack.home.root} (process {pid})." in told.stdout
    assert "of this call were not applied" in told.stderr
    assert stack.call("up").returncode == 1, "one in the foreground needs the home for itself"
    assert pid_alive(pid)

    assert stack.call("down").stdout.splitlines()[-1] == "Stopped."
    wait_until(lambda: not pid_alive(pid), "the process to end")
    assert stack.home.log_file("up").read_text().splitlines()[-1] == "Stopped."


def test_it_survives_its_terminal(stack: FakeStack) -> None:
    """Two calls at once start one stack. One of them has a terminal, which is closed."""
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    with TerminalSession(stack.command("up", "--detach", "--no-workers"), environment, columns=200) as terminal:
        beside = stack.up("--detach", "--no-workers", "--json")
        assert terminal.wait_for_end() == 0, terminal.text
        assert "It runs in the background;" in terminal.text
        output, _ = beside.communicate(timeout=STOP_SECONDS)
        assert beside.returncode == 0
    ready = json.loads(output)
    assert stack.call("status").returncode == 0
    assert lock.holder(stack.home.lock_file) == ready["pid"]
    assert stack.call("down").returncode == 0


def test_ctrl_c_stops_what_was_begun(stack: FakeStack) -> None:
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    with TerminalSession(stack.command("up", "--detach", "--no-workers"), environment, columns=200) as terminal:
        terminal.wait_for("postgres-state")
        terminal.send(CTRL_C)
        assert terminal.wait_for_end() != 0
    assert lock.holder(stack.home.lock_file) is None
    assert not stack.home.stack_file.exists()


def test_a_start_that_fails_says_why_and_where_the_log_is(stack: FakeStack) -> None:
    stack.home.root.with_name("broken").touch()
    failed = stack.call("up", "--detach", "--json")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: the stack did not start: dispatcher ended with status 1 at start")
    assert "this dispatcher is broken" in failed.stderr
    assert f"see {stack.home.log_file('up')}" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert stack.call("status").returncode == 3

    wrong = stack.call("up", "--detach", "--set", "lease_second=1")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("error: ")
    assert "did you mean lease_seconds?" in wrong.stderr


def test_a_service_manager_is_told(stack: FakeStack, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stack.home.root.parent / "notify.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(path))
        manager.settimeout(STOP_SECONDS)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        process: subprocess.Popen[str] = stack.up("--no-workers", "--json")
        assert manager.recv(100) == b"READY=1"
        assert stack.home.stack_file.exists()
        process.send_signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        assert process.wait(timeout=STOP_SECONDS) == 0

"""The `trace` command itself: help without imports, errors in one line, the lock, the listeners."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracelake.errors import TraceError
from tracelake.processes import listeners, lock
from tracelake.processes.credentials import LiteCredentials
from tracelake.processes.main import one_line, trace
from tracelake.processes.settings import Settings, SettingsError


def test_help_is_complete_and_imports_no_heavy_module() -> None:
    code = (
        "import sys\nfrom tracelake.processes.main import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'asyncpg', 'rich', 'cryptography', 'uvicorn'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in ("up", "status", "down", "demo", "keys", "outbox", "dispatcher", "worker"):
        assert f"\n  {name} " in shown.stdout
    assert shown.stdout.splitlines()[-1] == "[]"


def test_expected_failures_are_one_line_and_bugs_are_not() -> None:
    line = one_line(TraceError("store_unavailable"))
    assert line is not None
    assert line.startswith("store_unavailable: A store that this call needs")
    assert "Repeat the same call" in line
    assert one_line(SettingsError("the reason")) == "the reason"
    assert one_line(KeyError("bug")) is None


def test_a_token_goes_into_a_file_of_its_owner(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "ann.token"
    LiteCredentials.ensure(Settings.load({"home": home}, environ={}).layout.keys)
    words = ["token", "--role", "reader", "--subject", "ann", "--home", str(home)]
    file.write_text("older")
    file.chmod(0o644)
    shown = CliRunner().invoke(trace, [*words, "--out", str(file)])
    assert (shown.exit_code, shown.output) == (0, "")
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().count(".") == 2
    assert CliRunner().invoke(trace, words).output.count(".") == 2


@pytest.mark.parametrize(("typed", "text"), [("deply", "Did you mean `deploy`?"), ("zzzzzz", "'zzzzzz'.\n")])
def test_a_command_that_is_not_there(typed: str, text: str) -> None:
    ended = CliRunner().invoke(trace, [typed])
    assert ended.exit_code == 2
    assert text in ended.output


def test_the_lock_has_one_holder_and_knows_it(tmp_path: Path) -> None:
    path = tmp_path / "run" / "up.lock"
    path.parent.mkdir()
    assert lock.holder(path) is None
    with lock.hold(path):
        assert lock.holder(path) == os.getpid()
        with pytest.raises(lock.AlreadyRunningError, match=f"process {os.getpid()}"), lock.hold(path):
            pass
    assert lock.holder(path) is None


def test_a_stale_lock_file_is_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "up.lock"
    path.write_text("1\n")
    assert lock.holder(path) is None
    with lock.hold(path):
        assert lock.holder(path) == os.getpid()


def test_listeners_are_handed_over_by_descriptor(tmp_path: Path) -> None:
    settings = Settings.load({"home": tmp_path}, environ={})
    bound = listeners.bind(settings)
    copies = {name: os.dup(listener.fileno()) for name, listener in bound.items()}
    variable = ",".join(f"{name}={number}" for name, number in copies.items())
    received = listeners.inherited({listeners.VARIABLE: variable})
    assert received is not None
    try:
        for name, listener in received.items():
            assert listener.getsockname() == bound[name].getsockname()
            assert not listener.get_inheritable()
        assert listeners.url(bound["public"], "0.0.0.0").startswith("https://127.0.0.1:")
        assert listeners.url(bound["public"], "::").startswith("https://[::1]:")
    finally:
        for listener in (*bound.values(), *received.values()):
            listener.close()


@pytest.mark.parametrize("text", ["public", "public=x", "public=99999", "public=99998,task=99999"])
def test_a_wrong_descriptor_list_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="TRACE_LISTEN_FDS"):
        listeners.inherited({listeners.VARIABLE: text})


def test_without_a_supervisor_nothing_is_inherited() -> None:
    assert listeners.inherited({}) is None


def test_binding_is_all_or_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = Settings.load({"home": tmp_path, "internal_port": port}, environ={})
        with pytest.raises(SettingsError, match=f"internal listener cannot bind 127.0.0.1:{port}"):
            listeners.bind(settings)

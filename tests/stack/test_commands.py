"""The `trace` command itself: help without imports, errors in one line, the lock, the listeners."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracelake.cli import backup as backup_command
from tracelake.cli.status import StackStatus, _advice
from tracelake.errors import TraceError
from tracelake.processes.main import one_line, trace
from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import Home
from tracelake.stack import backup, kept_ports, listeners, lock, probe
from tracelake.stack.clusters import Clusters
from tracelake.stack.credentials import LiteCredentials
from tracelake.stack.dumps import BackupError
from tracelake.stack.machine import free_port
from tracelake.stack.supervisor import PartState, PartView


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
    assert (shown.exit_code, shown.stdout, f"--token-file {file}" in shown.stderr) == (0, "", True)
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


def test_addresses_for_others_have_the_public_host() -> None:
    with listeners.bind_one("public", "0.0.0.0", 0) as opened, listeners.bind_one("task", "127.0.0.1", 0) as closed:
        sockets, port = {"public": opened, "task": closed}, opened.getsockname()[1]
        assert listeners.shared_urls(sockets, None) == {}
        assert listeners.shared_urls(sockets, "lab.example") == {"public": f"https://lab.example:{port}"}
        assert listeners.shared_urls(sockets, "2001:db8::1") == {"public": f"https://[2001:db8::1]:{port}"}


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


def test_ports_stay_from_one_run_to_the_next(tmp_path: Path) -> None:
    settings = Settings.load({"home": tmp_path}, environ={})
    file = settings.layout.ports_file
    file.parent.mkdir()
    assert kept_ports.read_ports(file) == {}

    def bind(chosen: Settings = settings) -> dict[str, int]:
        bound = listeners.bind(chosen, kept_ports.read_ports(file))
        found = {name: listener.getsockname()[1] for name, listener in bound.items()}
        for listener in bound.values():
            listener.close()
        return found

    first = bind()
    kept_ports.write_ports(file, first | {"state": free_port()})
    assert bind() == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first["task"]))
        taken.listen()
        second = bind()
        assert second["task"] != first["task"], "somebody else has it"
        assert {**second, "task": 0} == {**first, "task": 0}
        fixed = free_port()
        assert bind(Settings.load({"home": tmp_path, "public_port": fixed}, environ={}))["public"] == fixed
    clusters = Clusters.plan(settings)
    assert clusters.state is not None
    assert clusters.state.port == kept_ports.read_ports(file)["state"]
    for text in ("", "[1]", '{"public": 700000, "task": 0}'):
        file.write_text(text)
        assert kept_ports.read_ports(file) == {}


def test_what_a_readyz_says(tmp_path: Path) -> None:
    away = probe._away(b'{"status": "unavailable", "checks": {"state": "ok", "queue": "unavailable"}}')
    assert away == ("queue",)
    assert probe._away(b'{"status": "unavailable", "checks": {"state": "ok", "lifecycle": "stalled"}}') == ()
    assert probe._away(b"") == ()
    assert probe.readiness("https://127.0.0.1:1", tmp_path / "none") == probe.Readiness(False)
    parts = [PartView("dispatcher", PartState.RUNNING, 4711, 0, 0.0)]
    listening = {"public": True, "task": True, "internal": False}
    silent = StackStatus(Home(tmp_path), 1, None, parts, listening, away)
    assert "does not reach its database: queue" in "".join(_advice(silent, ["internal"]))
    hung = StackStatus(Home(tmp_path), 1, None, parts, listening)
    assert _advice(hung, ["internal"])[-1].endswith("kill -KILL 4711")
    waiting = StackStatus(Home(tmp_path), 1, None, [], listening)
    assert "starts it again by itself" in _advice(waiting, ["internal"])[-1]


def test_a_backup_says_what_it_does_not_hold(tmp_path: Path) -> None:
    settings = Settings.load({"home": tmp_path / "home"}, environ={})
    said = "\n".join(backup_command._what_else(settings))
    for word in ("object-store.json", "keys", "secrets", "after `trace down`"):
        assert word in said
    assert "settings.toml" not in said
    settings.layout.make()
    settings.layout.settings_file.write_text("workers = 2\n")
    own = Settings.load(
        {"home": tmp_path / "home", "s3_endpoint": "https://s3.example", "s3_access_key": "k", "s3_secret_key": "s"},
        environ={},
    )
    said = "\n".join(backup_command._what_else(own))
    assert "at https://s3.example" in said
    assert "settings.toml" in said
    assert str(own.layout.objects) not in said


def test_a_backup_names_the_directory_that_is_not_there(tmp_path: Path) -> None:
    settings = Settings.load(
        {"home": tmp_path}, environ=dict.fromkeys(("TRACE_STATE_DSN", "TRACE_QUEUE_DSN"), "postgresql://a:b@c:1/d")
    )
    with pytest.raises(BackupError, match=f"there is no directory {tmp_path}/none; make it"):
        backup.write_dump(settings, tmp_path / "none" / "x.dump", replace=False)
    (tmp_path / "file").touch()
    with pytest.raises(BackupError, match="nothing can be written in"):
        backup.write_dump(settings, tmp_path / "file" / "x.dump", replace=False)


def test_binding_is_all_or_nothing(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = Settings.load({"home": tmp_path, "internal_port": port}, environ={})
        with pytest.raises(SettingsError, match=f"internal listener cannot bind 127.0.0.1:{port}"):
            listeners.bind(settings)

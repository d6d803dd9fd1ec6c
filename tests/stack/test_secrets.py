"""Where workers find the secrets of jobs, and `trace secrets`."""

import asyncio
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Trace, run_trace
from tracelake.errors import SecretMissingError
from tracelake.model import redaction
from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import Home
from tracelake.stack import job_secrets, logs


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(redaction, "HIDDEN", type(redaction.HIDDEN)())
    job_secrets._own_environment.cache_clear()
    home = Home(tmp_path / "home")
    monkeypatch.setenv("TRACE_HOME", str(home.root))
    return home


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Home) -> Trace:
    return run_trace(monkeypatch, capsys)


def fetch(home: Home, *names: str, org: str = "default") -> dict[str, str]:
    return dict(asyncio.run(job_secrets.secret_provider(home).fetch(org, names)))


# --- the environment


def test_variables_name_org_and_secret() -> None:
    found = job_secrets.from_environment(
        {
            "TRACE_SECRET_ACME__KEY": "one",
            "TRACE_SECRET_ACME__lower.and-more": "two",
            "TRACE_SECRET_BIG_BANK__A__B": "three",
            "TRACE_SECRET_ACME___X": "four",
            "TRACE_SECRET_ACME__EMPTY": "",
            "TRACE_HOME": "/x",
        }
    )
    assert found == {"acme": {"KEY": "one", "lower.and-more": "two", "_X": "four"}, "big_bank": {"A__B": "three"}}


@pytest.mark.parametrize("name", ["KEY", "ACME_KEY", "__KEY", "acme__KEY", "ACME__", "ACME__1", "1__KEY", "A-B__KEY"])
def test_one_without_an_org_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"TRACE_SECRET_{name} is no") as refused:
        job_secrets.from_environment({f"TRACE_SECRET_{name}": "open sesame"})
    assert "sesame" not in str(refused.value)


def test_these_variables_are_no_settings() -> None:
    settings = Settings.load({"home": "/tmp/x"}, environ={"TRACE_SECRET_ACME__KEY": "open sesame"})
    assert not [name for name in settings.to_environment() if name.startswith("TRACE_SECRET")]


def test_trace_up_refuses_one_that_is_nobodys(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACE_SECRET_KEY", "open sesame")
    ended = trace("up")
    assert (ended.status, "TRACE_SECRET_KEY is no TRACE_SECRET_<ORG>__<NAME>" in ended.err) == (1, True)
    assert "sesame" not in ended.err


def test_the_order_and_what_is_left_of_it(trace: Trace, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.make()
    for name in ("FILE", "UP", "OWN"):
        trace("secrets", "set", name, stdin=b"of the file")
    monkeypatch.setenv("TRACE_SECRET_DEFAULT__UP", "of trace up")
    monkeypatch.setenv("TRACE_SECRET_DEFAULT__OWN", "of trace up")
    job_secrets.keep_environment(home)
    assert home.secrets_environment_file.stat().st_mode & 0o777 == 0o600
    monkeypatch.delenv("TRACE_SECRET_DEFAULT__UP")
    monkeypatch.setenv("TRACE_SECRET_DEFAULT__OWN", "of the worker")
    assert fetch(home, "FILE", "UP", "OWN") == {"FILE": "of the file", "UP": "of trace up", "OWN": "of the worker"}
    assert "TRACE_SECRET_DEFAULT__OWN" not in os.environ, "what a worker starts does not inherit it"
    assert fetch(home, "OWN") == {"OWN": "of the worker"}, "and it is not forgotten"
    with pytest.raises(SecretMissingError):
        fetch(home, "UP", org="other")
    assert redaction.scrub("it is of trace up") == "it is [secret]", "known to the log before anybody has it"
    job_secrets.forget_environment(home)
    assert fetch(home, "UP") == {"UP": "of the file"}


def test_prints_go_through_the_same_filter(capsys: pytest.CaptureFixture[str], home: Home) -> None:
    before = sys.stdout, sys.stderr
    try:
        logs.clean_prints()
        redaction.HIDDEN.add(["open sesame"])
        print("with open sesame", file=sys.stderr)
        print("open sesame")
        sys.stdout.writelines(["open sesame\n"])
        sys.stdout.flush()
    finally:
        sys.stdout, sys.stderr = before
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("[secret]\n[secret]\n", "with [secret]\n")


# --- the command


def test_set_list_and_remove(trace: Trace, home: Home) -> None:
    assert trace("secrets", "list").out == "There are no secrets.\nset one: trace secrets set NAME\n"
    assert not home.root.exists(), "looking makes nothing"
    ended = trace("secrets", "set", "KEY", stdin=b"open sesame\n")
    assert (ended.status, ended.out.split(".")[0], ended.err) == (0, "Set KEY of default", "")
    assert trace("secrets", "set", "KEY", "--org", "acme", stdin=b"other\r\n").status == 0
    assert trace("secrets", "set", "KEY", stdin=b"new\n\n").out.startswith("Replaced KEY of default.")
    assert (fetch(home, "KEY"), fetch(home, "KEY", org="acme")) == ({"KEY": "new\n"}, {"KEY": "other"})
    assert home.secrets_file.stat().st_mode & 0o777 == 0o600
    assert home.root.stat().st_mode & 0o777 == 0o700
    assert trace("secrets", "list").out == "org      name  from\nacme     KEY   file\ndefault  KEY   file\n"
    assert json.loads(trace("secrets", "list", "--org", "acme", "--json").out) == [
        {"org": "acme", "name": "KEY", "from": "file"}
    ]
    home.make()  # the first start takes such a home
    assert trace("secrets", "remove", "KEY").status == 0
    ended = trace("secrets", "remove", "KEY")
    assert (ended.status, "default has no secret KEY" in ended.err) == (1, True)
    with pytest.raises(SecretMissingError):
        fetch(home, "KEY")
    assert fetch(home, "KEY", org="acme") == {"KEY": "other"}


def test_what_comes_from_the_environment_is_listed_and_comes_first(
    trace: Trace, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.make()
    monkeypatch.setenv("TRACE_SECRET_DEFAULT__KEY", "open sesame")
    job_secrets.keep_environment(home)
    assert "It has no effect yet: " in trace("secrets", "set", "KEY", stdin=b"of the file").out
    assert json.loads(trace("secrets", "list", "--json").out) == [
        {"org": "default", "name": "KEY", "from": "environment"}
    ]


def test_a_value_is_no_argument(trace: Trace) -> None:
    assert trace("secrets", "set", "KEY", "open sesame").status == 2


@pytest.mark.parametrize("arguments", [("1KEY",), ("a b",), ("KEY", "--org", "Acme"), ("KEY", "--org", "")])
def test_names_that_no_job_could_have(trace: Trace, home: Home, arguments: tuple[str, ...]) -> None:
    for verb in ("set", "remove"):
        assert trace("secrets", verb, *arguments, stdin=b"x").status == 2
    assert not home.root.exists()


@pytest.mark.parametrize("value", [b"", b"\n", b"\xff\xfe", b"x" * (64 * 1024 + 1)])
def test_values_that_are_none(trace: Trace, home: Home, value: bytes) -> None:
    assert trace("secrets", "set", "KEY", stdin=value).status == 1
    assert not home.secrets_file.exists()


def test_a_file_that_others_may_read(trace: Trace, home: Home) -> None:
    trace("secrets", "set", "KEY", stdin=b"open sesame")
    home.secrets_file.chmod(0o640)
    for arguments in (("list",), ("set", "KEY"), ("remove", "KEY")):
        ended = trace("secrets", *arguments, stdin=b"x")
        assert (ended.status, f"`chmod 600 {home.secrets_file}`" in ended.err) == (1, True)


def test_what_stands_in_no_table_is_pointed_at(trace: Trace, home: Home) -> None:
    trace("secrets", "set", "KEY", stdin=b"open sesame")
    home.secrets_file.write_text('STRAY = "open sesame"\n' + home.secrets_file.read_text())
    ended = trace("secrets", "list")
    assert (ended.status, "STRAY is in no org's table, so no job gets it" in ended.err) == (0, True)
    assert "sesame" not in ended.out + ended.err


def test_on_a_terminal_it_is_asked_for_and_not_shown(home: Home) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "tracelake", "secrets", "set", "KEY", "--home", str(home.root)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    try:
        for question in (b"Value of KEY: ", b"Repeat for confirmation: "):
            while not shown.endswith(question):
                shown += os.read(ours, 1000)
            os.write(ours, b"open sesame\n")
        assert process.wait(timeout=30) == 0
        while b"Set KEY" not in shown:
            shown += os.read(ours, 1000)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"sesame" not in shown
    assert fetch(home, "KEY") == {"KEY": "open sesame"}

"""Credentials go on being renewed whatever a round meets, and people hear of it."""

import asyncio
from pathlib import Path

import pytest

from tracelake.cli import status
from tracelake.cli.stack_screen import PlainScreen
from tracelake.processes.up import Up
from tracelake.settings import Settings
from tracelake.settings.home import Home
from tracelake.stack import lock
from tracelake.stack.renewal import RENEW_SECONDS, CredentialRenewal, RenewalState, read_renewal
from tracelake.stack.supervisor import PartState, PartView


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.make()
    return home


class Rounds:
    """What each round does: raise, or nothing. The loop is over with the last one."""

    def __init__(self, *errors: Exception | None) -> None:
        self._errors = list(errors)
        self.pauses: list[float] = []

    def renew(self) -> None:
        error = self._errors.pop(0)
        if error is not None:
            raise error

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if not self._errors:
            raise asyncio.CancelledError


def run(renewing: CredentialRenewal, rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracelake.stack.renewal._sleep", rounds.pause)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(renewing.run())


def test_a_failure_is_repeated_until_it_succeeds(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = [PermissionError(13, "Permission denied"), ValueError("key 123"), *(OSError() for _ in range(9))]
    rounds, told = Rounds(*failed, None), list[str]()
    run(CredentialRenewal(home, rounds.renew, on_failure=told.append), rounds, monkeypatch)
    assert rounds.pauses[0] == rounds.pauses[-1] == RENEW_SECONDS
    retries = rounds.pauses[1:-1]
    assert retries[0] < 120, "the first one soon"
    assert all(60 <= pause <= 3600 for pause in retries), "and never long after"
    assert len(told) == 1, "people are told once"
    assert "Permission denied" in told[0]
    assert read_renewal(home.renewal_file).failures == 0


def test_status_tells_of_a_failure(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = Rounds(ValueError("-----BEGIN PRIVATE KEY"))
    run(CredentialRenewal(home, rounds.renew, on_failure=lambda _: None), rounds, monkeypatch)
    monkeypatch.setattr(lock, "holder", lambda _: 4242)
    assert status.show_status(home, json=False) == status.EXIT_NOT_READY
    shown = capsys.readouterr().out
    assert "WARNING: The certificate and the admin token could not be renewed" in shown
    assert "PRIVATE KEY" not in shown
    assert status.read_status(home).to_json()["renewal"]["failures"] == 1


def test_without_a_supervisor_nothing_has_failed(home: Home) -> None:
    assert read_renewal(home.renewal_file) == RenewalState()
    home.renewal_file.write_text("not JSON")
    assert read_renewal(home.renewal_file) == RenewalState()


def test_a_new_certificate_ends_the_dispatcher_that_serves_the_old_one(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr("tracelake.processes.up.os.kill", lambda pid, _: ended.append(pid))
    up = Up(Settings.load({"home": home.root}, environ={}), PlainScreen())
    up._renew_credentials()
    assert ended == [], "none runs"
    up._views["dispatcher"] = PartView("dispatcher", PartState.RUNNING, 77, 0, 0.0)
    up._renew_credentials()
    up._renew_credentials()
    assert ended == [77], "once for each certificate"

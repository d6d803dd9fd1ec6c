"""The `trace` command in this process, against a stand-in for the public listener."""

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.cli.fake_api import FakeApi, running
from tests.cli.samples import NOW
from tests.client.scripted_server import Certificates, make_certificates
from tracelake.cli import session, text
from tracelake.processes.main import main


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str


class Trace(Protocol):
    def __call__(self, *arguments: str, columns: int | None = None, stdin: bytes = b"") -> Ended: ...


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(Path(tmp_path_factory.mktemp("tls")))


@pytest.fixture
def api(certificates: Certificates, tmp_path: Path) -> Iterator[FakeApi]:
    with running(tmp_path, certificates) as fake:
        yield fake


@pytest.fixture
def trace(api: FakeApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    monkeypatch.setenv("TRACE_HOME", str(api.home))
    return run_trace(monkeypatch, capsys)


def run_trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    """Runs a command as `main` does; `columns` is the width of the terminal."""
    for variable in ("TRACE_TOKEN", "COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(session, "EVERY_SECONDS", 0.0)
    monkeypatch.setattr(text, "current_time", lambda: NOW)

    def run(*arguments: str, columns: int | None = None, stdin: bytes = b"") -> Ended:
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        shown = capsys.readouterr()
        return Ended(int(ended.value.code or 0), shown.out, shown.err)

    return run

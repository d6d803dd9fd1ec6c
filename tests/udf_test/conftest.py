"""The command, without a stack and without an API."""

import pytest

from tests.cli.conftest import Trace, run_trace


@pytest.fixture
def trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Trace:
    monkeypatch.setenv("TRACE_HOME", str(tmp_path_factory.mktemp("home") / "none"))
    return run_trace(monkeypatch, capsys)

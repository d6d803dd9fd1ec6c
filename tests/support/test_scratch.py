"""Where the temporary files of a run go, and that nothing of it stays."""

import fcntl
import os
import tempfile
from pathlib import Path

import pytest

from tests.support import scratch


@pytest.fixture(autouse=True)
def _own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(scratch, "ENOUGH_BYTES", 1)


def test_temporary_files_are_below_and_go_with_the_run(tmp_path: Path) -> None:
    with scratch.in_memory(tmp_path) as directory:
        assert directory is not None
        assert os.environ["TMPDIR"] == tempfile.gettempdir() == str(directory)
        Path(tempfile.mkdtemp(), "file").write_text("text")
    assert not list(tmp_path.iterdir())
    assert "TMPDIR" not in os.environ


def test_a_chosen_directory_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with scratch.in_memory(tmp_path) as directory:
        assert directory is None
        assert os.environ["TMPDIR"] == str(tmp_path)


def test_without_room_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not scratch.has_room(tmp_path / "missing", available_bytes=1)
    assert not scratch.has_room(tmp_path, available_bytes=0)
    monkeypatch.setattr(scratch, "ENOUGH_BYTES", 1 << 62)
    with scratch.in_memory(tmp_path) as directory:
        assert directory is None
    assert not list(tmp_path.iterdir())


def test_the_next_run_removes_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    left, live, strange = (tmp_path / name for name in ("trace-tests-left", "trace-tests-live", "strange"))
    for directory in (left, live, strange):
        directory.mkdir()
        (directory / "in-use").touch()
    with (live / "in-use").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        scratch.remove_abandoned(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["strange", "trace-tests-live"]

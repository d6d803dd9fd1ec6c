"""Java uses the archive of Spark's classes where there is one, and starts without it otherwise."""

import subprocess
from pathlib import Path

import pytest

from tracelake.spark.java import find_java


def test_without_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert find_java(tmp_path).archive_options() == []


def test_an_archive_that_does_not_fit_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path / "with space"))
    java = find_java(tmp_path)
    java.class_archive.parent.mkdir(parents=True)
    java.class_archive.write_bytes(b"something else")
    options = [option.replace('"', "") for option in java.archive_options()]
    assert options[0] == f"-XX:SharedArchiveFile={java.class_archive}"
    ended = subprocess.run([java.program, *options, "-version"], capture_output=True, text=True, check=True)
    assert "archive" not in ended.stdout + ended.stderr

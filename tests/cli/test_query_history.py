"""The history of the prompt: private, bounded, shared by prompts, and never a reason to fail."""

import stat
from pathlib import Path

import pytest

from tracelake.cli import query_history
from tracelake.cli.query_history import BoundedHistory, history_file


def test_entries_are_kept_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trace" / "history"
    one, two = BoundedHistory(path), BoundedHistory(path)
    one.store_string("select 1\nas a;")
    two.store_string("select 2;")
    one.store_string("select 2;")
    one.store_string(" select 'private';")
    assert list(two.load_history_strings()) == ["select 2;", "select 1\nas a;"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_others_can_read_is_narrowed(tmp_path: Path) -> None:
    path = tmp_path / "trace" / "history"
    path.parent.mkdir()
    path.write_text('"old"\nnot json\n')
    path.chmod(0o644)
    history = BoundedHistory(path)
    history.store_string("new")
    assert list(history.load_history_strings()) == ["new", "old"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_history, "MAX_ENTRIES", 8)
    monkeypatch.setattr(query_history, "MAX_BYTES", 200)
    path = tmp_path / "trace" / "history"
    history = BoundedHistory(path)
    for number in range(50):
        history.store_string(f"select {number};")
        assert len(list(history.load_history_strings())) <= 8
    assert next(iter(history.load_history_strings())) == "select 49;"
    for number in range(20):
        history.store_string(f"select '{number}{'x' * 60}';")
        assert path.stat().st_size <= 200
    history.store_string("select '" + "y" * 1000 + "';")
    assert path.stat().st_size <= 200
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("a file, not a directory")
    history = BoundedHistory(tmp_path / "trace" / "history")
    history.store_string("select 1;")
    assert list(history.load_history_strings()) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / "trace").mkdir()
    (tmp_path / "trace" / "history").symlink_to(target)
    BoundedHistory(tmp_path / "trace" / "history").store_string("select 1;")
    assert target.read_text() == ""


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert history_file() == Path("/home/ann/.local/state/trace/query_history.jsonl")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert history_file() == Path("/home/ann/.local/state/trace/query_history.jsonl")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert history_file() == Path("/state/trace/query_history.jsonl")

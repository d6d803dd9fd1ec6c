"""HOME: modes, atomic writes, `stack.json`."""

import json
from pathlib import Path

import pytest

from tracelake.client.stack import ObjectStoreAddress
from tracelake.settings.home import Home, LocalStack, write_private


def make_stack(home: Path) -> LocalStack:
    return LocalStack(
        pid=1,
        home=str(home),
        public_url="https://127.0.0.1:1",
        task_url="https://127.0.0.1:2",
        internal_url="https://127.0.0.1:3",
        ca_file="ca.pem",
        worker_token_file="w",
        service_token_file="s",
        admin_token_file="a",
        queue_dsn_file="q",
        data_dsn_file="d",
        object_store=ObjectStoreAddress(endpoint=None, region="us-east-1", buckets={}),
    )


def test_every_directory_is_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make()
    home.logs.chmod(0o755)
    home.make()
    names = {path.name for path in home.root.iterdir()}
    assert names == {"postgres", "tls", "keys", "secrets", "objects", "logs", "run"}
    assert all(path.stat().st_mode & 0o777 == 0o700 for path in [home.root, *home.root.iterdir()])


def test_stack_json_is_private_whole_and_complete(tmp_path: Path) -> None:
    home = Home(tmp_path)
    stack = make_stack(tmp_path)
    home.write_stack(stack)
    assert home.stack_file.stat().st_mode & 0o777 == 0o600
    assert home.read_stack() == stack
    assert list(json.loads(home.stack_file.read_text())) == [
        "version",
        "pid",
        "home",
        "public_url",
        "task_url",
        "internal_url",
        "ca_file",
        "worker_token_file",
        "service_token_file",
        "admin_token_file",
        "queue_dsn_file",
        "data_dsn_file",
        "object_store",
        "query_url",
        "query_task_url",
        "context",
        "token_file",
        "shared_public_url",
        "shared_query_url",
    ]
    home.remove_stack()
    home.remove_stack()
    assert home.read_stack() is None


def test_an_unreadable_stack_json_counts_as_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.stack_file.write_text('{"version": 1')
    assert home.read_stack() is None
    home.stack_file.write_text("{}")
    assert home.read_stack() is None


def test_a_failed_write_leaves_the_old_text_and_no_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "secret"
    write_private(target, "old")

    def fail(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("tracelake.private_files.os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        write_private(target, "new")
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    assert target.read_text() == "old"


def test_an_existing_wide_open_file_becomes_private(tmp_path: Path) -> None:
    target = tmp_path / "secret"
    target.write_text("old")
    target.chmod(0o644)
    write_private(target, b"new")
    assert target.stat().st_mode & 0o777 == 0o600
    assert target.read_bytes() == b"new"

"""The SecretProvider of one machine: its file is the owner's alone, changed whole, read anew, and never quoted."""

import asyncio
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.secrets_suite import KEPT, Kept, SecretProviderSuite
from tracelake.adapters.secret_file import (
    LiteSecrets,
    SecretFileError,
    read_tables,
    remove_secret,
    set_secret,
    stray_names,
)
from tracelake.errors import SecretMissingError, SecretsUnavailableError
from tracelake.ports import SecretProvider


def keep(path: Path, kept: Kept) -> None:
    for org, table in kept.items():
        for name, value in table.items():
            set_secret(path, org, name, value)


class TestFile(SecretProviderSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[Kept], SecretProvider]:
        def make(kept: Kept) -> SecretProvider:
            keep(tmp_path / "secrets.toml", kept)
            return LiteSecrets(tmp_path / "secrets.toml")

        return make


class TestEnvironment(SecretProviderSuite):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[Kept], SecretProvider]:
        return lambda kept: LiteSecrets(tmp_path / "secrets.toml", lambda: kept)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "secrets.toml"


def fetch(path: Path, name: str = "KEY", org: str = "acme") -> str:
    return asyncio.run(LiteSecrets(path).fetch(org, [name]))[name]


def test_the_environment_comes_before_the_file(path: Path) -> None:
    keep(path, {"acme": {"KEY": "of the file", "ONLY": "in the file"}})
    provider = LiteSecrets(path, lambda: {"acme": {"KEY": "of the environment"}})
    found = asyncio.run(provider.fetch("acme", ["KEY", "ONLY"]))
    assert found == {"KEY": "of the environment", "ONLY": "in the file"}


def test_a_change_counts_at_once(path: Path) -> None:
    provider = LiteSecrets(path)
    with pytest.raises(SecretMissingError, match=r"KEY.*trace secrets set KEY --org acme.*retry"):
        asyncio.run(provider.fetch("acme", ["KEY"]))
    for value in ("one", "two"):
        set_secret(path, "acme", "KEY", value)
        assert asyncio.run(provider.fetch("acme", ["KEY"])) == {"KEY": value}
    assert remove_secret(path, "acme", "KEY")
    with pytest.raises(SecretMissingError):
        asyncio.run(provider.fetch("acme", ["KEY"]))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610, 0o602])
def test_a_file_that_others_may_read_is_not_used(path: Path, mode: int) -> None:
    keep(path, KEPT)
    path.chmod(mode)
    with pytest.raises(SecretsUnavailableError) as refused:
        fetch(path)
    assert refused.value.retryable
    assert "`chmod 600 HOME/secrets.toml`" in str(refused.value)
    assert str(path.parent) not in str(refused.value), "a task's error is read by people of its org"
    with pytest.raises(SecretFileError, match=f"chmod 600 {path}"):
        set_secret(path, "acme", "KEY", "new")
    path.chmod(0o600)
    assert fetch(path) == "acme's key", "the command that was named mends it"


@pytest.mark.parametrize(
    "text",
    [
        "[acme]\nKEY = open sesame\n",
        '[acme]\nKEY = "open sesame\n',
        "[acme]\nKEY = 7\n",
        '[acme]\nKEY = ["open sesame"]\n',
        '[acme]\nKEY = {value = "open sesame"}\n',
        b'[acme]\nKEY = "open sesame\xff"\n',
        '[acme]\nKEY = "open sesame"\nKEY = "open sesame"\n',
    ],
)
def test_a_file_that_cannot_be_understood_is_not_quoted(path: Path, text: str | bytes) -> None:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(0o600)
    with pytest.raises(SecretsUnavailableError) as refused:
        fetch(path)
    assert "sesame" not in str(refused.value)
    assert "secrets.toml" in str(refused.value)


def test_something_else_in_its_place(path: Path) -> None:
    path.mkdir()
    with pytest.raises(SecretsUnavailableError):
        fetch(path)


def test_what_stands_in_no_table_is_nobodys(path: Path) -> None:
    path.write_text('KEY = "nobody\'s"\n[acme]\nOTHER = "x"\n')
    path.chmod(0o600)
    for org in ("acme", "", "KEY"):
        with pytest.raises(SecretMissingError):
            fetch(path, "KEY", org)
    assert stray_names(path) == ["KEY"]
    with pytest.raises(SecretFileError, match="KEY stands in no org's table"):
        set_secret(path, "acme", "NEW", "x")
    assert "nobody's" in path.read_text(), "it was not written over"


def test_a_change_replaces_the_file_whole(path: Path) -> None:
    keep(path, KEPT)
    assert path.stat().st_mode & 0o777 == 0o600
    before, opened = path.stat().st_ino, path.open("rb")
    assert not set_secret(path, "acme", "KEY", "new")
    assert path.stat().st_ino != before
    with opened:
        assert tomllib.load(opened) == KEPT, "whoever reads it now sees the old one whole"
    assert read_tables(path)["other"] == KEPT["other"]
    assert not remove_secret(path, "acme", "NOT_THERE")
    assert [file.name for file in path.parent.iterdir()] == ["secrets.toml"]


def test_changes_at_the_same_time_do_not_undo_each_other(path: Path) -> None:
    def add(number: int) -> None:
        for step in range(5):
            set_secret(path, f"org{number}", f"N{step}", "value")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {org: len(table) for org, table in read_tables(path).items()} == {f"org{n}": 5 for n in range(6)}

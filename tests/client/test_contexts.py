"""Contexts on disk: private, whole or not there, and none lost when several log in at once."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracelake.client.contexts import LOCAL, ContextError, ContextStore, SavedContext, is_context_name
from tracelake.client.stack import CONTEXT_VARIABLE, HOME_VARIABLE, NoStackError, find_stack


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContextStore:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in (CONTEXT_VARIABLE, HOME_VARIABLE):
        monkeypatch.delenv(variable, raising=False)
    return ContextStore.default()


def save(store: ContextStore, name: str, token: str = "secret") -> SavedContext:
    context = SavedContext(name=name, public_url=f"https://{name}:1", ca_file="", token_file="")
    return store.save(context, b"certificate", token)


def modes(directory: Path) -> dict[str, int]:
    return {str(path.relative_to(directory)): path.stat().st_mode & 0o777 for path in directory.rglob("*")}


def test_a_context_is_private_and_found(store: ContextStore, tmp_path: Path) -> None:
    os.umask(os.umask(0))
    saved = save(store, "lab")
    assert store.directory == tmp_path / "config" / "trace"
    found = modes(store.directory) | {".": store.directory.stat().st_mode & 0o777}
    assert {path: mode for path, mode in found.items() if (mode & 0o077)} == {}
    stack = find_stack()
    assert (stack.context, stack.public_url, stack.is_local) == ("lab", "https://lab:1", False)
    assert Path(stack.user_token_file).read_text() == "secret\n"
    assert Path(stack.ca_file).read_bytes() == b"certificate"
    assert store.read("lab") == saved


def test_a_context_without_a_certificate_trusts_the_cas_of_the_machine(store: ContextStore) -> None:
    save(store, "lab")
    context = SavedContext(name="lab", public_url="https://lab:1", ca_file="", token_file="")
    saved = store.save(context, None, "secret")
    assert saved.ca_file == find_stack().ca_file == ""
    assert list(store.directory.rglob("*.pem")) == [], "that of the login before is gone"
    assert Path(find_stack().user_token_file).read_text() == "secret\n"


def test_another_login_replaces_the_old_one_and_leaves_no_token_behind(store: ContextStore) -> None:
    save(store, "lab", "old")
    save(store, "lab", "new")
    texts = [path.read_text() for path in store.directory.rglob("*.token")]
    assert texts == ["new\n"]


def test_logins_at_once_lose_nothing(store: ContextStore) -> None:
    names = [f"lab-{number}" for number in range(12)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda name: save(store, name, name), names + names))
    assert store.names() == sorted(names)
    for name in names:
        assert Path(find_stack(context=name).user_token_file).read_text() == f"{name}\n"
    assert len(list(store.directory.rglob("*.token"))) == len(names)


def test_the_current_context_goes_with_its_removal(store: ContextStore) -> None:
    save(store, "lab")
    save(store, "other")
    assert store.current() == "other"
    store.use("lab")
    store.remove("other")
    assert (store.current(), store.names()) == ("lab", ["lab"])
    store.remove("lab")
    assert store.current() is None
    assert list(store.directory.rglob("*.token")) == []
    for call in (store.use, store.remove, store.read):
        with pytest.raises(ContextError, match="there is no context 'lab'"):
            call("lab")
    store.use(LOCAL)


def test_files_that_cannot_be_read_say_what_to_do(store: ContextStore) -> None:
    save(store, "lab")
    (store.directory / "contexts" / "lab.json").write_text("{")
    with pytest.raises(NoStackError, match="log in again"):
        find_stack()
    save(store, "lab")
    (store.directory / "current").write_bytes(b"\xff")
    with pytest.raises(NoStackError, match="log in again"):
        find_stack()


def test_a_relative_directory_of_settings_is_not_used(
    store: ContextStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    assert ContextStore.default().directory == tmp_path / ".config" / "trace"


@given(st.text(max_size=80))
def test_a_name_is_the_name_of_a_file_below_the_store(name: str) -> None:
    if is_context_name(name):
        assert Path("/contexts", f"{name}.json").parent == Path("/contexts")
        assert name.isascii()
        assert not name.startswith((".", "-"))

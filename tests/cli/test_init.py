"""`trace init`: a whole project or none, never over somebody's files, and the same again after a crash."""

import json
import os
import re
import threading
from pathlib import Path

import msgspec
import pytest
import yaml
from tools.docs import ROOT

from tests.cli.conftest import Trace, run_trace
from tracelake.cli import init_project
from tracelake.cli.init import NOT_EMPTY, ProjectReply
from tracelake.cli.init_project import DAG_FILE, DirectoryInUseError, project_files, write_project
from tracelake.dag import json_schema
from tracelake.doc_pages import find_page
from tracelake.example_files import RECORDED_CHAIN, find_example
from tracelake.settings import Settings
from tracelake.testing import check_document
from tracelake.wire.base import ErrorBody

FILES = {".gitignore", "README.md", DAG_FILE, "dag.schema.json", "test_activity.py"}


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trace:
    """Without a stack."""
    return run_trace(monkeypatch, capsys)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_a_project(trace: Trace, tmp_path: Path) -> None:
    directory = tmp_path / "some" / "project"
    done = trace("init", str(directory))
    assert done.status == 0
    assert set(contents(directory)) == FILES
    assert "trace up --detach --set recorded_chain=example" in done.out
    assert f"trace deploy {DAG_FILE}" in done.out
    check_document(directory / DAG_FILE)


def test_the_chain_may_be_a_setting_of_the_stack(tmp_path: Path) -> None:
    """The line that the README of a project shows, as a stack reads it."""
    write_project(tmp_path / "project")
    for page in (tmp_path / "project/README.md", find_page("first-dag.md")):
        (line,) = re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
        (tmp_path / "settings.toml").write_text(line)
        settings = Settings.load({"home": tmp_path}, environ={})
        assert settings.recorded_chain == find_example(RECORDED_CHAIN), page


def test_this_directory(trace: Trace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".venv").mkdir()
    done = trace("init")
    assert done.status == 0
    assert "cd " not in done.out
    assert set(contents(tmp_path)) == FILES


def test_editors_find_the_schema(tmp_path: Path) -> None:
    write_project(tmp_path)
    first, *_ = (tmp_path / DAG_FILE).read_text().splitlines()
    prefix, _, name = first.partition("$schema=")
    assert prefix == "# yaml-language-server: "
    assert json.loads((tmp_path / name).read_text()) == json_schema()


def test_the_dag_is_short() -> None:
    lines = (ROOT / "examples/first_dag" / DAG_FILE).read_text().splitlines()
    assert len([line for line in lines if line and not line.startswith("#")]) <= 20
    assert yaml.safe_load("\n".join(lines))["name"] == "activity"


def test_for_programs(trace: Trace, tmp_path: Path) -> None:
    reply = msgspec.json.decode(trace("init", str(tmp_path / "p"), "--json").out, type=ProjectReply)
    assert (reply.directory, set(reply.files)) == (str(tmp_path / "p"), FILES)
    assert f"trace deploy {DAG_FILE}" in [step.command for step in reply.next]


@pytest.mark.parametrize("name", ["notes.txt", "README.md", DAG_FILE, ".hidden"])
def test_files_of_others_stay_as_they_are(trace: Trace, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    refused = trace("init", str(tmp_path))
    assert refused.status == 1
    assert f"is not empty: it has {name}" in refused.err
    assert "trace init my_project" in refused.err
    as_json = trace("init", str(tmp_path), "--json")
    assert (as_json.status, msgspec.json.decode(as_json.out, type=ErrorBody).error.code) == (1, NOT_EMPTY)
    assert contents(tmp_path) == {name: b"mine"}


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(project_files()[DAG_FILE])
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / DAG_FILE).symlink_to(target)
    with pytest.raises(DirectoryInUseError, match=DAG_FILE):
        write_project(directory)


@pytest.mark.parametrize("make", [Path.touch, lambda path: path.symlink_to("nowhere")], ids=["file", "dangling link"])
def test_what_is_no_directory_is_refused(trace: Trace, tmp_path: Path, make: object) -> None:
    path = tmp_path / "project"
    assert callable(make)
    make(path)
    refused = trace("init", str(path))
    assert refused.status == 1
    assert "is not a directory" in refused.err


def test_the_same_again_changes_nothing(trace: Trace, tmp_path: Path) -> None:
    assert trace("init", str(tmp_path)).status == 0
    inodes = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    assert trace("init", str(tmp_path)).status == 0
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == inodes


@pytest.mark.parametrize("files", range(len(FILES)))
def test_a_crash_leaves_no_dag_and_the_next_run_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    place, calls = init_project._place, 0

    class CrashError(BaseException):
        pass

    def crash(path: Path, content: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls > files:
            (path.parent / ".trace-init-0").write_bytes(content[:10])  # as a kill leaves it
            raise CrashError
        place(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(init_project, "_place", crash)
        with pytest.raises(CrashError):
            write_project(tmp_path)
    assert not (tmp_path / DAG_FILE).exists()
    write_project(tmp_path)
    assert set(contents(tmp_path)) >= FILES
    assert all(contents(tmp_path)[name] == content for name, content in project_files().items())


def test_several_at_once_write_one_project(tmp_path: Path) -> None:
    directory = tmp_path / "project"
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def write() -> None:
        barrier.wait()
        try:
            write_project(directory)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert contents(directory) == project_files()


def test_a_file_that_comes_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = init_project._check_free

    def check_then_lose(directory: Path, files: dict[str, bytes]) -> None:
        check(directory, files)
        (tmp_path / DAG_FILE).write_text("mine")

    monkeypatch.setattr(init_project, "_check_free", check_then_lose)
    with pytest.raises(DirectoryInUseError, match=DAG_FILE):
        write_project(tmp_path)
    assert (tmp_path / DAG_FILE).read_text() == "mine"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written(trace: Trace, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "Permission denied" in trace("init", str(tmp_path / "project")).err

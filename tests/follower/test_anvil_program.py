"""When tests of a real node are left out, and when they fail: `tests.follower.anvil`."""

from pathlib import Path

import pytest

from tests.follower.anvil import find_anvil

PROGRAM = "node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory of the PATH, without anvil."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.delenv("TRACE_ANVIL", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    return folder


def make_npm(tools: Path, script: str) -> None:
    npm = tools / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)


def test_without_npm_the_tests_are_left_out(tools: Path, tmp_path: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="no npm to install it with"):
        find_anvil(tmp_path)


def test_what_npm_installs_is_used(tools: Path, tmp_path: Path) -> None:
    program = tmp_path / PROGRAM
    program.parent.mkdir(parents=True)
    program.touch()
    make_npm(tools, "exit 0")
    assert find_anvil(tmp_path) == program


@pytest.mark.parametrize("code", ["ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "E403", "E503"])
def test_a_failed_download_is_the_reason_of_the_skip(code: str, tools: Path, tmp_path: Path) -> None:
    make_npm(tools, f"echo 'npm error code {code}' >&2; exit 1")
    with pytest.raises(pytest.skip.Exception, match=f"could not download @foundry-rs/anvil.*: {code}"):
        find_anvil(tmp_path)


@pytest.mark.parametrize("script", ["echo 'npm error code ENOSPC' >&2; exit 1", "echo 'no such option'; exit 2"])
def test_another_error_of_npm_is_a_failure(script: str, tools: Path, tmp_path: Path) -> None:
    make_npm(tools, script)
    with pytest.raises(pytest.fail.Exception, match="could not install"):
        find_anvil(tmp_path)


def test_a_package_without_a_program_is_a_failure(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_npm(tools, "exit 0")
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(AssertionError, match="has no program"):
        find_anvil(tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(pytest.skip.Exception, match="no program for this machine"):
        find_anvil(tmp_path)

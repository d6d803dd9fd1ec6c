"""The SDK for Rust as it is shipped: the source in the package, and the program that was built from it."""

import hashlib
import json
import lzma
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from tools.rust_bootstrap import PROGRAMS, SDK_PROGRAM, RustProgram

from tests.sdk.vectors import DIRECTORY
from tests.support.rust_program import write_rust_program
from tracelake.runner.rust_sdk_files import RUST_SDK, VENDOR, read_rust_sdk

BUILD_HINT = "run `python -m tools.rust_bootstrap`, and commit what it writes"


def test_the_program_is_built_from_these_sources(tmp_path: Path) -> None:
    program = write_rust_program(tmp_path)
    ended = subprocess.run([str(program), "sources"], env={}, capture_output=True, text=True, timeout=60)
    assert ended.stdout.strip() == SDK_PROGRAM.hash_sources(), BUILD_HINT


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_the_provenance_is_that_of_the_program(program: RustProgram) -> None:
    provenance = json.loads(program.provenance.read_text())
    assert provenance["sources_sha256"] == program.hash_sources(), BUILD_HINT
    content = lzma.decompress(program.archive.read_bytes())
    assert provenance["program_sha256"] == hashlib.sha256(content).hexdigest()
    assert b"/home/" not in content
    assert b"/root/" not in content, "names of the machine that built it"


def test_a_project_gets_what_building_takes() -> None:
    files = read_rust_sdk()
    modules = {path.name for path in (RUST_SDK / "src").iterdir()}
    assert set(files) == {"Cargo.toml", "LICENSE", "README.md", *(f"src/{name}" for name in modules)}
    manifest = tomllib.loads(files["Cargo.toml"])
    assert (manifest["package"]["name"], manifest["package"]["license"]) == ("tracelake-sdk", "Apache-2.0")
    assert {path.name for path in RUST_SDK.parent.iterdir()} >= {"rust_sdk", "rust_sdk_files.py"}


PROJECT = f"""[package]
name = "function"
version = "0.1.0"
edition = "2021"

[[bin]]
name = "bootstrap"
path = "main.rs"

[dependencies]
tracelake-sdk = {{ path = "{VENDOR}", default-features = false }}
"""
MAIN = """use tracelake_sdk::{run, Error, FunctionTask};

fn handle(task: &FunctionTask) -> Result<(), Error> {
    let sum: i64 = task.inputs.iter().filter_map(|input| input.unit.end).sum();
    task.log(&format!("up to {sum}"));
    Ok(())
}

fn main() {
    run(handle)
}
"""


@pytest.mark.system
def test_the_sources_build_and_pass_the_vectors(tmp_path: Path) -> None:
    """As in a clone (`cargo test`), and as in a project of a user, without TLS."""
    if shutil.which("cargo") is None:
        pytest.skip("there is no cargo")
    fetched = subprocess.run(["cargo", "fetch", "--locked"], cwd=RUST_SDK, capture_output=True, timeout=300)
    if fetched.returncode != 0:
        pytest.skip("cargo cannot fetch the crates that the lock file names")
    project = tmp_path / "function"
    for name, content in read_rust_sdk().items():
        (project / VENDOR / name).parent.mkdir(parents=True, exist_ok=True)
        (project / VENDOR / name).write_text(content)
    (project / "Cargo.toml").write_text(PROJECT)
    (project / "main.rs").write_text(MAIN)
    shutil.copy(RUST_SDK / "Cargo.lock", project)
    environment = {"CARGO_TARGET_DIR": str(tmp_path / "target"), "TRACE_SDK_VECTORS": str(DIRECTORY)}
    for command, place in (["test", "--locked"], RUST_SDK), (["build", "--offline"], project):
        ended = subprocess.run(
            ["env", *(f"{name}={value}" for name, value in environment.items()), "cargo", *command],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=580,
        )
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    assert (tmp_path / "target/debug/bootstrap").exists()

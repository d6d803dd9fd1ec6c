"""The function in Rust that tests run: prebuilt for x86_64, and built from source elsewhere."""

import lzma
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest
from tools.rust_bootstrap import SDK_PROGRAM


@cache
def rust_program() -> bytes:
    """The program `bootstrap`; skips the test on a machine that can neither run nor build it."""
    if platform.machine() == "x86_64":
        return lzma.decompress(SDK_PROGRAM.archive.read_bytes())
    if shutil.which("cargo") is None:
        pytest.skip(f"the prebuilt program is for x86_64, and there is no cargo to build one for {platform.machine()}")
    try:
        with tempfile.TemporaryDirectory() as directory:
            return SDK_PROGRAM.build(Path(directory)).read_bytes()
    except subprocess.CalledProcessError:
        pytest.skip("cargo cannot build the program: its crates need a registry")


def write_rust_program(directory: Path) -> Path:
    path = directory / "bootstrap"
    path.write_bytes(rust_program())
    path.chmod(0o755)
    return path

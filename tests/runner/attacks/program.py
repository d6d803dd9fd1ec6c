"""The hostile function in Rust: its prebuilt program for x86_64, and how it is built from the source beside it.

`python -m tests.runner.attacks.program` builds it again. The program holds the SHA-256 of its source.
"""

import hashlib
import lzma
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("attack.rs")
PROGRAM = Path(__file__).with_name("attack-x86_64.xz")
_OPTIONS = ("opt-level=z", "panic=abort", "strip=symbols", "lto", "codegen-units=1", "target-feature=+crt-static")


def source_hash() -> str:
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


def is_buildable() -> bool:
    return platform.machine() == "x86_64" and shutil.which("rustc") is not None


def build(*options: str) -> bytes:
    """The program, by this machine's Rust."""
    with tempfile.TemporaryDirectory() as directory:
        target = Path(directory, "attack")
        flags = [flag for option in options for flag in ("-C", option)]
        command = ["rustc", "--edition", "2021", "--deny", "warnings", *flags, "-o", str(target), str(SOURCE)]
        subprocess.run(command, check=True, cwd=directory, env=os.environ | {"ATTACK_SOURCE": source_hash()})
        return target.read_bytes()


def unpack_program() -> bytes:
    """As it is shipped."""
    return lzma.decompress(PROGRAM.read_bytes())


@cache
def read_program() -> bytes:
    """The shipped program; built anew where that is of an older source, and there is a Rust."""
    program = unpack_program()
    if source_hash().encode() not in program and is_buildable():
        return build("target-feature=+crt-static")
    return program


def main() -> None:
    PROGRAM.write_bytes(lzma.compress(build(*_OPTIONS), preset=9 | lzma.PRESET_EXTREME))


if __name__ == "__main__":
    main()

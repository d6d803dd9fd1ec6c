"""Builds sdk/rust/bootstrap-x86_64.xz, the SDK for Rust as a program: `python -m tools.rust_bootstrap` (needs cargo).

Tests run it in sandboxes and on the recorded vectors, on machines without cargo too. It is linked statically with
glibc, so that it runs on every Linux, and contains the SHA-256 of its sources: a test compares it with those in the
tree.
"""

import hashlib
import json
import lzma
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CRATE = ROOT / "src/tracelake/runner/rust_sdk"
PROGRAM = ROOT / "sdk/rust/bootstrap-x86_64.xz"
PROVENANCE = ROOT / "sdk/rust/provenance.json"
TARGET = f"{platform.machine()}-unknown-linux-gnu"
BUILD = ("cargo", "build", "--locked", "--release", "--example", "bootstrap", "--target", TARGET)
FLAGS = ("-C", "target-feature=+crt-static", "-C", "relocation-model=static")


def hash_sources() -> str:
    """The SHA-256 of the names and contents of all files that the program is made of."""
    files = [CRATE / "Cargo.toml", CRATE / "Cargo.lock", *CRATE.glob("src/**/*.rs"), *CRATE.glob("examples/**/*.rs")]
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(CRATE).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def build(target_directory: Path) -> Path:
    """Builds the program from source; raises CalledProcessError if cargo cannot."""
    cargo_home = os.environ.get("CARGO_HOME") or str(Path.home() / ".cargo")
    # The program names no directory of the machine that built it.
    remaps = [f"--remap-path-prefix={place}={name}" for place, name in ((cargo_home, "/cargo"), (str(CRATE), "/sdk"))]
    environment = os.environ | {
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join((*FLAGS, *remaps)),
        "CARGO_TARGET_DIR": str(target_directory),
        "TRACE_SDK_SOURCES": hash_sources(),
    }
    subprocess.run(BUILD, cwd=CRATE, env=environment, check=True)
    return target_directory / TARGET / "release/examples/bootstrap"


def compress(program: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    return lzma.compress(program, lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=filters)


def main() -> None:
    if platform.machine() != "x86_64":
        sys.exit(f"expected a machine with x86_64, since the program is for it; this one has {platform.machine()}")
    program = build(ROOT / ".cargo-target").read_bytes()
    packed = compress(program)
    PROGRAM.write_bytes(packed)
    version = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    provenance = {
        "command": "python -m tools.rust_bootstrap",
        "compiler": version,
        "flags": " ".join(FLAGS),
        "target": TARGET,
        "sources_sha256": hash_sources(),
        "program_sha256": hashlib.sha256(program).hexdigest(),
        "program_bytes": len(program),
        "archive_bytes": len(packed),
    }
    PROVENANCE.write_text(json.dumps(provenance, indent=2) + "\n")
    sys.stdout.write(PROVENANCE.read_text())


if __name__ == "__main__":
    main()

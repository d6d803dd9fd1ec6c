"""Builds the programs in Rust that are in the repository: `python -m tools.rust_bootstrap` (needs cargo).

One is the SDK as a program: tests run it in sandboxes and on the recorded vectors. The other is the function of
`trace demo`. Both are there so that no machine needs cargo. They are linked statically with glibc, so that they run on
every Linux. `provenance.json` beside a program has the SHA-256 of its sources: a test compares it with the tree.
"""

import hashlib
import json
import lzma
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = f"{platform.machine()}-unknown-linux-gnu"
FLAGS = ("-C", "target-feature=+crt-static", "-C", "relocation-model=static")


@dataclass(frozen=True, slots=True)
class RustProgram:
    crate: Path
    directory: Path
    """Where the program and its provenance are."""
    arguments: tuple[str, ...]
    """Of `cargo build`."""
    result: str
    """The built file, below the directory of the target."""
    sources: tuple[Path, ...]
    """Directories whose manifests and sources it is made of."""

    @property
    def archive(self) -> Path:
        return self.directory / "bootstrap-x86_64.xz"

    @property
    def provenance(self) -> Path:
        return self.directory / "provenance.json"

    def hash_sources(self) -> str:
        """The SHA-256 of the names and contents of all files that the program is made of."""
        digest = hashlib.sha256()
        for crate in self.sources:
            files = [crate / "Cargo.toml", crate / "Cargo.lock", *crate.glob("src/**/*.rs")]
            if crate == self.crate:
                files += crate.glob("examples/**/*.rs")
            for path in sorted(files):
                content = path.read_bytes()
                digest.update(f"{path.relative_to(crate).as_posix()} {len(content)}\n".encode() + content)
        return digest.hexdigest()

    def build(self, target_directory: Path) -> Path:
        """Builds the program from source; raises CalledProcessError if cargo cannot."""
        cargo_home = os.environ.get("CARGO_HOME") or str(Path.home() / ".cargo")
        # The program names no directory of the machine that built it.
        places = ((cargo_home, "/cargo"), (str(_SDK), "/sdk"), (str(self.crate), "/crate"))
        remaps = [f"--remap-path-prefix={place}={name}" for place, name in places]
        environment = os.environ | {
            "CARGO_ENCODED_RUSTFLAGS": "\x1f".join((*FLAGS, *remaps)),
            "CARGO_TARGET_DIR": str(target_directory),
            "TRACE_SDK_SOURCES": self.hash_sources(),
        }
        command = ("cargo", "build", "--locked", "--release", "--target", TARGET, *self.arguments)
        subprocess.run(command, cwd=self.crate, env=environment, check=True)
        return target_directory / TARGET / "release" / self.result

    def write(self, target_directory: Path) -> None:
        """Builds the program anew, and writes it and its provenance."""
        program = self.build(target_directory).read_bytes()
        packed = compress(program)
        self.archive.write_bytes(packed)
        version = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip()
        provenance = {
            "command": "python -m tools.rust_bootstrap",
            "compiler": version,
            "flags": " ".join(FLAGS),
            "target": TARGET,
            "sources_sha256": self.hash_sources(),
            "program_sha256": hashlib.sha256(program).hexdigest(),
            "program_bytes": len(program),
            "archive_bytes": len(packed),
        }
        self.provenance.write_text(json.dumps(provenance, indent=2) + "\n")
        sys.stdout.write(self.provenance.read_text())


_SDK = ROOT / "src/tracelake/runner/rust_sdk"
_EXAMPLE = ROOT / "examples/token_flows/functions/rust"
SDK_PROGRAM = RustProgram(
    _SDK, ROOT / "sdk/rust", ("--example", "bootstrap"), result="examples/bootstrap", sources=(_SDK,)
)
DEMO_PROGRAM = RustProgram(_EXAMPLE, _EXAMPLE, (), result="bootstrap", sources=(_EXAMPLE, _SDK))
PROGRAMS = {"sdk": SDK_PROGRAM, "demo": DEMO_PROGRAM}


def compress(program: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_X86}, {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    return lzma.compress(program, lzma.FORMAT_XZ, check=lzma.CHECK_CRC32, filters=filters)


def main(names: list[str]) -> None:
    """Builds the named programs, by default all of them."""
    if platform.machine() != "x86_64":
        sys.exit(f"expected a machine with x86_64, since the programs are for it; this one has {platform.machine()}")
    if unknown := set(names) - set(PROGRAMS):
        sys.exit(f"expected any of {', '.join(PROGRAMS)}, received {', '.join(sorted(unknown))}")
    for name in names or PROGRAMS:
        PROGRAMS[name].write(ROOT / ".cargo-target")


if __name__ == "__main__":
    main(sys.argv[1:])

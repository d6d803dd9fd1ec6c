"""The SDK for Rust as a project has it. A user has this package and no repository, so the crate's source is in it.

A copy below `vendor/tracelake-sdk` makes a project independent of where Python is installed, and of a registry of
crates that would have to have the version of this platform.
"""

from pathlib import Path

RUST_SDK = Path(__file__).with_name("rust_sdk")
VENDOR = "vendor/tracelake-sdk"
"""Where a project keeps its copy."""


def read_rust_sdk() -> dict[str, str]:
    """The files of the crate that building it takes, by their names below its directory."""
    names = ["Cargo.toml", "LICENSE", "README.md"]
    sources = sorted(path.relative_to(RUST_SDK).as_posix() for path in RUST_SDK.glob("src/*.rs"))
    return {name: (RUST_SDK / name).read_text(encoding="utf-8") for name in [*names, *sources]}

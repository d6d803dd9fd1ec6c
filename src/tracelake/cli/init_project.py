"""The files of a new project, and how they get into its directory.

Each file appears as a whole, and the DAG comes last: a crash leaves a directory without a DAG, and the same command
again completes it. So does a second one at the same time. Nothing that somebody else has written is changed.
"""

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from tracelake.dag.json_schema import json_schema_text
from tracelake.example_files import find_example

DAG_FILE = "activity.yaml"
_EXAMPLE = "first_dag"
_FILES = {"README.md": "README.md", ".gitignore": "gitignore", "test_activity.py": "test_activity.py"}
"""By name in the project, the file of the example."""
_BESIDE = frozenset({".git", ".venv"})
"""What a new directory may have before it has a project."""
_UNFINISHED = ".trace-init-"
"""What the names of files begin with that a crash left before they were whole."""


class DirectoryInUseError(Exception):
    """The directory holds something else; the message names it."""


def project_files() -> dict[str, bytes]:
    """By name, in the order in which they are written."""
    example = find_example(_EXAMPLE)
    files = {name: (example / source).read_bytes() for name, source in _FILES.items()}
    files["dag.schema.json"] = json_schema_text().encode()
    files[DAG_FILE] = (example / DAG_FILE).read_bytes()
    return files


def write_project(directory: Path) -> list[str]:
    """Writes the project into a directory that is new or empty, and returns the names of its files."""
    files = project_files()
    _check_free(directory, files)
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        _place(directory / name, content)
    return list(files)


def _check_free(directory: Path, files: Mapping[str, bytes]) -> None:
    if not directory.exists() and not directory.is_symlink():
        return
    if not directory.is_dir():
        raise DirectoryInUseError(f"{directory} is not a directory")
    for entry in sorted(directory.iterdir()):
        if entry.name in _BESIDE or entry.name.startswith(_UNFINISHED):
            continue
        if not _is_same(entry, files.get(entry.name)):
            raise DirectoryInUseError(f"{directory} is not empty: it has {entry.name}")


def _is_same(path: Path, content: bytes | None) -> bool:
    """Whether an earlier `trace init` left it there, and nobody has changed it."""
    if content is None or path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size == len(content) and path.read_bytes() == content


def _place(path: Path, content: bytes) -> None:
    """The file is there as a whole or not at all; one that is there already stays."""
    unfinished = path.with_name(_UNFINISHED + secrets.token_hex(8))
    try:
        with unfinished.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(unfinished)  # unlike a rename it replaces nothing, whoever made the file meanwhile
    finally:
        unfinished.unlink(missing_ok=True)
    if not _is_same(path, content):
        raise DirectoryInUseError(f"{path.parent} is not empty: it has {path.name}")

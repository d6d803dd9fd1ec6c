"""Writes the files of a verified archive into a directory that nobody else writes to.

The names are those of `read_archive`: relative, without `..`, without links among them. A file that exists already is
an error, so that nothing outside of the directory can be reached even if somebody planted a link in it.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from tracelake.bundles.archive import ArchiveData, ArchiveEntry, read_content

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def extract_archive(data: ArchiveData, entries: Sequence[ArchiveEntry], directory: Path) -> None:
    """`directory` exists and is empty. Files become read-only, executable if the archive says so."""
    for entry in entries:
        path = directory / entry.name
        if entry.is_directory:
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, _CREATE, 0o555 if entry.executable else 0o444)
        with os.fdopen(descriptor, "wb") as file:
            for piece in read_content(data, entry):
                file.write(piece)

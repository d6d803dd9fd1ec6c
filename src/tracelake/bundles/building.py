"""Makes a bundle of a directory. Equal files make equal bytes, on every machine and at every time."""

import io
import os
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tracelake.bundles.archive import ArchiveLimits, ArchiveRefusal, read_archive

_TIME = (1980, 1, 1, 0, 0, 0)
"""The first time that a zip archive can hold."""
_UNIX = 3
SKIPPED = {".git", ".hg", ".svn", "__pycache__", ".venv", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".DS_Store"}
"""Names that are never part of a bundle, wherever they are."""


def build_archive(
    directory: Path, limits: ArchiveLimits, *, leave_out: frozenset[str] = frozenset()
) -> tuple[bytes, list[str]]:
    """The archive and the names in it; `leave_out` has names at the root. Raises ArchiveRefusal.

    Links are refused, not followed: what they name may be outside of the directory.
    """
    buffer = io.BytesIO()
    names = []
    total = 0
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, allowZip64=False) as archive:
        for path in _walk(directory, leave_out):
            name = path.relative_to(directory).as_posix()
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                raise ArchiveRefusal("link", name=name)
            if not stat.S_ISREG(status.st_mode):
                raise ArchiveRefusal("entry_type", name=name)
            total += status.st_size
            if total > limits.max_expanded_bytes:
                raise ArchiveRefusal("expands_too_much", f"expected at most {limits.max_expanded_bytes} bytes of files")
            entry = zipfile.ZipInfo(name, _TIME)
            entry.create_system = _UNIX
            mode = 0o755 if status.st_mode & 0o111 else 0o644
            entry.external_attr = (stat.S_IFREG | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, path.read_bytes(), compresslevel=9)
            names.append(name)
    data = buffer.getvalue()
    read_archive(data, limits)
    return data, names


def _walk(directory: Path, leave_out: frozenset[str]) -> Iterator[Path]:
    """Everything below the directory that is not a directory, by name."""
    paths: list[Path] = []
    for root, directories, files in os.walk(directory):
        at_root = Path(root) == directory
        skipped = SKIPPED | leave_out if at_root else SKIPPED
        links = [name for name in directories if (Path(root) / name).is_symlink()]
        directories[:] = [name for name in directories if name not in skipped and name not in links]
        members = (name for name in [*files, *links] if name not in skipped and not name.endswith(".pyc"))
        paths.extend(Path(root) / name for name in members)
    return iter(sorted(paths, key=lambda path: path.relative_to(directory).as_posix()))

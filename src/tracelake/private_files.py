"""Private files: replaced whole or not at all, readable by their owner alone, durable when the call returns."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path


def write_private(path: Path, content: str | bytes) -> None:
    """Replace the file in one step with mode 0600; a power cut leaves the old text or the new one."""
    with _scratch_file(path, content) as scratch:
        scratch.replace(path)
    sync_directory(path.parent)


def create_private(path: Path, content: str | bytes) -> None:
    """The same, but a file that is there stays: of several who create it at once, one does."""
    with _scratch_file(path, content) as scratch, contextlib.suppress(FileExistsError):
        path.hardlink_to(scratch)
    sync_directory(path.parent)


@contextlib.contextmanager
def _scratch_file(path: Path, content: str | bytes) -> Iterator[Path]:
    """A whole and durable file beside it, gone afterwards unless it was renamed."""
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield scratch
    finally:
        with contextlib.suppress(OSError):
            scratch.unlink()


def sync_directory(directory: Path) -> None:
    """Make a rename inside the directory survive a power cut."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def private_directory(directory: Path) -> Path:
    """Make the directory (and its parents) 0700; an existing one of ours is narrowed to that."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_mode & 0o777 != 0o700:
        directory.chmod(0o700)
    return directory

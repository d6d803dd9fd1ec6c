"""Writes a dump of the state database while the stack runs.

The file is there whole or not at all: it is written beside its place under another name, made durable, and put there
in one step. It is one snapshot, so that every row it holds fits every other; nothing waits for it.
"""

import contextlib
import os
import tempfile
from pathlib import Path

from tracelake.settings import Settings, SettingsError
from tracelake.settings.home import sync_directory
from tracelake.stack import dumps
from tracelake.stack.dumps import BackupError


def write_dump(settings: Settings, file: Path, *, replace: bool) -> int:
    """Dump the state database of these settings into the file; answers its size in bytes."""
    dsn = _state_dsn(settings)
    directory = file.absolute().parent
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".partial", dir=directory)
    except FileNotFoundError:
        raise BackupError(f"there is no directory {directory}; make it, or name a file in another one") from None
    except OSError as error:
        raise BackupError(f"nothing can be written in {directory} ({error.strerror}); name another place") from None
    os.close(descriptor)  # made 0600, and pg_dump leaves it so
    partial = Path(name)
    try:
        dumps.write(partial, dsn)
        dumps.inspect(partial)
        _sync(partial)
        if replace:
            partial.replace(file)
        else:
            _put(partial, file)
        sync_directory(file.absolute().parent)
        return file.stat().st_size
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()


def _state_dsn(settings: Settings) -> str:
    try:
        return settings.resolve_state_dsn()
    except SettingsError:
        raise BackupError(f"{settings.home} has no state database yet; `trace up` creates it") from None


def _put(partial: Path, file: Path) -> None:
    """Puts the file under its name, unless somebody else has put one there meanwhile."""
    try:
        file.hardlink_to(partial)
    except FileExistsError:
        raise BackupError(f"{file} exists; name another file, or add --force to replace it") from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""A file lock that allows one `trace up` per home; it ends with its holder, however that ends."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path


class AlreadyRunningError(Exception):
    """Another `trace up` holds the home."""


# `status` and `down` look at the lock for a moment by taking it; an `up` must not mistake them for another.
_LOOKERS_SECONDS = 1.0


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock with our process id in the file; raises AlreadyRunningError if somebody else does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _LOOKERS_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise AlreadyRunningError(_refusal(path)) from None
                time.sleep(0.05)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path) -> int | None:
    """The process id of the `trace up` that holds the lock, or None. A stale file is not a holder."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _pid(path)
    finally:
        os.close(descriptor)
    return None


def _pid(path: Path) -> int | None:
    # The holder writes its id right after it has the lock: an empty file means a moment too early.
    deadline = time.monotonic() + _LOOKERS_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ValueError):
            return int(path.read_text())
        time.sleep(0.02)
    return None


def _refusal(path: Path) -> str:
    pid = _pid(path)
    home = path.parent.parent
    return (
        f"trace is already running on {home} (process {pid or 'unknown'}); see `trace status --home {home}`, "
        f"stop it with `trace down --home {home}`, or give this one another --home"
    )

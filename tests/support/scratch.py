"""Keeps the temporary files of a test run in memory.

Most of what a test with a database costs is the file system: a fresh database is some hundred small files, and real
stacks write to the disk durably. In memory both are cheap. A machine without the room, or one that does not allow
programs there, uses the usual directory; so does a run that sets TMPDIR.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MEMORY = Path("/dev/shm")
ENOUGH_BYTES = 6 << 30
"""A run uses a small part of it; Spark's own memory comes on top."""
_PREFIX = "trace-tests-"
_LOCK = "in-use"


def has_room(directory: Path, *, available_bytes: int) -> bool:
    """Whether a run can live there: writable, with programs allowed, and with room to spare."""
    if not os.access(directory, os.W_OK | os.X_OK):
        return False
    about = os.statvfs(directory)
    return (
        not about.f_flag & (os.ST_NOEXEC | os.ST_RDONLY)
        and min(about.f_bavail * about.f_frsize, available_bytes) >= ENOUGH_BYTES
    )


def memory_available() -> int:
    """What the kernel says programs may still take, in bytes; 0 if it does not say."""
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


@contextmanager
def in_memory(base: Path = MEMORY) -> Iterator[Path | None]:
    """Points TMPDIR of this process, and of those it starts, to a new directory below `base` if there is room.

    The directory goes with the run. One that a killed run left behind is removed by the next.
    """
    if "TMPDIR" in os.environ or not has_room(base, available_bytes=memory_available()):
        yield None
        return
    remove_abandoned(base)
    new = Path(tempfile.mkdtemp(prefix="new-", dir=base))
    # Held as long as this process lives, however it ends; it has its name only once it is locked.
    with (new / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = new.rename(base / new.name.replace("new-", _PREFIX, 1))
        before, tempfile.tempdir = tempfile.tempdir, str(directory)
        os.environ["TMPDIR"] = str(directory)
        try:
            yield directory
        finally:
            tempfile.tempdir = before
            del os.environ["TMPDIR"]
            shutil.rmtree(directory, ignore_errors=True)


def remove_abandoned(base: Path) -> None:
    """Removes what runs of this user left that have ended."""
    for directory in base.glob(f"{_PREFIX}*"):
        if directory.is_symlink() or directory.stat().st_uid != os.getuid():
            continue
        with suppress(OSError), (directory / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)

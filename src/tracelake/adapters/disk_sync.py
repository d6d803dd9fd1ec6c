"""Puts the files of the embedded object store on the disk.

SeaweedFS answers when the operating system has the bytes. It can sync the volumes that hold the contents of files, but
not the filer's database that holds their names, so its own option would not keep a file through a power cut. `fsync`
concerns a file, whoever wrote it: this class syncs every file below the store's directory that has changed, and the
directories, from the outside. What the store had answered before a call is on the disk when the call returns.

Calls that come while a sync runs share the next one: what they ask for may be younger than the beginning of this one.
"""

import asyncio
import logging
import os
import stat
from pathlib import Path

from tracelake.errors import StoreUnavailableError

logger = logging.getLogger(__name__)

_RECENT_NANOSECONDS = 2_000_000_000
"""The times of files are coarse: what was written so shortly before the last look may have changed since, unseen."""


class DiskSync:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._synced: dict[Path, tuple[int, int, int]] = {}
        """By path: number, size and time of the file as it was before it was synced the last time."""
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._broken = False

    async def run(self) -> None:
        """Raises StoreUnavailableError if the disk refuses."""
        if self._next is None:
            self._next = asyncio.create_task(self._run_after(self._running))
        await asyncio.shield(self._next)

    async def _run_after(self, running: "asyncio.Task[None] | None") -> None:
        if running is not None:
            await asyncio.wait({running})
        self._running, self._next = self._next, None
        if self._broken:
            raise StoreUnavailableError("The disk of the object store failed; see the log of the Dispatcher.")
        try:
            await asyncio.to_thread(self.sync)
        except OSError as error:
            # The next fsync of the same file would succeed, and what failed would be lost all the same.
            self._broken = True
            logger.exception("the files of the object store cannot be synced; restart once the disk is well")
            raise StoreUnavailableError(
                "The disk of the object store failed; see the log of the Dispatcher."
            ) from error

    def sync(self) -> int:
        """Syncs what has changed; answers how many files and directories that were."""
        changed = 0
        states: dict[Path, tuple[int, int, int]] = {}
        for root, _, names in os.walk(self._directory):
            for path in (*(Path(root, name) for name in names), Path(root)):
                try:
                    status = path.stat()
                except FileNotFoundError:
                    continue  # the database of the filer has compacted it away
                if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                    continue
                state = (status.st_ino, status.st_size, status.st_mtime_ns)
                before = self._synced.get(path)
                if before != state and _sync(path):
                    changed += 1
                states[path] = state
        newest = max((state[2] for state in states.values()), default=0)
        self._synced = {path: state for path, state in states.items() if state[2] < newest - _RECENT_NANOSECONDS}
        return changed


def _sync(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True

"""How an immutable object becomes a local file.

An object is known by its address, its ETag and the hash of its content, so a copy of it that was checked once is good
for ever: the cache is content-addressed, shared by the tasks of a process, and may be emptied at any time. Each task
gets links of its own to what it reads, so emptying the cache takes nothing from it.
"""

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracelake.model.log_attribution import carry_key
from tracelake.ports import FileTransfer, ObjectMeta

_STREAMS = 8


class CacheObserver(Protocol):
    """Is told of sizes in bytes, by any thread."""

    def fetched(self, size: int) -> None: ...
    def evicted(self, size: int) -> None: ...
    def measured(self, size: int) -> None:
        """All copies together."""


@dataclass(frozen=True, slots=True)
class FileCache:
    directory: Path
    transfer: FileTransfer
    max_bytes: int = 20 * 1024**3
    observer: CacheObserver | None = None

    def link(self, files: Sequence[ObjectMeta], target: Path) -> list[Path]:
        """Each file, whole and checked, below `target`, which the caller removes when done, or to end this early."""
        target.mkdir(parents=True, exist_ok=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        paths = {file: target / _name(file) for file in files}
        missing = [file for file, path in paths.items() if not self._link(path)]
        if missing:  # threads, and a look at the whole directory, only for who has to wait anyway
            with ThreadPoolExecutor(_STREAMS, thread_name_prefix="fetch") as pool:
                list(pool.map(carry_key(self._fetch), missing, [paths[file] for file in missing]))
            self.shrink()
        return [paths[file] for file in files]

    def link_kept(self, files: Sequence[ObjectMeta], target: Path) -> list[Path] | None:
        """The same without fetching anything; None if there is no copy of some file."""
        paths = [target / _name(file) for file in files]
        return paths if all(map(self._link, paths)) else None

    def _link(self, path: Path) -> bool:
        """False: there is no copy of it."""
        try:
            os.link(self.directory / path.name, path)
        except FileExistsError:
            return True
        except FileNotFoundError:
            return False
        path.touch()
        return True

    def _fetch(self, file: ObjectMeta, path: Path) -> None:
        while not self._link(path):  # it may be gone again already
            if not path.parent.exists():
                raise FileNotFoundError(f"nobody waits for {path.name} any more: its directory was removed")
            self.transfer.download(file, self.directory / path.name)
            if self.observer is not None:
                self.observer.fetched(file.size)

    def shrink(self) -> None:
        """The copies that were used longest ago go first."""
        entries = []
        for path in self.directory.glob("*.parquet"):
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue
            entries.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in entries)
        for _, size, path in sorted(entries):
            if total <= self.max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
            if self.observer is not None:
                self.observer.evicted(size)
        if self.observer is not None:
            self.observer.measured(total)


def _name(file: ObjectMeta) -> str:
    return hashlib.sha256(f"{file.uri}\0{file.etag}\0{file.sha256}".encode()).hexdigest() + ".parquet"

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

from tracelake.ports import FileTransfer, ObjectMeta

_STREAMS = 8


@dataclass(frozen=True, slots=True)
class FileCache:
    directory: Path
    transfer: FileTransfer
    max_bytes: int = 20 * 1024**3

    def link(self, files: Sequence[ObjectMeta], target: Path) -> list[Path]:
        """Each file, whole and checked, below `target`, which the caller removes when done."""
        target.mkdir(parents=True, exist_ok=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(_STREAMS, thread_name_prefix="fetch") as pool:
            paths = list(pool.map(lambda file: self._link(file, target), files))
        self._shrink()
        return paths

    def _link(self, file: ObjectMeta, target: Path) -> Path:
        name = hashlib.sha256(f"{file.uri}\0{file.etag}\0{file.sha256}".encode()).hexdigest() + ".parquet"
        cached, link = self.directory / name, target / name
        while True:
            try:
                os.link(cached, link)
            except FileExistsError:
                return link
            except FileNotFoundError:
                self.transfer.download(file, cached)
                continue  # it may be gone again already
            link.touch()
            return link

    def _shrink(self) -> None:
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
                return
            path.unlink(missing_ok=True)
            total -= size

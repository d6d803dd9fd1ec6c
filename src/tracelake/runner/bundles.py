"""Bundles on this machine's disk: fetched, checked and unpacked once, read-only, the least recently used go first.

A directory is named by the SHA-256 of its archive and appears by one rename, so what is there is whole and was checked.
Before every run it is compared with what this process left there: names, inodes, modes, sizes and times of change of
everything in it. Whoever changes a file changes the time of its inode, which only the kernel sets. A directory that
differs is put aside and fetched again. Directories of an earlier process are not trusted: they go at the start.
"""

import asyncio
import hashlib
import logging
import os
import re
import shutil
import stat
import tempfile
import urllib.error
import urllib.request
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from tracelake.bundles.archive import ArchiveLimits, ArchiveRefusal, read_archive
from tracelake.bundles.extraction import extract_archive
from tracelake.wire.claims import BundleRef

logger = logging.getLogger(__name__)

_FETCH_SECONDS = 30.0
_CHUNK = 256 * 1024
_HASH = re.compile(r"[0-9a-f]{64}")


class BundleRejected(Exception):  # noqa: N818 - a verdict
    """The stored archive is not acceptable, or not the one that was named; another attempt gets the same answer."""


class BundleUnavailable(Exception):  # noqa: N818 - a state of the store, not of this program
    """The bundle could not be fetched now; the message names no address."""


@dataclass(frozen=True, slots=True)
class UnpackedBundle:
    """A directory of this process."""

    fingerprint: bytes
    size: int


class BundleCache:
    def __init__(
        self, directory: Path, most_bytes: int, limits: ArchiveLimits, on_changed: Callable[[], None] = lambda: None
    ) -> None:
        """`on_changed` is called for each directory that was changed after it had been unpacked."""
        self._directory = directory
        self._limits = limits
        self._most_bytes = most_bytes
        self._on_changed = on_changed
        self._unpacked: OrderedDict[str, UnpackedBundle] = OrderedDict()
        """The least recently used is the first."""
        self._in_use: Counter[str] = Counter()
        self._locks: dict[str, asyncio.Lock] = {}
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in directory.iterdir():
            remove_tree(left)

    @asynccontextmanager
    async def open(self, bundle: BundleRef) -> AsyncIterator[Path]:
        """The unpacked bundle; it stays at least as long as the block. Raises BundleRejected or BundleUnavailable."""
        place = self._directory / bundle.sha256
        self._in_use[bundle.sha256] += 1
        try:
            async with self._locks.setdefault(bundle.sha256, asyncio.Lock()):
                unpacked = self._unpacked.get(bundle.sha256)
                if unpacked is not None and unpacked.fingerprint != await asyncio.to_thread(fingerprint, place):
                    self._set_aside(bundle.sha256, place)
                    unpacked = None
                if unpacked is None:
                    self._unpacked[bundle.sha256] = await asyncio.to_thread(self._fetch, bundle, place)
                self._unpacked.move_to_end(bundle.sha256)
            yield place
        finally:
            self._in_use[bundle.sha256] -= 1
            if not self._in_use[bundle.sha256]:
                del self._in_use[bundle.sha256]
                self._locks.pop(bundle.sha256, None)
            for unused in self._take_unused():
                await asyncio.to_thread(remove_tree, unused)

    def _set_aside(self, name: str, place: Path) -> None:
        """It stays until the next start: other functions may run in it, and people may want to see it."""
        logger.error("an unpacked bundle was changed", extra={"sha256": name})
        self._on_changed()
        del self._unpacked[name]
        with suppress(FileNotFoundError):
            place.rename(Path(tempfile.mkdtemp(dir=self._directory, prefix="changed")) / name)

    def _fetch(self, bundle: BundleRef, place: Path) -> "UnpackedBundle":
        if not 0 < bundle.size_bytes <= self._limits.max_bytes or not _HASH.fullmatch(bundle.sha256):
            raise BundleRejected("the bundle's size or hash is not valid")
        scratch = Path(tempfile.mkdtemp(dir=self._directory))
        try:
            archive = scratch / "bundle.zip"
            download(bundle.url, archive, bundle.size_bytes, bundle.sha256)
            unpacked = scratch / "bundle"
            unpack(archive.read_bytes(), self._limits, unpacked)
            if place.exists():  # of an attempt that was ended while it fetched
                remove_tree(place)
            unpacked.rename(place)
            return UnpackedBundle(fingerprint(place), _size(place))
        finally:
            remove_tree(scratch)

    def _take_unused(self) -> list[Path]:
        """Renames what has to go; whoever asks for it from now on fetches it again."""
        total = sum(bundle.size for bundle in self._unpacked.values())
        unused = []
        for name in [name for name in self._unpacked if name not in self._in_use]:
            if total <= self._most_bytes:
                break
            total -= self._unpacked.pop(name).size
            unused.append(Path(tempfile.mkdtemp(dir=self._directory)))
            with suppress(FileNotFoundError):
                (self._directory / name).rename(unused[-1] / name)
        return unused


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_arguments: object) -> None:
        return None


def download(url: str, target: Path, size_bytes: int, sha256: str) -> None:
    """Exactly these bytes, from exactly this address."""
    if not url.startswith(("http://", "https://")):
        raise BundleRejected("the bundle's address is not of an object store")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    digest, received = hashlib.sha256(), 0
    try:
        with opener.open(url, timeout=_FETCH_SECONDS) as reply, target.open("xb") as file:
            while chunk := reply.read(_CHUNK):
                received += len(chunk)
                if received > size_bytes:
                    raise BundleRejected(f"expected a bundle of {size_bytes} bytes, received more")
                digest.update(chunk)
                file.write(chunk)
    except urllib.error.HTTPError as error:
        raise BundleUnavailable(f"the object store answered {error.code} to the bundle's address") from None
    except (OSError, HTTPException) as error:
        raise BundleUnavailable(f"the bundle cannot be fetched: {type(error).__name__}") from None
    if received != size_bytes or digest.hexdigest() != sha256:
        raise BundleRejected("the stored bundle is not the one that was finalised: its size or SHA-256 differs")


def unpack(data: bytes, limits: ArchiveLimits, directory: Path) -> None:
    """Read-only, for users of any number: the one in a sandbox is not ours. Raises BundleRejected."""
    directory.mkdir()
    try:
        extract_archive(data, read_archive(data, limits), directory)
    except ArchiveRefusal as refusal:
        raise BundleRejected(f"the stored bundle is not acceptable: {refusal}") from None
    for entry in directory.rglob("*"):
        entry.chmod(0o555 if entry.is_dir() or entry.stat().st_mode & stat.S_IXUSR else 0o444)
    directory.chmod(0o755)  # until it is renamed


def fingerprint(directory: Path) -> bytes:
    """What changes with any change of the directory or of anything below. Empty if it cannot be read."""
    try:
        entries = [_describe(os.fspath(directory), directory.lstat())]
        waiting = [os.fspath(directory)]
        while waiting:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    entries.append(_describe(entry.path, entry.stat(follow_symlinks=False)))
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    except OSError:
        return b""
    return hashlib.sha256(repr(sorted(entries)).encode("utf-8", "surrogatepass")).digest()


def _describe(path: str, state: os.stat_result) -> tuple[str, ...]:
    values = (state.st_mode, state.st_ino, state.st_dev, state.st_nlink, state.st_uid, state.st_size)
    return (path, *map(str, values), str(state.st_mtime_ns), str(state.st_ctime_ns))


def _size(directory: Path) -> int:
    return sum(entry.lstat().st_size for entry in directory.rglob("*"))


def remove_tree(directory: Path) -> None:
    """Also what is read-only."""

    def retry(function: Callable[..., object], path: str, _error: object) -> None:
        with suppress(OSError):
            Path(path).parent.chmod(0o700)
            Path(path).chmod(0o700)
            function(path)

    with suppress(OSError):
        for entry in (directory, *directory.rglob("*")):
            if entry.is_dir() and not entry.is_symlink():
                entry.chmod(0o700)
    shutil.rmtree(directory, onerror=retry)

"""Bundles on this machine's disk: fetched, checked and unpacked once, read-only, the least recently used go first.

A directory is named by the SHA-256 of its archive and appears by one rename, so what is there is whole and was checked.
"""

import asyncio
import hashlib
import os
import re
import shutil
import stat
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http.client import HTTPException
from pathlib import Path

from tracelake.bundles.archive import ArchiveLimits, ArchiveRefusal, read_archive
from tracelake.bundles.extraction import extract_archive
from tracelake.wire.claims import BundleRef

_FETCH_SECONDS = 30.0
_CHUNK = 256 * 1024
_HASH = re.compile(r"[0-9a-f]{64}")


class BundleRejected(Exception):  # noqa: N818 - a verdict
    """The stored archive is not acceptable, or not the one that was named; another attempt gets the same answer."""


class BundleUnavailable(Exception):  # noqa: N818 - a state of the store, not of this program
    """The bundle could not be fetched now; the message names no address."""


class BundleCache:
    def __init__(self, directory: Path, most_bytes: int, limits: ArchiveLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._most_bytes = most_bytes
        self._in_use: Counter[str] = Counter()
        self._locks: dict[str, asyncio.Lock] = {}
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in directory.glob("tmp*"):
            remove_tree(left)  # of a runner that was killed

    @asynccontextmanager
    async def open(self, bundle: BundleRef) -> AsyncIterator[Path]:
        """The unpacked bundle; it stays at least as long as the block. Raises BundleRejected or BundleUnavailable."""
        place = self._directory / bundle.sha256
        self._in_use[bundle.sha256] += 1
        try:
            async with self._locks.setdefault(bundle.sha256, asyncio.Lock()):
                if not place.is_dir():
                    await asyncio.to_thread(self._fetch, bundle, place)
                os.utime(place)
            yield place
        finally:
            self._in_use[bundle.sha256] -= 1
            if not self._in_use[bundle.sha256]:
                del self._in_use[bundle.sha256]
                self._locks.pop(bundle.sha256, None)
            await asyncio.to_thread(self._make_room, frozenset(self._in_use))

    def _fetch(self, bundle: BundleRef, place: Path) -> None:
        if not 0 < bundle.size_bytes <= self._limits.max_bytes or not _HASH.fullmatch(bundle.sha256):
            raise BundleRejected("the bundle's size or hash is not valid")
        scratch = Path(tempfile.mkdtemp(dir=self._directory))
        try:
            archive = scratch / "bundle.zip"
            download(bundle.url, archive, bundle.size_bytes, bundle.sha256)
            unpacked = scratch / "bundle"
            unpack(archive.read_bytes(), self._limits, unpacked)
            unpacked.rename(place)
        finally:
            remove_tree(scratch)

    def _make_room(self, in_use: frozenset[str]) -> None:
        sizes = {place: _size(place) for place in self._directory.iterdir() if len(place.name) == 64}
        total = sum(sizes.values())
        for place in sorted(sizes, key=lambda item: item.stat().st_mtime):
            if total <= self._most_bytes:
                return
            if place.name not in in_use:
                remove_tree(place)
                total -= sizes[place]


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

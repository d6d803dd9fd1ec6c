"""The ObjectStore port on a directory, for tests that need many objects at no cost.

`s3://bucket/key` is `root/bucket/key`.

The product never uses it; it passes the same suite as what the product uses.

Only canonical addresses are taken, so nothing outside the root can be named; symbolic links are not
followed, at no level. A file whose name no canonical address can spell is no object. Objects appear whole
(written aside, then renamed). The ETag changes with every write.
"""

import asyncio
import builtins
import errno
import hashlib
import os
import secrets
import stat as modes
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from tracelake.errors import StoreUnavailableError
from tracelake.model.prefixes import is_canonical_prefix, parse_uri
from tracelake.ports import LISTING_LIMIT, ObjectMeta, too_many_objects

_ASIDE = ".aside"  # no bucket can have this name


class DirectoryStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def head(self, uri: str) -> ObjectMeta | None:
        return await asyncio.to_thread(self._head, uri, self._path(uri))

    async def list(self, prefix: str, *, limit: int = LISTING_LIMIT) -> list[ObjectMeta]:
        if not is_canonical_prefix(prefix):
            raise ValueError("not a canonical prefix")
        listing = await asyncio.to_thread(self._list, prefix)
        if len(listing) > limit:
            raise too_many_objects(limit)
        return listing

    async def walk(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        if not is_canonical_prefix(prefix):
            raise ValueError("not a canonical prefix")
        for meta in await asyncio.to_thread(self._list, prefix):
            yield meta

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None:
        return await asyncio.to_thread(self._get, uri, if_match)

    async def put(self, uri: str, body: bytes) -> ObjectMeta:
        return await asyncio.to_thread(self._put, uri, body)

    async def copy(self, uri: str, to: str) -> ObjectMeta | None:
        body = await self.get(uri)
        if self._path(uri).relative_to(self._root).parts[0] != self._path(to).relative_to(self._root).parts[0]:
            raise ValueError("a copy stays in its bucket")
        return None if body is None else await self.put(to, body)

    async def sync(self) -> None:
        pass

    async def delete(self, uri: str) -> None:
        await asyncio.to_thread(self._delete, uri, self._path(uri))

    def _path(self, uri: str) -> Path:
        parsed = parse_uri(uri)
        if parsed is None or uri.endswith("/"):
            raise ValueError("not a canonical object address")
        return self._root.joinpath(parsed[0], *parsed[1].split("/"))

    def _head(self, uri: str, path: Path) -> ObjectMeta | None:
        try:
            stat = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            self._check_root()
            return None
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:  # no such object can have been stored
                return None
            raise StoreUnavailableError("The object store is not available right now.") from error
        if not modes.S_ISREG(stat.st_mode) or not self._inside(path.parent):
            return None
        return _meta(uri, stat)

    def _list(self, prefix: str) -> "builtins.list[ObjectMeta]":
        parsed = parse_uri(prefix)
        assert parsed is not None
        top = self._root.joinpath(parsed[0], *parsed[1].removesuffix("/").split("/"))
        found: builtins.list[ObjectMeta] = []
        self._check_root()
        if not self._inside(top):
            return found
        for folder, _, files in os.walk(top):
            for name in files:
                path = Path(folder, name)
                uri = prefix + path.relative_to(top).as_posix()
                meta = None if parse_uri(uri) is None else self._head(uri, path)
                if meta is not None:
                    found.append(meta)
        return sorted(found, key=lambda meta: meta.uri)

    def _get(self, uri: str, if_match: str | None) -> bytes | None:
        path = self._path(uri)
        before = self._head(uri, path)
        if before is None or if_match not in (None, before.etag):
            return None
        try:
            body = path.read_bytes()
        except FileNotFoundError:
            return None
        # Replaced while it was read: the bytes are of another object than the one asked for.
        return body if if_match is None or self._head(uri, path) == before else None

    async def read(self, uri: str, start: int, length: int, *, if_match: str) -> bytes | None:
        body = await self.get(uri, if_match=if_match)
        return None if body is None else body[start : start + length]

    def _delete(self, uri: str, path: Path) -> None:
        if self._head(uri, path) is not None:
            path.unlink(missing_ok=True)

    def _check_root(self) -> None:
        """A store that is not there (not mounted, say) is away; that is not the same as empty."""
        if not self._root.is_dir():
            raise StoreUnavailableError("The object store is not available right now.")

    def _inside(self, folder: Path) -> bool:
        """Whether the folder is where its address says, not where a symbolic link leads."""
        return folder.resolve() == self._root.resolve() / folder.relative_to(self._root)

    def _put(self, uri: str, body: bytes) -> ObjectMeta:
        path = self._path(uri)
        aside = self._root / _ASIDE / secrets.token_hex(16)
        aside.parent.mkdir(parents=True, exist_ok=True)
        if not self._inside(path.parent):
            raise StoreUnavailableError("The object store is not available right now.")
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(body)
        # The file system's own time is coarse: two writes of one tick must still differ in their ETag.
        written = time.time_ns()
        os.utime(aside, ns=(written, written))
        meta = _meta(uri, aside.lstat())  # of what was written here, whoever replaces it next
        aside.replace(path)
        return meta


class DirectoryUrls:
    """The ObjectUrls port, of addresses that nobody serves."""

    def sign_upload(self, uri: str, *, size: int, seconds: int) -> tuple[str, Mapping[str, str]]:
        return f"https://objects.invalid/{uri.removeprefix('s3://')}?seconds={seconds}", {"content-length": str(size)}

    def sign_replace(self, uri: str, *, seconds: int) -> str:
        return self.sign_download(uri, seconds=seconds)

    def sign_create(self, uri: str, *, seconds: int) -> str:
        return self.sign_download(uri, seconds=seconds)

    def sign_download(self, uri: str, *, seconds: int) -> str:
        return f"https://objects.invalid/{uri.removeprefix('s3://')}?seconds={seconds}"


def _meta(uri: str, stat: os.stat_result) -> ObjectMeta:
    seal = f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
    return ObjectMeta(uri, stat.st_size, hashlib.sha256(seal.encode()).hexdigest()[:32])

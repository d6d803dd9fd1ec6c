"""The ObjectStore port on a directory: `s3://bucket/key` is `root/bucket/key`.

Only canonical addresses are taken, so nothing outside the root can be named; symbolic links are not
followed. Objects appear whole (written aside, then renamed). The ETag changes with every write.
"""

import asyncio
import builtins
import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from tracelake.errors import StoreUnavailableError
from tracelake.model.locations import is_canonical_prefix, parse_uri
from tracelake.ports import ObjectMeta

_ASIDE = ".aside"


class DirectoryStore:
    def __init__(self, root: Path) -> None:
        self._root = root

    async def head(self, uri: str) -> ObjectMeta | None:
        return await asyncio.to_thread(self._head, uri, self._path(uri))

    async def list(self, prefix: str) -> list[ObjectMeta]:
        if not is_canonical_prefix(prefix):
            raise ValueError("not a canonical prefix")
        return await asyncio.to_thread(self._list, prefix)

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None:
        return await asyncio.to_thread(self._get, uri, if_match)

    async def put(self, uri: str, body: bytes) -> ObjectMeta:
        return await asyncio.to_thread(self._put, uri, body)

    async def delete(self, uri: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            await asyncio.to_thread(self._path(uri).unlink)

    def _path(self, uri: str) -> Path:
        parsed = parse_uri(uri)
        if parsed is None or uri.endswith("/"):
            raise ValueError("not a canonical object address")
        return self._root.joinpath(parsed[0], *parsed[1].split("/"))

    def _head(self, uri: str, path: Path) -> ObjectMeta | None:
        try:
            stat = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == 36:  # ENAMETOOLONG: no such object can have been stored
                return None
            raise StoreUnavailableError("The object store is not available right now.") from error
        if not os.path.isfile(path) or os.path.islink(path):  # noqa: PTH113, PTH114 - one stat, no objects
            return None
        seal = f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        return ObjectMeta(uri, stat.st_size, hashlib.sha256(seal.encode()).hexdigest()[:32])

    def _list(self, prefix: str) -> "builtins.list[ObjectMeta]":
        parsed = parse_uri(prefix)
        assert parsed is not None
        top = self._root.joinpath(parsed[0], *parsed[1].removesuffix("/").split("/"))
        found = []
        for folder, folders, files in os.walk(top):
            folders[:] = [name for name in folders if name != _ASIDE]
            for name in files:
                path = Path(folder, name)
                meta = self._head(prefix + path.relative_to(top).as_posix(), path)
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

    def _put(self, uri: str, body: bytes) -> ObjectMeta:
        path = self._path(uri)
        aside = self._root / _ASIDE / secrets.token_hex(16)
        aside.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(body)
        aside.replace(path)
        meta = self._head(uri, path)
        assert meta is not None
        return meta

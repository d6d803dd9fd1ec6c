"""Objects in memory, bounded; also the `FileTransfer` of the queries' samples and exports."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from tracelake.ports import ObjectChangedError, ObjectMeta

MOST_BYTES = 256 * 1024 * 1024
MOST_OBJECTS = 10_000


class MemoryFullError(Exception):
    """There is no room for another object."""


class MemoryObjects:
    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._objects: dict[str, bytes] = {}
        self._files: dict[str, Path] = {}
        self._size = 0

    def add_file(self, uri: str, path: Path) -> None:
        """An object whose bytes stay on the disk."""
        self._files[uri] = path

    def get(self, uri: str) -> bytes | None:
        file = self._files.get(uri)
        return self._objects.get(uri) if file is None else file.read_bytes()

    def put(self, uri: str, data: bytes) -> ObjectMeta:
        """Raises MemoryFullError."""
        size = self._size - len(self._objects.get(uri, b"")) + len(data)
        if size > self._most_bytes or (uri not in self._objects and len(self._objects) >= MOST_OBJECTS):
            raise MemoryFullError
        self._objects[uri] = data
        self._size = size
        return describe(uri, data)

    def has_room(self, size: int) -> bool:
        return self._size + size <= self._most_bytes

    def list_below(self, prefix: str) -> list[ObjectMeta]:
        """Sorted by address."""
        uris = sorted(uri for uri in (*self._objects, *self._files) if uri.startswith(prefix))
        return [describe(uri, self.get(uri) or b"") for uri in uris]

    # FileTransfer

    def download(self, meta: ObjectMeta, path: Path) -> None:
        data = self.get(meta.uri)
        if data is None:
            raise ObjectChangedError(meta.uri)
        path.write_bytes(data)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        return self.put(uri, path.read_bytes())

    def sign(self, uris: Sequence[str], *, create: bool, seconds: int) -> list[str]:
        """Only results of people have addresses, and nobody asks here but the function."""
        raise NotImplementedError


def describe(uri: str, data: bytes) -> ObjectMeta:
    digest = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return ObjectMeta(uri, len(data), f'"{digest}"', hashlib.sha256(data).hexdigest())

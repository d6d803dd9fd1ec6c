"""The ObjectStore port: whole objects at `s3://bucket/key` addresses."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    uri: str
    size: int
    etag: str


class ObjectStore(Protocol):
    async def head(self, uri: str) -> ObjectMeta | None: ...

    async def list(self, prefix: str) -> list[ObjectMeta]:
        """Every object below the prefix (a directory: it ends in `/`), sorted by address."""
        ...

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None:
        """The bytes, or None when there is no such object or its ETag is another one."""
        ...

    async def put(self, uri: str, body: bytes) -> ObjectMeta: ...

    async def delete(self, uri: str) -> None: ...


class ObjectChangedError(Exception):
    """An object is not what was pinned: gone, or other bytes."""


class FileTransfer(Protocol):
    """Files between a machine and the store, for work that is done elsewhere: it can be pickled, and blocks.

    Both raise `StoreUnavailableError` when the store does not answer.
    """

    def download(self, meta: ObjectMeta, path: Path) -> None:
        """The pinned bytes, whole, or `ObjectChangedError` and no file."""
        ...

    def upload(self, path: Path, uri: str) -> ObjectMeta: ...

"""The ObjectStore port: whole objects at `s3://bucket/key` addresses."""

from dataclasses import dataclass
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

"""The ObjectStore port: whole objects at `s3://bucket/key` addresses."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tracelake.errors import TraceError

LISTING_LIMIT = 10_000
"""Objects that one listing answers with; a unit of more files than that is made too fine."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    uri: str
    size: int
    etag: str


class ObjectStore(Protocol):
    async def head(self, uri: str) -> ObjectMeta | None: ...

    async def list(self, prefix: str, *, limit: int = LISTING_LIMIT) -> list[ObjectMeta]:
        """Every object below the prefix (a directory: it ends in `/`), sorted by address; `too_many_objects` if there
        are more than `limit`, known without reading on."""
        ...

    def walk(self, prefix: str) -> AsyncIterator[ObjectMeta]:
        """Every object below the prefix, however many, in no order; what is deleted on the way disturbs nothing."""
        ...

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None:
        """The bytes, or None when there is no such object or its ETag is another one."""
        ...

    async def put(self, uri: str, body: bytes) -> ObjectMeta: ...

    async def delete(self, uri: str) -> None: ...

    async def sync(self) -> None:
        """Whatever was put before the call survives a power cut once it returns."""
        ...


def too_many_objects(limit: int) -> TraceError:
    return TraceError(
        "too_many_objects",
        f"Expected at most {limit:,} objects below the prefix, received more: write fewer, larger files.",
        limit=limit,
    )


class ObjectChangedError(Exception):
    """An object is not what was pinned: gone, or other bytes."""


class ObjectExistsError(Exception):
    """Another object is at the address already. It was not replaced."""


class FileTransfer(Protocol):
    """Files between a machine and the store, for work that is done elsewhere: it can be pickled, and blocks.

    Both raise `StoreUnavailableError` when the store does not answer. Names are the caller's to keep unique.
    """

    def download(self, meta: ObjectMeta, path: Path) -> None:
        """The pinned bytes, whole, or `ObjectChangedError` and no file."""
        ...

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        """Creates the object, whole; never replaces one. The same bytes again are no conflict: the answer to an upload
        may have been lost. Other bytes: `ObjectExistsError`."""
        ...

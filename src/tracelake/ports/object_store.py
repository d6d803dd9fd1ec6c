"""The ObjectStore port: whole objects at `s3://bucket/key` addresses."""

import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from tracelake.errors import TraceError

LISTING_LIMIT = 10_000
"""Objects that one listing answers with; a unit of more files than that is made too fine."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    uri: str
    size: int
    etag: str
    sha256: str | None = None
    """The hash of the content, in hex, as whoever wrote it computed it. None: it is not recorded. A store does not know
    it: an ETag is the store's own word, which whoever writes to the store beneath S3 can keep for other bytes."""


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

    async def read(self, uri: str, start: int, length: int, *, if_match: str) -> bytes | None:
        """So many bytes from there on, of which at least one exists; None as of `get`."""
        ...

    async def put(self, uri: str, body: bytes) -> ObjectMeta: ...

    async def copy(self, uri: str, to: str) -> ObjectMeta | None:
        """Copy an object within its bucket, whole; describe the copy. None when there is no such object."""
        ...

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


class ContentMismatchError(ObjectChangedError):
    """An object has the size and the ETag that were pinned, and other bytes."""


def content_mismatch(name: str) -> ContentMismatchError:
    return ContentMismatchError(
        f"content_mismatch: {name} does not have the SHA-256 that was recorded at its commit, so it was changed in the"
        " object store since: restore the store from a backup, or trigger the unit again"
    )


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class ObjectExistsError(Exception):
    """Another object is at the address already. It was not replaced."""


class FileTransfer(Protocol):
    """Files between a machine and the store, for work that is done elsewhere: it can be pickled, and blocks.

    Both raise `StoreUnavailableError` when the store does not answer. Names are the caller's to keep unique.
    """

    def download(self, meta: ObjectMeta, path: Path) -> None:
        """The pinned bytes, whole, or `ObjectChangedError` and no file: `ContentMismatchError` if the hash that is
        pinned is another one. Nobody sees the file before it was checked."""
        ...

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        """Creates the object, whole; never replaces one. The same bytes again are no conflict: the answer to an upload
        may have been lost. Other bytes: `ObjectExistsError`. The answer has the hash of the local file."""
        ...


class ObjectUrls(Protocol):
    """Addresses of single objects, for a while, for a caller who has no key of the store."""

    def sign_upload(self, uri: str, *, size: int, seconds: int) -> tuple[str, Mapping[str, str]]:
        """To create the object once, with one PUT of exactly `size` bytes and with the headers of the answer."""
        ...

    def sign_replace(self, uri: str, *, seconds: int) -> str:
        """To write the object with PUT, of any size and again and again."""
        ...

    def sign_create(self, uri: str, *, seconds: int) -> str:
        """To create the object once, of any size, with PUT and `If-None-Match: *`."""
        ...

    def sign_download(self, uri: str, *, seconds: int) -> str: ...


@runtime_checkable
class UrlSigner(Protocol):
    """Addresses that open one object each, for whoever has them and for `seconds`, without a key."""

    def sign(self, uris: Sequence[str], *, create: bool, seconds: int) -> list[str]:
        """In the order of the objects: to read one with GET, or, with `create`, to make a new one with PUT and
        `If-None-Match: *`, which never replaces one."""
        ...

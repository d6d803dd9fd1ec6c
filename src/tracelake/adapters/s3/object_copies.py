"""Copies of objects for a backup: everything that a bucket holds, and back. It blocks; many threads may share one.

Objects never change under their names, so a copy may be made while others write. An address that is not canonical
belongs to nobody and is left out.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tracelake.adapters.s3.access import WORKING, S3Access, StorePatience
from tracelake.adapters.s3.object_store import open_bucket, unavailable
from tracelake.adapters.s3.transfer import CREATE_BYTES, PART_BYTES
from tracelake.model.prefixes import parse_uri
from tracelake.ports import ObjectMeta


@dataclass(frozen=True, slots=True)
class ObjectCopies:
    access: S3Access
    patience: StorePatience = WORKING

    def list(self, bucket: str) -> Iterator[str]:
        """The addresses of all objects of a bucket. One that does not exist yet has none."""
        try:
            for page in obstore.list(open_bucket(self.access, bucket, self.patience)):
                for item in page:
                    uri = f"s3://{bucket}/{item['path']}"
                    if not uri.endswith("/") and parse_uri(uri) is not None:
                        yield uri
        except BaseError as error:
            if "<Code>NoSuchBucket</Code>" not in str(error):
                raise unavailable(error) from error

    def fetch(self, uri: str, path: Path) -> ObjectMeta | None:
        """Writes the object to a new file; returns what was written. None, and no file, if there is no such object."""
        store, key = self._place(uri)
        content, size = hashlib.sha256(), 0
        try:
            result = obstore.get(store, key)
            with path.open("xb") as target:
                for chunk in result.stream(min_chunk_size=PART_BYTES):
                    target.write(chunk)
                    content.update(chunk)
                    size += len(chunk)
        except FileNotFoundError:
            return None
        except BaseError as error:
            raise unavailable(error) from error
        return ObjectMeta(uri, size, result.meta["e_tag"] or "", content.hexdigest())

    def put(self, path: Path, meta: ObjectMeta) -> str:
        """Makes the object what the file is, unless it is that already; returns its ETag.

        It is uploaded as a worker uploads it, so its ETag is the same wherever ETags follow from the content.
        """
        store, key = self._place(meta.uri)
        try:
            with suppress(FileNotFoundError):
                existing = obstore.get(store, key)
                content = hashlib.sha256()
                for chunk in existing.stream(min_chunk_size=PART_BYTES):
                    content.update(chunk)
                if content.hexdigest() == meta.sha256 and existing.meta["e_tag"] is not None:
                    return existing.meta["e_tag"]
            if meta.size > CREATE_BYTES:
                return obstore.put(store, key, path, chunk_size=PART_BYTES)["e_tag"] or ""
            return obstore.put(store, key, path.read_bytes(), use_multipart=False)["e_tag"] or ""
        except BaseError as error:
            raise unavailable(error) from error

    def _place(self, uri: str) -> tuple[S3Store, str]:
        parsed = parse_uri(uri)
        if parsed is None:
            raise ValueError("not a canonical address")
        return open_bucket(self.access, parsed[0], self.patience), parsed[1]

"""The FileTransfer port over the S3 protocol. It holds an address and keys, no connection, and so can be pickled."""

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from tracelake.adapters.s3.access import WORKING, S3Access, StorePatience
from tracelake.adapters.s3.object_store import open_bucket, unavailable, was_answered
from tracelake.adapters.s3.signing import sign_urls
from tracelake.model.backoff import Backoff
from tracelake.model.prefixes import parse_uri
from tracelake.ports import ObjectChangedError, ObjectExistsError, ObjectMeta, content_mismatch, hash_file

PART_BYTES = 8 * 1024 * 1024
CREATE_BYTES = 64 * 1024 * 1024
"""Up to this size a file is one conditional PUT, which is held in memory. The client has no condition for uploads in
parts: a larger file is protected by its name alone, which no other writer has."""
_BACKOFF = Backoff(0.2, 5.0)


@dataclass(frozen=True, slots=True)
class S3Transfer:
    access: S3Access
    patience: StorePatience = WORKING

    def download(self, meta: ObjectMeta, path: Path) -> None:
        store, key = self._place(meta.uri)
        aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            content = hashlib.sha256()
            with aside.open("wb") as target:
                result = obstore.get(store, key, options={"if_match": meta.etag})
                for chunk in result.stream(min_chunk_size=PART_BYTES):
                    target.write(chunk)
                    content.update(chunk)
            if aside.stat().st_size != meta.size:
                raise ObjectChangedError(f"{path.name} has {aside.stat().st_size} bytes instead of {meta.size}")
            if meta.sha256 not in (None, content.hexdigest()):
                raise content_mismatch(Path(key).name)
            aside.replace(path)
        except (FileNotFoundError, PreconditionError) as error:
            raise ObjectChangedError(f"{Path(key).name} is not the file that was committed") from error
        except BaseError as error:
            raise unavailable(error) from error
        finally:
            aside.unlink(missing_ok=True)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        store, key = self._place(uri)
        size, digest = path.stat().st_size, hash_file(path)
        if size > CREATE_BYTES:
            try:
                result = obstore.put(store, key, path, chunk_size=PART_BYTES)
            except BaseError as error:
                raise unavailable(error) from error
            return ObjectMeta(uri, size, result["e_tag"] or "", digest)
        return ObjectMeta(uri, size, self._create(store, key, path), digest)

    def sign(self, uris: Sequence[str], *, create: bool, seconds: int) -> list[str]:
        return sign_urls(self.access, self.patience, uris, create=create, seconds=seconds)

    def _create(self, store: obstore.store.S3Store, key: str, path: Path) -> str:
        """The ETag of the new object. The client repeats no conditional call whose answer was lost; this does."""
        deadline = time.monotonic() + self.patience.retry_seconds
        tries = 0
        while True:
            tries += 1
            try:
                return obstore.put(store, key, path, mode="create")["e_tag"] or ""
            except AlreadyExistsError:
                return self._find_own(store, key, path)
            except BaseError as error:
                wait = _BACKOFF.seconds(tries)
                if was_answered(error) or tries > self.patience.retries or time.monotonic() + wait > deadline:
                    raise unavailable(error) from error
                time.sleep(wait)

    def _find_own(self, store: obstore.store.S3Store, key: str, path: Path) -> str:
        """The ETag of an object that is there already, if it has these bytes."""
        try:
            result = obstore.get(store, key)
            if result.meta["size"] == path.stat().st_size:
                with path.open("rb") as own:
                    if all(own.read(len(chunk)) == bytes(chunk) for chunk in result.stream(min_chunk_size=PART_BYTES)):
                        return result.meta["e_tag"] or ""
        except (BaseError, FileNotFoundError) as error:
            raise unavailable(error) from error
        raise ObjectExistsError(f"{Path(key).name} is there already, with other bytes")

    def _place(self, uri: str) -> tuple[obstore.store.S3Store, str]:
        parsed = parse_uri(uri)
        if parsed is None:
            raise ValueError("not a canonical address")
        return open_bucket(self.access, parsed[0], self.patience), parsed[1]

"""The FileTransfer port over the S3 protocol. It holds an address and keys, no connection, and so can be pickled."""

import os
from dataclasses import dataclass
from pathlib import Path

import obstore
from obstore.exceptions import BaseError, PreconditionError

from tracelake.adapters.s3.access import WORKING, Patience, S3Access
from tracelake.adapters.s3.object_store import open_bucket, unavailable
from tracelake.model.locations import parse_uri
from tracelake.ports import ObjectChangedError, ObjectMeta

_CHUNK = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class S3Transfer:
    access: S3Access
    patience: Patience = WORKING

    def download(self, meta: ObjectMeta, path: Path) -> None:
        store, key = self._place(meta.uri)
        aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            with aside.open("wb") as target:
                result = obstore.get(store, key, options={"if_match": meta.etag})
                for chunk in result.stream(min_chunk_size=_CHUNK):
                    target.write(chunk)
            if aside.stat().st_size != meta.size:
                raise ObjectChangedError(f"{path.name} has {aside.stat().st_size} bytes instead of {meta.size}")
            aside.replace(path)
        except (FileNotFoundError, PreconditionError) as error:
            raise ObjectChangedError(f"{Path(key).name} is not the file that was committed") from error
        except BaseError as error:
            raise unavailable(error) from error
        finally:
            aside.unlink(missing_ok=True)

    def upload(self, path: Path, uri: str) -> ObjectMeta:
        store, key = self._place(uri)
        size = path.stat().st_size
        try:
            result = obstore.put(store, key, path, chunk_size=_CHUNK)
        except BaseError as error:
            raise unavailable(error) from error
        return ObjectMeta(uri, size, result["e_tag"] or "")

    def _place(self, uri: str) -> tuple[obstore.store.S3Store, str]:
        parsed = parse_uri(uri)
        if parsed is None:
            raise ValueError("not a canonical address")
        return open_bucket(self.access, parsed[0], self.patience), parsed[1]

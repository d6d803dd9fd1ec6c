"""Fetches the artifact of a batch from the object store, in the version that was published."""

import tempfile
from pathlib import Path
from typing import Protocol

from tracelake.ports import FileTransfer, ObjectChangedError, ObjectMeta
from tracelake.wire.buffers import BufferBatch


class Artifacts(Protocol):
    """The part of an object store that a sink uses."""

    async def get(self, uri: str, *, if_match: str | None = None) -> bytes | None: ...


async def fetch_batch(objects: Artifacts, batch: BufferBatch) -> bytes | None:
    """None if the artifact is gone or was replaced."""
    if batch.is_empty:
        return b""
    return await objects.get(batch.batch_uri, if_match=batch.etag)


def download_batch(transfer: FileTransfer, batch: BufferBatch) -> bytes | None:
    """The same for threads and Spark's executors; blocks."""
    if batch.is_empty:
        return b""
    with tempfile.TemporaryDirectory(prefix="trace-batch-") as directory:
        path = Path(directory) / "batch"
        try:
            transfer.download(ObjectMeta(batch.batch_uri, batch.size_bytes, batch.etag), path)
        except ObjectChangedError:
            return None
        return path.read_bytes()

"""Parses the bytes of a batch into rows, or tells why that is impossible."""

import hashlib
import logging

import pyarrow as pa

from tracelake.rows.reader import BadBatchError, BatchReader
from tracelake.wire.buffers import BufferBatch

logger = logging.getLogger(__name__)


def parse_batch(reader: BatchReader, batch: BufferBatch, data: bytes | None) -> pa.RecordBatch:
    """Returns the rows, or raises BadBatchError; the same wherever it runs."""
    if batch.is_empty:
        return reader.read(b"", publish_seq=batch.publish_seq, org_id=batch.org_id, record_count=0)
    if data is None:
        raise BadBatchError("artifact_changed", "the artifact is gone, or not what was published")
    if len(data) != batch.size_bytes:
        reason = f"expected {batch.size_bytes} bytes as published, received {len(data)}"
        raise BadBatchError("artifact_changed", reason)
    if batch.sha256 not in (None, hashlib.sha256(data).hexdigest()):
        reason = "the artifact does not have the SHA-256 that was published: it was changed in the object store"
        raise BadBatchError("content_mismatch", reason)
    try:
        return reader.read(data, publish_seq=batch.publish_seq, org_id=batch.org_id, record_count=batch.record_count)
    except (BadBatchError, MemoryError):
        raise
    except Exception as error:
        # A bug. The batch becomes a dead letter, and can be replayed once the bug is fixed.
        logger.exception("the reader failed at a batch", extra={"publish_id": str(batch.publish_id)})
        raise BadBatchError("reader_failed", f"the sink failed at reading it ({type(error).__name__})") from error

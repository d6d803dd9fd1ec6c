"""Staged objects of uploads go once their address has expired, and uploads that nobody finalized are rejected.

The object goes before the row says so: after a crash the same one is deleted again, which changes nothing. It stays
while its address is valid, so that nobody can send it again unseen.
"""

import logging
from datetime import timedelta

from tracelake.db.transaction import Store
from tracelake.dispatcher.bundles.rows import staging_uri
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.ports import ObjectStore

logger = logging.getLogger(__name__)

PAGE = 100
_GRACE = timedelta(minutes=15)
"""An upload that began in time may end after its address expired, and is then finalized."""

_DUE = """
    SELECT bundle_id, org_id FROM udf_bundles WHERE staged AND upload_expires_at < trace_now() - $1::interval
    ORDER BY upload_expires_at LIMIT $2"""

_GONE = """
    UPDATE udf_bundles SET staged = false,
        reason_code = CASE status WHEN 'uploading' THEN 'upload_expired' ELSE reason_code END,
        reason = CASE status WHEN 'uploading' THEN 'the upload was not finalized in time' ELSE reason END,
        status = CASE status WHEN 'uploading' THEN 'rejected' ELSE status END
    WHERE bundle_id = ANY($1)"""


class UploadCollector:
    def __init__(self, store: Store, objects: ObjectStore, config: DispatcherConfig) -> None:
        self._store = store
        self._objects = objects
        self._bucket = config.bundle_bucket

    async def run_once(self) -> int:
        """Handles one page; returns how many uploads it looked at."""
        async with self._store.connection() as connection:
            due = await connection.fetch(_DUE, _GRACE, PAGE)
        if not due:
            return 0
        for row in due:
            uri = staging_uri(self._bucket, row["org_id"], row["bundle_id"])
            async for piece in self._objects.walk(f"{uri}.pieces/"):
                await self._objects.delete(piece.uri)
            await self._objects.delete(uri)
        async with self._store.transaction() as connection:
            await connection.execute(_GONE, [row["bundle_id"] for row in due])
        logger.info("uploads of bundles are gone", extra={"uploads": len(due)})
        return len(due)

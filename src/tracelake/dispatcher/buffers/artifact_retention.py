"""Artifacts of batches that are in their table, or were dropped, go after their retention. Dead letters keep theirs.

The object goes before the row says so: after a crash the same one is deleted again, which changes nothing.
"""

import logging
from datetime import timedelta

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.records import to_struct
from tracelake.ports import ObjectStore
from tracelake.wire.retention import GcRows

logger = logging.getLogger(__name__)

PAGE = 200

_DUE = """
    SELECT publish_id, batch_uri FROM buffer_publishes
    WHERE collected_at IS NULL AND (committed_at IS NOT NULL OR dropped_at IS NOT NULL)
      AND coalesce(committed_at, dropped_at) < trace_now() - $1::interval
    ORDER BY coalesce(committed_at, dropped_at) LIMIT $2"""

_PLAN = """
    SELECT count(*) AS rows, min(at) AS oldest, sum(size_bytes)::bigint AS bytes FROM (
        SELECT coalesce(committed_at, dropped_at) AS at, size_bytes FROM buffer_publishes
        WHERE collected_at IS NULL AND (committed_at IS NOT NULL OR dropped_at IS NOT NULL)
          AND coalesce(committed_at, dropped_at) < trace_now() - $1::interval
        ORDER BY coalesce(committed_at, dropped_at) LIMIT $2) due"""

# Another batch may point at the same object: the same attempt may publish it for two datasets.
_STILL_NEEDED = """
    SELECT DISTINCT batch_uri FROM buffer_publishes p
    WHERE p.task_id IN (SELECT q.task_id FROM buffer_publishes q WHERE q.publish_id = ANY($1))
      AND p.batch_uri = ANY($2) AND NOT p.publish_id = ANY($1) AND p.collected_at IS NULL"""

_GONE = "UPDATE buffer_publishes SET collected_at = trace_now() WHERE publish_id = ANY($1)"


async def plan_artifacts(connection: Connection, config: DispatcherConfig, most: int) -> list[GcRows]:
    """How many files of batches are due, up to a bound."""
    days = config.buffer_retention_days
    row = await connection.fetchrow(_PLAN, timedelta(days=days), most)
    assert row is not None
    return [to_struct(GcRows, row, kind="batch_files", more=row["rows"] == most, kept_days=days)]


class ArtifactCollector:
    def __init__(self, store: Store, objects: ObjectStore, config: DispatcherConfig) -> None:
        self._store = store
        self._objects = objects
        self._keep = timedelta(days=config.buffer_retention_days)

    async def run_once(self) -> int:
        """Handles one page; returns how many batches it looked at."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(_DUE, self._keep, PAGE)
            ids = [row["publish_id"] for row in rows]
            uris = [row["batch_uri"] for row in rows]
            needed = {row["batch_uri"] for row in await connection.fetch(_STILL_NEEDED, ids, uris)} if rows else set()
        if not rows:
            return 0
        for uri in set(uris) - needed:
            await self._objects.delete(uri)
        async with self._store.transaction() as connection:
            await connection.execute(_GONE, ids)
        logger.info("artifacts of batches are gone", extra={"batches": len(rows)})
        return len(rows)

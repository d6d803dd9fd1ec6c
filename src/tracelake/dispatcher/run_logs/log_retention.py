"""Logs of attempts go after their retention, which begins when their addresses have expired, or with the last report.

The objects go before the row: after a crash the same ones are deleted again, which changes nothing. Nobody can write
them again unseen, because their addresses have expired.
"""

import logging
from datetime import timedelta

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.run_logs.rows import log_uris
from tracelake.ports import ObjectStore
from tracelake.wire.retention import GcRows

logger = logging.getLogger(__name__)

PAGE = 100

_DUE = """
    SELECT task_id, attempt, org_id, in_store FROM run_logs WHERE writable_until < trace_now() - $1::interval
    ORDER BY writable_until, task_id, attempt LIMIT $2"""

_GONE = """
    DELETE FROM run_logs l USING unnest($1::uuid[], $2::int[]) AS d(task_id, attempt)
    WHERE l.task_id = d.task_id AND l.attempt = d.attempt"""


_PLAN = """
    SELECT count(*) AS rows, min(writable_until) AS oldest FROM (
        SELECT writable_until FROM run_logs WHERE writable_until < trace_now() - $1::interval
        ORDER BY writable_until LIMIT $2) due"""


async def plan_logs(connection: Connection, config: DispatcherConfig, most: int) -> list[GcRows]:
    """How many logs are due, up to a bound; nothing where they are kept for ever."""
    days = config.log_retention_days
    if not days:
        return []
    row = await connection.fetchrow(_PLAN, timedelta(days=days), most)
    assert row is not None
    return [to_struct(GcRows, row, kind="run_logs", more=row["rows"] == most, kept_days=days)]


class LogCollector:
    def __init__(self, store: Store, objects: ObjectStore, config: DispatcherConfig) -> None:
        self._store = store
        self._objects = objects
        self._bucket = config.bundle_bucket
        self._keep = timedelta(days=config.log_retention_days)

    async def run_once(self) -> int:
        """Handles one page; returns how many logs it looked at."""
        if not self._keep:
            return 0
        async with self._store.connection() as connection:
            due = await connection.fetch(_DUE, self._keep, PAGE)
        if not due:
            return 0
        for row in due:
            if not row["in_store"]:
                continue  # all of it is in the row
            for uri in log_uris(self._bucket, row["org_id"], row["task_id"], row["attempt"]):
                await self._objects.delete(uri)
        async with self._store.transaction() as connection:
            await connection.execute(_GONE, [row["task_id"] for row in due], [row["attempt"] for row in due])
        logger.info("logs of runs are gone", extra={"logs": len(due)})
        return len(due)

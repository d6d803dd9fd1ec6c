"""The loop that reads quotas and counts what orgs use.

Counting goes along indexes and up to a bound; the longer it takes, the less often it is done. The quotas of running
work are applied here, and the weights are told to the queue.
"""

import time
from collections.abc import Mapping
from uuid import UUID

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.predicates import is_ready
from tracelake.dispatcher.quotas import running
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.model.quota import KINDS, Quotas
from tracelake.ports import Queue, unavailable_without_queue

MOST_COUNTED = 2_000_000
COUNT_SECONDS = 2.0
_REST = 20
"""A count that took a second is repeated after so many."""
_WEIGHTS_EVERY_SECONDS = 60.0
"""The queue may have been emptied, or restored from a backup."""
_ADOPT_BATCHES = 20

_QUOTAS = f"SELECT org_id, weight, {', '.join(KINDS)} FROM org_quotas"  # noqa: S608 - constants only

_ALL_ORGS = "SELECT org_id FROM orgs"

QUEUED = f"""
    SELECT org_id, count(*) AS tasks FROM (
        (SELECT org_id FROM tasks WHERE {is_ready()} ORDER BY ready_at, task_id LIMIT {MOST_COUNTED})
        UNION ALL
        (SELECT org_id FROM tasks WHERE held ORDER BY held_by, org_id, ready_at, task_id LIMIT {MOST_COUNTED})) t
    GROUP BY org_id"""  # noqa: S608 - constants only

# Every change that was added up is gone in the same transaction; who reads meanwhile sees it in one place or the other.
_ADD_UP = """
    WITH gone AS (
        DELETE FROM stored_bytes_changes WHERE change_id IN (
            SELECT change_id FROM stored_bytes_changes ORDER BY change_id LIMIT 10000 FOR UPDATE SKIP LOCKED)
        RETURNING org_id, bytes),
    sums AS (SELECT g.org_id, sum(g.bytes)::bigint AS bytes FROM gone g JOIN orgs USING (org_id) GROUP BY g.org_id)
    INSERT INTO stored_bytes AS s (org_id, bytes) SELECT org_id, bytes FROM sums ORDER BY org_id
    ON CONFLICT (org_id) DO UPDATE SET bytes = s.bytes + excluded.bytes"""

_STORED = """
    SELECT org_id, sum(bytes)::bigint AS bytes FROM (
        SELECT org_id, bytes FROM stored_bytes UNION ALL SELECT org_id, bytes FROM stored_bytes_changes
        UNION ALL SELECT org_id, table_bytes FROM buffered_tables) s
    GROUP BY org_id"""


class QuotaWatch:
    def __init__(self, store: Store, queue: Queue, book: QuotaBook, config: DispatcherConfig) -> None:
        self._store = store
        self._queue = queue
        self._book = book
        self._runtimes = config.runtimes
        self._next_count = 0.0
        self._weights: dict[str, float] | None = None
        self._weights_at = 0.0
        self._adopted: set[UUID] = set()
        """Orgs with a limit on running tasks, all of whose open tasks have its key."""

    async def run_once(self) -> bool:
        """True if something that was held back may go on."""
        async with self._store.connection() as connection:
            quotas = {row["org_id"]: self._book.defaults.override(dict(row)) for row in await connection.fetch(_QUOTAS)}
            self._book.set_quotas(quotas)
            limited = await self._limited(connection, quotas)
        woken = await self._apply_running(limited)
        functions = {org_id: self._book.of(org_id).running_functions for org_id in limited}
        woken += await running.apply_function_quotas(self._store, functions, self._runtimes)
        await self._tell_weights()
        if time.monotonic() >= self._next_count:
            return await self._count() or bool(woken)
        return bool(woken)

    async def _limited(self, connection: Connection, quotas: Mapping[UUID, Quotas]) -> dict[UUID, int]:
        """Orgs whose limits on running work have to be looked at, with the quota of running tasks."""
        orgs = set(quotas) | self._adopted
        if self._book.defaults.running_tasks or self._book.defaults.running_functions:
            orgs |= {row["org_id"] for row in await connection.fetch(_ALL_ORGS)}
        return {org_id: self._book.of(org_id).running_tasks for org_id in orgs}

    async def _apply_running(self, limited: Mapping[UUID, int]) -> int:
        woken = 0
        for org_id, quota in limited.items():
            woken += await running.apply_quota(self._store, org_id, quota, self._runtimes)
            if not quota:
                self._adopted.discard(org_id)
            elif org_id not in self._adopted:
                for _ in range(_ADOPT_BATCHES):
                    if not await running.adopt_tasks(self._store, org_id, self._runtimes):
                        self._adopted.add(org_id)
                        break
                woken += 1
        return woken

    async def _tell_weights(self) -> None:
        weights, now = self._book.weights, time.monotonic()
        if weights == self._weights and now < self._weights_at + _WEIGHTS_EVERY_SECONDS:
            return
        with unavailable_without_queue():
            await self._queue.set_weights(weights)
        self._weights, self._weights_at = weights, now

    async def _count(self) -> bool:
        began = time.monotonic()
        async with self._store.connection() as connection:
            queued = {row["org_id"]: row["tasks"] for row in await connection.fetch(QUEUED)}
            await connection.execute(_ADD_UP)
            stored = {row["org_id"]: row["bytes"] for row in await connection.fetch(_STORED)}
        self._next_count = time.monotonic() + max(COUNT_SECONDS, _REST * (time.monotonic() - began))
        return self._book.set_use(queued, stored)

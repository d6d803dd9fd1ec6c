"""The reconciler: republishes what is ready and has no live wake-up, and buffered publishes nobody committed.

Wake-ups may be lost (a queue restored from a backup, a dead letter, a purge); tasks may not. It pages
through ready tasks older than the grace time, leaves out those with an outbox row, asks the queue which of
the rest it does not hold, and writes an outbox row for exactly those.

A page is so many rows looked at, not so many found, and each is looked up in the outbox by its key: no statement grows
with a backlog.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.plan import WAKEUP, wake_of
from tracelake.dispatcher.engine.tables.batch_rows import ENQUEUE_PUBLISHES_AGAIN
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.predicates import is_ready
from tracelake.dispatcher.records import affected
from tracelake.model.job import buffer_queue
from tracelake.ports import Queue, unavailable_without_queue

PAGE = 1000

_READY = f"""
    SELECT t.task_id, t.ready_at, (SELECT j.runtime FROM jobs j WHERE j.job_id = t.job_id) AS runtime,
           (SELECT o.outbox_id FROM outbox o WHERE o.key = t.task_id LIMIT 1) AS outbox_id
    FROM tasks t
    WHERE {is_ready("t")} AND t.ready_at < trace_now() - make_interval(secs => $1)
      AND (t.ready_at, t.task_id) > ($2, $3)
    ORDER BY t.ready_at, t.task_id LIMIT $4"""  # noqa: S608

# Checked again under the lock: a claim, a cancellation or another Dispatcher may have been faster.
_WAKE_AGAIN = f"""
    INSERT INTO outbox (kind, queue, key, org_id)
    SELECT $1, $2, t.task_id, t.org_id
    FROM (SELECT task_id, org_id FROM tasks WHERE task_id = ANY($3) AND {is_ready()}
          ORDER BY task_id FOR UPDATE SKIP LOCKED) t
    WHERE (SELECT o.outbox_id FROM outbox o WHERE o.key = t.task_id LIMIT 1) IS NULL"""  # noqa: S608

_OPEN_PUBLISHES = """
    SELECT p.publish_id, p.dataset_uuid, p.released_at,
           (SELECT o.outbox_id FROM outbox o WHERE o.key = p.publish_id LIMIT 1) AS outbox_id
    FROM buffer_publishes p
    WHERE p.committed_at IS NULL AND p.dead_at IS NULL AND p.released_at < trace_now() - make_interval(secs => $1)
      AND (p.released_at, p.publish_id) > ($2, $3)
    ORDER BY p.released_at, p.publish_id LIMIT $4"""


class Reconciler:
    def __init__(self, store: Store, queue: Queue, config: DispatcherConfig, metrics: Metrics) -> None:
        self._store = store
        self._queue = queue
        self._grace = config.reconcile_grace_seconds
        self._runtimes = config.runtimes
        self._metrics = metrics

    async def run_once(self) -> int:
        with unavailable_without_queue():
            return await self._wake_stranded() + await self._republish()

    async def _wake_stranded(self) -> int:
        woken = 0
        after = await self._beginning()
        while True:
            async with self._store.connection() as connection:
                page = await connection.fetch(_READY, self._grace, *after, PAGE)
            silent = [row for row in page if row["outbox_id"] is None]
            for runtime in {row["runtime"] for row in silent}:
                woken += await self._wake(runtime, [row for row in silent if row["runtime"] == runtime])
            if len(page) < PAGE:
                return woken
            after = (page[-1]["ready_at"], page[-1]["task_id"])

    async def _beginning(self) -> tuple[datetime, UUID]:
        """Where paging starts: before every row. The time is the database's, which knows a smallest one."""
        async with self._store.connection() as connection:
            return await connection.fetchval("SELECT '-infinity'::timestamptz"), UUID(int=0)

    async def _wake(self, runtime: str, rows: Sequence[asyncpg.Record]) -> int:
        wake = wake_of(self._runtimes, runtime)
        absent = {str(row["task_id"]) for row in rows}
        if wake.kind == WAKEUP:  # what is invoked waits in the outbox alone, and that was asked already
            absent = await self._queue.absent(wake.queue, sorted(absent))
        if not absent:
            return 0
        async with self._store.transaction() as connection:
            tag = await connection.execute(_WAKE_AGAIN, *wake, [UUID(key) for key in sorted(absent)])
        row_count = affected(tag)
        self._metrics.reconciled.labels("task_wakeup").inc(row_count)
        return row_count

    async def _republish(self) -> int:
        """Page by page: however far behind the sink is, a lost one behind live ones is found."""
        published = 0
        after = await self._beginning()
        while True:
            async with self._store.connection() as connection:
                page = await connection.fetch(_OPEN_PUBLISHES, self._grace, *after, PAGE)
            published += await self._publish_again([row for row in page if row["outbox_id"] is None])
            if len(page) < PAGE:
                return published
            after = (page[-1]["released_at"], page[-1]["publish_id"])

    async def _publish_again(self, rows: Sequence[asyncpg.Record]) -> int:
        by_dataset: dict[UUID, list[str]] = {}
        for row in rows:
            by_dataset.setdefault(row["dataset_uuid"], []).append(str(row["publish_id"]))
        lost = [
            UUID(key)
            for dataset_uuid, keys in by_dataset.items()
            for key in sorted(await self._queue.absent(buffer_queue(dataset_uuid), keys))
        ]
        if not lost:
            return 0
        async with self._store.transaction() as connection:
            tag = await connection.execute(ENQUEUE_PUBLISHES_AGAIN, lost)
        row_count = affected(tag)
        self._metrics.reconciled.labels("buffer_batch").inc(row_count)
        return row_count

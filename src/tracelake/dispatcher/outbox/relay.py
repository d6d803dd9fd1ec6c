"""The relay: takes outbox rows with SKIP LOCKED, publishes them, deletes them; one state transaction a batch.

A crash between publish and commit publishes a row twice, which is harmless. A transport that is away is
retried for ever and counts nothing. A batch that the transport rejects is tried row by row, so that only
the rejected row counts a try; after `max_tries` it is Failed and waits for a person.

Each kind has a share of every batch, found along an index of its own: neither a backlog of the other kind nor rows that
the invoke loop takes, that were given up or that wait for their next try are read on the way. Of each kind, every org
has the same share, so that a backlog of one org delays nobody else's wake-ups.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.metrics import Metrics
from tracelake.ports import Message, Queue, QueueRejectedError, unavailable_without_queue

logger = logging.getLogger(__name__)

# From one org to the next along the index of the kind, then the rows of each.
_TAKE_KIND = """
    {kind}_orgs AS (
        (SELECT org_id FROM outbox WHERE kind = '{kind}' AND status = 'Pending' ORDER BY org_id LIMIT 1)
        UNION ALL
        SELECT (SELECT o.org_id FROM outbox o
                WHERE o.kind = '{kind}' AND o.status = 'Pending' AND o.org_id > s.org_id ORDER BY o.org_id LIMIT 1)
        FROM {kind}_orgs s WHERE s.org_id IS NOT NULL),
    {kind}_rows AS MATERIALIZED (
        SELECT r.* FROM {kind}_orgs s CROSS JOIN LATERAL (
            SELECT outbox_id, queue, key, body, tries, org_id FROM outbox o
            WHERE o.kind = '{kind}' AND o.status = 'Pending' AND o.org_id = s.org_id AND o.next_try_at <= trace_now()
            ORDER BY o.next_try_at, o.outbox_id
            LIMIT (SELECT greatest(1, $1::int / greatest(1, count(org_id)::int)) FROM {kind}_orgs)
            FOR UPDATE SKIP LOCKED) r)"""

_TAKE = f"""
    WITH RECURSIVE {_TAKE_KIND.format(kind="task_wakeup")}, {_TAKE_KIND.format(kind="buffer_batch")}
    SELECT * FROM task_wakeup_rows UNION ALL SELECT * FROM buffer_batch_rows"""  # noqa: S608 - constants only

_DONE = "DELETE FROM outbox WHERE outbox_id = ANY($1)"

_REJECTED = """
    UPDATE outbox SET tries = tries + 1, last_error = $2, next_try_at = trace_now() + make_interval(secs => $3),
        status = CASE WHEN tries + 1 >= $4 THEN 'Failed' ELSE 'Pending' END
    WHERE outbox_id = $1 RETURNING status"""


@dataclass(eq=False)
class OutboxRelay:
    store: Store
    queue: Queue
    config: DispatcherConfig
    metrics: Metrics

    async def run_once(self) -> int:
        """Publish up to `relay_batch` rows of each kind.

        Raises StoreUnavailableError while either side is away; nothing is lost by it.
        """
        async with self.store.transaction() as connection:
            taken_rows = await connection.fetch(_TAKE, self.config.relay_batch)
            rows = sorted(taken_rows, key=itemgetter("outbox_id"))
            if rows:
                await self._publish(connection, rows)
        return len(rows)

    async def _publish(self, connection: Connection, rows: Sequence[asyncpg.Record]) -> None:
        try:
            with unavailable_without_queue():
                await self.queue.publish([_message(row) for row in rows])
            done = [row["outbox_id"] for row in rows]
        except QueueRejectedError:
            done = [row["outbox_id"] for row in rows if await self._publish_one(connection, row)]
        await connection.execute(_DONE, done)
        self.metrics.outbox_published.inc(len(done))

    async def _publish_one(self, connection: Connection, row: asyncpg.Record) -> bool:
        try:
            with unavailable_without_queue():
                await self.queue.publish([_message(row)])
        except QueueRejectedError as rejected:
            wait = self.config.outbox_retry.seconds(row["tries"] + 1)
            status = await connection.fetchval(
                _REJECTED, row["outbox_id"], str(rejected)[:500], wait, self.config.outbox_max_tries
            )
            self.metrics.outbox_rejected.inc()
            level = logging.ERROR if status == "Failed" else logging.WARNING
            logger.log(
                level, "the queue rejected an outbox row", extra={"outbox_id": row["outbox_id"], "status": status}
            )
            return False
        return True


def wakeup_body(task_id: UUID) -> bytes:
    """A wake-up carries the task's id alone."""
    return b'{"task_id":"%s"}' % str(task_id).encode()


def _message(row: asyncpg.Record) -> Message:
    body = wakeup_body(row["key"]) if row["body"] is None else row["body"].encode()
    return Message(row["queue"], str(row["key"]), body, str(row["org_id"]))

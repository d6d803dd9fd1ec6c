"""The relay: takes outbox rows with SKIP LOCKED, publishes them, deletes them; one state transaction a batch.

A crash between publish and commit publishes a row twice, which is harmless. A transport that is away is
retried for ever and counts nothing. A batch that the transport rejects is tried row by row, so that only
the rejected row counts a try; after `max_tries` it is Failed and waits for a person.

Each kind has a share of every batch, found along an index of its own: neither a backlog of the other kind nor rows that
the invoke loop takes, that were given up or that wait for their next try are read on the way.
"""

import logging
from collections.abc import Sequence
from operator import itemgetter
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.metrics import Metrics
from tracelake.errors import StoreUnavailableError
from tracelake.ports import Message, Queue, QueueRejectedError, QueueUnavailableError

logger = logging.getLogger(__name__)

_TAKE = """
    WITH wakeups AS MATERIALIZED (
        SELECT outbox_id, queue, key, body, tries FROM outbox
        WHERE kind = 'task_wakeup' AND status = 'Pending' AND next_try_at <= trace_now()
        ORDER BY next_try_at, outbox_id LIMIT $1 FOR UPDATE SKIP LOCKED),
    batches AS MATERIALIZED (
        SELECT outbox_id, queue, key, body, tries FROM outbox
        WHERE kind = 'buffer_batch' AND status = 'Pending' AND next_try_at <= trace_now()
        ORDER BY next_try_at, outbox_id LIMIT $1 FOR UPDATE SKIP LOCKED)
    SELECT * FROM wakeups UNION ALL SELECT * FROM batches"""

_DONE = "DELETE FROM outbox WHERE outbox_id = ANY($1)"

_REJECTED = """
    UPDATE outbox SET tries = tries + 1, last_error = $2, next_try_at = trace_now() + make_interval(secs => $3),
        status = CASE WHEN tries + 1 >= $4 THEN 'Failed' ELSE 'Pending' END
    WHERE outbox_id = $1 RETURNING status"""


class Relay:
    def __init__(self, store: Store, queue: Queue, config: DispatcherConfig, metrics: Metrics) -> None:
        self._store = store
        self._queue = queue
        self._config = config
        self._metrics = metrics

    async def run_once(self) -> int:
        """Publish up to `relay_batch` rows of each kind.

        Raises StoreUnavailableError while either side is away; nothing is lost by it.
        """
        async with self._store.transaction() as connection:
            taken = await connection.fetch(_TAKE, self._config.relay_batch)
            rows = sorted(taken, key=itemgetter("outbox_id"))
            if rows:
                await self._publish(connection, rows)
        return len(rows)

    async def _publish(self, connection: Connection, rows: Sequence[asyncpg.Record]) -> None:
        try:
            await self._queue.publish([_message(row) for row in rows])
            done = [row["outbox_id"] for row in rows]
        except QueueUnavailableError as away:
            raise StoreUnavailableError("The queue is not available right now.") from away
        except QueueRejectedError:
            done = [row["outbox_id"] for row in rows if await self._publish_one(connection, row)]
        await connection.execute(_DONE, done)
        self._metrics.outbox_published.inc(len(done))

    async def _publish_one(self, connection: Connection, row: asyncpg.Record) -> bool:
        try:
            await self._queue.publish([_message(row)])
        except QueueUnavailableError as away:
            raise StoreUnavailableError("The queue is not available right now.") from away
        except QueueRejectedError as rejected:
            wait = self._config.outbox_retry.seconds(row["tries"] + 1)
            status = await connection.fetchval(
                _REJECTED, row["outbox_id"], str(rejected)[:500], wait, self._config.outbox_max_tries
            )
            self._metrics.outbox_rejected.inc()
            level = logging.ERROR if status == "Failed" else logging.WARNING
            logger.log(
                level,
                "the queue rejected an outbox row",
                extra={"outbox_id": row["outbox_id"], "status": status},
            )
            return False
        return True


def wakeup_body(task_id: UUID) -> bytes:
    """A wake-up carries the task's id alone."""
    return b'{"task_id":"%s"}' % str(task_id).encode()


def _message(row: asyncpg.Record) -> Message:
    body = wakeup_body(row["key"]) if row["body"] is None else row["body"].encode()
    return Message(row["queue"], str(row["key"]), body)

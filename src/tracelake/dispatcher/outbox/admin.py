"""What an operator does with the outbox and with dead letters: look, try again, drop."""

from collections.abc import Sequence

from tracelake.db.transaction import Store
from tracelake.errors import StoreUnavailableError
from tracelake.ports import Queue, QueueUnavailableError
from tracelake.wire.platform import DeadLetterRow, DeadLettersReply, OutboxReply, OutboxRow

_SUMMARY = """
    SELECT count(*) FILTER (WHERE status = 'Pending') AS pending, count(*) FILTER (WHERE status = 'Failed') AS failed,
           coalesce(extract(epoch FROM trace_now() - min(created_at) FILTER (WHERE status = 'Pending')), 0)::float8
               AS oldest
    FROM outbox"""

_LIST = """
    SELECT outbox_id, kind, queue, key::text AS key, status, tries, created_at, next_try_at, last_error
    FROM outbox WHERE $1::text IS NULL OR status = $1 ORDER BY outbox_id LIMIT $2"""

_REQUEUE = """
    UPDATE outbox SET status = 'Pending', tries = 0, next_try_at = trace_now()
    WHERE status = 'Failed' AND ($1::bigint[] IS NULL OR outbox_id = ANY($1)) RETURNING outbox_id"""


async def summary(store: Store) -> tuple[int, int, float]:
    """`(pending, failed, age of the oldest pending row in seconds)`."""
    async with store.connection() as connection:
        row = await connection.fetchrow(_SUMMARY)
    assert row is not None
    return row["pending"], row["failed"], row["oldest"]


async def list_rows(store: Store, status: str | None, limit: int) -> OutboxReply:
    pending, failed, oldest = await summary(store)
    async with store.connection() as connection:
        rows = await connection.fetch(_LIST, status, limit)
    return OutboxReply(
        pending=pending,
        failed=failed,
        oldest_pending_seconds=oldest,
        rows=[OutboxRow(**dict(row)) for row in rows],
    )


async def requeue(store: Store, outbox_ids: Sequence[int] | None) -> int:
    async with store.connection() as connection:
        rows = await connection.fetch(_REQUEUE, None if outbox_ids is None else list(outbox_ids))
    return len(rows)


async def dead_letters(queue: Queue, limit: int) -> DeadLettersReply:
    try:
        letters = await queue.dead_letters(None, limit)
        total = sum(depth.dead for depth in await queue.depths())
    except QueueUnavailableError as away:
        raise StoreUnavailableError("The queue is not available right now.") from away
    rows = [
        DeadLetterRow(
            message_id=letter.message_id,
            queue=letter.queue,
            key=letter.key,
            receives=letter.receives,
            reason=letter.reason,
            published_at=letter.published_at,
            died_at=letter.died_at,
        )
        for letter in letters
    ]
    return DeadLettersReply(total=total, letters=rows)


async def drop_dead_letters(queue: Queue, message_ids: Sequence[str] | None) -> int:
    """What a letter was for is not dropped: a task that is still ready gets a new wake-up from the reconciler."""
    try:
        return await queue.drop_dead(message_ids)
    except QueueUnavailableError as away:
        raise StoreUnavailableError("The queue is not available right now.") from away

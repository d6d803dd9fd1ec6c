"""What an operator does with the outbox and with dead letters: look, try again, drop."""

from collections.abc import Sequence

from tracelake.db.transaction import Store
from tracelake.dispatcher.outbox.counts import OUTBOX_COUNTS
from tracelake.errors import StoreUnavailableError
from tracelake.ports import Queue, QueueUnavailableError
from tracelake.wire.platform import DeadLetterRow, DeadLettersReply, OutboxReply, OutboxRow

_ROW = "outbox_id, kind, queue, key::text AS key, status, tries, created_at, next_try_at, last_error"

_FAILED = f"SELECT {_ROW} FROM outbox WHERE status = 'Failed' ORDER BY outbox_id LIMIT $1"  # noqa: S608 - constants only

# Those whose turn is next, of each kind.
_PENDING = f"""
    SELECT {_ROW} FROM (
        (SELECT * FROM outbox WHERE kind = 'task_wakeup' AND status = 'Pending'
         ORDER BY org_id, next_try_at, outbox_id LIMIT $1)
        UNION ALL
        (SELECT * FROM outbox WHERE kind = 'buffer_batch' AND status = 'Pending'
         ORDER BY org_id, next_try_at, outbox_id LIMIT $1)
        UNION ALL
        (SELECT * FROM outbox WHERE kind = 'task_invoke' AND status = 'Pending'
         ORDER BY queue, org_id, next_try_at, outbox_id LIMIT $1)) o
    ORDER BY o.outbox_id LIMIT $1"""  # noqa: S608 - constants only

_ANY = f"SELECT {_ROW} FROM outbox ORDER BY outbox_id LIMIT $1"  # noqa: S608 - constants only

_LISTS = {None: _ANY, "Pending": _PENDING, "Failed": _FAILED}

_REQUEUED_AT_ONCE = 1000

_REQUEUE = """
    UPDATE outbox SET status = 'Pending', tries = 0, next_try_at = trace_now()
    WHERE outbox_id = ANY($1) AND status = 'Failed'"""

_REQUEUE_NEXT = """
    UPDATE outbox SET status = 'Pending', tries = 0, next_try_at = trace_now()
    WHERE outbox_id = ANY(ARRAY(
        SELECT outbox_id FROM outbox WHERE status = 'Failed' ORDER BY outbox_id LIMIT $1 FOR UPDATE SKIP LOCKED))"""


async def list_rows(store: Store, status: str | None, limit: int) -> OutboxReply:
    """The counts go up to a bound; see `counts`."""
    async with store.connection() as connection:
        counts = await connection.fetchrow(OUTBOX_COUNTS)
        rows = await connection.fetch(_LISTS[status], limit)
    assert counts is not None
    oldest = counts["oldest"]
    return OutboxReply(
        pending=counts["pending"],
        failed=counts["failed"],
        oldest_pending_seconds=0.0 if oldest is None else (counts["now"] - oldest).total_seconds(),
        rows=[OutboxRow(**dict(row)) for row in rows],
    )


async def requeue(store: Store, outbox_ids: Sequence[int] | None) -> int:
    """Tries failed rows again: the given ones, or all of them, so many in each transaction."""
    if outbox_ids is not None:
        async with store.connection() as connection:
            return _count(await connection.execute(_REQUEUE, list(outbox_ids)))
    requeued = 0
    while True:
        async with store.connection() as connection:
            changed = _count(await connection.execute(_REQUEUE_NEXT, _REQUEUED_AT_ONCE))
        requeued += changed
        if changed < _REQUEUED_AT_ONCE:
            return requeued


def _count(tag: str) -> int:
    return int(tag.rpartition(" ")[2])


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

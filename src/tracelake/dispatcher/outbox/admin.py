"""What an operator does with the outbox and with dead letters: look, try again, drop."""

from collections.abc import Sequence

import msgspec

from tracelake.db.transaction import Store
from tracelake.dispatcher.metrics import MOST
from tracelake.dispatcher.records import affected, to_struct
from tracelake.ports import Queue, unavailable_without_queue
from tracelake.wire.platform import DeadLetterRow, DeadLettersReply, OutboxReply, OutboxRow

_ROW = "outbox_id, kind, queue, key::text AS key, status, tries, created_at, next_try_at, last_error"

_ORDERS = {
    "task_wakeup": "org_id, next_try_at, outbox_id",
    "buffer_batch": "org_id, next_try_at, outbox_id",
    "task_invoke": "queue, org_id, next_try_at, outbox_id",
}
"""By kind, the order of the index of its pending rows: of those whose turn is next."""

_NEXT_OF_KINDS = " UNION ALL ".join(
    f"(SELECT * FROM outbox WHERE kind = '{kind}' AND status = 'Pending' ORDER BY {order} LIMIT $1)"  # noqa: S608 - constants only
    for kind, order in _ORDERS.items()
)

_LISTS = {
    None: f"SELECT {_ROW} FROM outbox ORDER BY outbox_id LIMIT $1",  # noqa: S608 - constants only
    "Pending": f"SELECT {_ROW} FROM ({_NEXT_OF_KINDS}) o ORDER BY o.outbox_id LIMIT $1",  # noqa: S608 - constants only
    "Failed": f"SELECT {_ROW} FROM outbox WHERE status = 'Failed' ORDER BY outbox_id LIMIT $1",  # noqa: S608 - constants only
}

_PENDING = ",\n".join(
    f"""(SELECT count(*) AS rows, min(created_at) AS oldest FROM (
            SELECT created_at FROM outbox WHERE kind = '{kind}' AND status = 'Pending'
            ORDER BY {order} LIMIT {MOST}) o) {kind}"""  # noqa: S608 - constants only
    for kind, order in _ORDERS.items()
)

# Counted along the partial indexes and up to a bound. A rejected row waits behind those that are due, so beyond the
# bound `oldest` may leave it out until its next try.
OUTBOX_COUNTS = f"""
    SELECT least({MOST}, {" + ".join(f"{kind}.rows" for kind in _ORDERS)}) AS pending,
           least({", ".join(f"{kind}.oldest" for kind in _ORDERS)}) AS oldest, f.failed, trace_now() AS now
    FROM {_PENDING},
        (SELECT count(*) AS failed FROM (
            SELECT FROM outbox WHERE status = 'Failed' ORDER BY outbox_id LIMIT {MOST}) o) f"""  # noqa: S608

_REQUEUED_AT_ONCE = 1000

_REQUEUE = """
    UPDATE outbox SET status = 'Pending', tries = 0, next_try_at = trace_now()
    WHERE outbox_id = ANY($1) AND status = 'Failed'"""

_REQUEUE_NEXT = """
    UPDATE outbox SET status = 'Pending', tries = 0, next_try_at = trace_now()
    WHERE outbox_id = ANY(ARRAY(
        SELECT outbox_id FROM outbox WHERE status = 'Failed' ORDER BY outbox_id LIMIT $1 FOR UPDATE SKIP LOCKED))"""


async def list_rows(store: Store, status: str | None, limit: int) -> OutboxReply:
    """The counts go up to a bound."""
    async with store.connection() as connection:
        counts = await connection.fetchrow(OUTBOX_COUNTS)
        rows = await connection.fetch(_LISTS[status], limit)
    assert counts is not None
    oldest = counts["oldest"]
    return OutboxReply(
        pending=counts["pending"],
        failed=counts["failed"],
        oldest_pending_seconds=0.0 if oldest is None else (counts["now"] - oldest).total_seconds(),
        rows=[to_struct(OutboxRow, row) for row in rows],
    )


async def requeue(store: Store, outbox_ids: Sequence[int] | None) -> int:
    """Tries failed rows again: the given ones, or all of them, so many in each transaction."""
    if outbox_ids is not None:
        async with store.connection() as connection:
            return affected(await connection.execute(_REQUEUE, list(outbox_ids)))
    requeued = 0
    while True:
        async with store.connection() as connection:
            changed = affected(await connection.execute(_REQUEUE_NEXT, _REQUEUED_AT_ONCE))
        requeued += changed
        if changed < _REQUEUED_AT_ONCE:
            return requeued


async def dead_letters(queue: Queue, limit: int) -> DeadLettersReply:
    with unavailable_without_queue():
        letters = await queue.dead_letters(None, limit)
        total = sum(depth.dead for depth in await queue.depths())
    rows = msgspec.convert(letters, list[DeadLetterRow], from_attributes=True)
    return DeadLettersReply(total=total, letters=rows)


async def drop_dead_letters(queue: Queue, message_ids: Sequence[str] | None) -> int:
    """What a letter was for is not dropped: a task that is still ready gets a new wake-up from the reconciler."""
    with unavailable_without_queue():
        return await queue.drop_dead(message_ids)

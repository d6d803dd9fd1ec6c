"""What an operator does with the outbox: look, and try again."""

from collections.abc import Sequence

from tracelake.db.transaction import Store
from tracelake.wire.platform import OutboxReply, OutboxRow

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

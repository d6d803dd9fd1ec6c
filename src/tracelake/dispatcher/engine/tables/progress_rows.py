"""Rows of `source_progress`: what followers of chains said with their latest heartbeats."""

from collections.abc import Sequence

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import SourceProgress
from tracelake.dispatcher.records import columns

# Counts are those of an attempt. A heartbeat that is repeated changes nothing; the first one of the next attempt adds
# what the one before it had said last.
_WRITE = """
    INSERT INTO source_progress AS p (node_id, org_id, attempt, state, head, stored, stored_time, announced, reorgs,
                                      last_reorg_depth, max_reorg_depth)
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
                         $8::bool[], $9::bigint[], $10::int[], $11::int[])
    ON CONFLICT (node_id) DO UPDATE SET
        attempt = excluded.attempt, state = excluded.state, told_at = trace_now(), announced = excluded.announced,
        head = coalesce(excluded.head, p.head), stored = coalesce(excluded.stored, p.stored),
        stored_time = CASE WHEN excluded.stored IS NULL THEN p.stored_time ELSE excluded.stored_time END,
        reorgs = excluded.reorgs,
        reorgs_before = p.reorgs_before + CASE WHEN p.attempt < excluded.attempt THEN p.reorgs ELSE 0 END,
        last_reorg_depth = CASE WHEN excluded.reorgs > 0 THEN excluded.last_reorg_depth ELSE p.last_reorg_depth END,
        max_reorg_depth = greatest(p.max_reorg_depth, excluded.max_reorg_depth)
    WHERE p.attempt <= excluded.attempt"""


async def write_progress(connection: Connection, progress: Sequence[SourceProgress]) -> None:
    await connection.execute(_WRITE, *columns(sorted(progress)))

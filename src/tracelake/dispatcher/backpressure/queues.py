"""The queues of a version: their thresholds, and a fresh count of what they hold.

For cutovers, and for the loop that looks after ages. A count is taken while the queue's row is locked: whoever has made
tasks ready or taken them holds that lock until its commit, so nothing is seen twice or missed.
"""

from collections.abc import Collection, Mapping
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.backpressure import gauge
from tracelake.dispatcher.backpressure.gauge import Reading
from tracelake.dispatcher.backpressure.levels import Thresholds

# Tasks that were made before their job had a threshold; with the other locks on tasks, before edges and limits.
_MARK = """
    UPDATE tasks t SET counted = true FROM jobs j
    WHERE j.job_id = t.job_id AND j.node_id = ANY($1) AND NOT t.counted
      AND t.status IN ('Queued', 'Running', 'Failed')"""

_SET = """
    INSERT INTO pressure (node_id, org_id, max_depth, max_age_seconds)
    SELECT u.node_id, $1, u.max_depth, u.max_age_seconds
    FROM unnest($2::uuid[], $3::int[], $4::int[]) AS u(node_id, max_depth, max_age_seconds) ORDER BY u.node_id
    ON CONFLICT (node_id) DO UPDATE SET max_depth = excluded.max_depth, max_age_seconds = excluded.max_age_seconds"""

_UNSET = "UPDATE pressure SET max_depth = NULL, max_age_seconds = NULL WHERE node_id = ANY($1)"

_LOCK = "SELECT node_id FROM pressure WHERE node_id = ANY($1) ORDER BY node_id FOR NO KEY UPDATE"

_COUNT = """
    SELECT q.node_id, t.depth, t.oldest FROM unnest($1::uuid[]) AS q(node_id)
    CROSS JOIN LATERAL (
        SELECT count(*)::int AS depth, min(t.ready_at) AS oldest FROM jobs j JOIN tasks t USING (job_id)
        WHERE j.node_id = q.node_id AND t.status = 'Queued' AND NOT t.held AND t.counted) t"""


async def mark_counted(connection: Connection, thresholds: Mapping[UUID, Thresholds]) -> None:
    limited = _limited(thresholds)
    if limited:
        await connection.execute(_MARK, list(limited))


async def set_thresholds(
    connection: Connection, org_id: UUID, thresholds: Mapping[UUID, Thresholds], also: Collection[UUID]
) -> None:
    """From now on these nodes' queues have these thresholds; `also` is counted anew because its tasks changed."""
    limited = _limited(thresholds)
    if limited:
        rows = [(node, item.max_depth, item.max_age_seconds) for node, item in limited.items()]
        await connection.execute(_SET, org_id, *(list(column) for column in zip(*rows, strict=True)))
    free = [node for node in thresholds if node not in limited]
    if free:
        await connection.execute(_UNSET, free)
    await recount(connection, {*thresholds, *also})


async def recount(connection: Connection, nodes: Collection[UUID]) -> bool:
    """True if the pressure of one of them eased."""
    there = [row["node_id"] for row in await connection.fetch(_LOCK, list(nodes))]
    if not there:
        return False
    seen = {row["node_id"]: Reading(row["depth"], row["oldest"]) for row in await connection.fetch(_COUNT, there)}
    return await gauge.observe(connection, seen)


def _limited(thresholds: Mapping[UUID, Thresholds]) -> dict[UUID, Thresholds]:
    return {
        node: item
        for node, item in thresholds.items()
        if item.max_depth is not None or item.max_age_seconds is not None
    }

"""The queues of a version: their thresholds, a fresh count of what they hold, and the age of what waits.

A queue holds every task that is `Queued`: those that a worker may take, and those that a limit on running work holds.
What pressure or a build keeps back is no task yet: it waits as events.

A cutover counts while the queue's row is locked: whoever has made tasks ready or taken them holds that lock until its
commit, so nothing is seen twice or missed. The loop that looks after queues may not do that, because every task that
comes or goes needs the lock, and a long queue takes a tenth of a second to count. It counts without the lock (see
`correct`), and looks for the oldest task among the first ones alone.
"""

from collections.abc import Collection, Mapping
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.pressure import gauge
from tracelake.dispatcher.engine.pressure.gauge import QueueReading
from tracelake.dispatcher.engine.pressure.levels import Thresholds
from tracelake.dispatcher.predicates import has_threshold, is_open
from tracelake.dispatcher.records import columns

BATCH = 2_000

LOOKED_AT = 1_000
"""Tasks of a queue, the ones made first, among which the oldest is looked for."""

_NEWLY = f"""
    SELECT n.node_id FROM unnest($1::uuid[]) AS n(node_id) WHERE NOT EXISTS (
        SELECT FROM pressure p
        WHERE p.node_id = n.node_id AND {has_threshold("p")})"""  # noqa: S608

# Tasks that were made before their job had a threshold.
_UNCOUNTED = f"""
    SELECT l.task_id FROM jobs j CROSS JOIN LATERAL (
        SELECT t.task_id FROM tasks t
        WHERE t.job_id = j.job_id AND {is_open("t")} AND NOT t.counted
        ORDER BY t.task_id LIMIT $2) l
    WHERE j.node_id = ANY($1) LIMIT $2"""  # noqa: S608

# With the other locks on tasks, before edges and limits, and in their order.
_LOCK_TASKS = """
    SELECT t.task_id, t.status = 'Queued' AND NOT t.counted AS waits FROM tasks t
    WHERE t.task_id = ANY($1) ORDER BY t.task_id FOR UPDATE"""

_MARK = "UPDATE tasks SET counted = true WHERE task_id = ANY($1)"

_HAS_MORE = "UPDATE nodes SET uncounted = true WHERE node_id = ANY($1)"

_HAS_NO_MORE = "UPDATE nodes SET uncounted = false WHERE node_id = $1"

_SET = """
    INSERT INTO pressure (node_id, org_id, max_depth, max_age_seconds)
    SELECT u.node_id, $1, u.max_depth, u.max_age_seconds
    FROM unnest($2::uuid[], $3::int[], $4::int[]) AS u(node_id, max_depth, max_age_seconds) ORDER BY u.node_id
    ON CONFLICT (node_id) DO UPDATE SET max_depth = excluded.max_depth, max_age_seconds = excluded.max_age_seconds"""

_UNSET = "UPDATE pressure SET max_depth = NULL, max_age_seconds = NULL WHERE node_id = ANY($1)"

_LOCK = "SELECT node_id FROM pressure WHERE node_id = ANY($1) ORDER BY node_id FOR NO KEY UPDATE"

_COUNT = """
    SELECT q.node_id, coalesce(sum(t.depth), 0)::int AS depth, min(t.oldest) AS oldest
    FROM unnest($1::uuid[]) AS q(node_id)
    LEFT JOIN jobs j ON j.node_id = q.node_id
    LEFT JOIN LATERAL (
        SELECT count(*) AS depth, min(t.ready_at) AS oldest FROM tasks t
        WHERE t.job_id = j.job_id AND t.status = 'Queued' AND t.counted) t ON true
    GROUP BY q.node_id"""

# Along the index of what is not finished, which has the tasks of a job in the order they were made.
_OLDEST = f"""
    SELECT min(l.ready_at) FROM jobs j CROSS JOIN LATERAL (
        SELECT t.ready_at FROM tasks t
        WHERE t.job_id = j.job_id AND {is_open("t")}
          AND t.status = 'Queued' AND t.counted
        ORDER BY t.task_id LIMIT $2) l
    WHERE j.node_id = $1"""  # noqa: S608

# Whoever counts this node's tasks is alone with it. Tasks that come and go do not need this row.
_LOCK_NODE = "SELECT node_id FROM nodes WHERE node_id = $1 FOR NO KEY UPDATE SKIP LOCKED"

_COMPARE = f"""
    SELECT p.depth, {has_threshold("p")} AS limited,
           coalesce(sum(t.counted), 0)::int AS counted, coalesce(sum(t.uncounted), 0)::int AS uncounted
    FROM pressure p LEFT JOIN jobs j ON j.node_id = p.node_id
    LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE t.counted) AS counted, count(*) FILTER (WHERE NOT t.counted) AS uncounted
        FROM tasks t
        WHERE t.job_id = j.job_id AND {is_open("t")}
          AND t.status = 'Queued') t ON true
    WHERE p.node_id = $1 GROUP BY p.node_id"""  # noqa: S608


async def mark_counted(connection: Connection, thresholds: Mapping[UUID, Thresholds]) -> None:
    """Marks a batch of the tasks of queues that get a threshold as counted; marks nodes that have more."""
    newly = await _newly(connection, thresholds)
    if newly and len(await _mark(connection, newly)) == BATCH:
        await connection.execute(_HAS_MORE, newly)


async def count_more(connection: Connection, node_id: UUID) -> int:
    """Marks another batch of such tasks. The caller holds the org's routing lock, and the node's row."""
    marked = await _mark(connection, [node_id])
    if len(marked) < BATCH:
        await connection.execute(_HAS_NO_MORE, node_id)
    await gauge.count(connection, {node_id: sum(row["waits"] for row in marked)})
    return max(1, len(marked))


async def set_thresholds(
    connection: Connection, org_id: UUID, thresholds: Mapping[UUID, Thresholds], depths: Mapping[UUID, int]
) -> None:
    """Sets the thresholds of these nodes' queues; `depths` says what else changed in which queue.

    Only queues that had none are counted: the others know their depth, however long they are.
    """
    newly = await _newly(connection, thresholds)
    await connection.fetch(_LOCK, [*thresholds, *depths])
    limited = _limited(thresholds)
    if limited:
        rows = [(node, item.max_depth, item.max_age_seconds) for node, item in limited.items()]
        await connection.execute(_SET, org_id, *columns(rows))
    free = [node for node in thresholds if node not in limited]
    if free:
        await connection.execute(_UNSET, free)
    await recount(connection, newly)
    counted_nodes = (thresholds.keys() | depths.keys()) - set(newly)
    await gauge.count(connection, {node: depths.get(node, 0) for node in counted_nodes})


async def _newly(connection: Connection, thresholds: Mapping[UUID, Thresholds]) -> list[UUID]:
    limited = _limited(thresholds)
    if not limited:
        return []
    return [row["node_id"] for row in await connection.fetch(_NEWLY, list(limited))]


async def _mark(connection: Connection, nodes: Collection[UUID]) -> list[asyncpg.Record]:
    task_ids = [row["task_id"] for row in await connection.fetch(_UNCOUNTED, list(nodes), BATCH)]
    if not task_ids:
        return []
    rows = await connection.fetch(_LOCK_TASKS, task_ids)
    await connection.execute(_MARK, task_ids)
    return rows


async def recount(connection: Connection, nodes: Collection[UUID]) -> bool:
    """Counts these queues anew. True if the pressure of one of them eased."""
    node_ids = [row["node_id"] for row in await connection.fetch(_LOCK, list(nodes))]
    if not node_ids:
        return False
    readings = {
        row["node_id"]: QueueReading(row["depth"], row["oldest"]) for row in await connection.fetch(_COUNT, node_ids)
    }
    return await gauge.observe(connection, readings)


async def look_at_age(connection: Connection, node_id: UUID) -> bool:
    """Reads since when the oldest task waits. True if pressure eased. The row is locked for the write alone."""
    return await gauge.see_oldest(connection, node_id, await connection.fetchval(_OLDEST, node_id, LOOKED_AT))


async def correct(connection: Connection, node_id: UUID) -> bool:
    """Compares the stored depth with the tasks that exist, and corrects it. True if the pressure eased.

    One statement sees one moment, in which every transaction has changed both or neither: what is wrong there is wrong
    for good, whatever comes and goes until it is put right.
    """
    if await connection.fetchval(_LOCK_NODE, node_id) is None:
        return False  # somebody else is at it
    row = await connection.fetchrow(_COMPARE, node_id)
    if row is None:
        return False
    if row["uncounted"] and row["limited"]:
        await connection.execute(_HAS_MORE, [node_id])
    wrong = row["counted"] - row["depth"]
    return await gauge.count(connection, {node_id: wrong}) if wrong else False


def _limited(thresholds: Mapping[UUID, Thresholds]) -> dict[UUID, Thresholds]:
    return {
        node: item
        for node, item in thresholds.items()
        if item.max_depth is not None or item.max_age_seconds is not None
    }

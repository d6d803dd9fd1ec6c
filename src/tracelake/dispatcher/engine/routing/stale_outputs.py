"""Stale outputs: what readers in other DAGs made before the dataset that they read was rebuilt.

A cutover points them to the new generation and marks their nodes, if they have made anything. `begin_rebuild` has each
of their units made again, by an invalidation of all that they read; what is made from them follows as after any other
invalidation. The mark goes when the last of these units is completed, or skipped by a person.
"""

from collections.abc import Collection
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import affected

LAST = 2**63 - 1

_MARK = """
    INSERT INTO stale_outputs (node_id, org_id, dataset_uuid)
    SELECT u.node_id, $1, u.dataset_uuid FROM unnest($2::uuid[], $3::uuid[]) AS u(node_id, dataset_uuid)
    WHERE EXISTS (SELECT FROM tasks t WHERE t.node_id = u.node_id)
    ON CONFLICT (node_id) DO UPDATE SET dataset_uuid = excluded.dataset_uuid, since = excluded.since, rebuild = '{}'"""

_LOCK = """
    SELECT d.name AS dataset, s.rebuild <> '{}' AS rebuilding
    FROM stale_outputs s JOIN datasets d USING (dataset_uuid) WHERE s.node_id = $1 FOR UPDATE OF s"""

# Named like those of events. A unit of a job of partitions has all inputs, so one
# of them finds all units.
_INVALIDATE = """
    WITH asked AS (
        SELECT gen_random_uuid()::text AS invalidation_id, e.*
        FROM edges e WHERE e.node_id = $1 AND ($2 = 'PerUpdate' OR e.input_index = 0)),
    noted AS (
        INSERT INTO invalidations (invalidation_id, org_id, dataset_uuid, dataset_version, range_start, range_end,
                                   reason, producer)
        SELECT invalidation_id, org_id, dataset_uuid, dataset_version, 0, $3, 'rebuild', $4 FROM asked
        RETURNING invalidation_id),
    work AS (
        INSERT INTO invalidation_work (invalidation_id, node_id, input_index, org_id, own_unit)
        SELECT invalidation_id, a.node_id, a.input_index, a.org_id, '' FROM asked a JOIN noted USING (invalidation_id))
    UPDATE stale_outputs SET rebuild = ARRAY(SELECT invalidation_id FROM asked) WHERE node_id = $1"""

_CLEAR = """
    DELETE FROM stale_outputs s
    WHERE s.rebuild <> '{}'
      AND NOT EXISTS (SELECT FROM invalidation_work w
                      WHERE w.node_id = s.node_id AND w.invalidation_id = ANY(s.rebuild))
      AND NOT EXISTS (SELECT FROM tasks t WHERE t.node_id = s.node_id AND t.revision = ANY(s.rebuild)
                        AND t.revision_kind = 'invalidation'
                        AND t.status <> 'Completed' AND t.skipped_at IS NULL)
      AND NOT EXISTS (SELECT FROM pending_units p WHERE p.node_id = s.node_id AND p.revision_kind = 'invalidation')
      AND NOT EXISTS (SELECT FROM tasks t WHERE t.node_id = s.node_id AND t.finished_at IS NULL
                        AND t.unit_end IS NOT NULL AND t.revision_kind = 'invalidation')"""


async def mark(connection: Connection, org_id: UUID, readers: Collection[tuple[UUID, UUID]]) -> None:
    """Marks readers, `(node_id, dataset_uuid)`, that read another generation from now on."""
    by_node = dict(readers)
    if by_node:
        await connection.execute(_MARK, org_id, list(by_node), list(by_node.values()))


async def begin_rebuild(connection: Connection, node_id: UUID, strategy: str, producer: str) -> tuple[str, bool] | None:
    """Starts the rebuild; returns the dataset that made the outputs stale, and whether it had been started before.

    None if they are not stale. The caller holds the org's routing lock.
    """
    row = await connection.fetchrow(_LOCK, node_id)
    if row is None:
        return None
    if not row["rebuilding"]:
        await connection.execute(_INVALIDATE, node_id, strategy, LAST, producer)
    return row["dataset"], row["rebuilding"]


async def clear(connection: Connection) -> int:
    """Clears the mark of nodes whose units were all made again."""
    tag: str = await connection.execute(_CLEAR)
    return affected(tag)

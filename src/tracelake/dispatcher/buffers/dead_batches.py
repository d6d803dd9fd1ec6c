"""Dead batches, the dead letters of buffered datasets: what users see of them, and what they do with them.

A replay gives the batch back to the sinks under its old number, so a table ends as if it had been right at first. A
dropped one goes to the sinks without its rows, since other batches of its unit may wait for it; its artifact may be
collected.
"""

from collections.abc import Callable, Mapping
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.audit import Actor
from tracelake.dispatcher.engine.tables.batch_rows import ENQUEUE_PUBLISHES_AGAIN
from tracelake.dispatcher.predicates import is_dead
from tracelake.dispatcher.public_ids import OrgIds
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.shared import to_unit
from tracelake.errors import TraceError
from tracelake.wire.buffers import DeadBatch, DeadBatchesChanged, DeadBatchesReply, DeadBatchesRequest

AT_ONCE = 1000
NOT_BUFFERED = "{} is not a buffered dataset, so it has no batches and no dead letters."

_DEAD = is_dead("p")

_LIST = f"""
    SELECT p.publish_id, p.publish_seq, d.name AS dataset, p.task_id, p.attempt, p.dead_code AS code,
           p.dead_reason AS reason, p.dead_line AS line, p.dead_excerpt AS excerpt, p.batch_uri, p.size_bytes,
           p.record_count, p.created_at AS published_at, p.dead_at AS died_at, j.dag_name AS dag, j.name AS job, t.unit
    FROM buffer_publishes p JOIN datasets d USING (dataset_uuid)
    JOIN tasks t ON t.task_id = p.task_id JOIN jobs j ON j.job_id = t.job_id
    WHERE p.org_id = $1 AND {_DEAD} AND d.removed_at IS NULL AND ($2::text IS NULL OR d.name = $2)
      AND p.publish_seq > $3 AND ($4::uuid IS NULL OR p.publish_id = $4)
    ORDER BY p.publish_seq LIMIT $5"""  # noqa: S608 - constants only

_COUNT = f"""
    SELECT count(*) FROM buffer_publishes p JOIN datasets d USING (dataset_uuid)
    WHERE p.org_id = $1 AND {_DEAD} AND d.removed_at IS NULL AND ($2::text IS NULL OR d.name = $2)"""  # noqa: S608 - constants only

_CHOOSE = f"""
    SELECT p.publish_id, d.name FROM buffer_publishes p JOIN datasets d USING (dataset_uuid)
    WHERE p.org_id = $1 AND {_DEAD} AND d.removed_at IS NULL AND ($2::text IS NULL OR d.name = $2)
      AND ($3::uuid[] IS NULL OR p.publish_id = ANY($3))
    ORDER BY p.publish_id LIMIT $4 FOR UPDATE OF p"""  # noqa: S608 - constants only

_STORAGE = "SELECT storage FROM datasets WHERE org_id = $1 AND name = $2 AND removed_at IS NULL"

_REVIVE = """
    UPDATE buffer_publishes
    SET dead_at = NULL, dead_code = NULL, dead_reason = NULL, dead_line = NULL, dead_excerpt = NULL
    WHERE publish_id = ANY($1)"""

_DROP = """
    UPDATE buffer_publishes
    SET dropped_at = trace_now(), dead_at = NULL, dead_code = NULL, dead_reason = NULL, dead_line = NULL,
        dead_excerpt = NULL
    WHERE publish_id = ANY($1)"""


class DeadBatches:
    def __init__(self, store: Store, on_outbox: Callable[[], None]) -> None:
        self._store = store
        self._on_outbox = on_outbox

    async def replay(self, actor: Actor, request: DeadBatchesRequest) -> DeadBatchesChanged:
        async with self._store.transaction() as connection:
            batches = await self._choose(connection, actor, request, "dlq.replay")
            await connection.execute(_REVIVE, list(batches))
            await connection.execute(ENQUEUE_PUBLISHES_AGAIN, list(batches))
        self._on_outbox()
        return _changed(batches)

    async def drop(self, actor: Actor, request: DeadBatchesRequest) -> DeadBatchesChanged:
        async with self._store.transaction() as connection:
            batches = await self._choose(connection, actor, request, "dlq.drop")
            await connection.execute(_DROP, list(batches))
            await connection.execute(ENQUEUE_PUBLISHES_AGAIN, list(batches))
        self._on_outbox()
        return _changed(batches)

    async def _choose(
        self, connection: Connection, actor: Actor, request: DeadBatchesRequest, action: str
    ) -> dict[UUID, str]:
        """Locks the batches that the request names; returns the dataset of each."""
        if actor.org_id is None:
            raise TraceError("publish_not_found", "This org has no dead letters.")
        if (request.publish_ids is None) == (request.dataset is None):
            raise TraceError("body_invalid", "Name either batches or a dataset.", field="publish_ids")
        if not await _takes_batches(connection, actor.org_id, request.dataset):
            raise TraceError("publish_not_found", NOT_BUFFERED.format(request.dataset), field="dataset")
        rows = await connection.fetch(_CHOOSE, actor.org_id, request.dataset, request.publish_ids, AT_ONCE)
        batches = {row["publish_id"]: row["name"] for row in rows}
        if request.publish_ids is not None and len(batches) != len(set(request.publish_ids)):
            raise TraceError(
                "publish_not_found", "At least one of them is not a dead letter of this org.", field="publish_ids"
            )
        if batches:
            target = request.dataset or str(next(iter(batches)))
            details = {"batches": [str(item) for item in batches]}
            await audit.record(connection, actor.org_id, actor.subject, action, target, details)
        return batches


async def list_dead_batches(
    connection: Connection, org_id: UUID, ids: OrgIds, dataset: str | None, limit: int, cursor: int | None
) -> DeadBatchesReply:
    buffered = await _takes_batches(connection, org_id, dataset)
    rows = await connection.fetch(_LIST, org_id, dataset, ids.batches.open(cursor or 0), None, limit + 1)
    total = await connection.fetchval(_COUNT, org_id, dataset)
    batches = [_dead_batch(row, ids) for row in rows[:limit]]
    return DeadBatchesReply(
        total=total,
        letters=batches,
        next=str(batches[-1].publish_seq) if len(rows) > limit else None,
        buffered=buffered,
    )


async def show_dead_batch(connection: Connection, org_id: UUID, ids: OrgIds, publish_id: UUID) -> DeadBatch:
    row = await connection.fetchrow(_LIST, org_id, None, 0, publish_id, 1)
    if row is None:
        raise TraceError("publish_not_found", "There is no such dead letter.")
    return _dead_batch(row, ids)


async def _takes_batches(connection: Connection, org_id: UUID, dataset: str | None) -> bool:
    """Returns whether the named dataset can have dead letters at all."""
    if dataset is None:
        return True
    storage = await connection.fetchval(_STORAGE, org_id, dataset)
    if storage is None:
        raise TraceError("dataset_not_found")
    return bool(storage == "buffered")


def _changed(batches: Mapping[UUID, str]) -> DeadBatchesChanged:
    return DeadBatchesChanged(changed=len(batches), datasets=sorted(set(batches.values())))


def _dead_batch(row: asyncpg.Record, ids: OrgIds) -> DeadBatch:
    number, excerpt = ids.batches.seal(row["publish_seq"]), row["excerpt"] or ""
    return to_struct(DeadBatch, row, publish_seq=number, excerpt=excerpt, unit=to_unit(row["unit"]))

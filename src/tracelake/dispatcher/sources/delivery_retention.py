"""Old deliveries of webhooks are forgotten, with their bodies, in small pages.

Not one that somebody may still need: whose event has not reached every reader of active versions, or whose
tasks are neither done nor given up, or whose DAG was removed and may be restored. And not one whose signature could
still be good: who forgets a delivery would take its repeat for a new one, so it is remembered until the repeat is
refused by its time alone.
"""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.records import to_struct
from tracelake.wire.retention import GcRows

PAGE = 200
REST_ROUNDS = 600
"""Rounds of the loop between two passes over everything that is old enough."""

_START = (datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0), "")

# A page of what is old enough, oldest first, each with whether somebody may need it. The unit of an event is the unit
# of the tasks that it made; a task that failed (no retries left) waits for a person's word. A task of the next cursor
# may read this one too: the first task of a reader reads everything before it.
_OLD = """
    SELECT p.received_at, p.node_id, p.delivery_id, EXISTS (
        SELECT FROM jobs j JOIN job_outputs o USING (job_id)
        JOIN events v ON v.producer = 'webhook:' || p.delivery_id
            AND v.dataset_uuid = o.dataset_uuid AND v.dataset_version = o.dataset_version
        JOIN edges e ON e.dataset_uuid = v.dataset_uuid AND e.dataset_version = v.dataset_version
        WHERE j.node_id = p.node_id AND e.phase <> 'Parked' AND (
            e.position < v.routed_seq
            OR EXISTS (
                SELECT FROM tasks t
                WHERE t.node_id = e.node_id AND t.edge IN (e.input_index, -1)
                  AND t.unit_end = coalesce(v.cursor, v.range_end) AND t.unit_key = v.unit
                  AND (t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.skipped_at IS NULL)))
            OR EXISTS (
                SELECT FROM tasks t
                WHERE t.node_id = e.node_id AND t.edge IN (e.input_index, -1) AND t.unit_start <= v.cursor
                  AND t.unit_end = (
                      SELECT n.unit_end FROM tasks n
                      WHERE n.node_id = e.node_id AND n.edge = e.input_index AND n.unit_end > v.cursor
                        AND n.unit_key = 'c:' || n.unit_end
                      ORDER BY n.unit_end LIMIT 1)
                  AND (t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.skipped_at IS NULL)))
            OR EXISTS (
                SELECT FROM tasks t
                WHERE coalesce(v.cursor, v.range_end) IS NULL
                  AND t.node_id = e.node_id AND t.edge IN (e.input_index, -1)
                  AND t.unit_end IS NULL AND t.unit_key = v.unit
                  AND (t.status IN ('Queued', 'Running') OR (t.status = 'Failed' AND t.skipped_at IS NULL))))
        ) OR EXISTS (
            SELECT FROM nodes n JOIN dags a ON a.org_id = n.org_id AND a.dag_name = n.dag_name
            WHERE n.node_id = p.node_id AND a.removed_at IS NOT NULL) AS needed
    FROM (
        SELECT w.received_at, w.node_id, w.delivery_id FROM webhook_deliveries w
        WHERE w.received_at < trace_now() - $1::interval AND (w.received_at, w.node_id, w.delivery_id) > ($2, $3, $4)
        ORDER BY w.received_at, w.node_id, w.delivery_id LIMIT $5) p
    ORDER BY p.received_at, p.node_id, p.delivery_id"""

_PLAN = """
    SELECT count(*) AS rows, min(received_at) AS oldest, sum(bytes)::bigint AS bytes FROM (
        SELECT received_at, octet_length(body) AS bytes FROM webhook_deliveries
        WHERE received_at < trace_now() - $1::interval ORDER BY received_at, node_id, delivery_id LIMIT $2) due"""

_FORGET = """
    DELETE FROM webhook_deliveries w USING unnest($1::uuid[], $2::text[]) AS u(node_id, delivery_id)
    WHERE w.node_id = u.node_id AND w.delivery_id = u.delivery_id"""


async def plan_deliveries(connection: Connection, config: DispatcherConfig, most: int) -> list[GcRows]:
    """How many deliveries are old enough, up to a bound; some of them may still be needed."""
    days = config.webhook_retention_days
    row = await connection.fetchrow(_PLAN, timedelta(days=days), most)
    assert row is not None
    return [to_struct(GcRows, row, kind="webhook_deliveries", more=row["rows"] == most, kept_days=days)]


class DeliveryPruner:
    def __init__(self, store: Store, config: DispatcherConfig) -> None:
        self._store = store
        # A signature may be from as far in the future as it may be old.
        memory = timedelta(seconds=2 * config.webhook_tolerance_seconds)
        self._keep = max(timedelta(days=config.webhook_retention_days), memory)
        self._after = _START
        self._rest = 0

    async def run_when_due(self) -> int:
        """Handles a page in each round while there are more; rests after the last one."""
        if self._rest:
            self._rest -= 1
            return 0
        return await self.run_once()

    async def run_once(self) -> int:
        """Handles one page; returns how many deliveries were forgotten."""
        async with self._store.transaction() as connection:
            rows = await connection.fetch(_OLD, self._keep, *self._after, PAGE)
            removable = [row for row in rows if not row["needed"]]
            if removable:
                await connection.execute(
                    _FORGET, [row["node_id"] for row in removable], [row["delivery_id"] for row in removable]
                )
        if len(rows) == PAGE:
            last = rows[-1]
            self._after = (last["received_at"], last["node_id"], last["delivery_id"])
        else:
            self._after = _START
            self._rest = REST_ROUNDS
        return len(removable)

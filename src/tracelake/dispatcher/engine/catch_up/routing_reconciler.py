"""Proves that routing strands nothing, and repairs what a bug, a lost row or a restore would have stranded.

Three questions, each answered from the tables and not from memory: is a counter of running work what the tasks say, and
does nobody wait while there is room; is an edge held by as many failed units as there are; has every event that was
routed lately its task at every live edge. An edge that misses one is set back to before it, and the drain loop shows it
the events again: what is there makes no second task.
"""

import logging

import asyncpg

from tracelake.db.routing_gate import RoutingBusyError
from tracelake.db.transaction import Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine import limits
from tracelake.dispatcher.engine.routing import coverage, pending_units
from tracelake.dispatcher.engine.routing.coverage import Presence
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.dispatcher.metrics import Metrics
from tracelake.dispatcher.predicates import is_finally_failed
from tracelake.dispatcher.records import affected

logger = logging.getLogger(__name__)

LOOK_BACK = 10_000
"""How many routed events a fresh process looks back on."""
PAGE = 2_000
_STRANDED_SECONDS = 5.0
"""A transaction that ends a task may not see yet that a unit waits for it; by then both have committed."""

# One look at everything that takes a place, in one snapshot: whoever moves a task moves its counter with it, so a
# difference is a fault and not a moment.
_WRONG_COUNTERS = """
    WITH real AS (
        SELECT key AS limit_key, count(*)::int AS used
        FROM tasks t CROSS JOIN unnest(t.limit_keys) AS key
        WHERE t.status IN ('Queued', 'Running') AND NOT t.held AND t.limit_keys IS NOT NULL GROUP BY key)
    SELECT limit_key FROM limits l FULL JOIN real USING (limit_key)
    WHERE coalesce(l.used, 0) <> coalesce(real.used, 0)"""

# Limits that somebody waits for: from key to key along the index, however many wait for each.
_WAITED_FOR = """
    WITH RECURSIVE w (limit_key) AS (
        (SELECT held_by FROM tasks WHERE held AND held_by IS NOT NULL ORDER BY held_by LIMIT 1)
        UNION ALL
        SELECT (SELECT t.held_by FROM tasks t WHERE t.held AND t.held_by > w.limit_key ORDER BY t.held_by LIMIT 1)
        FROM w WHERE w.limit_key IS NOT NULL)
    SELECT w.limit_key, l.max_running, coalesce(l.used, 0) AS used
    FROM w LEFT JOIN limits l USING (limit_key) WHERE w.limit_key IS NOT NULL"""

# Again under the lock: what the first look saw may have been put right.
_RECOUNT = """
    SELECT key AS limit_key, count(*)::int AS used
    FROM tasks t CROSS JOIN unnest(t.limit_keys) AS key
    WHERE t.status IN ('Queued', 'Running') AND NOT t.held AND t.limit_keys && $1 AND key = ANY($1) GROUP BY key"""

_HELD_UNITS = f"""
    SELECT e.node_id, e.input_index, count(t.task_id)::int AS failed
    FROM edges e JOIN jobs j USING (node_id)
    LEFT JOIN tasks t ON t.job_id = j.job_id AND {is_finally_failed("t")}
        AND t.edge = e.input_index AND t.unit_key LIKE 'c:%' AND t.revision_kind <> 'manual'
    WHERE e.position IS NOT NULL AND e.failed_units > 0
    GROUP BY e.node_id, e.input_index, e.failed_units HAVING count(t.task_id) <> e.failed_units"""  # noqa: S608

_SET_FAILED = """
    UPDATE edges SET failed_units = $3 WHERE node_id = $1 AND input_index = $2 AND failed_units <> $3"""

# Routed events without their task at a live edge. A cursor that the edge has passed needs none of its own unless it has
# a revision, only one that reads it. The task of a join has the revisions of all its inputs: there the unit must do. A
# task that was brought up to date for a newer event stands for the older one as well.
# Edge by edge: the index of routed events begins with the generation.
_MISSING = """
    SELECT v.routed_seq, e.org_id, e.node_id, e.input_index, j.strategy, v.unit, v.range_start, v.range_end
    FROM edges e
    JOIN jobs j USING (job_id)
    CROSS JOIN LATERAL (
        SELECT * FROM events
        WHERE dataset_uuid = e.dataset_uuid AND dataset_version = e.dataset_version
          AND routed_seq > $1 AND routed_seq <= $2 OFFSET 0) v
    CROSS JOIN LATERAL (
        SELECT coalesce(v.range_end, v.cursor) AS unit_end,
               CASE WHEN j.strategy = 'PerPartition' THEN -1 ELSE e.input_index END AS edge,
               CASE WHEN v.invalidates IS NOT NULL THEN coalesce(v.invalidation_id, v.event_id::text) END AS again,
               j.strategy = 'PerPartition' AND (SELECT count(*) FROM edges o WHERE o.node_id = e.node_id) > 1 AS joins
    ) w
    WHERE e.phase <> 'Parked' AND e.position IS NULL AND j.strategy <> 'PerWindow'
      AND NOT EXISTS (SELECT FROM pending_units p WHERE p.node_id = e.node_id AND p.unit_start = v.range_start
                        AND p.unit_end = v.range_end)
      AND CASE WHEN j.strategy = 'PerUpdate' AND v.cursor <= e.routed AND v.effective_revision = '' THEN
          coalesce((
              SELECT t.unit_start FROM tasks t
              WHERE t.node_id = e.node_id AND t.edge = w.edge AND t.unit_end >= v.cursor
                AND t.unit_key = 'c:' || t.unit_end AND t.revision_kind <> 'manual'
              ORDER BY t.unit_end LIMIT 1) > v.cursor, true)
      ELSE
          NOT EXISTS (
              SELECT FROM tasks t WHERE t.node_id = e.node_id AND t.edge = w.edge AND t.unit_end = w.unit_end
                AND t.unit_key = v.unit AND (w.joins OR t.input_order[2] >= v.routed_seq
                  OR (t.revision, t.revision_kind) IN ((v.effective_revision, v.revision_kind),
                                                       (w.again, 'invalidation'))))
          AND NOT (w.unit_end IS NULL AND EXISTS (
              SELECT FROM tasks t WHERE t.node_id = e.node_id AND t.edge = w.edge AND t.unit_end IS NULL
                AND t.unit_key = v.unit AND (w.joins
                  OR (t.revision, t.revision_kind) IN ((v.effective_revision, v.revision_kind),
                                                       (w.again, 'invalidation')))))
      END
    ORDER BY v.routed_seq LIMIT $3"""

_INPUTS = "SELECT dataset_uuid, dataset_version FROM edges WHERE node_id = $1"

_SET_BACK = """
    UPDATE edges SET position = $3 WHERE node_id = $1 AND input_index = $2 AND position IS NULL"""


class RoutingReconciler:
    def __init__(self, store: Store, config: DispatcherConfig, metrics: Metrics) -> None:
        self._store = store
        self._runtimes = config.runtimes
        self._metrics = metrics
        self._proved: int | None = None
        self._newest = 0

    async def run_once(self) -> int:
        return (
            await self._prove_places()
            + await self._prove_holds()
            + await self._prove_events()
            + await self._prove_pending_units()
        )

    async def _prove_places(self) -> int:
        async with self._store.connection() as connection:
            wrong = [row["limit_key"] for row in await connection.fetch(_WRONG_COUNTERS)]
            free = self._free(await connection.fetch(_WAITED_FOR))
        if not wrong and not free:
            return 0
        async with self._store.transaction() as connection:
            counters = await limits.lock(connection, {*wrong, *free}, self._runtimes)
            if wrong:
                real = {row["limit_key"]: row["used"] for row in await connection.fetch(_RECOUNT, wrong)}
                for key in wrong:
                    counters[key].used = real.get(key, 0)
            woken = await limits.hand_out_locked(connection, counters, self._runtimes)
            if woken:
                await task_rows.wake(connection, woken)
        self._count("held_task", len(woken))
        return len(woken)

    def _free(self, waited_for: list[asyncpg.Record]) -> list[str]:
        """Returns the limits that have room although a task waits for it."""
        operators = limits.operator_limits(self._runtimes)
        waited = ((row["limit_key"], operators.get(row["limit_key"], row["max_running"]), row) for row in waited_for)
        return [key for key, most, row in waited if most is None or row["used"] < most]

    async def _prove_holds(self) -> int:
        async with self._store.connection() as connection:
            wrong = await connection.fetch(_HELD_UNITS)
            for row in wrong:
                await connection.execute(_SET_FAILED, *row)
        self._count("held_edge", len(wrong))
        return len(wrong)

    async def _prove_events(self) -> int:
        async with self._store.connection() as connection:
            newest: int = await connection.fetchval("SELECT last_value FROM events_routed_seq")
            if self._proved is None:
                self._proved = max(0, newest - LOOK_BACK)
        repaired, after, postponed = 0, self._proved, False
        while True:
            async with self._store.connection() as connection:
                missing = await connection.fetch(_MISSING, after, newest, PAGE)
            for row in missing:
                try:
                    repaired += await self._repair(row)
                except RoutingBusyError:  # the next round begins here again, and other orgs do not wait for it
                    postponed = True
            if len(missing) < PAGE:
                break
            # The last event may have more readers than the page had room for; but every page goes on.
            last: int = missing[-1]["routed_seq"]
            after = max(after + 1, last - 1)
        # One round behind: a transaction that took a small number may commit after one that took a larger.
        if not postponed:
            self._proved, self._newest = max(self._proved, self._newest), newest
        self._count("event", repaired)
        return repaired

    async def _prove_pending_units(self) -> int:
        async with self._store.connection() as connection:
            revived = await pending_units.revive_stranded(connection, _STRANDED_SECONDS)
        self._count("pending_unit", revived)
        return revived

    async def _repair(self, row: asyncpg.Record) -> int:
        async with self._store.transaction(routing=[row["org_id"]], wait=False) as connection:
            inputs = await connection.fetch(_INPUTS, row["node_id"])
            if row["strategy"] == "PerPartition" and len(inputs) > 1:
                questions = [_presence(row, item) for item in inputs]
                if len(await coverage.read_revisions(connection, questions)) < len(questions):
                    return 0  # it waits for its other inputs, as it must
            tag = await connection.execute(_SET_BACK, row["node_id"], row["input_index"], row["routed_seq"] - 1)
        moved = affected(tag)
        if moved:
            logger.error("an event had no task; its edge is set back", extra={"node_id": str(row["node_id"])})
        return moved

    def _count(self, kind: str, number: int) -> None:
        if number:
            self._metrics.reconciled.labels(kind).inc(number)


def _presence(row: asyncpg.Record, item: asyncpg.Record) -> Presence:
    generation = (item["dataset_uuid"], item["dataset_version"])
    return Presence(generation, row["unit"], row["range_start"], row["range_end"])

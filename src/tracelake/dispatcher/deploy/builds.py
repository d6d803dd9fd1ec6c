"""The loop that ends builds: when a version has done everything its history asks for, it cuts over.

A build is finished when each of its edges has seen the history up to the moment the build began, large invalidations in
it are gone through, no task of its nodes is left, and sinks have taken their batches; a task that failed (no retries
left) and was not skipped, or a dead letter, keeps it open, so that a gap never starts to count by itself. What is
looked at without a lock is looked at again under it, so any number of Dispatchers may try, and a crash at any point
leaves a build that the next round finds as it was.
"""

import logging
from dataclasses import dataclass
from uuid import UUID

from tracelake.db.transaction import HELD_UP, Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.deploy import tasks
from tracelake.dispatcher.deploy.cutover import Switch
from tracelake.dispatcher.deploy.registry import DagPointers, version_by_id
from tracelake.dispatcher.engine.routing import stale_outputs
from tracelake.dispatcher.predicates import awaits_sink, is_dead, is_open
from tracelake.errors import StoreUnavailableError

logger = logging.getLogger(__name__)

_BUILDING = """
    SELECT activation_id, org_id, dag_name, dag_version_id, requested_by FROM activations
    WHERE state = 'Building' ORDER BY activation_id"""

_STILL = """
    SELECT d.active_version, d.building_version FROM dags d JOIN activations a USING (org_id, dag_name)
    WHERE a.activation_id = $1 AND a.state = 'Building' AND d.building_version = a.dag_version_id"""

_NODES = """
    SELECT DISTINCT e.node_id FROM dag_version_jobs v JOIN jobs j USING (job_id) JOIN edges e ON e.node_id = j.node_id
    WHERE v.dag_version_id = $1 AND e.phase = 'Staged'"""

_BEHIND = """
    FROM edges e WHERE e.node_id = ANY($1) AND e.phase = 'Staged' AND e.position IS NOT NULL AND EXISTS (
        SELECT FROM events v WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version
          AND v.routed_seq > e.position AND (e.drain_until IS NULL OR v.routed_seq <= e.drain_until))"""

# Batches of a table that are neither in it nor dropped: few, and found by the table. The task of each is asked for by
# its id: a join may begin with all tasks of the nodes.
_BATCHES_OF_NODES = """
    FROM buffer_publishes p
    WHERE p.dataset_uuid IN (SELECT o.dataset_uuid FROM jobs j JOIN job_outputs o USING (job_id)
                             WHERE j.node_id = ANY($1))
      AND (SELECT t.node_id FROM tasks t WHERE t.task_id = p.task_id) = ANY($1)"""

# Job by job, along an index: one look finds an open task, however many ended ones there are. What a cutover dropped and
# is to come back is open as well: tasks that have yet to be reached, and those that have just stopped.
_UNFINISHED = f"""
    SELECT EXISTS (SELECT {_BEHIND})
        OR EXISTS (SELECT FROM invalidation_work w WHERE w.node_id = ANY($1))
        OR EXISTS (SELECT FROM pending_units p WHERE p.node_id = ANY($1) AND (p.due OR p.waits_for IS NOT NULL))
        OR EXISTS (SELECT FROM nodes n WHERE n.node_id = ANY($1) AND n.sweep = 'Return')
        OR EXISTS (SELECT FROM jobs j CROSS JOIN LATERAL (
            SELECT FROM tasks t
            WHERE t.job_id = j.job_id AND {is_open("t")} AND t.skipped_at IS NULL
            ORDER BY t.task_id LIMIT 1) l WHERE j.node_id = ANY($1))
        OR EXISTS (SELECT FROM jobs j CROSS JOIN LATERAL (
            SELECT FROM tasks t WHERE t.superseded = 'Returning' AND t.job_id = j.job_id
            ORDER BY t.task_id LIMIT 1) l WHERE j.node_id = ANY($1))
        OR EXISTS (SELECT {_BATCHES_OF_NODES} AND {awaits_sink("p")})
        OR EXISTS (SELECT {_BATCHES_OF_NODES} AND {is_dead("p")})"""  # noqa: S608 - constants only

_TO_SWEEP = "SELECT DISTINCT org_id FROM nodes WHERE sweep IS NOT NULL OR uncounted"

SWEEPS = 10
"""Batches of one org in a round: a finished build is not to wait for all that an earlier cutover left."""


@dataclass(frozen=True, slots=True)
class _Build:
    activation_id: int
    org_id: UUID
    dag: str
    dag_version_id: UUID
    requested_by: str


class Builds:
    def __init__(self, store: Store, config: DispatcherConfig) -> None:
        self._store = store
        self._runtimes = config.runtimes

    async def run_once(self) -> int:
        """Returns how many builds cut over, and how many tasks came back, or were moved after their cutover."""
        async with self._store.connection() as connection:
            builds = [_Build(*row) for row in await connection.fetch(_BUILDING)]
            ready = [build for build in builds if not await _unfinished(connection, build.dag_version_id)]
        done = 0
        for build in ready:
            try:
                done += await self._cut_over(build)
            except StoreUnavailableError:
                raise
            except HELD_UP:
                logger.info("a build waits for the next round", extra={"dag": build.dag})
            except Exception:  # the others are not to wait for it
                logger.exception("a build cannot cut over", extra={"dag": build.dag})
        async with self._store.transaction() as connection:
            done += await tasks.take_returning(connection, self._runtimes)
            done += await stale_outputs.clear(connection)
        return done + await self._sweep()

    async def _sweep(self) -> int:
        """Handles what cutovers left to do: tasks of nodes that became inactive, or active again."""
        async with self._store.connection() as connection:
            orgs = [row["org_id"] for row in await connection.fetch(_TO_SWEEP)]
        done = 0
        for org_id in orgs:
            for _ in range(SWEEPS):
                try:
                    # Not while pointers move: what is wanted of these tasks may be another thing afterwards.
                    async with self._store.transaction(routing=[org_id], wait=False) as connection:
                        swept = await tasks.sweep(connection, org_id, self._runtimes)
                except HELD_UP:
                    logger.info("a sweep waits for the next round", extra={"org_id": str(org_id)})
                    break
                if not swept:
                    break
                done += swept
        return done

    async def _cut_over(self, build: _Build) -> int:
        async with self._store.transaction(moving=build.org_id) as connection:
            row = await connection.fetchrow(_STILL, build.activation_id)
            if row is None or await _unfinished(connection, build.dag_version_id):
                return 0
            version = await version_by_id(connection, build.dag_version_id)
            before = DagPointers(row["active_version"], row["building_version"])
            await Switch(
                connection, build.org_id, build.dag, before, version, build.requested_by, self._runtimes
            ).cut_over()
            details = {"version": version.number, "built": True}
            await audit.record(connection, build.org_id, build.requested_by, "dag.cutover", build.dag, details)
        logger.info("a build is active now", extra={"dag": build.dag, "version": version.number})
        return 1


async def _unfinished(connection: Connection, dag_version_id: UUID) -> bool:
    nodes = await _nodes(connection, dag_version_id)
    unfinished: bool = await connection.fetchval(_UNFINISHED, nodes)
    return unfinished


async def _nodes(connection: Connection, dag_version_id: UUID) -> list[UUID]:
    """Returns the nodes that are being built. A source, which may run without end, has no edge and is none of them."""
    return [row["node_id"] for row in await connection.fetch(_NODES, dag_version_id)]

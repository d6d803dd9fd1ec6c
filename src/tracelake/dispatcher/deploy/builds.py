"""The loop that ends builds: when a version has done everything its history asks for, it cuts over.

A build is finished when each of its edges has seen the history up to the moment the build began and no task of its
nodes is left; one that failed for good and was not skipped keeps it open, so that a gap never starts to count by
itself. What is looked at without a lock is looked at again under it, so any number of Dispatchers may try, and a crash
at any point leaves a build that the next round finds as it was.
"""

import logging
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.deploy import tasks
from tracelake.dispatcher.deploy.cutover import Switch
from tracelake.dispatcher.deploy.registry import DagPointers, version_by_id
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

_OPEN = """
    FROM jobs j JOIN tasks t USING (job_id)
    WHERE j.node_id = ANY($1) AND t.status IN ('Queued', 'Running', 'Failed') AND t.skipped_at IS NULL"""

_UNFINISHED = f"SELECT EXISTS (SELECT {_BEHIND}) OR EXISTS (SELECT {_OPEN})"


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
        """Answers how many builds cut over, and how many stopped tasks of a version that counts again came back."""
        async with self._store.connection() as connection:
            builds = [_Build(*row) for row in await connection.fetch(_BUILDING)]
            ready = [build for build in builds if not await _unfinished(connection, build.dag_version_id)]
        done = 0
        for build in ready:
            try:
                done += await self._cut_over(build)
            except StoreUnavailableError:
                raise
            except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError):
                logger.info("a build waits for the next round", extra={"dag": build.dag})
            except Exception:  # the others are not to wait for it
                logger.exception("a build cannot cut over", extra={"dag": build.dag})
        async with self._store.transaction() as connection:
            done += await tasks.take_returning(connection, self._runtimes)
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
        logger.info("a build counts now", extra={"dag": build.dag, "version": version.number})
        return 1


async def _unfinished(connection: Connection, dag_version_id: UUID) -> bool:
    nodes = await _nodes(connection, dag_version_id)
    unfinished: bool = await connection.fetchval(_UNFINISHED, nodes)
    return unfinished


async def _nodes(connection: Connection, dag_version_id: UUID) -> list[UUID]:
    """Those that are being built. A source has no edge: it may run without end, and nothing waits for it."""
    return [row["node_id"] for row in await connection.fetch(_NODES, dag_version_id)]

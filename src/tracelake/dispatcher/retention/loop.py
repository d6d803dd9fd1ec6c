"""The retention loop: a bounded round at a time, and the plan of what would go. Several Dispatchers may be at it."""

import logging
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.buffers.artifact_retention import ArtifactCollector, plan_artifacts
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.retention import history, versions
from tracelake.dispatcher.retention.removed_dags import RemovedDags, plan_removed
from tracelake.dispatcher.run_logs.log_retention import LogCollector, plan_logs
from tracelake.dispatcher.sources.delivery_retention import DeliveryPruner, plan_deliveries
from tracelake.ports import ObjectStore, Queue
from tracelake.wire.retention import GcPlan, GcReply, GcRows, GcVersion

logger = logging.getLogger(__name__)

BATCH = 1_000
"""Rows of one statement: others wait for no lock longer than it takes."""
ROUND_SECONDS = 5.0
"""After so long a round ends; the next one goes on."""
_PLANNED_VERSIONS = 100

_NAMES = "SELECT org_id, name FROM orgs WHERE org_id = ANY($1)"
_PREFIX = "SELECT prefix FROM removed_prefixes WHERE prefix > $1 ORDER BY prefix LIMIT 1"
_PREFIX_GONE = "DELETE FROM removed_prefixes WHERE prefix = $1"
_PENDING = """
    SELECT (SELECT count(*) FROM nodes WHERE retired_at IS NOT NULL) AS nodes,
           (SELECT count(*) FROM removed_prefixes) AS prefixes,
           (SELECT count(*) FROM removed_tables) AS tables"""


class Retention:
    def __init__(self, store: Store, objects: ObjectStore, queue: Queue, config: DispatcherConfig) -> None:
        self._store = store
        self._objects = objects
        self._config = config
        self._age = timedelta(days=config.version_retention_days)
        self._logs = LogCollector(store, objects, config)
        self._artifacts = ArtifactCollector(store, objects, config)
        self._deliveries = DeliveryPruner(store, config)
        self.removed_dags = RemovedDags(store, objects, queue, config)
        self._after = history.START
        """How far this process has been through tasks that no DAG made."""

    async def plan(self) -> GcPlan:
        """What a round would begin with; counts go up to a bound."""
        rows = []
        async with self._store.connection() as connection:
            queries = (history.BATCH_QUERIES, self._config.query_batch_retention_days)
            for kind, days in (*history.kinds(self._config), queries):
                count_row = await connection.fetchrow(kind.count, timedelta(days=days), history.COUNTED)
                assert count_row is not None
                more = count_row["rows"] == history.COUNTED
                rows.append(to_struct(GcRows, count_row, kind=kind.table, more=more, kept_days=days))
            for plan_rows in (plan_logs, plan_deliveries, plan_artifacts):
                rows += await plan_rows(connection, self._config, history.COUNTED)
            removed_dags = await plan_removed(connection, history.COUNTED)
            due = await self._due_versions(connection)
            orgs = await connection.fetch(_NAMES, [row["org_id"] for row in due])
            pending = await connection.fetchrow(_PENDING)
        assert pending is not None
        names = {row["org_id"]: row["name"] for row in orgs}
        due_versions = [GcVersion(org=names[row["org_id"]], dag=row["dag_name"], version=row["number"]) for row in due]
        return GcPlan(
            rows=rows,
            versions=due_versions,
            jobs_to_sweep=pending["nodes"],
            generations_to_delete=pending["prefixes"],
            removed_dags=removed_dags,
            tables_to_drop=pending["tables"],
        )

    async def run_once(self) -> int:
        """For the loop; answers how much went."""
        done = (await self.run_round()).removed
        return sum(done.values())

    async def run_round(self) -> GcReply:
        """A bounded round: at least a batch of each kind, so that no kind waits for another. `more`: the next one has
        something to do."""
        until = time.monotonic() + ROUND_SECONDS
        removed: dict[str, int] = {}
        more = await self._remove_history(removed, until)
        more = await self._repeat(self._logs.run_once, "run_logs", removed, until) or more
        more = await self._repeat(self._artifacts.run_once, "batch_files", removed, until) or more
        more = await self._repeat(self._deliveries.run_once, "webhook_deliveries", removed, until) or more
        more = await self._repeat(self.removed_dags.run_once, "rows_of_removed_dags", removed, until) or more
        more = await self._retire_versions(removed, until) or more
        more = await self._sweep_nodes(removed, until) or more
        more = await self._delete_files(removed, until) or more
        if removed:
            logger.info("what was kept long enough is gone", extra={"removed": removed})
        return GcReply(removed=removed, more=more)

    async def _remove_history(self, removed: dict[str, int], until: float) -> bool:
        more = False
        for kind, days in history.kinds(self._config):
            while True:
                count, again = await self._remove_batch(kind, days)
                _add(removed, kind.table, count)
                if not again:
                    break
                if time.monotonic() > until:
                    more = True
                    break
        return more

    async def _remove_batch(self, kind: history.RetainedRows, days: int) -> tuple[int, bool]:
        """How many rows went, and whether there may be more."""
        async with self._store.transaction() as connection:
            if kind is not history.TASKS:
                removed = await history.remove(connection, kind, days, BATCH)
                return removed, removed == BATCH
            removed, after = await history.remove_tasks(connection, days, BATCH, self._after)
        self._after = after or history.START
        return removed, after is not None

    async def _repeat(
        self, run_once: Callable[[], Awaitable[int]], kind: str, removed: dict[str, int], until: float
    ) -> bool:
        """What has a loop of its own: whoever asks for a round need not wait for it."""
        while count := await run_once():
            _add(removed, kind, count)
            if time.monotonic() > until:
                return True
        return False

    async def _retire_versions(self, removed: dict[str, int], until: float) -> bool:
        async with self._store.connection() as connection:
            due = await self._due_versions(connection)
        for org_id in dict.fromkeys(row["org_id"] for row in due):
            while True:
                async with self._store.transaction(moving=org_id) as connection:
                    version = await versions.retire(connection, org_id, self._config.kept_versions, self._age)
                if version is None:
                    break
                _add(removed, "versions", 1)
                if time.monotonic() > until:
                    return True
        return False

    async def _due_versions(self, connection: Connection) -> list[asyncpg.Record]:
        if not self._config.kept_versions:
            return []
        limits = (self._config.kept_versions, self._age, _PLANNED_VERSIONS)
        return await connection.fetch(versions.DUE_VERSIONS, None, *limits)

    async def _sweep_nodes(self, removed: dict[str, int], until: float) -> bool:
        after = UUID(int=0)
        while True:
            async with self._store.connection() as connection:
                node = await connection.fetchrow(versions.NEXT_NODE, after)
            if node is None:
                return False
            while True:
                async with self._store.transaction() as connection:
                    count = await versions.sweep(connection, node["node_id"], self._config.layout, BATCH)
                if not count:
                    break
                _add(removed, "rows_of_versions", count)
                if time.monotonic() > until:
                    return True
            after = node["node_id"]

    async def _delete_files(self, removed: dict[str, int], until: float) -> bool:
        after = ""
        while True:
            async with self._store.connection() as connection:
                row = await connection.fetchrow(_PREFIX, after)
            if row is None:
                return False
            async for meta in self._objects.walk(row["prefix"]):
                await self._objects.delete(meta.uri)
                _add(removed, "files", 1)
                if time.monotonic() > until:
                    return True
            async with self._store.transaction() as connection:
                await connection.execute(_PREFIX_GONE, row["prefix"])
            after = row["prefix"]


def _add(removed: dict[str, int], name: str, number: int) -> None:
    if number:
        removed[name] = removed.get(name, 0) + number

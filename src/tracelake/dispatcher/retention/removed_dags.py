"""Deletes removed DAGs whose time is over, or that somebody purged: rows, messages, and the notes of files and tables.

Nobody finds anything of such a DAG by its name, and no task of it is open, so nothing of it changes any more. Its row
in `dags` goes last: until then nobody else gets its names, and every round finds what is left by them.

1. `_begin` retires its nodes, gives its tables to sinks to drop, and deletes its webhooks, under the org's exclusive
   lock. The secret of a webhook follows from names and a rotation: the next DAG of the name begins with a higher one.
2. `_step` deletes what refers before what is referred to, a batch in each transaction.
3. `_finish` deletes datasets and the DAG itself, and notes the prefixes of their files (`removed_prefixes`).

Files and tables are found by ids that no other dataset has, so their deletion may end later. A crash at any point
leaves a correct state, from which the next round goes on. What others share stays: bundles, rows in tables of other
DAGs and what is recorded of these, the audit log.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import asyncpg

from tracelake.db.transaction import HELD_UP, Connection, Store
from tracelake.dispatcher import audit
from tracelake.dispatcher.buffers.table_writers import retire_writers
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.predicates import awaits_sink, is_open
from tracelake.dispatcher.records import affected, to_struct
from tracelake.dispatcher.retention.versions import SUBJECT
from tracelake.dispatcher.run_logs.rows import log_uris
from tracelake.model.job import buffer_queue
from tracelake.ports import ObjectStore, Queue
from tracelake.ports.queue import unavailable_without_queue
from tracelake.wire.retention import GcRemovedDag

logger = logging.getLogger(__name__)

BATCH = 1_000
LOGS_AT_ONCE = 100
STEPS_OF_A_DAG = 100
"""Batches of one DAG in a round: the others have their turn."""

_DUE = "d.removed_at IS NOT NULL AND (d.purged_at IS NOT NULL OR d.restorable_until <= trace_now())"

_NEXT = f"""
    SELECT d.org_id, d.dag_name FROM dags d
    WHERE {_DUE} AND (d.org_id, d.dag_name) > ($1, $2) ORDER BY d.org_id, d.dag_name LIMIT 1"""  # noqa: S608

_PLAN = f"""
    SELECT o.name AS org, d.dag_name AS dag, d.removed_at, d.restorable_until, {_DUE} AS is_due,
           (SELECT count(*) FROM datasets s WHERE s.org_id = d.org_id AND s.dag_name = d.dag_name) AS datasets,
           coalesce((SELECT sum(manifest_bytes(m.objects))::bigint FROM (
               SELECT m.objects FROM datasets s JOIN manifests m USING (dataset_uuid)
               WHERE s.org_id = d.org_id AND s.dag_name = d.dag_name LIMIT $1) m), 0)
           + coalesce((SELECT sum(t.table_bytes)::bigint FROM datasets s JOIN buffered_tables t USING (dataset_uuid)
                       WHERE s.org_id = d.org_id AND s.dag_name = d.dag_name), 0) AS bytes
    FROM dags d JOIN orgs o USING (org_id) WHERE d.removed_at IS NOT NULL
    ORDER BY d.removed_at, o.name, d.dag_name LIMIT 100"""  # noqa: S608 - constants only

# By its primary key, and due once more under the lock: somebody may have restored it meanwhile.
_LOCK = f"""
    SELECT d.purged_at FROM dags d WHERE d.org_id = $1 AND d.dag_name = $2 AND {_DUE} FOR UPDATE SKIP LOCKED"""  # noqa: S608

_OWN_NODES = "SELECT n.node_id FROM nodes n WHERE n.org_id = $1 AND n.dag_name = $2"
_OWN_JOBS = "SELECT j.job_id FROM jobs j WHERE j.org_id = $1 AND j.dag_name = $2 AND j.node_id IS NOT NULL"
_OWN_DATASETS = "SELECT s.dataset_uuid FROM datasets s WHERE s.org_id = $1 AND s.dag_name = $2"

_HAS_BEGUN = f"""
    SELECT d.purged_at IS NOT NULL
       AND NOT EXISTS (SELECT FROM nodes n WHERE n.org_id = $1 AND n.dag_name = $2 AND n.retired_at IS NULL)
       AND NOT EXISTS (SELECT FROM webhooks w WHERE w.org_id = $1 AND w.dag_name = $2)
       AND NOT EXISTS (SELECT FROM buffered_tables t WHERE t.dataset_uuid IN ({_OWN_DATASETS}))
       AND NOT EXISTS (SELECT FROM direct_tables t WHERE t.dataset_uuid IN ({_OWN_DATASETS}))
    FROM dags d WHERE d.org_id = $1 AND d.dag_name = $2"""  # noqa: S608 - constants only

_BEGIN = (
    "UPDATE dags SET purged_at = coalesce(purged_at, trace_now()) WHERE org_id = $1 AND dag_name = $2",
    """UPDATE jobs SET definition_hash = 'retired:' || job_id
       WHERE org_id = $1 AND dag_name = $2 AND node_id IS NOT NULL""",
    """UPDATE nodes SET data_hash = 'retired:' || node_id, retired_at = trace_now()
       WHERE org_id = $1 AND dag_name = $2 AND retired_at IS NULL""",
    """INSERT INTO removed_tables (dataset_uuid) SELECT s.dataset_uuid FROM datasets s
        WHERE s.org_id = $1 AND s.dag_name = $2 AND s.storage IN ('buffered', 'postgres', 'live')
        ON CONFLICT DO NOTHING""",
    f"DELETE FROM buffered_tables t WHERE t.dataset_uuid IN ({_OWN_DATASETS})",  # noqa: S608
    f"DELETE FROM direct_tables t WHERE t.dataset_uuid IN ({_OWN_DATASETS})",  # noqa: S608
    """INSERT INTO webhook_floors AS f (org_id, dag_name, job_name, rotation)
       SELECT org_id, dag_name, job_name, max(rotation) + 1 FROM webhooks WHERE org_id = $1 AND dag_name = $2
       GROUP BY org_id, dag_name, job_name
       ON CONFLICT (org_id, dag_name, job_name) DO UPDATE
           SET rotation = greatest(f.rotation, excluded.rotation), previous_until = NULL""",
    "DELETE FROM webhooks WHERE org_id = $1 AND dag_name = $2",
    "UPDATE orgs SET routing_epoch = routing_epoch + 1 WHERE org_id = $1 AND $2::text IS NOT NULL",
)

# A task that still runs has been asked to stop, or its lease ends. A batch of it for the table of another DAG is still
# that table's, and an address for a log may still be written to.
_IS_BUSY = f"""
    SELECT EXISTS (SELECT FROM nodes n WHERE n.org_id = $1 AND n.dag_name = $2 AND (n.sweep IS NOT NULL OR n.uncounted))
        OR EXISTS (SELECT FROM jobs j CROSS JOIN LATERAL (
               SELECT FROM tasks t WHERE t.job_id = j.job_id AND {is_open("t")} AND t.finished_at IS NULL LIMIT 1) t
           WHERE j.org_id = $1 AND j.dag_name = $2 AND j.node_id IS NOT NULL)
        OR EXISTS (SELECT FROM batch_query_inputs q WHERE q.dataset_uuid IN ({_OWN_DATASETS}))
        OR EXISTS (SELECT FROM buffered_tables b JOIN buffer_publishes p USING (dataset_uuid)
           JOIN tasks t ON t.task_id = p.task_id
           WHERE b.org_id = $1 AND {awaits_sink("p")} AND t.job_id IN ({_OWN_JOBS}))
        OR EXISTS (SELECT FROM jobs j JOIN run_logs l ON l.job_id = j.job_id
           WHERE j.org_id = $1 AND j.dag_name = $2 AND j.node_id IS NOT NULL AND l.writable_until >= trace_now())
    """  # noqa: S608 - constants only

_LOGS = "SELECT task_id, attempt, org_id FROM run_logs WHERE job_id = ANY($1::uuid[]) LIMIT $2"
_LOGS_GONE = """
    DELETE FROM run_logs l USING unnest($1::uuid[], $2::int[]) AS d(task_id, attempt)
    WHERE l.task_id = d.task_id AND l.attempt = d.attempt"""


class PurgeBusyError(Exception):
    """Somebody else purges the DAG now, or it is gone."""


@dataclass(frozen=True, slots=True)
class _Holdings:
    """What the DAG owns, by ids: statements with arrays of them follow indexes, however large a table is."""

    org_id: UUID
    dag: str
    datasets: list[UUID]
    nodes: list[UUID]
    jobs: list[UUID]


class _Deletion(NamedTuple):
    """A statement that deletes a batch. Its arguments are these fields of `_Holdings`, then a limit."""

    statement: str
    arguments: tuple[str, ...]


def _some(table: str, condition: str, *arguments: str) -> _Deletion:
    statement = f"""
        DELETE FROM {table} WHERE ctid = ANY(ARRAY(
            SELECT x.ctid FROM {table} x WHERE {condition} LIMIT ${len(arguments) + 1}))"""  # noqa: S608
    return _Deletion(statement, arguments)


def _of_datasets(*tables: str) -> list[_Deletion]:
    return [_some(table, "x.dataset_uuid = ANY($1::uuid[])", "datasets") for table in tables]


def _of_nodes(*tables: str) -> list[_Deletion]:
    return [_some(table, "x.node_id = ANY($1::uuid[])", "nodes") for table in tables]


def _of_dag(table: str, condition: str = "true") -> _Deletion:
    return _some(table, f"x.org_id = $1 AND x.dag_name = $2 AND {condition}", "org_id", "dag")


# Each until it finds nothing, in this order. Inputs and outputs of other DAGs are of versions that are not active.
_BEFORE_TASKS = (
    *_of_datasets("dataset_units", "table_units", "dataset_runs", "dataset_keys", "unit_revisions", "live_boundaries"),
    _some(
        "invalidation_work",
        """x.invalidation_id IN (
               SELECT i.invalidation_id FROM invalidations i WHERE i.dataset_uuid = ANY($1::uuid[]))""",
        "datasets",
    ),
    *_of_datasets("invalidations", "events", "check_results"),
)

_TASKS = """
    SELECT l.task_id FROM unnest($1::uuid[]) AS j(job_id) CROSS JOIN LATERAL (
        SELECT t.task_id FROM tasks t WHERE t.job_id = j.job_id ORDER BY t.task_id LIMIT $2) l LIMIT $2"""

_BATCHES = "SELECT p.publish_id FROM buffer_publishes p WHERE p.dataset_uuid = ANY($1::uuid[]) LIMIT $2"

# What the collector has not passed yet may have files that no row names.
_NOTE_SCRATCH = """
    INSERT INTO removed_prefixes (prefix)
    SELECT p.prefix || t.task_id || '/' FROM tasks t CROSS JOIN unnest($2::text[]) AS p(prefix)
    WHERE t.task_id = ANY($1) AND t.attempt > 0 AND (
        t.task_id > (SELECT position FROM collector)
        OR EXISTS (SELECT FROM collect_later l WHERE l.task_id = t.task_id))
    ON CONFLICT DO NOTHING"""
_NOTE_BATCHES = """
    INSERT INTO removed_prefixes (prefix)
    SELECT DISTINCT $2 || p.task_id || '/' FROM buffer_publishes p
    WHERE p.{key} = ANY($1) AND p.collected_at IS NULL AND p.batch_uri <> '' ON CONFLICT DO NOTHING"""

# Whoever publishes an outbox row holds it: after this nobody is about to.
_OUTBOX = "DELETE FROM outbox WHERE key = ANY($1)"

_OF_TASKS = (
    _OUTBOX,
    "DELETE FROM outbox WHERE key IN (SELECT publish_id FROM buffer_publishes WHERE task_id = ANY($1))",
    """DELETE FROM events WHERE producer = ANY(ARRAY(SELECT id::text FROM unnest($1::uuid[]) AS u(id)))
       AND state = 'AwaitsCommit'""",
    "DELETE FROM buffer_publishes WHERE task_id = ANY($1)",
    "DELETE FROM manifests WHERE task_id = ANY($1)",
    "DELETE FROM task_attempts WHERE task_id = ANY($1)",
    "DELETE FROM spark_metrics WHERE task_id = ANY($1)",
    "DELETE FROM collect_later WHERE task_id = ANY($1)",
    "DELETE FROM tasks WHERE task_id = ANY($1)",
)

_AFTER_TASKS = (
    *_of_datasets("manifests"),
    *_of_nodes("webhook_deliveries", "invalidation_work"),
    _some(
        "invalidation_work",
        """(x.node_id, x.input_index) IN (
               SELECT e.node_id, e.input_index FROM edges e WHERE e.dataset_uuid = ANY($1::uuid[]))""",
        "datasets",
    ),
    *_of_nodes("pending_units", "edges", "stale_outputs"),
    *_of_datasets("edges", "stale_outputs", "dataset_pointers"),
    _Deletion(
        """UPDATE dags SET removed_version = NULL
           WHERE org_id = $1 AND dag_name = $2 AND removed_version IS NOT NULL AND $3::int IS NOT NULL""",
        ("org_id", "dag"),
    ),
    _of_dag("activations"),
    _some("dag_version_jobs", "x.job_id = ANY($1::uuid[])", "jobs"),
    _of_dag("dag_versions"),
    _some("job_outputs", "x.job_id = ANY($1::uuid[])", "jobs"),
    *_of_datasets("job_outputs"),
    _of_dag("jobs", "x.node_id IS NOT NULL"),
    *_of_nodes("source_state", "source_progress", "pressure"),
    _some("limits", "starts_with(x.limit_key, 'job:' || $1::uuid || ':' || $2::text || ':')", "org_id", "dag"),
    _Deletion(
        """UPDATE dataset_versions SET node_id = NULL
           WHERE node_id IS NOT NULL AND dataset_uuid = ANY($1::uuid[]) AND $2::int IS NOT NULL""",
        ("datasets",),
    ),
    _of_dag("nodes"),
)

_NOTE_FILES = "INSERT INTO removed_prefixes (prefix) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING"
_FINISH = (
    "DELETE FROM dataset_versions WHERE dataset_uuid = ANY($1)",
    "DELETE FROM datasets WHERE dataset_uuid = ANY($1)",
)
_DAG_GONE = "DELETE FROM dags WHERE org_id = $1 AND dag_name = $2"

_DROPPED_TABLES = "SELECT dataset_uuid FROM removed_tables WHERE dropped_at IS NOT NULL ORDER BY dataset_uuid LIMIT $1"
_TABLE_GONE = "DELETE FROM removed_tables WHERE dataset_uuid = $1"


class RemovedDags:
    def __init__(self, store: Store, objects: ObjectStore, queue: Queue, config: DispatcherConfig) -> None:
        self._store = store
        self._objects = objects
        self._queue = queue
        self._layout = config.layout
        self._bucket = config.bundle_bucket

    async def run_once(self) -> int:
        """A bounded round over all DAGs that are due; returns how many rows and messages went."""
        removed = await self._empty_queues()
        org_id, dag = UUID(int=0), ""
        while True:
            async with self._store.connection() as connection:
                row = await connection.fetchrow(_NEXT, org_id, dag)
            if row is None:
                return removed
            org_id, dag = row["org_id"], row["dag_name"]
            try:
                removed += await self._purge(org_id, dag)
            except HELD_UP:
                logger.info("a purge waits for the next round", extra={"dag": dag})

    async def _purge(self, org_id: UUID, dag: str) -> int:
        """Up to so many batches of one DAG."""
        if not await self._begin(org_id, dag):
            return 0
        async with self._store.connection() as connection:
            if await connection.fetchval(_IS_BUSY, org_id, dag):
                return 0
            owned = await _load_holdings(connection, org_id, dag)
        removed = 0
        with suppress(PurgeBusyError):
            for _ in range(STEPS_OF_A_DAG):
                count = await self._step(owned)
                removed += count
                if not count:
                    break
        return removed

    async def _begin(self, org_id: UUID, dag: str) -> bool:
        """False: somebody else is at it, or has restored it."""
        async with self._store.connection() as connection:
            if await connection.fetchval(_HAS_BEGUN, org_id, dag):
                return True
        async with self._store.transaction(moving=org_id) as connection:
            row = await connection.fetchrow(_LOCK, org_id, dag)
            if row is None:
                return False
            jobs = [item["job_id"] for item in await connection.fetch(_OWN_JOBS, org_id, dag)]
            for statement in _BEGIN:
                await connection.execute(statement, org_id, dag)
            await retire_writers(connection, jobs)
            if row["purged_at"] is None:
                await audit.record(connection, org_id, SUBJECT, "dag.purge", dag, {})
        return True

    async def _step(self, owned: _Holdings) -> int:
        """One batch; returns how many rows went, 0 when nothing is left. Raises PurgeBusyError."""
        if count := await self._delete_logs(owned):
            return count
        if count := await self._delete_some(owned, _BEFORE_TASKS):
            return count
        if count := await self._delete_tasks(owned):
            return count
        if count := await self._delete_some(owned, _AFTER_TASKS):
            return count
        return await self._locked(owned, lambda connection: self._finish(connection, owned))

    async def _locked(self, owned: _Holdings, work: Callable[[Connection], Awaitable[int]]) -> int:
        async with self._store.transaction() as connection:
            if await connection.fetchrow(_LOCK, owned.org_id, owned.dag) is None:
                raise PurgeBusyError  # and not 0: what comes next needs that nothing of this is left
            return await work(connection)

    async def _delete_some(self, owned: _Holdings, deletions: Sequence[_Deletion]) -> int:
        async def work(connection: Connection) -> int:
            for statement, names in deletions:
                arguments = [getattr(owned, name) for name in names]
                if count := affected(await connection.execute(statement, *arguments, BATCH)):
                    return count
            return 0

        return await self._locked(owned, work)

    async def _delete_logs(self, owned: _Holdings) -> int:
        """The objects go before the rows: after a crash the same ones are deleted again, which changes nothing."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(_LOGS, owned.jobs, LOGS_AT_ONCE)
        for row in rows:
            for uri in log_uris(self._bucket, row["org_id"], row["task_id"], row["attempt"]):
                await self._objects.delete(uri)
        if rows:
            async with self._store.transaction() as connection:
                await connection.execute(_LOGS_GONE, [row["task_id"] for row in rows], [row["attempt"] for row in rows])
        return len(rows)

    async def _delete_tasks(self, owned: _Holdings) -> int:
        """Batches for its tables, also those of other DAGs; then its tasks with all that is theirs alone."""
        async with self._store.connection() as connection:
            batches = [row["publish_id"] for row in await connection.fetch(_BATCHES, owned.datasets, BATCH)]
            tasks = [row["task_id"] for row in await connection.fetch(_TASKS, owned.jobs, BATCH)]
        if not batches and not tasks:
            return 0
        with unavailable_without_queue():
            await self._queue.discard([str(key) for key in (*batches, *tasks)])

        async def work(connection: Connection) -> int:
            buffers = self._layout.buffers_of_tasks
            await connection.execute(_NOTE_BATCHES.format(key="publish_id"), batches, buffers)
            await connection.execute(_OUTBOX, batches)
            await connection.execute("DELETE FROM buffer_publishes WHERE publish_id = ANY($1)", batches)
            await connection.execute(_NOTE_BATCHES.format(key="task_id"), tasks, buffers)
            await connection.execute(_NOTE_SCRATCH, tasks, [buffers, self._layout.scratch_of_tasks])
            for statement in _OF_TASKS:
                await connection.execute(statement, tasks)
            return len(batches) + len(tasks)

        return await self._locked(owned, work)

    async def _finish(self, connection: Connection, owned: _Holdings) -> int:
        prefixes = [prefix for dataset_uuid in owned.datasets for prefix in self._layout.dataset(dataset_uuid)]
        await connection.execute(_NOTE_FILES, prefixes)
        for statement in _FINISH:
            await connection.execute(statement, owned.datasets)
        await connection.execute(_DAG_GONE, owned.org_id, owned.dag)
        details = {"datasets": len(owned.datasets)}
        await audit.record(connection, owned.org_id, SUBJECT, "dag.purged", owned.dag, details)
        logger.info("a removed DAG is deleted", extra={"dag": owned.dag, **details})
        return 1

    async def _empty_queues(self) -> int:
        """The queues of tables that sinks have dropped: nobody receives from them."""
        async with self._store.connection() as connection:
            rows = await connection.fetch(_DROPPED_TABLES, BATCH)
        removed = 0
        for row in rows:
            with unavailable_without_queue():
                while count := await self._queue.discard_queue(buffer_queue(row["dataset_uuid"]), BATCH):
                    removed += count
            async with self._store.transaction() as connection:
                await connection.execute(_TABLE_GONE, row["dataset_uuid"])
        return removed


async def _load_holdings(connection: Connection, org_id: UUID, dag: str) -> _Holdings:
    """Nothing is added to them: nothing is deployed under the name."""
    ids = [
        [row[0] for row in await connection.fetch(statement, org_id, dag)]
        for statement in (_OWN_DATASETS, _OWN_NODES, _OWN_JOBS)
    ]
    return _Holdings(org_id, dag, *ids)


async def plan_removed(connection: Connection, most: int) -> list[GcRemovedDag]:
    """The DAGs that were removed, with what their deletion frees; bytes of files are counted up to a bound."""
    rows: list[asyncpg.Record] = await connection.fetch(_PLAN, most)
    return [to_struct(GcRemovedDag, row) for row in rows]

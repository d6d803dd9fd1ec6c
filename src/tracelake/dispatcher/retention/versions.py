"""Old versions of DAGs, and what nobody but them has: nodes, tasks, events, generations and their files.

A version is kept while it is active or being built, while it is one of the `kept_versions` newest or of as many that
were active last, and for `version_retention_days` after its end. In two steps:

1. `retire` removes the version itself under its org's exclusive lock, a few rows, and marks the nodes that no version
   has any more. Their hashes change: whoever deploys such a document again gets a new version with new generations, and
   never one whose rows are going.
2. `sweep` removes the rows of a retired node, a batch in each transaction: what refers before what is referred to. A
   node is left alone while somebody needs it: a generation of it is current or staged, an input of a version that is
   kept is pinned to one, a batch query reads one, a task of it is not over, or its rows are in a table, which belongs
   to all generations.

The rows of a generation go before its files, together with the note that the files are to go (`removed_prefixes`). A
crash at any point leaves what the next round finds and finishes.
"""

from datetime import timedelta
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher import audit
from tracelake.dispatcher.buffers.table_writers import retire_writers
from tracelake.dispatcher.predicates import is_current, is_open
from tracelake.dispatcher.records import affected
from tracelake.model.locations import Layout

SUBJECT = "retention"
"""In the audit log."""

# Rows of a table come from all generations; those of a node that others took the place of are hidden.
_REPLACED_WRITER = """EXISTS (
              SELECT FROM buffered_tables t
              WHERE t.dataset_uuid = o.dataset_uuid AND t.on_change = 'rebuild' AND cardinality(t.writers) > 0
                AND NOT j.node_id = ANY (t.writers))"""

# A node that is shared with a version that is kept must go on counting as one that was active once: `counted` of a
# deploy's registry asks the activations. And the last version that has what a dataset is now is kept with it.
DUE_VERSIONS = f"""
    SELECT p.dag_version_id, p.org_id, p.dag_name, p.number FROM (
        SELECT v.*, row_number() OVER (PARTITION BY org_id, dag_name ORDER BY last DESC NULLS LAST) AS used FROM (
            SELECT v.dag_version_id, v.org_id, v.dag_name, v.number, v.created_at, a.last,
                   row_number() OVER (PARTITION BY v.org_id, v.dag_name ORDER BY v.number DESC) AS place
            FROM dag_versions v
            LEFT JOIN (SELECT dag_version_id, max(activation_id) AS last FROM activations
                       WHERE cutover_at IS NOT NULL GROUP BY 1) a USING (dag_version_id)
            WHERE $1::uuid IS NULL OR v.org_id = $1) v) p
    JOIN dags d USING (org_id, dag_name)
    WHERE d.removed_at IS NULL AND p.place > $2 AND (p.last IS NULL OR p.used > $2)
      AND p.dag_version_id IS DISTINCT FROM d.active_version AND p.dag_version_id IS DISTINCT FROM d.building_version
      AND p.created_at < trace_now() - $3::interval
      AND NOT EXISTS (
          SELECT FROM activations a
          WHERE a.dag_version_id = p.dag_version_id
            AND (a.ended_at IS NULL OR a.ended_at >= trace_now() - $3::interval))
      AND NOT EXISTS (
          SELECT FROM dag_version_jobs x JOIN jobs j USING (job_id)
          WHERE x.dag_version_id = p.dag_version_id AND p.last IS NOT NULL
            AND EXISTS (SELECT FROM jobs o JOIN dag_version_jobs w USING (job_id)
                        WHERE o.node_id = j.node_id AND w.dag_version_id <> p.dag_version_id)
            AND NOT EXISTS (SELECT FROM jobs o JOIN dag_version_jobs w USING (job_id)
                            JOIN activations a USING (dag_version_id)
                            WHERE o.node_id = j.node_id AND w.dag_version_id <> p.dag_version_id
                              AND a.cutover_at IS NOT NULL))
      AND NOT EXISTS (
          SELECT FROM dag_version_jobs x JOIN jobs j USING (job_id) JOIN job_outputs o USING (job_id)
          JOIN datasets s USING (dataset_uuid)
          WHERE x.dag_version_id = p.dag_version_id AND {is_current("o", "s")} AND NOT {_REPLACED_WRITER}
            AND NOT EXISTS (SELECT FROM jobs k JOIN dag_version_jobs w USING (job_id)
                            WHERE k.node_id = j.node_id AND w.dag_version_id <> p.dag_version_id))
    ORDER BY p.org_id, p.dag_name, p.number LIMIT $4"""  # noqa: S608

_FORGET_VERSION = (
    """UPDATE dataset_pointers p SET activation_id = NULL FROM activations a
       WHERE a.dag_version_id = $1 AND p.activation_id = a.activation_id""",
    "DELETE FROM activations WHERE dag_version_id = $1",
)
_FORGET_JOBS = "DELETE FROM dag_version_jobs WHERE dag_version_id = $1 RETURNING job_id"
_FORGET = "DELETE FROM dag_versions WHERE dag_version_id = $1"

_RETIRE_JOBS = """
    UPDATE jobs j SET definition_hash = 'retired:' || j.job_id
    WHERE j.job_id = ANY($1) AND NOT EXISTS (SELECT FROM dag_version_jobs v WHERE v.job_id = j.job_id)"""

_RETIRE_NODES = """
    UPDATE nodes n SET data_hash = 'retired:' || n.node_id, retired_at = trace_now()
    WHERE n.node_id IN (SELECT node_id FROM jobs WHERE job_id = ANY($1)) AND n.retired_at IS NULL
      AND NOT EXISTS (SELECT FROM jobs j JOIN dag_version_jobs v USING (job_id) WHERE j.node_id = n.node_id)
      AND NOT EXISTS (SELECT FROM edges e WHERE e.node_id = n.node_id AND e.phase <> 'Parked')"""

_NEW_EPOCH = "UPDATE orgs SET routing_epoch = routing_epoch + 1 WHERE org_id = $1"

# The first retired node behind a position that nobody needs; those of a purged DAG go with it. Live tasks are found
# along tasks_live.
NEXT_NODE = f"""
    SELECT n.node_id FROM nodes n
    WHERE n.retired_at IS NOT NULL AND n.sweep IS NULL AND NOT n.uncounted AND n.node_id > $1
      AND NOT EXISTS (
          SELECT FROM dags a WHERE a.org_id = n.org_id AND a.dag_name = n.dag_name AND a.purged_at IS NOT NULL)
      AND NOT EXISTS (
          SELECT FROM jobs j JOIN tasks t ON t.job_id = j.job_id AND {is_open("t")}
          WHERE j.node_id = n.node_id AND t.finished_at IS NULL)
      AND NOT EXISTS (
          SELECT FROM jobs j JOIN job_outputs o USING (job_id) JOIN datasets d USING (dataset_uuid)
          WHERE j.node_id = n.node_id AND (
              d.storage IN ('buffered', 'postgres', 'live') OR {is_current("o", "d")}
              OR EXISTS (SELECT FROM edges e JOIN nodes r USING (node_id)
                         WHERE e.dataset_uuid = o.dataset_uuid AND e.dataset_version = o.dataset_version
                           AND r.retired_at IS NULL)
              OR EXISTS (SELECT FROM batch_query_inputs q
                         WHERE q.dataset_uuid = o.dataset_uuid AND q.dataset_version = o.dataset_version)
              OR EXISTS (SELECT FROM job_outputs s JOIN jobs k USING (job_id) LEFT JOIN nodes r USING (node_id)
                         WHERE s.dataset_uuid = o.dataset_uuid AND s.dataset_version = o.dataset_version
                           AND k.node_id IS DISTINCT FROM n.node_id AND r.retired_at IS NULL)))
    ORDER BY n.node_id LIMIT 1"""  # noqa: S608

_LOCK_NODE = "SELECT node_id FROM nodes WHERE node_id = $1 FOR UPDATE SKIP LOCKED"

_GENERATIONS = """
    SELECT DISTINCT o.dataset_uuid, o.dataset_version
    FROM jobs j JOIN job_outputs o USING (job_id) WHERE j.node_id = $1 ORDER BY 1, 2"""

# A batch of each, in this order; the next statement waits until the one before finds nothing.
_OF_GENERATION = ("dataset_units", "table_units", "dataset_runs", "dataset_keys", "unit_revisions")
_ROWS = """
    DELETE FROM {table} WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM {table} WHERE dataset_uuid = $1 AND dataset_version = $2 LIMIT $3))"""
_EVENTS = """
    DELETE FROM events WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM events WHERE dataset_uuid = $1 AND dataset_version = $2 AND {which} LIMIT $3))"""
_WORK = """
    DELETE FROM invalidation_work WHERE ctid = ANY(ARRAY(
        SELECT w.ctid FROM invalidation_work w JOIN invalidations i USING (invalidation_id)
        WHERE i.dataset_uuid = $1 AND i.dataset_version = $2 LIMIT $3))"""

_GENERATION_STEPS = (
    *(_ROWS.format(table=table) for table in _OF_GENERATION),
    _EVENTS.format(which="routed_seq IS NOT NULL"),
    _EVENTS.format(which="state = 'NotCurrent'"),
    _WORK,
    _ROWS.format(table="invalidations"),
)

# With everything that belongs to a task alone. One that published batches stays: rows of a table came from it.
_TASKS = """
    WITH d AS MATERIALIZED (
        SELECT t.task_id FROM jobs j JOIN tasks t USING (job_id)
        WHERE j.node_id = $1 ORDER BY t.task_id LIMIT $2 FOR UPDATE OF t),
    awaiting AS (
        DELETE FROM events e USING d WHERE e.producer = d.task_id::text AND e.state = 'AwaitsCommit'),
    manifests AS (DELETE FROM manifests m USING d WHERE m.task_id = d.task_id),
    attempts AS (DELETE FROM task_attempts a USING d WHERE a.task_id = d.task_id),
    figures AS (DELETE FROM spark_metrics s USING d WHERE s.task_id = d.task_id),
    later AS (DELETE FROM collect_later l USING d WHERE l.task_id = d.task_id)
    DELETE FROM tasks t USING d WHERE t.task_id = d.task_id"""

_DELIVERIES = """
    DELETE FROM webhook_deliveries WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM webhook_deliveries WHERE node_id = $1 LIMIT $2))"""

_INPUTS = (
    "DELETE FROM invalidation_work WHERE node_id = $1",
    "DELETE FROM pending_units WHERE node_id = $1",
    "DELETE FROM edges WHERE node_id = $1",
)

# Another retired node may still have an input pinned to a generation; it goes first.
_IS_READ = """
    SELECT EXISTS (SELECT FROM edges WHERE (dataset_uuid, dataset_version)
                   IN (SELECT * FROM unnest($1::uuid[], $2::uuid[])))"""

_NOTE_FILES = "INSERT INTO removed_prefixes (prefix) SELECT unnest($1::text[]) ON CONFLICT DO NOTHING"

_LAST = (
    "DELETE FROM job_outputs o USING jobs j WHERE j.job_id = o.job_id AND j.node_id = $1",
    "DELETE FROM jobs WHERE node_id = $1",
    "DELETE FROM source_state WHERE node_id = $1",
    "DELETE FROM source_progress WHERE node_id = $1",
    "DELETE FROM pressure WHERE node_id = $1",
)
_LAST_GENERATIONS = (
    """DELETE FROM dataset_pointers WHERE (dataset_uuid, dataset_version)
       IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))""",
    # Its row stays: to delete it, Postgres would look for a reference in all events of the dataset.
    """UPDATE dataset_versions SET node_id = NULL, removed_at = trace_now() WHERE (dataset_uuid, dataset_version)
       IN (SELECT * FROM unnest($1::uuid[], $2::uuid[]))""",
)
_NODE_GONE = "DELETE FROM nodes WHERE node_id = $1"


async def retire(connection: Connection, org_id: UUID, kept_versions: int, age: timedelta) -> asyncpg.Record | None:
    """The oldest version of the org that nobody needs, or None. The caller holds the org's exclusive lock."""
    version = await connection.fetchrow(DUE_VERSIONS, org_id, kept_versions, age, 1)
    if version is None:
        return None
    for statement in _FORGET_VERSION:
        await connection.execute(statement, version["dag_version_id"])
    jobs = [row["job_id"] for row in await connection.fetch(_FORGET_JOBS, version["dag_version_id"])]
    await connection.execute(_FORGET, version["dag_version_id"])
    await connection.execute(_RETIRE_JOBS, jobs)
    await connection.execute(_RETIRE_NODES, jobs)
    await retire_writers(connection, jobs)
    await connection.execute(_NEW_EPOCH, org_id)
    details = {"version": version["number"]}
    await audit.record(connection, org_id, SUBJECT, "dag.retire", version["dag_name"], details)
    return version


async def sweep(connection: Connection, node_id: UUID, layout: Layout, batch: int) -> int:
    """A batch of a retired node's rows; answers how many went, 0 if somebody else is at it or nothing can go now."""
    if await connection.fetchrow(_LOCK_NODE, node_id) is None:
        return 0
    generations = await connection.fetch(_GENERATIONS, node_id)
    for generation in generations:
        for statement in _GENERATION_STEPS:
            if removed := affected(await connection.execute(statement, *generation, batch)):
                return removed
    for statement in (_TASKS, _DELIVERIES):
        if removed := affected(await connection.execute(statement, node_id, batch)):
            return removed
    removed = sum([affected(await connection.execute(statement, node_id)) for statement in _INPUTS])
    if removed:
        return removed
    keys = [row["dataset_uuid"] for row in generations], [row["dataset_version"] for row in generations]
    if await connection.fetchval(_IS_READ, *keys):
        return 0
    for statement in _LAST:
        await connection.execute(statement, node_id)
    await connection.execute(_NOTE_FILES, [layout.generation(*row) for row in generations])
    for statement in _LAST_GENERATIONS:
        await connection.execute(statement, *keys)
    return affected(await connection.execute(_NODE_GONE, node_id))

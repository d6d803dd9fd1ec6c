"""Whose rows the table of a buffered dataset shows: declared at a cutover, done by sinks.

A declaration is of the nodes that write the table in active versions. Sinks swap the rows in one transaction; while a
version is built, its rows wait in the table's second table. A new declaration has a higher revision (`changed_at`), so
a sink that learns of it late does not undo a newer one.
"""

from collections.abc import Collection
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import columns
from tracelake.model.dag import Dag

RETIRED_LISTED = 1000
"""The most nodes of retired versions that a declaration names: sinks have deleted the rows of older ones."""

# Tables that these nodes write, and those whose rule the document changes.
_DECLARE = """
    WITH touched AS (
        SELECT o.dataset_uuid, NULL AS on_change FROM jobs j JOIN job_outputs o USING (job_id) WHERE j.node_id = ANY($3)
        UNION ALL
        SELECT d.dataset_uuid, u.on_change FROM unnest($4::text[], $5::text[]) AS u(name, on_change)
        JOIN datasets d ON d.org_id = $1 AND d.dag_name = $2 AND d.name = u.name),
    active AS (
        SELECT o.dataset_uuid, array_agg(DISTINCT j.node_id) AS nodes
        FROM dags a JOIN dag_version_jobs v ON v.dag_version_id = a.active_version
        JOIN jobs j USING (job_id) JOIN job_outputs o USING (job_id)
        WHERE a.org_id = $1 AND j.node_id IS NOT NULL AND o.dataset_uuid IN (SELECT dataset_uuid FROM touched)
        GROUP BY 1),
    declared AS (
        SELECT t.dataset_uuid, coalesce(max(k.on_change), t.on_change) AS on_change, coalesce(w.nodes, '{}') AS writers
        FROM buffered_tables t JOIN touched k USING (dataset_uuid) LEFT JOIN active w USING (dataset_uuid)
        GROUP BY t.dataset_uuid, w.nodes)
    UPDATE buffered_tables t
    SET on_change = d.on_change, writers = d.writers,
        changed_at = greatest(trace_now(), t.changed_at + interval '1 microsecond')
    FROM declared d
    WHERE d.dataset_uuid = t.dataset_uuid AND (t.on_change, t.writers) IS DISTINCT FROM (d.on_change, d.writers)"""

# Tables of other DAGs that these nodes wrote. Those of the DAG itself stay as they are: it may be restored.
_WITHDRAW = """
    WITH active AS (
        SELECT o.dataset_uuid, array_agg(DISTINCT j.node_id) AS nodes
        FROM dags a JOIN dag_version_jobs v ON v.dag_version_id = a.active_version
        JOIN jobs j USING (job_id) JOIN job_outputs o USING (job_id)
        WHERE a.org_id = $1 AND j.node_id IS NOT NULL GROUP BY 1),
    declared AS (
        SELECT t.dataset_uuid, coalesce(w.nodes, '{}') AS writers
        FROM buffered_tables t JOIN datasets d USING (dataset_uuid) LEFT JOIN active w USING (dataset_uuid)
        WHERE d.org_id = $1 AND d.dag_name <> $2 AND t.dataset_uuid IN (
            SELECT o.dataset_uuid FROM jobs j JOIN job_outputs o USING (job_id) WHERE j.node_id = ANY($3)))
    UPDATE buffered_tables t
    SET writers = d.writers, changed_at = greatest(trace_now(), t.changed_at + interval '1 microsecond')
    FROM declared d WHERE d.dataset_uuid = t.dataset_uuid AND t.writers IS DISTINCT FROM d.writers"""

_RETIRE = """
    UPDATE buffered_tables t
    SET retired = ARRAY(
            SELECT n.node_id FROM nodes n
            WHERE n.retired_at IS NOT NULL AND EXISTS (
                SELECT FROM jobs j JOIN job_outputs o USING (job_id)
                WHERE j.node_id = n.node_id AND o.dataset_uuid = t.dataset_uuid)
              AND n.org_id = t.org_id
            ORDER BY n.retired_at DESC, n.node_id LIMIT $2),
        changed_at = greatest(trace_now(), t.changed_at + interval '1 microsecond')
    WHERE t.dataset_uuid IN (SELECT dataset_uuid FROM job_outputs WHERE job_id = ANY($1))"""


async def declare_writers(connection: Connection, org_id: UUID, document: Dag, nodes: Collection[UUID]) -> None:
    """Declare the writers of tables after a cutover. `nodes`: those that the version has, and those it has no more."""
    rules = [
        (publish.name, publish.on_change)
        for publish in document.publish
        if publish.write_mode == "buffered" and publish.owner is None
    ]
    await connection.execute(_DECLARE, org_id, document.name, list(nodes), *columns(rules, 2))


async def withdraw_writers(connection: Connection, org_id: UUID, dag: str, nodes: Collection[UUID]) -> None:
    """Declare the writers of other DAGs' tables without these nodes, whose DAG is removed."""
    await connection.execute(_WITHDRAW, org_id, dag, list(nodes))


async def retire_writers(connection: Connection, jobs: Collection[UUID]) -> None:
    """Let sinks delete the rows of nodes that were retired just now. `jobs`: those of the version that went."""
    await connection.execute(_RETIRE, list(jobs), RETIRED_LISTED)

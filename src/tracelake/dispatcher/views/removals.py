"""What the removal of a DAG would take along, who needs it, and the DAGs of an org that were removed."""

from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.predicates import is_open
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.removed_names import check_not_removed
from tracelake.dispatcher.views.dataset_content import load_content
from tracelake.dispatcher.views.paging import CAP
from tracelake.errors import TraceError
from tracelake.wire.removal import DagReader, HeldDataset, RemovalPlan, RemovedDag, RemovedDagsReply

_DAG = f"""
    SELECT a.number AS active_version, b.number AS building_version,
           (SELECT count(*) FROM dag_versions v WHERE v.org_id = $1 AND v.dag_name = $2) AS versions,
           (SELECT count(*) FROM dag_version_jobs j
            WHERE j.dag_version_id = coalesce(d.active_version, d.building_version)) AS jobs,
           (SELECT count(*) FROM (
               SELECT FROM jobs j JOIN tasks t ON t.job_id = j.job_id AND {is_open("t")} AND t.finished_at IS NULL
               WHERE j.org_id = $1 AND j.dag_name = $2 AND j.node_id IS NOT NULL LIMIT {CAP}) x) AS open_tasks
    FROM dags d LEFT JOIN dag_versions a ON a.dag_version_id = d.active_version
    LEFT JOIN dag_versions b ON b.dag_version_id = d.building_version
    WHERE d.org_id = $1 AND d.dag_name = $2"""  # noqa: S608 - constants only

_DATASETS = f"""
    SELECT d.dataset_uuid, d.name, d.storage, d.current_version,
           (SELECT count(*) FROM dataset_versions g
            WHERE g.dataset_uuid = d.dataset_uuid AND g.removed_at IS NULL) AS generations,
           (SELECT t.table_bytes FROM buffered_tables t WHERE t.dataset_uuid = d.dataset_uuid) AS table_bytes,
           (SELECT sum(manifest_bytes(m.objects))::bigint FROM (
               SELECT objects FROM manifests m WHERE m.dataset_uuid = d.dataset_uuid LIMIT {CAP}) m) AS file_bytes
    FROM datasets d WHERE d.org_id = $1 AND d.dag_name = $2 ORDER BY d.name"""  # noqa: S608 - constants only

_JOBS = """
    SELECT j.name, j.document #>> '{source,kind}' AS source, j.document -> 'udf' IS NOT NULL AS is_function
    FROM dags d JOIN dag_version_jobs v ON v.dag_version_id IN (d.active_version, d.building_version)
    JOIN jobs j USING (job_id) WHERE d.org_id = $1 AND d.dag_name = $2 ORDER BY j.name"""

_WEBHOOKS = "SELECT path FROM webhooks WHERE org_id = $1 AND dag_name = $2 ORDER BY path"

# Of versions that are active or being built: an edge that is not parked is of one of them.
_READERS = """
    SELECT d.name AS dataset, n.dag_name AS dag, n.job_name AS job, 'reads' AS how
    FROM datasets d JOIN edges e USING (dataset_uuid) JOIN nodes n USING (node_id)
    WHERE d.org_id = $1 AND d.dag_name = $2 AND e.phase <> 'Parked' AND n.org_id = $1 AND n.dag_name <> $2
    UNION
    SELECT d.name, a.dag_name, j.name, 'writes'
    FROM datasets d JOIN job_outputs o USING (dataset_uuid) JOIN jobs j USING (job_id)
    JOIN dags a ON a.org_id = j.org_id AND a.dag_name = j.dag_name
    JOIN dag_version_jobs v ON v.job_id = j.job_id AND v.dag_version_id IN (a.active_version, a.building_version)
    WHERE d.org_id = $1 AND d.dag_name = $2 AND a.org_id = $1 AND a.dag_name <> $2
    UNION
    SELECT d.name, a.dag_name, j.name, 'checks'
    FROM dags a JOIN dag_version_jobs v ON v.dag_version_id IN (a.active_version, a.building_version)
    JOIN jobs j USING (job_id) CROSS JOIN LATERAL json_array_elements(j.document -> 'checks') AS c(entry)
    JOIN datasets d ON d.org_id = a.org_id AND d.name = c.entry ->> 'dataset'
    WHERE a.org_id = $1 AND a.dag_name <> $2 AND d.dag_name = $2 AND j.document -> 'checks' IS NOT NULL
      AND c.entry ->> 'kind' = 'relationship'
    ORDER BY 1, 2, 3, 4"""

_REMOVED = """
    SELECT d.dag_name AS dag, d.removed_at, d.removed_by, d.restorable_until,
           CASE WHEN d.purged_at IS NULL THEN 'removed' ELSE 'purging' END AS state,
           (SELECT count(*) FROM datasets s WHERE s.org_id = d.org_id AND s.dag_name = d.dag_name) AS datasets
    FROM dags d WHERE d.org_id = $1 AND d.removed_at IS NOT NULL ORDER BY d.removed_at DESC, d.dag_name"""


async def plan_removal(connection: Connection, org_id: UUID, dag: str, config: DispatcherConfig) -> RemovalPlan:
    await check_not_removed(connection, org_id, dag)
    row = await connection.fetchrow(_DAG, org_id, dag)
    if row is None:
        raise TraceError("dag_not_found")
    jobs = await connection.fetch(_JOBS, org_id, dag)
    sources = {f"{job['name']} ({job['source']})" for job in jobs if job["source"] is not None}
    return to_struct(
        RemovalPlan,
        row,
        dag=dag,
        more_tasks=row["open_tasks"] == CAP,
        datasets=[await _held(connection, item) for item in await connection.fetch(_DATASETS, org_id, dag)],
        sources=sorted(sources),
        webhooks=[item["path"] for item in await connection.fetch(_WEBHOOKS, org_id, dag)],
        functions=sorted({job["name"] for job in jobs if job["is_function"]}),
        readers=await find_readers(connection, org_id, dag),
        kept_days=config.removed_retention_days,
    )


async def find_readers(connection: Connection, org_id: UUID, dag: str) -> list[DagReader]:
    """Jobs of other DAGs that need a dataset of this one; all are of the same org, since datasets are."""
    return [to_struct(DagReader, row) for row in await connection.fetch(_READERS, org_id, dag)]


async def list_removed(connection: Connection, org_id: UUID) -> RemovedDagsReply:
    return RemovedDagsReply(dags=[to_struct(RemovedDag, row) for row in await connection.fetch(_REMOVED, org_id)])


async def _held(connection: Connection, row: asyncpg.Record) -> HeldDataset:
    content = await load_content(connection, row)
    stored = [size for size in (row["table_bytes"], row["file_bytes"]) if size is not None]
    rows = None if content is None else content.rows
    return to_struct(HeldDataset, row, rows=rows, bytes=sum(stored) if stored else None)

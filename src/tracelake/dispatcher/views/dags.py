"""DAGs and their versions."""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import (
    awaits_sink,
    in_removed_dag,
    is_dead,
    is_finally_failed,
    is_open,
    lacks_rows,
)
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.given_up import count_given_up
from tracelake.dispatcher.views.paging import CAP
from tracelake.errors import TraceError
from tracelake.wire.dags import BuildProgress, DagRow, DagsReply, DagVersionRow, DagVersionsReply

MAX_VERSIONS = 500

_OPEN_AND_FAILED = f"""
    count(*) FILTER (WHERE t.status <> 'Failed' OR t.next_retry_at IS NOT NULL) AS open,
    count(*) FILTER (WHERE {is_finally_failed("t")}) AS failed"""

# Open tasks are those of every definition that a job of the DAG has had: older ones finish under their own. Failed ones
# are those of the active version, and of the one that is being built: nobody has to act on those of other versions. Of
# each DAG no more than the cap are counted: nobody reads a long history of failures.
_DAGS = f"""
    SELECT v.dag_name AS name, v.versions, active.number AS active_version, building.number AS building_version,
           a.cutover_at AS activated_at, t.open AS open_tasks, failed.active AS failed_tasks,
           failed.building AS failed_building, gaps.units AS gaps, letters.batches AS dead_letters,
           {CAP} IN (t.open, failed.counted, letters.batches) AS more,
           (SELECT count(*) FROM dag_version_jobs j WHERE j.dag_version_id = d.active_version) AS jobs
    FROM (SELECT dag_name, count(*) AS versions FROM dag_versions WHERE org_id = $1 GROUP BY dag_name) v
    LEFT JOIN dags d ON d.org_id = $1 AND d.dag_name = v.dag_name
    LEFT JOIN dag_versions active ON active.dag_version_id = d.active_version
    LEFT JOIN dag_versions building ON building.dag_version_id = d.building_version
    LEFT JOIN activations a ON a.org_id = $1 AND a.dag_name = v.dag_name AND a.state = 'Active'
    CROSS JOIN LATERAL (
        SELECT count(*) AS open
        FROM (SELECT FROM jobs j JOIN tasks t ON t.job_id = j.job_id AND {is_open("t")} AND t.finished_at IS NULL
              WHERE j.org_id = $1 AND j.dag_name = v.dag_name LIMIT {CAP}) t) t
    CROSS JOIN LATERAL (
        SELECT count(*) AS counted, count(*) FILTER (WHERE f.is_active) AS active,
               count(*) FILTER (WHERE NOT f.is_active) AS building
        FROM (SELECT s.is_active FROM (
                  SELECT n.job_id, bool_or(vj.dag_version_id = d.active_version) AS is_active
                  FROM dag_version_jobs vj JOIN jobs j ON j.job_id = vj.job_id
                  CROSS JOIN LATERAL (
                      SELECT m.job_id FROM jobs m WHERE m.node_id = j.node_id UNION SELECT j.job_id) n
                  WHERE vj.dag_version_id IN (d.active_version, d.building_version) GROUP BY n.job_id) s
              JOIN tasks t ON t.job_id = s.job_id AND {is_finally_failed("t")} LIMIT {CAP}) f) failed
    CROSS JOIN LATERAL (
        SELECT coalesce(sum({count_given_up("j.node_id")}), 0)::bigint AS units
        FROM dag_version_jobs vj JOIN jobs j ON j.job_id = vj.job_id
        WHERE vj.dag_version_id = d.active_version) gaps
    CROSS JOIN LATERAL (
        SELECT count(*) AS batches
        FROM (SELECT FROM (
                  SELECT DISTINCT o.dataset_uuid
                  FROM dag_version_jobs vj JOIN job_outputs o ON o.job_id = vj.job_id
                  JOIN buffered_tables b ON b.dataset_uuid = o.dataset_uuid
                  WHERE vj.dag_version_id = d.active_version) b
              JOIN buffer_publishes p ON p.dataset_uuid = b.dataset_uuid AND {lacks_rows("p")} LIMIT {CAP}) p) letters
    WHERE d.removed_at IS NULL
    ORDER BY v.dag_name"""  # noqa: S608 - constants only

_VERSIONS = f"""
    SELECT v.number, v.dag_version_id, v.created_by, v.created_at,
           CASE v.dag_version_id WHEN d.active_version THEN 'Active' WHEN d.building_version THEN 'Building'
                ELSE 'Inactive' END AS state,
           (SELECT count(*) FROM dag_version_jobs j WHERE j.dag_version_id = v.dag_version_id) AS jobs,
           (SELECT max(a.cutover_at) FROM activations a WHERE a.dag_version_id = v.dag_version_id) AS activated_at
    FROM dag_versions v LEFT JOIN dags d USING (org_id, dag_name)
    WHERE v.org_id = $1 AND v.dag_name = $2 AND d.removed_at IS NULL
    ORDER BY v.number DESC LIMIT {MAX_VERSIONS}"""  # noqa: S608 - constants only

# What is built are the nodes whose edges are staged. Their tasks are counted as long as the build lasts, and no longer.
_BUILD = f"""
    WITH staged AS (
        SELECT DISTINCT e.node_id FROM dag_version_jobs v JOIN jobs j USING (job_id) JOIN edges e USING (node_id)
        WHERE v.dag_version_id = $1 AND e.phase = 'Staged'),
    built AS (SELECT j.job_id FROM jobs j JOIN staged USING (node_id)),
    batches AS (
        SELECT p.dataset_uuid, p.dead_at, p.dropped_at, p.released_at, p.committed_at
        FROM buffered_tables b JOIN buffer_publishes p USING (dataset_uuid) JOIN tasks t USING (task_id)
        JOIN built USING (job_id)
        WHERE b.dataset_uuid IN (SELECT o.dataset_uuid FROM built JOIN job_outputs o USING (job_id))
          AND p.released_at IS NOT NULL AND p.committed_at IS NULL AND ({awaits_sink("p")} OR {is_dead("p")})
        LIMIT {CAP})
    SELECT (SELECT count(*) FROM (SELECT FROM built JOIN tasks t USING (job_id) LIMIT {CAP}) x) AS made, live.*,
           (SELECT count(*) FROM edges e JOIN staged USING (node_id)
            WHERE e.phase = 'Staged' AND e.position < coalesce(e.drain_until, 9223372036854775807)) AS draining_edges,
           (SELECT count(*) FROM batches WHERE {awaits_sink()}) AS waiting_batches,
           (SELECT count(*) FROM batches WHERE {is_dead()}) AS dead_letters,
           (SELECT count(*) FROM batches WHERE {is_dead()} AND dead_at < (
                SELECT max(requested_at) FROM activations WHERE dag_version_id = $1 AND state = 'Building')
           ) AS old_dead_letters,
           ARRAY(SELECT DISTINCT d.name FROM batches JOIN datasets d USING (dataset_uuid) WHERE {is_dead()}
                 ORDER BY d.name) AS rejected_datasets
    FROM (SELECT {_OPEN_AND_FAILED} FROM (SELECT t.status, t.next_retry_at, t.skipped_at
                FROM built JOIN tasks t ON t.job_id = built.job_id AND {is_open("t")}
                LIMIT {CAP}) t) live"""  # noqa: S608 - constants only

_LISTED = f"v.org_id = $1 AND v.dag_name = $2 AND NOT {in_removed_dag('v')}"
_SOURCE = f"SELECT v.source FROM dag_versions v WHERE {_LISTED} AND v.number = $3"  # noqa: S608 - constants only
_EXISTS = f"SELECT EXISTS (SELECT FROM dag_versions v WHERE {_LISTED})"  # noqa: S608 - constants only


async def list_dags(connection: Connection, org_id: UUID) -> DagsReply:
    return DagsReply(dags=[to_struct(DagRow, row) for row in await connection.fetch(_DAGS, org_id)])


async def list_versions(connection: Connection, org_id: UUID, dag: str) -> DagVersionsReply:
    rows = await connection.fetch(_VERSIONS, org_id, dag)
    if not rows:
        raise TraceError("dag_not_found")
    versions = []
    for row in rows:
        building = row["state"] == "Building"
        build = await build_progress(connection, row["dag_version_id"]) if building else None
        versions.append(to_struct(DagVersionRow, row, build=build))
    return DagVersionsReply(dag=dag, versions=versions)


async def build_progress(connection: Connection, dag_version_id: UUID) -> BuildProgress:
    row = await connection.fetchrow(_BUILD, dag_version_id)
    assert row is not None
    done = max(0, row["made"] - row["open"] - row["failed"])
    return to_struct(BuildProgress, row, done=done, more=row["made"] == CAP)


async def source(connection: Connection, org_id: UUID, dag: str, number: int) -> str:
    """The text of a version, byte for byte."""
    text: str | None = await connection.fetchval(_SOURCE, org_id, dag, number)
    if text is None:
        raise await not_found(connection, org_id, dag)
    return text


async def not_found(connection: Connection, org_id: UUID, dag: str) -> TraceError:
    """The refusal for a version that is not there: it names the version, or the DAG if there is none at all."""
    exists = await dag_exists(connection, org_id, dag)
    return TraceError("dag_version_not_found") if exists else TraceError("dag_not_found")


async def dag_exists(connection: Connection, org_id: UUID, dag: str) -> bool:
    return bool(await connection.fetchval(_EXISTS, org_id, dag))

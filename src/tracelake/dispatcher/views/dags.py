"""DAGs and their versions."""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_failed_for_good, is_open
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.paging import CAP
from tracelake.errors import TraceError
from tracelake.wire.dags import BuildProgress, DagRow, DagsReply, DagVersionRow, DagVersionsReply

MAX_VERSIONS = 500

_OPEN_AND_FAILED = f"""
    count(*) FILTER (WHERE t.status <> 'Failed' OR t.next_retry_at IS NOT NULL) AS open,
    count(*) FILTER (WHERE {is_failed_for_good("t")}) AS failed"""

# Open tasks are those of every definition that a job of the DAG has had: older ones finish under their own. Of each DAG
# no more than the cap are looked at: a long history of failures is read by nobody, and must not hold up who reads.
_DAGS = f"""
    SELECT v.dag_name AS name, v.versions, active.number AS active_version, building.number AS building_version,
           a.cutover_at AS activated_at, coalesce(t.open, 0) AS open_tasks, coalesce(t.failed, 0) AS failed_tasks,
           coalesce(t.counted, 0) = {CAP} AS more,
           (SELECT count(*) FROM dag_version_jobs j WHERE j.dag_version_id = d.active_version) AS jobs
    FROM (SELECT dag_name, count(*) AS versions FROM dag_versions WHERE org_id = $1 GROUP BY dag_name) v
    LEFT JOIN dags d ON d.org_id = $1 AND d.dag_name = v.dag_name
    LEFT JOIN dag_versions active ON active.dag_version_id = d.active_version
    LEFT JOIN dag_versions building ON building.dag_version_id = d.building_version
    LEFT JOIN activations a ON a.org_id = $1 AND a.dag_name = v.dag_name AND a.state = 'Active'
    LEFT JOIN LATERAL (
        SELECT {_OPEN_AND_FAILED}, count(*) AS counted
        FROM (SELECT t.status, t.next_retry_at, t.skipped_at
              FROM jobs j JOIN tasks t ON t.job_id = j.job_id AND {is_open("t")}
              WHERE j.org_id = $1 AND j.dag_name = v.dag_name LIMIT {CAP}) t) t ON true
    ORDER BY v.dag_name"""  # noqa: S608 - constants only

_VERSIONS = f"""
    SELECT v.number, v.dag_version_id, v.created_by, v.created_at,
           CASE v.dag_version_id WHEN d.active_version THEN 'Active' WHEN d.building_version THEN 'Building'
                ELSE 'Inactive' END AS state,
           (SELECT count(*) FROM dag_version_jobs j WHERE j.dag_version_id = v.dag_version_id) AS jobs,
           (SELECT max(a.cutover_at) FROM activations a WHERE a.dag_version_id = v.dag_version_id) AS activated_at
    FROM dag_versions v LEFT JOIN dags d USING (org_id, dag_name)
    WHERE v.org_id = $1 AND v.dag_name = $2
    ORDER BY v.number DESC LIMIT {MAX_VERSIONS}"""  # noqa: S608 - constants only

# What is built are the nodes whose edges are staged. Their tasks are counted as long as the build lasts, and no longer.
_BUILD = f"""
    WITH staged AS (
        SELECT DISTINCT e.node_id FROM dag_version_jobs v JOIN jobs j USING (job_id) JOIN edges e USING (node_id)
        WHERE v.dag_version_id = $1 AND e.phase = 'Staged'),
    built AS (SELECT j.job_id FROM jobs j JOIN staged USING (node_id))
    SELECT (SELECT count(*) FROM (SELECT FROM built JOIN tasks t USING (job_id) LIMIT {CAP}) x) AS made, live.*,
           (SELECT count(*) FROM edges e JOIN staged USING (node_id)
            WHERE e.phase = 'Staged' AND e.position < coalesce(e.drain_until, 9223372036854775807)) AS draining_edges
    FROM (SELECT {_OPEN_AND_FAILED} FROM (SELECT t.status, t.next_retry_at, t.skipped_at
                FROM built JOIN tasks t ON t.job_id = built.job_id AND {is_open("t")}
                LIMIT {CAP}) t) live"""  # noqa: S608 - constants only

_SOURCE = "SELECT source FROM dag_versions WHERE org_id = $1 AND dag_name = $2 AND number = $3"
_EXISTS = "SELECT EXISTS (SELECT FROM dag_versions WHERE org_id = $1 AND dag_name = $2)"


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

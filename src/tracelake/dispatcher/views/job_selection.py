"""The job definitions that a list of tasks is about: of a DAG, of a job, of a version.

A version has the tasks of its nodes, whichever definition of a node a task was made by: a definition that differs in
limits alone is another row of the same node.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import in_removed_dag
from tracelake.dispatcher.views.dags import dag_exists, not_found
from tracelake.errors import TraceError

_JOBS = f"""
    SELECT j.job_id FROM jobs j
    WHERE j.org_id = $1 AND ($2::text IS NULL OR j.dag_name = $2) AND ($3::text IS NULL OR j.name = $3)
      AND ($4::text[] IS NULL OR j.dag_name = ANY($4)) AND NOT {in_removed_dag("j")}"""  # noqa: S608 - constants only

_OF_VERSION = f"""
    SELECT s.job_id FROM dag_versions v JOIN dag_version_jobs vj USING (dag_version_id) JOIN jobs j USING (job_id)
    CROSS JOIN LATERAL (
        SELECT n.job_id FROM jobs n WHERE n.node_id = j.node_id UNION SELECT j.job_id) s
    WHERE v.org_id = $1 AND v.dag_name = $2 AND v.number = $5 AND ($3::text IS NULL OR j.name = $3)
      AND ($4::text[] IS NULL OR v.dag_name = ANY($4)) AND NOT {in_removed_dag("v")}"""  # noqa: S608 - constants only

_OF_CURRENT_VERSIONS = """
    SELECT DISTINCT s.job_id FROM dags d
    JOIN dag_version_jobs vj ON vj.dag_version_id IN (d.active_version, d.building_version)
    JOIN jobs j USING (job_id)
    CROSS JOIN LATERAL (
        SELECT n.job_id FROM jobs n WHERE n.node_id = j.node_id UNION SELECT j.job_id) s
    WHERE d.org_id = $1 AND ($2::text IS NULL OR d.dag_name = $2) AND ($3::text IS NULL OR j.name = $3)
      AND ($4::text[] IS NULL OR d.dag_name = ANY($4)) AND d.removed_at IS NULL"""

_VERSION_EXISTS = "SELECT EXISTS (SELECT FROM dag_versions WHERE org_id = $1 AND dag_name = $2 AND number = $3)"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    dag: str | None = None
    job: str | None = None
    version: int | None = None
    """Only jobs of this version of the DAG."""
    current: bool = False
    """Only jobs of active versions and of those that are being built."""
    dags: Sequence[str] | None = None
    """Only jobs of these; None: of all."""


async def select_jobs(connection: Connection, org_id: UUID, filters: JobFilter) -> list[UUID]:
    """Lists the definitions that match; raises 404 for a name that the org does not have."""
    names = (org_id, filters.dag, filters.job, filters.dags)
    if filters.version is not None:
        if filters.dag is None:
            raise TraceError("body_invalid", "A version is one of a DAG: give dag as well.", field="version")
        if not await connection.fetchval(_VERSION_EXISTS, org_id, filters.dag, filters.version):
            raise await not_found(connection, org_id, filters.dag)
        rows = await connection.fetch(_OF_VERSION, *names, filters.version)
    elif filters.current:
        rows = await connection.fetch(_OF_CURRENT_VERSIONS, *names)
    else:
        rows = await connection.fetch(_JOBS, *names)
    if not rows and (filters.dag, filters.job) != (None, None):
        if filters.dag is not None and not await dag_exists(connection, org_id, filters.dag):
            raise TraceError("dag_not_found")
        if filters.job is not None and (filters.version or not await connection.fetch(_JOBS, *names)):
            raise TraceError("job_not_found")
    return [row["job_id"] for row in rows]

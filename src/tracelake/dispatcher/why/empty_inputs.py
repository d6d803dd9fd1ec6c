"""Whether a dataset without events is as it should be: a source that runs has announced nothing for it yet.

A source with several outputs announces each in its own time. A `block_follower` announces the head at once, and units
that are final only when there are any; until then those who read them have nothing to do. Or a task is computing what
comes first.
"""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.predicates import is_run
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.views.shared import SILENT

MAX_JOBS = 50
"""That are looked at on the way to the sources."""

# Who writes these generations in active versions. A source announces: its run is alive, nobody paused it, and an
# output of it has an event.
_WRITERS = f"""
    SELECT DISTINCT j.node_id, j.document->'source'->>'kind' AS source, g.dag_name || '/' || v.job_name AS name,
           EXISTS (SELECT FROM tasks t WHERE t.node_id = j.node_id AND {is_run("t")}
                   AND t.status = 'Running' AND NOT t.cancel_requested AND NOT coalesce({SILENT}, false))
           AND NOT EXISTS (SELECT FROM source_state s WHERE s.node_id = j.node_id AND s.paused_at IS NOT NULL)
           AND EXISTS (SELECT FROM job_outputs p JOIN events e USING (dataset_uuid, dataset_version)
                       WHERE p.job_id = j.job_id AND e.routed_seq IS NOT NULL) AS announces
    FROM job_outputs o JOIN dag_version_jobs v USING (job_id) JOIN jobs j USING (job_id)
    JOIN dags g ON g.org_id = $1 AND g.active_version = v.dag_version_id
    WHERE (o.dataset_uuid, o.dataset_version) IN (SELECT * FROM unnest($2::uuid[], $3::uuid[]))
    ORDER BY name"""  # noqa: S608 - constants only

# Jobs of active versions that write these generations, and whether a task of theirs runs; the run of a source is none.
_RUNNING = f"""
    SELECT DISTINCT j.node_id, g.dag_name || '/' || v.job_name AS name,
           EXISTS (SELECT FROM jobs x JOIN tasks t ON t.job_id = x.job_id
                   WHERE x.node_id = j.node_id AND t.status = 'Running' AND NOT t.cancel_requested
                     AND NOT ({is_run("t")})) AS computes
    FROM job_outputs o JOIN dag_version_jobs v USING (job_id) JOIN jobs j USING (job_id)
    JOIN dags g ON g.org_id = $1 AND g.active_version = v.dag_version_id
    WHERE (o.dataset_uuid, o.dataset_version) IN (SELECT * FROM unnest($2::uuid[], $3::uuid[]))
    ORDER BY name"""  # noqa: S608 - constants only

_INPUTS = """
    SELECT e.dataset_uuid, e.dataset_version,
           EXISTS (SELECT FROM events v WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version
                   AND v.routed_seq IS NOT NULL) AS has_event
    FROM edges e WHERE e.node_id = ANY($1) AND e.phase <> 'Parked'"""


async def find_quiet_source(connection: Connection, org_id: UUID, generation: Generation) -> str | None:
    """The name of a running source that has yet to announce something for this empty generation, directly or through
    jobs without any input so far; None if something else may be the reason."""
    generations, visited, name = [generation], set[UUID](), None
    while generations:
        writers = await connection.fetch(_WRITERS, org_id, *columns(generations, 2))
        if not writers or len(visited) > MAX_JOBS:
            return None
        jobs = []
        for writer in writers:
            if writer["source"] is None:
                jobs += [] if writer["node_id"] in visited else [writer["node_id"]]
            elif writer["source"] == "always_on" and writer["announces"]:
                name = name or writer["name"]
            else:
                return None
        visited.update(jobs)
        inputs = await connection.fetch(_INPUTS, jobs)
        if any(row["has_event"] for row in inputs):
            return None
        generations = [(row["dataset_uuid"], row["dataset_version"]) for row in inputs]
    return name


async def find_running_writer(connection: Connection, org_id: UUID, generation: Generation) -> str | None:
    """The name of the nearest job that is computing what this empty generation is made of; None if no task runs."""
    generations, visited = [generation], set[UUID]()
    while generations and len(visited) <= MAX_JOBS:
        writers = await connection.fetch(_RUNNING, org_id, *columns(generations, 2))
        name: str | None = next((writer["name"] for writer in writers if writer["computes"]), None)
        if name is not None:
            return name
        jobs = [writer["node_id"] for writer in writers if writer["node_id"] not in visited]
        visited.update(jobs)
        inputs = await connection.fetch(_INPUTS, jobs)
        generations = [(row["dataset_uuid"], row["dataset_version"]) for row in inputs if not row["has_event"]]
    return None

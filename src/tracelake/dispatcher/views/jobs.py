"""The jobs of one version of a DAG: their edges, their outputs, and what waits or runs."""

from collections import defaultdict
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_finally_failed, is_open, is_ready, lacks_rows
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.dags import not_found
from tracelake.dispatcher.views.given_up import count_given_up
from tracelake.dispatcher.views.paging import CAP, LOOKED_AT
from tracelake.dispatcher.views.pressure import Pressure, read_pressure
from tracelake.dispatcher.views.shared import EDGE_COLUMNS, to_edge
from tracelake.model.dag import JobDocument
from tracelake.model.windows import describe_grid
from tracelake.wire.jobs import EdgeRow, JobOutputRow, JobRow, JobsReply

_VERSION = """
    SELECT v.dag_version_id, v.number, v.document FROM dag_versions v LEFT JOIN dags d USING (org_id, dag_name)
    WHERE v.org_id = $1 AND v.dag_name = $2 AND d.removed_at IS NULL
      AND CASE WHEN $3::int IS NULL THEN v.dag_version_id = d.active_version ELSE v.number = $3 END"""

_LEAST_DONE = 100
"""How many of its newest tasks are looked at for each job, at least."""

_DONE = """
    SELECT j.job_id, count(t.status) > $2 AS done_more, count(*) FILTER (WHERE t.status = 'Completed') AS done
    FROM unnest($1::uuid[]) AS v(job_id) JOIN jobs j USING (job_id)
    LEFT JOIN LATERAL (
        SELECT n.status
        FROM (SELECT s.job_id FROM jobs s WHERE s.node_id = j.node_id UNION SELECT j.job_id) same
        CROSS JOIN LATERAL (
            SELECT status FROM tasks WHERE job_id = same.job_id ORDER BY task_id DESC LIMIT $2 + 1) n
        LIMIT $2 + 1) t ON true
    GROUP BY j.job_id"""

# A definition that differs in limits alone is another row of the same node, and the node's open tasks are the job's.
_JOBS = f"""
    SELECT j.job_id, j.node_id, j.name, j.runtime, j.operator, j.strategy, j.priority, j.max_concurrency, j.document,
           t.queued, t.running, t.held, t.retrying, t.failed, t.counted = {CAP} AS more,
           {count_given_up("j.node_id")} AS gaps
    FROM dag_version_jobs v JOIN jobs j USING (job_id)
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE {is_ready("t")}) AS queued,
               count(*) FILTER (WHERE t.status = 'Running') AS running,
               count(*) FILTER (WHERE t.held) AS held,
               count(*) FILTER (WHERE t.status = 'Failed' AND t.next_retry_at IS NOT NULL) AS retrying,
               count(*) FILTER (WHERE {is_finally_failed("t")}) AS failed,
               count(*) AS counted
        FROM (SELECT t.status, t.held, t.next_retry_at, t.skipped_at
              FROM (SELECT s.job_id FROM jobs s WHERE s.node_id = j.node_id UNION SELECT j.job_id) same
              JOIN tasks t ON t.job_id = same.job_id AND {is_open("t")}
              LIMIT {CAP}) t) t
    WHERE v.dag_version_id = $1"""  # noqa: S608 - constants only

_EDGES = f"""
    SELECT e.node_id, e.dataset_uuid, {EDGE_COLUMNS}
    FROM edges e JOIN datasets d USING (dataset_uuid)
    WHERE e.node_id = ANY($1) ORDER BY e.node_id, e.input_index"""  # noqa: S608 - constants only

OUTPUTS = """
    SELECT o.job_id, o.output_index, o.dataset_uuid, o.dataset_version, d.name AS dataset, d.storage
    FROM job_outputs o JOIN datasets d USING (dataset_uuid)
    WHERE o.job_id = ANY($1) ORDER BY o.job_id, o.output_index"""


_DEAD_LETTERS = f"""
    SELECT d.dataset_uuid, (SELECT count(*) FROM (
        SELECT FROM buffer_publishes p WHERE p.dataset_uuid = d.dataset_uuid
          AND {lacks_rows("p")} LIMIT {CAP}) x) AS letters
    FROM unnest($1::uuid[]) AS d(dataset_uuid)"""  # noqa: S608 - constants only


class _Named(msgspec.Struct):
    name: str


class _Written(msgspec.Struct):
    """The part of a document that says the order of its jobs."""

    jobs: list[_Named] = []


async def list_jobs(connection: Connection, org_id: UUID, dag: str, number: int | None) -> JobsReply:
    """Lists the jobs of a version, of the active one if `number` is None."""
    version = await connection.fetchrow(_VERSION, org_id, dag, number)
    if version is None:
        raise await not_found(connection, org_id, dag)
    document = msgspec.json.decode(version["document"], type=_Written)
    order = {job.name: place for place, job in enumerate(document.jobs)}
    rows = sorted(
        await connection.fetch(_JOBS, version["dag_version_id"]), key=lambda row: order.get(row["name"], len(order))
    )
    job_ids = [row["job_id"] for row in rows]
    share = min(CAP, max(_LEAST_DONE, LOOKED_AT // max(len(rows), 1)))
    done = {row["job_id"]: row for row in await connection.fetch(_DONE, job_ids, share)}
    edges: dict[UUID, list[EdgeRow]] = defaultdict(list)
    edge_rows = await connection.fetch(_EDGES, [row["node_id"] for row in rows if row["node_id"]])
    pressure = await read_pressure(connection, org_id) if edge_rows else None
    for edge in edge_rows:
        edges[edge["node_id"]].append(_edge(edge, pressure))
    outputs = await _with_letters(connection, await read_outputs(connection, job_ids))
    return JobsReply(
        dag=dag,
        version=version["number"],
        jobs=[
            _job(dag, row, done[row["job_id"]], edges.get(row["node_id"], []), outputs.get(row["job_id"], []))
            for row in rows
        ],
    )


async def read_outputs(connection: Connection, job_ids: list[UUID]) -> dict[UUID, list[JobOutputRow]]:
    outputs: dict[UUID, list[JobOutputRow]] = defaultdict(list)
    for row in await connection.fetch(OUTPUTS, job_ids):
        outputs[row["job_id"]].append(to_struct(JobOutputRow, row))
    return outputs


async def _with_letters(
    connection: Connection, outputs: dict[UUID, list[JobOutputRow]]
) -> dict[UUID, list[JobOutputRow]]:
    """Adds the number of dead letters to buffered outputs: no failed task in the list of jobs would show them."""
    buffered = {item.dataset_uuid for items in outputs.values() for item in items if item.storage == "buffered"}
    if not buffered:
        return outputs
    rows = await connection.fetch(_DEAD_LETTERS, list(buffered))
    letters = {row["dataset_uuid"]: row["letters"] for row in rows}
    return {
        job_id: [msgspec.structs.replace(item, dead_letters=letters.get(item.dataset_uuid)) for item in items]
        for job_id, items in outputs.items()
    }


def _edge(row: asyncpg.Record, pressure: Pressure | None) -> EdgeRow:
    """Makes the row of an edge; one that something stops is neither live nor draining."""
    edge = to_edge(row)
    if pressure is None or edge.state not in ("live", "draining"):
        return edge
    generation = (row["dataset_uuid"], row["dataset_version"])
    cause = pressure.on_edge(row["node_id"], generation, behind=row["position"] is not None)
    if cause is None:
        return edge
    return msgspec.structs.replace(edge, state="paused" if cause.state == "paused" else "stopped")


def _job(
    dag: str, row: asyncpg.Record, done: asyncpg.Record, inputs: list[EdgeRow], outputs: list[JobOutputRow]
) -> JobRow:
    definition: dict[str, Any] = {"activation": "reactive"}
    if row["document"] is not None:
        # A source that only emits runs nothing; its row has stand-ins where its document has none.
        document = msgspec.json.decode(row["document"], type=JobDocument)
        definition = {
            "activation": document.activation.value,
            "runtime": document.runtime,
            "operator": document.operator,
            "source": document.source and document.source.kind.value,
            "units": document.units and describe_grid(document.units),
        }
    counts = {"done": done["done"], "done_more": done["done_more"]}
    return to_struct(JobRow, row, dag=dag, inputs=inputs, outputs=outputs, **counts, **definition)

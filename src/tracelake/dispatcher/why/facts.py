"""What the tables say about a job of a version: its inputs, its tasks in short, what its outputs have."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.engine.routing import coverage
from tracelake.dispatcher.engine.routing.coverage import Presence
from tracelake.dispatcher.predicates import has_no_failures, in_removed_dag, is_final_error, is_open
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.shared import EDGE_COLUMNS, SILENT
from tracelake.dispatcher.views.words import counted, since
from tracelake.dispatcher.why.answer import Step
from tracelake.model.dag import JobDocument, Strategy
from tracelake.model.runtime import BUILT_IN

_JOINED_UNITS = 200
"""Newest units of each input that are looked for in the others."""

_DAG = f"""
    SELECT d.active_version, d.building_version, a.number AS active_number, b.number AS building_number,
           EXISTS (SELECT FROM dag_versions v
                   WHERE v.org_id = $1 AND v.dag_name = $2 AND NOT {in_removed_dag("v")}) AS known,
           (SELECT max(v.number) FROM dag_versions v JOIN dag_version_jobs j USING (dag_version_id)
            WHERE v.org_id = $1 AND v.dag_name = $2 AND j.job_name = $3) AS newest_with_job,
           (SELECT max(v.number) FROM dag_versions v JOIN dag_version_jobs j USING (dag_version_id)
            WHERE v.org_id = $1 AND v.dag_name = $2 AND j.job_name = $3
              AND {has_no_failures("v")}) AS sound_with_job
    FROM (SELECT 1) one
    LEFT JOIN dags d ON d.org_id = $1 AND d.dag_name = $2
    LEFT JOIN dag_versions a ON a.dag_version_id = d.active_version
    LEFT JOIN dag_versions b ON b.dag_version_id = d.building_version"""  # noqa: S608 - constants only

_JOB = """
    SELECT j.org_id, j.job_id, j.node_id, j.strategy, j.runtime, j.document, trace_now() AS now
    FROM dag_version_jobs v JOIN jobs j USING (job_id) WHERE v.dag_version_id = $1 AND v.job_name = $2"""

_EDGES = f"""
    SELECT e.dataset_uuid, e.drain_until, {EDGE_COLUMNS}, newest.created_at AS newest_at, newest.unit AS newest_unit,
           newest.cursor AS newest_cursor, newest.passed, g.units
    FROM edges e JOIN datasets d USING (dataset_uuid)
    LEFT JOIN dataset_versions g ON g.dataset_uuid = e.dataset_uuid AND g.dataset_version = e.dataset_version
    LEFT JOIN LATERAL (
        SELECT v.created_at, v.unit, v.cursor,
               v.cursor < e.routed AND v.revision = '' AND v.effective_revision = '' AND v.invalidates IS NULL
                   AND NOT EXISTS (SELECT FROM tasks t WHERE t.node_id = e.node_id AND t.edge = e.input_index
                                   AND t.unit_end = v.cursor AND t.unit_key = v.unit) AS passed
        FROM events v
        WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version AND v.routed_seq IS NOT NULL
        ORDER BY v.routed_seq DESC LIMIT 1) newest ON true
    WHERE e.node_id = $1 AND e.phase <> 'Parked' ORDER BY e.input_index"""  # noqa: S608 - constants only

# Of every definition that the node has had. One of each kind is named: the one that waits longest.
_TASKS = f"""
    SELECT s.state, count(*) AS number, (array_agg(s.task_id ORDER BY s.at, s.task_id))[1] AS first, min(s.at) AS at,
           (array_agg(s.error ORDER BY s.at, s.task_id))[1] AS error,
           (array_agg(s.held_by ORDER BY s.at, s.task_id))[1] AS held_by, bool_and(s.is_final) AS is_final
    FROM (
        SELECT t.task_id, t.error, t.held_by, coalesce({is_final_error("t")}, false) AS is_final,
               coalesce(t.next_retry_at, CASE WHEN {SILENT} THEN t.lease_expires_at END,
                        t.ready_at, t.claimed_at, t.finished_at) AS at,
               CASE WHEN {SILENT} THEN 'silent'
                    WHEN t.status = 'Running' THEN 'running'
                    WHEN t.held AND t.held_by ~ '^org(-functions)?:' THEN 'at_quota' WHEN t.held THEN 'held'
                    WHEN t.status = 'Queued' THEN 'ready' WHEN t.next_retry_at IS NOT NULL THEN 'backing_off'
                    WHEN t.edge >= 0 AND t.unit_key LIKE 'c:%' AND t.revision_kind <> 'manual'
                        THEN 'holding'
                    ELSE 'failed' END AS state
        FROM jobs j JOIN tasks t ON t.job_id = j.job_id
        WHERE j.node_id = $1 AND {is_open("t")} AND t.skipped_at IS NULL) s
    GROUP BY s.state"""  # noqa: S608 - constants only

# What runs of the caller's own, by job, the job with most of them first; other orgs' tasks are not told.
_RUNNING = f"""
    SELECT j.dag_name, j.name, count(*) AS number, max(r.claimed_at) AS newest
    FROM (SELECT t.job_id, t.claimed_at FROM tasks t WHERE t.status = 'Running' AND t.org_id = $1 LIMIT {CAP}) r
    JOIN jobs j USING (job_id)
    WHERE j.runtime = $2 GROUP BY j.dag_name, j.name ORDER BY number DESC, j.dag_name, j.name"""  # noqa: S608 - constants only

_UNITS = f"""
    SELECT v.unit, v.range_start, v.range_end FROM events v
    WHERE v.dataset_uuid = $1 AND v.dataset_version = $2 AND v.routed_seq IS NOT NULL
    ORDER BY v.routed_seq DESC LIMIT {_JOINED_UNITS}"""  # noqa: S608 - constants only


# The first of these ranges of which the generation has some blocks in units of another grid, and such a unit.
_OVERLAP = """
    SELECT u.range_start || '-' || u.range_end AS unit,
           first.unit_start || '-' || first.unit_start + d.unit_size - 1 AS other_unit
    FROM unnest($3::bigint[], $4::bigint[]) WITH ORDINALITY AS u(range_start, range_end, place)
    JOIN dataset_runs d ON d.dataset_uuid = $1 AND d.dataset_version = $2
     AND d.range_start <= u.range_end AND d.range_end >= u.range_start
    CROSS JOIN LATERAL (
        SELECT d.range_start + div(greatest(u.range_start - d.range_start, 0), d.unit_size) * d.unit_size AS unit_start
    ) first
    ORDER BY u.place, d.range_start LIMIT 1"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A job of a version, whatever version that is."""

    dag: str
    job: str
    org_id: UUID
    job_id: UUID
    node_id: UUID
    joins: bool
    by_cursor: bool
    """Its tasks follow the cursors of its inputs: each reads from where the one before it ended."""
    runtime: str
    source: str | None
    """The kind of source it is."""
    document: JobDocument
    now: datetime

    @property
    def name(self) -> str:
        return f"{self.dag}/{self.job}"


@dataclass(frozen=True, slots=True)
class Missing:
    """A unit that one input has and another has not."""

    unit: str
    has: str
    lacks: asyncpg.Record
    overlap: str | None = None
    """A unit of the other input that has some of the same blocks."""


async def read_dag(connection: Connection, org_id: UUID, dag: str, job: str) -> asyncpg.Record:
    row = await connection.fetchrow(_DAG, org_id, dag, job)
    assert row is not None
    return row


async def read_job(connection: Connection, version: UUID, dag: str, job: str) -> Subject | None:
    row = await connection.fetchrow(_JOB, version, job)
    if row is None or row["node_id"] is None:
        return None
    document = msgspec.json.decode(row["document"], type=JobDocument)
    inputs = await connection.fetchval("SELECT count(*) FROM edges WHERE node_id = $1", row["node_id"])
    return Subject(
        dag=dag,
        job=job,
        org_id=row["org_id"],
        job_id=row["job_id"],
        node_id=row["node_id"],
        joins=row["strategy"] == Strategy.PER_PARTITION.value and inputs > 1,
        by_cursor=row["strategy"] == Strategy.PER_UPDATE.value,
        runtime=row["runtime"],
        source=None if document.source is None else document.source.kind.value,
        document=document,
        now=row["now"],
    )


async def read_edges(connection: Connection, node_id: UUID) -> list[asyncpg.Record]:
    return await connection.fetch(_EDGES, node_id)


async def read_tasks(connection: Connection, node_id: UUID) -> dict[str, asyncpg.Record]:
    """Reads the tasks by state, only the states there are: `running`, `silent` (its worker is not heard of), `held` (by
    a limit), `at_quota` (held by the org's quota of running tasks), `ready`, `backing_off`, `holding` (an input),
    `failed`."""
    return {row["state"]: row for row in await connection.fetch(_TASKS, node_id)}


async def find_missing(connection: Connection, edges: list[asyncpg.Record]) -> Missing | None:
    """Finds the newest unit that one input of a join has and another has not. One that the other input has cut in
    another way comes first, if none of the newest units match: a single one of them stops nothing else."""
    newest: Missing | None = None
    cuts: list[tuple[frozenset[int], Missing]] = []
    matching = set[frozenset[int]]()
    for edge in edges:
        units = await connection.fetch(_UNITS, edge["dataset_uuid"], edge["dataset_version"])
        for other in edges:
            if other["input_index"] == edge["input_index"]:
                continue
            pair = frozenset((edge["input_index"], other["input_index"]))
            generation: Generation = (other["dataset_uuid"], other["dataset_version"])
            units_asked = [Presence(generation, row["unit"], row["range_start"], row["range_end"]) for row in units]
            revisions = await coverage.read_revisions(connection, units_asked)
            missing = [row for number, row in enumerate(units) if number not in revisions]
            if missing and newest is None:
                newest = Missing(missing[0]["unit"], edge["dataset"], other)
            if revisions:
                matching.add(pair)
                continue
            ranges = [(row["range_start"], row["range_end"]) for row in missing if row["range_start"] is not None]
            overlap = await connection.fetchrow(_OVERLAP, *generation, *columns(ranges, 2))
            if overlap is not None:
                cuts.append((pair, Missing(overlap["unit"], edge["dataset"], other, overlap["other_unit"])))
    return next((cut for pair, cut in cuts if pair not in matching), newest)


async def describe_workers(
    connection: Connection, org_id: UUID, runtime: str, now: datetime
) -> tuple[str, tuple[Step, ...]]:
    """A sentence about the workers of a runtime, for whatever waits there, and what to do.

    Workers are not registered anywhere; what they do is seen by the tasks that run. Only those of the caller's org are
    told.
    """
    jobs = await connection.fetch(_RUNNING, org_id, runtime)
    here = runtime in BUILT_IN.started_here()  # no worker has to be started for it
    add = () if here else (("start one more worker", f"trace worker --runtime {runtime}"),)
    if not jobs:
        stack = ("see the parts of the stack", "trace status")
        return f"No task of {runtime} is running now: check whether a worker runs.", (stack, *add)
    total, most = sum(row["number"] for row in jobs), jobs[0]
    name = f"{most['dag_name']}/{most['name']}"
    claimed = since(max(row["newest"] for row in jobs), now)
    if total == 1:
        text = f"1 task of {runtime} is running now, of {name}; it was claimed {claimed} ago."
    else:
        share = "all" if len(jobs) == 1 else f"{most['number']:,}"
        text = (
            f"{counted(total, 'task')} of {runtime} are running now, {share} of them {name}; "
            f"the newest was claimed {claimed} ago."
        )
    return text, (("see what runs", "trace tasks --status Running"), *add)

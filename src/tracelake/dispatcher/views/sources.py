"""The sources of the versions that count: what each is doing, when it last said something, and how far it is behind."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.sources.monitor import ALWAYS_ON, IS_RUN
from tracelake.wire.sources_view import RunState, SourceRow, SourcesReply, SourceState

# The newest event of any of its outputs. A page of an index for each.
_LAST = """
    LEFT JOIN LATERAL (
        SELECT e.cursor, e.partition_key, e.created_at FROM job_outputs o CROSS JOIN LATERAL (
            SELECT v.routed_seq, v.cursor, v.partition_key, v.created_at FROM events v
            WHERE v.dataset_uuid = o.dataset_uuid AND v.dataset_version = o.dataset_version
              AND v.routed_seq IS NOT NULL
            ORDER BY v.routed_seq DESC LIMIT 1) e
        WHERE o.job_id = {job_id} ORDER BY e.routed_seq DESC LIMIT 1) last ON true"""

_SOURCES = f"""
    SELECT d.dag_name, j.name, j.node_id, j.document #>> '{{source,kind}}' AS kind, s.paused_by, s.paused_at,
           t.task_id, t.status, t.attempt, t.next_retry_at, t.finished_at, t.cancel_requested, t.superseded, t.error,
           last.cursor, last.partition_key, last.created_at AS said_at, trace_now() AS now
    FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version JOIN jobs j ON j.job_id = v.job_id
    LEFT JOIN tasks t ON {IS_RUN}
    LEFT JOIN source_state s ON s.node_id = j.node_id
    {_LAST.format(job_id="j.job_id")}
    WHERE d.org_id = $1 AND j.document->'source' IS NOT NULL
    ORDER BY d.dag_name, j.name"""  # noqa: S608 - constants only

_HEALTH = f"""
    SELECT a.*, o.name AS org, last.created_at AS said_at, trace_now() AS now FROM (
        SELECT j.org_id, d.dag_name, j.name, j.job_id, j.node_id, 'always_on' AS kind, t.status, t.next_retry_at,
               t.finished_at, t.cancel_requested, t.superseded, t.attempt
        FROM {ALWAYS_ON}) a
    JOIN orgs o USING (org_id)
    {_LAST.format(job_id="a.job_id")}"""  # noqa: S608 - constants only


class Health(NamedTuple):
    """Of one always_on source, for metrics."""

    org: str
    dag: str
    job: str
    node_id: UUID
    state: RunState
    lag_seconds: float | None
    attempts: int


async def list_sources(connection: Connection, org_id: UUID, is_stopped: Callable[[UUID], bool]) -> SourcesReply:
    """`is_stopped`: by a full queue downstream, by node."""
    rows = await connection.fetch(_SOURCES, org_id)
    return SourcesReply(sources=[_row(row, stopped=is_stopped(row["node_id"])) for row in rows])


async def read_health(connection: Connection) -> list[Health]:
    """Every always_on source of every org."""
    return [
        Health(
            row["org"],
            row["dag_name"],
            row["name"],
            row["node_id"],
            state := _run_state(row),
            _lag(row, state),
            row["attempt"] or 0,
        )
        for row in await connection.fetch(_HEALTH)
    ]


def _row(row: asyncpg.Record, *, stopped: bool) -> SourceRow:
    state = _state(row, stopped=stopped)
    return SourceRow(
        dag=row["dag_name"],
        job=row["name"],
        kind=row["kind"],
        state=state,
        paused_by=row["paused_by"],
        paused_at=row["paused_at"],
        until=row["next_retry_at"],
        error=row["error"],
        last_cursor=row["cursor"],
        last_partition=row["partition_key"],
        last_event_at=row["said_at"],
        lag_seconds=_lag(row, state),
        task_id=row["task_id"],
        attempt=row["attempt"] or 0,
    )


def _state(row: asyncpg.Record, *, stopped: bool) -> SourceState:
    state: SourceState = _run_state(row) if row["kind"] == "always_on" else "waiting"
    if state in ("dead", "ended", "stopping"):
        return state  # nothing is left to pause
    if row["paused_at"] is not None:
        return "paused"
    return "stopped" if stopped and state in ("running", "waiting") else state


def _run_state(row: asyncpg.Record) -> RunState:
    match row["status"]:
        case "Running":
            return "stopping" if row["cancel_requested"] else "running"
        case "Failed":
            return "dead" if row["next_retry_at"] is None else "backing_off"
        case "Completed":
            return "ended"
        case "Canceled":
            return "starting" if row["superseded"] == "Returning" else "ended"
        case _:
            return "starting"


def _lag(row: asyncpg.Record, state: SourceState) -> float | None:
    said_at: datetime | None = row["said_at"]
    if row["kind"] != "always_on" or said_at is None or state == "ended":
        return None
    seconds: float = (row["now"] - said_at).total_seconds()
    return max(0.0, seconds)

"""The sources of active versions: what each is doing, when its last event came, and how far it is behind."""

from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.sources.monitor import ALWAYS_ON, IS_RUN
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.pressure import Cause, Pressure, read_pressure
from tracelake.dispatcher.views.shared import HEARD_AT, SILENT
from tracelake.wire.head_progress import HeadProgressRow
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

_DELIVERED = """
    LEFT JOIN LATERAL (
        SELECT w.received_at FROM webhook_deliveries w WHERE w.node_id = j.node_id
        ORDER BY w.number DESC LIMIT 1) delivered ON true"""

_WAITING = f"""
    LEFT JOIN LATERAL (
        SELECT max(b.kept) AS kept,
               min(n.dag_name || '/' || n.job_name) FILTER (WHERE e.failed_units > 0 AND b.kept > 0) AS holder
        FROM job_outputs o
        JOIN edges e ON e.dataset_uuid = o.dataset_uuid AND e.dataset_version = o.dataset_version
            AND e.phase <> 'Parked' AND e.position IS NOT NULL
        JOIN nodes n ON n.node_id = e.node_id
        CROSS JOIN LATERAL (
            SELECT count(*)::int AS kept FROM (
                SELECT FROM events v
                WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version
                  AND v.routed_seq > e.position LIMIT {CAP}) waits) b
        WHERE o.job_id = j.job_id) waiting ON true"""  # noqa: S608 - constants only

# When a run that has not stopped yet was asked to: by a person, or as its version was no longer active.
_ASKED = """
    LEFT JOIN LATERAL (
        SELECT min(a.at) AS asked_at FROM (
            SELECT l.at FROM audit_log l
            WHERE t.cancel_requested AND l.at >= t.claimed_at AND l.org_id = t.org_id AND l.action = 'task.cancel'
              AND l.target = 'task:' || t.task_id
            UNION ALL
            SELECT e.ended_at FROM activations e
            WHERE t.cancel_requested AND t.superseded IS NOT NULL AND e.org_id = d.org_id AND e.dag_name = d.dag_name
              AND e.cutover_at IS NOT NULL AND e.ended_at >= t.claimed_at) a) asked ON true"""

_PROGRESS = """
    p.state AS follow_state, p.head, p.stored, p.stored_time, p.announced, p.reorgs + p.reorgs_before AS reorgs,
    p.last_reorg_depth, p.max_reorg_depth, p.told_at"""

_SOURCES = f"""
    SELECT d.dag_name AS dag, j.name AS job, j.node_id, k.kind, s.paused_by, s.paused_at, s.last_slot,
           j.document #>> '{{source,schedule}}' AS schedule,
           CASE k.kind WHEN 'cron' THEN coalesce(j.document #>> '{{source,time_zone}}', 'UTC') END AS time_zone,
           CASE k.kind WHEN 'cron' THEN coalesce(j.document #>> '{{source,catch_up}}', 'last') END AS catch_up,
           CASE k.kind WHEN 'cron' THEN a.cutover_at END AS counts_since,
           CASE k.kind WHEN 'webhook' THEN coalesce(s.deliveries, 0) END AS deliveries,
           delivered.received_at AS last_delivery_at, coalesce(waiting.kept, 0) AS kept, waiting.holder AS held_by,
           t.task_id, t.status, coalesce(t.attempt, 0) AS attempt, t.next_retry_at, t.finished_at, t.cancel_requested,
           t.superseded, t.error, t.claimed_at, t.ready_at, CASE WHEN {SILENT} THEN {HEARD_AT} END AS silent_since,
           last.cursor AS last_cursor, last.partition_key AS last_partition, last.created_at AS last_event_at,
           asked.asked_at, {_PROGRESS}, trace_now() AS now
    FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version JOIN jobs j ON j.job_id = v.job_id
    CROSS JOIN LATERAL (SELECT j.document #>> '{{source,kind}}' AS kind) k
    LEFT JOIN tasks t ON {IS_RUN}
    LEFT JOIN source_state s ON s.node_id = j.node_id
    LEFT JOIN source_progress p ON p.node_id = j.node_id
    LEFT JOIN activations a ON a.org_id = d.org_id AND a.dag_name = d.dag_name AND a.state = 'Active'
    {_LAST.format(job_id="j.job_id")}
    {_DELIVERED}
    {_WAITING}
    {_ASKED}
    WHERE d.org_id = $1 AND j.document->'source' IS NOT NULL
    ORDER BY d.dag_name, j.name"""  # noqa: S608 - constants only

_HEALTH = f"""
    SELECT a.*, o.name AS org, last.created_at AS last_event_at, {_PROGRESS}, trace_now() AS now FROM (
        SELECT j.org_id, d.dag_name, j.name, j.job_id, j.node_id, 'always_on' AS kind, t.status, t.next_retry_at,
               t.finished_at, t.cancel_requested, t.superseded, t.attempt, t.created_at AS made_at
        FROM {ALWAYS_ON}) a
    JOIN orgs o USING (org_id)
    LEFT JOIN source_progress p ON p.node_id = a.node_id
    {_LAST.format(job_id="a.job_id")}"""  # noqa: S608 - constants only

_BEGINS: dict[SourceState, str] = {
    "paused": "paused_at",
    "running": "claimed_at",
    "stopping": "asked_at",
    "starting": "ready_at",
    "dead": "finished_at",
    "ended": "finished_at",
}
"""The column that says when a state began."""


class SourceHealth(NamedTuple):
    """The state of one always_on source, for metrics."""

    org: str
    dag: str
    job: str
    node_id: UUID
    state: RunState
    lag_seconds: float | None
    """Since its last event; if it has never said anything, since its run was made."""
    attempts: int
    progress: HeadProgressRow | None = None
    """Of one that follows the head of a chain."""


async def list_sources(connection: Connection, org_id: UUID, pressure: Pressure | None = None) -> SourcesReply:
    """Lists the sources of an org. `pressure` is what a larger view has read already."""
    rows = await connection.fetch(_SOURCES, org_id)
    stops = pressure or await read_pressure(connection, org_id)
    now: datetime = rows[0]["now"] if rows else await connection.fetchval("SELECT trace_now()")
    return SourcesReply(sources=[_row(row, stops.on_source(row["node_id"])) for row in rows], now=now)


async def read_health(connection: Connection) -> list[SourceHealth]:
    """Reads the health of every always_on source of every org."""
    return [
        SourceHealth(
            row["org"],
            row["dag_name"],
            row["name"],
            row["node_id"],
            state := _run_state(row),
            _lag(row, state, since=row["made_at"]),
            row["attempt"] or 0,
            _progress(row, state),
        )
        for row in await connection.fetch(_HEALTH)
    ]


def _row(row: asyncpg.Record, cause: Cause | None) -> SourceRow:
    state = _state(row, stopped=cause is not None and cause.state != "paused")
    return to_struct(
        SourceRow,
        row,
        state=state,
        since=_since(row, state, cause),
        because=cause.words if cause is not None and state == "stopped" else None,
        silent_since=row["silent_since"] if state == "running" else None,
        until=row["next_retry_at"],
        lag_seconds=_lag(row, state),
        progress=_progress(row, state),
    )


def _state(row: asyncpg.Record, *, stopped: bool) -> SourceState:
    state: SourceState = _run_state(row) if row["kind"] == "always_on" else "waiting"
    if state in ("dead", "ended", "stopping"):
        return state  # nothing is left to pause
    if row["paused_at"] is not None:
        return "paused"
    return "stopped" if stopped and state in ("running", "waiting") else state


def _since(row: asyncpg.Record, state: SourceState, cause: Cause | None) -> datetime | None:
    if state == "stopped":
        return None if cause is None else cause.since
    column = _BEGINS.get(state)
    return None if column is None else row[column]


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


def _lag(row: asyncpg.Record, state: SourceState, since: datetime | None = None) -> float | None:
    """Returns the age of the last event; `since` stands in for it where there is none."""
    said_at: datetime | None = row["last_event_at"] or since
    if row["kind"] != "always_on" or said_at is None or state == "ended":
        return None
    seconds: float = (row["now"] - said_at).total_seconds()
    return max(0.0, seconds)


def _progress(row: asyncpg.Record, state: SourceState) -> HeadProgressRow | None:
    if row["told_at"] is None or state == "ended":
        return None
    head, stored, time = row["head"], row["stored"], row["stored_time"]
    return HeadProgressRow(
        state=row["follow_state"],
        at=row["told_at"],
        head=head,
        stored=stored,
        lag_blocks=None if head is None or stored is None else max(0, head - stored),
        lag_seconds=None if time is None else max(0.0, row["now"].timestamp() - time),
        announced=row["announced"],
        reorgs=row["reorgs"],
        last_reorg_depth=row["last_reorg_depth"],
        max_reorg_depth=row["max_reorg_depth"],
    )

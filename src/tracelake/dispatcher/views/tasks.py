"""Tasks: the newest of an org, those behind one, given ones, and everything about one."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_open
from tracelake.dispatcher.public_ids import OrgIds
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.run_logs.rows import list_attempts_with_log
from tracelake.dispatcher.views import paging
from tracelake.dispatcher.views.job_selection import JobFilter, select_jobs
from tracelake.dispatcher.views.jobs import read_outputs
from tracelake.dispatcher.views.settled import task_horizon
from tracelake.dispatcher.views.shared import (
    EVENT_COLUMNS,
    TASK_GRID,
    from_json,
    read_inputs,
    to_event,
    to_unit,
    to_window,
)
from tracelake.errors import TraceError
from tracelake.wire.tasks import AttemptRow, TaskDetail, TaskRow, TasksPage

MAX_EVENTS = 100

_NEWEST_OF_JOBS = """
    SELECT j.job_id, t.task_id, t.fits FROM unnest($1::uuid[]) AS j(job_id) CROSS JOIN LATERAL (
        SELECT task_id, {fits} AS fits FROM tasks
        WHERE job_id = j.job_id AND task_id < $2 AND task_id >= $3 {live} ORDER BY task_id DESC LIMIT $4) t"""

_NEWEST = _NEWEST_OF_JOBS.format(fits="true", live="")

_NEWEST_ENDED = _NEWEST_OF_JOBS.format(fits="status = $5", live="")

# Live states have an index of their own, so that looking for the one that runs does not go through all that are done.
_NEWEST_LIVE = _NEWEST_OF_JOBS.format(
    fits="true",
    live=f"""AND {is_open()} AND status = $5
          AND CASE $6 WHEN 'Retrying' THEN next_retry_at IS NOT NULL
                      WHEN 'Skipped' THEN next_retry_at IS NULL AND skipped_at IS NOT NULL
                      WHEN 'Failed' THEN next_retry_at IS NULL AND skipped_at IS NULL ELSE true END""",
)

_FOLLOWING = """
    SELECT j.job_id, t.task_id FROM unnest($1::uuid[]) AS j(job_id) CROSS JOIN LATERAL (
        SELECT task_id FROM tasks
        WHERE job_id = j.job_id AND task_id > $2 AND task_id >= $3 AND task_id < $4 ORDER BY task_id LIMIT $5) t"""

_COLUMNS = f"""
    t.task_id, j.dag_name AS dag, j.name AS job, j.operator, t.status, t.attempt, t.max_attempts, t.held,
    t.cancel_requested, t.skipped_at, t.unit, t.revision, t.created_at, t.claimed_at, t.finished_at, t.next_retry_at,
    t.error, t.unit_start, t.unit_end, {TASK_GRID} AS units"""

_ROWS = f"""
    SELECT {_COLUMNS} FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.task_id = ANY($1) AND t.org_id = $2 ORDER BY t.task_id DESC"""  # noqa: S608 - constants only

_TASK = f"""
    SELECT {_COLUMNS}, t.job_id, j.runtime, t.inputs, t.result, t.outcome, t.worker_id
    FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.task_id = $1 AND t.org_id = $2"""  # noqa: S608 - constants only

_ATTEMPTS = """
    SELECT attempt, outcome, worker_id, claimed_at, error FROM task_attempts WHERE task_id = $1 ORDER BY attempt"""

_SPARK_METRICS = "SELECT attempt, figures, operator_package FROM spark_metrics WHERE task_id = $1"

_EVENTS = f"""
    SELECT {EVENT_COLUMNS}, d.name FROM events v JOIN datasets d USING (dataset_uuid)
    WHERE v.producer = $1 AND v.org_id = $2 AND d.org_id = $2
    ORDER BY v.event_id LIMIT {MAX_EVENTS}"""  # noqa: S608 - constants only

_LEAST, _MOST = UUID(int=0), UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter(JobFilter):
    status: str | None = None
    """One of `wire.tasks.TaskStatusFilter`."""
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 50
    cursor: UUID | None = None
    after: UUID | None = None


async def list_tasks(connection: Connection, org_id: UUID, filters: TaskFilter, serving_since: datetime) -> TasksPage:
    """Lists tasks, newest first by task_id; with `after`, those above that id, oldest first.

    An id begins with the time at which it was made; `since` and `until` look at this time.
    """
    if filters.after is not None:
        return await _following(connection, org_id, filters, filters.after, serving_since)
    jobs = await select_jobs(connection, org_id, filters)
    least, below = _bounds(filters)
    ended = filters.status in ("Completed", "Canceled")
    per_source = paging.per_source(filters.limit, len(jobs), filtered=ended)
    if filters.status is None:
        rows = await connection.fetch(_NEWEST, jobs, below, least, per_source)
    elif ended:
        rows = await connection.fetch(_NEWEST_ENDED, jobs, below, least, per_source, filters.status)
    else:
        status = "Failed" if filters.status in ("Retrying", "Skipped") else filters.status
        rows = await connection.fetch(_NEWEST_LIVE, jobs, below, least, per_source, status, filters.status)
    page = paging.merge(((row["job_id"], row["task_id"], row["fits"]) for row in rows), filters.limit, per_source)
    task_rows = await connection.fetch(_ROWS, page.keys, org_id)
    return TasksPage(tasks=[_task(row) for row in task_rows], next=None if page.next is None else str(page.next))


async def look_up(connection: Connection, org_id: UUID, task_ids: Sequence[UUID]) -> TasksPage:
    """Reads these tasks as they are now, newest first; leaves out those that do not exist."""
    return TasksPage(tasks=[_task(row) for row in await connection.fetch(_ROWS, list(task_ids), org_id)])


async def task_detail(connection: Connection, org_id: UUID, ids: OrgIds, task_id: UUID) -> TaskDetail:
    row = await connection.fetchrow(_TASK, task_id, org_id)
    if row is None:
        raise TraceError("task_not_found")
    outputs = await read_outputs(connection, [row["job_id"]])
    inputs = await read_inputs(connection, org_id, [row])
    spark = {item["attempt"]: item for item in await connection.fetch(_SPARK_METRICS, task_id)}
    logs = await list_attempts_with_log(connection, task_id)
    attempts = [_attempt(item, spark, logs) for item in await connection.fetch(_ATTEMPTS, task_id)]
    if row["attempt"]:
        attempts.append(_attempt(row, spark, logs))
    events = await connection.fetch(_EVENTS, str(task_id), org_id)
    return TaskDetail(
        task=_task(row),
        runtime=row["runtime"],
        inputs=inputs[task_id],
        outputs=outputs.get(row["job_id"], []),
        result=from_json(row["result"]),
        attempts=attempts,
        events=[to_event(event, event["name"], ids) for event in events],
    )


async def _following(
    connection: Connection, org_id: UUID, filters: TaskFilter, after: UUID, serving_since: datetime
) -> TasksPage:
    for name, value in (("status", filters.status), ("cursor", filters.cursor)):
        if value is not None:
            raise TraceError("body_invalid", f"Expected either after or {name}, received both.", field=name)
    settled = await task_horizon(connection)  # before anything else is read: it is a promise about what is read next
    jobs = await select_jobs(connection, org_id, filters)
    per_source = paging.per_source(filters.limit, len(jobs), filtered=False)
    rows = await connection.fetch(_FOLLOWING, jobs, after, *_bounds(filters), per_source)
    # Oldest first is newest first with the signs turned.
    page = paging.merge(((row["job_id"], -row["task_id"].int, True) for row in rows), filters.limit, per_source)
    task_rows = await connection.fetch(_ROWS, [UUID(int=-key) for key in page.keys], org_id)
    return TasksPage(
        tasks=[_task(row) for row in reversed(task_rows)],
        next=None if page.next is None else str(UUID(int=-page.next)),
        settled=first_id(settled),
        serving_since=serving_since,
    )


def _bounds(filters: TaskFilter) -> tuple[UUID, UUID]:
    """Returns the smallest id of the page, and the one above all of them."""
    below = min(filters.cursor or _MOST, _MOST if filters.until is None else first_id(filters.until))
    return _LEAST if filters.since is None else first_id(filters.since), below


def first_id(at: datetime) -> UUID:
    """The least id that can have been made at this time."""
    millis = int(at.timestamp() * 1000)
    return UUID(int=min(max(millis, 0) << 80, _MOST.int))


def _task(row: asyncpg.Record) -> TaskRow:
    skipped = row["skipped_at"] is not None and row["status"] == "Failed" and row["next_retry_at"] is None
    return to_struct(TaskRow, row, skipped=skipped, unit=to_unit(row["unit"]), window=to_window(row))


def _attempt(row: asyncpg.Record, spark: Mapping[int, asyncpg.Record], logs: Collection[int]) -> AttemptRow:
    attempt = row["attempt"]
    reported = spark.get(attempt)
    return to_struct(
        AttemptRow,
        row,
        spark=None if reported is None else from_json(reported["figures"]) or None,
        operator_package=None if reported is None else reported["operator_package"],
        has_log=attempt in logs,
    )

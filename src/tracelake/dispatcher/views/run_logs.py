"""Logs of attempts for people: the log of one from a position on, and the newest attempts of a bundle or a job.

A log has a final form and, while the function runs, a running one. The final one is read first: once it is there,
nothing that arrives late changes what is shown. Output that a reader already has is never shown again, also if an older
upload has replaced a newer one meanwhile.
"""

import zlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.predicates import in_removed_dag
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.run_logs.attempt_logs import unpack_log
from tracelake.dispatcher.run_logs.rows import log_uris
from tracelake.dispatcher.views.dags import dag_exists
from tracelake.dispatcher.views.shared import TASK_GRID, to_unit, to_window
from tracelake.errors import TraceError
from tracelake.ports import ObjectStore
from tracelake.wire.run_logs import (
    MAX_LOG_BYTES,
    FunctionRun,
    FunctionRuns,
    JobRun,
    JobRuns,
    LogLines,
    LogOutput,
    LogState,
    RunLog,
    StoredLines,
    StoredOutput,
    TaskLog,
)

_MOST_TRIED = 5
"""Attempts that are looked at for the newest log."""
_MOST_ATTEMPTS = 100
CONTROL = frozenset({"noop", "range_aggregator", "range_splitter"})
"""Operators that do their work at once, most of them in the Dispatcher. No log is kept of them unless they fail in a
worker."""
_MOST_SEARCHED = 5000
"""Attempts of a job that are searched for failed ones, the newest."""

_TASK = f"""
    SELECT t.task_id, t.org_id, t.status, t.attempt, t.outcome, t.error, t.next_retry_at, t.unit, t.claimed_at,
           t.unit_start, t.unit_end, {TASK_GRID} AS units, j.dag_name AS dag, j.name AS job, j.operator,
           trace_now() AS now
    FROM tasks t JOIN jobs j USING (job_id) WHERE t.task_id = $1 AND t.org_id = $2"""  # noqa: S608 - constants only

_LOGS = """
    SELECT l.attempt, l.bundle_id, l.worker_id, l.started_at, l.writable_until, l.invoked, l.body, a.outcome, a.error
    FROM run_logs l LEFT JOIN task_attempts a USING (task_id, attempt)
    WHERE l.task_id = $1 AND l.org_id = $2 ORDER BY l.attempt DESC LIMIT $3"""

_CLAIMED = "SELECT claimed_at FROM task_attempts WHERE task_id = $1 AND attempt = $2"

# Each along an index, newest first.
_RUNS = """
    SELECT l.task_id, l.attempt, l.bundle_id, l.started_at, j.dag_name AS dag, j.name AS job, t.unit,
           t.unit_start, t.unit_end, {grid} AS units,
           CASE WHEN t.attempt = l.attempt THEN t.outcome ELSE a.outcome END AS outcome,
           left(split_part(CASE WHEN t.attempt = l.attempt THEN t.error ELSE a.error END, E'\\n', 1), 500) AS error
    FROM ({chosen}) l
    JOIN tasks t ON t.task_id = l.task_id AND t.org_id = $1 JOIN jobs j ON j.job_id = t.job_id
    LEFT JOIN task_attempts a ON a.task_id = l.task_id AND a.attempt = l.attempt
    ORDER BY l.started_at DESC, l.task_id DESC, l.attempt DESC"""
_RUNS_OF_BUNDLE = _RUNS.format(
    grid=TASK_GRID,
    chosen="""SELECT * FROM run_logs WHERE org_id = $1 AND bundle_id = $2 AND invoked
              ORDER BY started_at DESC LIMIT $3""",
)
_RUNS_OF_JOBS = _RUNS.format(
    grid=TASK_GRID,
    chosen="""SELECT l.* FROM unnest($2::uuid[]) AS w(job_id) CROSS JOIN LATERAL (
                  SELECT * FROM run_logs WHERE job_id = w.job_id AND invoked AND bundle_id IS NOT NULL
                  ORDER BY started_at DESC LIMIT $3) l
              ORDER BY l.started_at DESC LIMIT $3""",
)
_RUNS_OF_JOB = f"""
    SELECT * FROM (
        SELECT l.task_id, l.attempt, l.started_at, j.operator, t.unit,
               t.unit_start, t.unit_end, {TASK_GRID} AS units,
               CASE WHEN t.attempt = l.attempt THEN t.outcome ELSE a.outcome END AS outcome,
               left(split_part(CASE WHEN t.attempt = l.attempt THEN t.error ELSE a.error END, E'\\n', 1), 500) AS error
        FROM unnest($2::uuid[]) AS w(job_id) CROSS JOIN LATERAL (
            SELECT * FROM run_logs WHERE job_id = w.job_id AND invoked ORDER BY started_at DESC LIMIT $4) l
        JOIN tasks t ON t.task_id = l.task_id AND t.org_id = $1 JOIN jobs j ON j.job_id = t.job_id
        LEFT JOIN task_attempts a ON a.task_id = l.task_id AND a.attempt = l.attempt) r
    WHERE NOT $5 OR r.outcome IN ('Failed', 'Timeout')
    ORDER BY r.started_at DESC, r.task_id DESC, r.attempt DESC LIMIT $3"""  # noqa: S608 - constants only
_JOBS = f"""
    SELECT j.job_id FROM jobs j
    WHERE j.org_id = $1 AND j.dag_name = $2 AND ($3::text IS NULL OR j.name = $3)
      AND NOT {in_removed_dag("j")}
    ORDER BY job_id DESC LIMIT 1000"""  # noqa: S608 - constants only
_BUNDLE = "SELECT FROM udf_bundles WHERE org_id = $1 AND bundle_id = $2"


@dataclass(frozen=True, slots=True)
class LogPositions:
    """Where a reader goes on in each stream."""

    stdout: int = 0
    stderr: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True)
class LogPlaces:
    """A task, and those of its attempts that may have a log, newest first."""

    task: asyncpg.Record
    rows: list[asyncpg.Record]
    chosen: int | None
    """The attempt that was asked for."""


async def find_logs(
    connection: Connection, config: DispatcherConfig, org_id: UUID, task_id: UUID, attempt: int | None
) -> LogPlaces:
    """Raises if the attempt has no log, with the reason."""
    task = await connection.fetchrow(_TASK, task_id, org_id)
    if task is None:
        raise TraceError("task_not_found")
    rows = await connection.fetch(_LOGS, task_id, org_id, _MOST_ATTEMPTS)
    if not rows and task["operator"] in CONTROL:
        raise TraceError(
            "task_has_no_log", f"The task runs the operator {task['operator']}, which does its work at once."
        )
    if attempt is not None and attempt not in (row["attempt"] for row in rows):
        claimed_at = task["claimed_at"] if attempt == task["attempt"] else None
        claimed_at = claimed_at or await connection.fetchval(_CLAIMED, task_id, attempt)
        raise _missing(task, config, attempt, claimed_at)
    if not rows:
        raise _missing(task, config, None, task["claimed_at"])
    return LogPlaces(task, rows, attempt)


async def read_log(
    objects: ObjectStore, config: DispatcherConfig, places: LogPlaces, positions: LogPositions
) -> TaskLog:
    """The log that was asked for, or that of the newest attempt that has one."""
    task = places.task
    tried = [row for row in places.rows if places.chosen in (None, row["attempt"])][:_MOST_TRIED]
    for row in tried:
        runs = task["status"] == "Running" and task["attempt"] == row["attempt"]
        log = await _fetch(objects, config, task["org_id"], task["task_id"], row)
        if log is None and runs:
            log = RunLog()  # nothing was printed yet
        if log is not None:
            return _make_reply(places, row, log, positions, config, runs=runs)
    raise _missing(task, config, places.chosen, tried[0]["started_at"])


async def list_runs(
    connection: Connection, org_id: UUID, *, bundle_id: UUID | None, dag: str | None, job: str | None, limit: int
) -> FunctionRuns:
    if (bundle_id is None) == (dag is None) or (job is not None and dag is None):
        raise TraceError(
            "body_invalid", "Expected either bundle_id, or dag and perhaps job.", field="dag" if job else "bundle_id"
        )
    if bundle_id is not None:
        if await connection.fetchrow(_BUNDLE, org_id, bundle_id) is None:
            raise TraceError("bundle_not_found")
        rows = await connection.fetch(_RUNS_OF_BUNDLE, org_id, bundle_id, limit)
    else:
        assert dag is not None
        jobs = [row["job_id"] for row in await connection.fetch(_JOBS, org_id, dag, job)]
        if not jobs:
            if not await dag_exists(connection, org_id, dag):
                raise TraceError("dag_not_found")
            raise TraceError("job_not_found")
        rows = await connection.fetch(_RUNS_OF_JOBS, org_id, jobs, limit)
    return FunctionRuns(
        runs=[to_struct(FunctionRun, row, unit=to_unit(row["unit"]), window=to_window(row)) for row in rows]
    )


async def list_job_runs(
    connection: Connection, org_id: UUID, dag: str, job: str, *, failed: bool, limit: int
) -> JobRuns:
    jobs = [row["job_id"] for row in await connection.fetch(_JOBS, org_id, dag, job)]
    if not jobs:
        if not await dag_exists(connection, org_id, dag):
            raise TraceError("dag_not_found")
        raise TraceError("job_not_found")
    searched = _MOST_SEARCHED if failed else limit
    rows = await connection.fetch(_RUNS_OF_JOB, org_id, jobs, limit, searched, failed)
    return JobRuns(runs=[to_struct(JobRun, row, unit=to_unit(row["unit"]), window=to_window(row)) for row in rows])


async def _fetch(
    objects: ObjectStore, config: DispatcherConfig, org_id: UUID, task_id: UUID, row: asyncpg.Record
) -> RunLog | None:
    if row["body"] is not None:
        return unpack_log(row["body"])
    for uri in log_uris(config.bundle_bucket, org_id, task_id, row["attempt"]):
        meta = await objects.head(uri)
        if meta is None:
            continue
        body = await objects.get(uri) if meta.size <= MAX_LOG_BYTES else None
        if body is None:
            continue
        try:
            return msgspec.json.decode(body, type=RunLog) if row["worker_id"] is None else unpack_log(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, zlib.error):
            continue  # not ours: somebody wrote to the store
    return None


def _make_reply(
    places: LogPlaces,
    row: asyncpg.Record,
    log: RunLog,
    positions: LogPositions,
    config: DispatcherConfig,
    *,
    runs: bool,
) -> TaskLog:
    task = places.task
    current, days = task["attempt"] == row["attempt"], config.log_retention_days
    state: LogState = "ended" if log.ending is not None else "running" if runs else "incomplete"
    return TaskLog(
        task_id=task["task_id"],
        dag=task["dag"],
        job=task["job"],
        unit=to_unit(task["unit"]),
        window=to_window(task),
        operator=task["operator"],
        bundle_id=row["bundle_id"],
        worker_id=row["worker_id"],
        attempt=row["attempt"],
        attempts=sorted(item["attempt"] for item in places.rows),
        state=state,
        open=task["status"] in ("Queued", "Running") or task["next_retry_at"] is not None,
        next_retry_at=task["next_retry_at"],
        outcome=task["outcome"] if current else row["outcome"],
        ending=log.ending,
        message=log.message,
        error=log.error,
        attempt_error=task["error"] if current else row["error"],
        started_at=row["started_at"],
        seconds=log.seconds or None,
        peak_bytes=log.peak_bytes or None,
        refused=log.refused,
        stdout=cut_output(log.stdout, positions.stdout),
        stderr=cut_output(log.stderr, positions.stderr),
        lines=cut_lines(log.lines, positions.lines),
        expires_at=row["writable_until"] + timedelta(days=days) if days else None,
    )


def cut_output(output: StoredOutput, position: int) -> LogOutput:
    """The stream from a position on; what is no longer kept before it is counted."""
    if position >= output.end:
        return LogOutput(next=position)
    if position <= output.start:
        return LogOutput(text=output.text, next=output.end, omitted=output.start - position)
    # A position within a character is moved to the next one.
    text = output.text.encode()[position - output.start :].decode("utf-8", "ignore")
    return LogOutput(text=text, next=output.end)


def cut_lines(stored: StoredLines, number: int) -> LogLines:
    """The lines from a number on; those that are no longer kept before it are counted."""
    end = stored.start + len(stored.lines)
    if number >= end:
        return LogLines(next=number)
    omitted = max(0, stored.start - number)
    return LogLines(lines=stored.lines[max(0, number - stored.start) :], next=end, omitted=omitted)


def _missing(task: Any, config: DispatcherConfig, attempt: int | None, started_at: datetime | None) -> TraceError:
    newest = task["attempt"]
    if not newest:
        return TraceError("log_not_found", "The task has not started yet, so it has no log.")
    if attempt is not None and attempt > newest:
        return TraceError("log_not_found", f"Expected an attempt from 1 to {newest}, received {attempt}.")
    which = f"attempt {newest if attempt is None else attempt}"
    days = config.log_retention_days
    if days and started_at is not None and started_at < task["now"] - timedelta(days=days):
        return TraceError("log_expired", f"The log of {which} is gone: logs are kept for {days} days.")
    return TraceError("log_not_found", f"There is no log of {which}: {_reason(task['operator'])}.")


def _reason(operator: str) -> str:
    if operator == "udf":
        return "no runner took the attempt, or its log could not be stored"
    return "it began or ended a moment ago, or its worker ended before it could store the log"

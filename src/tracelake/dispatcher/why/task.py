"""Why a task is not running, or not done."""

from datetime import datetime
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.limits import is_quota
from tracelake.dispatcher.predicates import has_no_failures, is_final_error
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.shared import HEARD_AT, SILENT
from tracelake.dispatcher.views.words import counted, since, span, unit_words, waiting
from tracelake.dispatcher.why import facts
from tracelake.dispatcher.why.answer import (
    Reason,
    Step,
    answer,
    error_words,
    log_steps,
    not_retried,
    reason,
    retry_or_skip,
)
from tracelake.dispatcher.why.stops import QUOTA_STEPS, find_limit, limit_words
from tracelake.errors import TraceError
from tracelake.model.task import RevisionKind
from tracelake.wire.why import WhyReply

_TASK = f"""
    SELECT t.*, {is_final_error("t")} AS is_final, {HEARD_AT} AS heard_at, {SILENT} AS silent,
           j.dag_name, j.name, j.runtime, j.max_concurrency, a.number AS active_number, n.sweep, n.sweep_reason,
           EXISTS (SELECT FROM dag_version_jobs v JOIN jobs s ON s.job_id = v.job_id
                   WHERE v.dag_version_id IN (d.active_version, d.building_version)
                     AND s.node_id = t.node_id) AS may_run,
           (SELECT max(b.number) FROM dag_version_jobs v JOIN jobs s USING (job_id)
            JOIN dag_versions b USING (dag_version_id) WHERE s.node_id = t.node_id) AS own_number,
           (SELECT max(b.number) FROM dag_version_jobs v JOIN jobs s USING (job_id)
            JOIN dag_versions b USING (dag_version_id)
            WHERE s.node_id = t.node_id AND {has_no_failures("b")}) AS sound_number,
           EXISTS (SELECT FROM run_logs l WHERE l.task_id = t.task_id AND l.invoked) AS has_log,
           trace_now() AS now
    FROM tasks t JOIN jobs j USING (job_id)
    LEFT JOIN nodes n ON n.node_id = j.node_id
    LEFT JOIN dags d ON d.org_id = j.org_id AND d.dag_name = j.dag_name
    LEFT JOIN dag_versions a ON a.dag_version_id = d.active_version
    WHERE t.task_id = $1 AND t.org_id = $2"""  # noqa: S608 - constants only

# Limits of operators are shared by all orgs; only those of the caller's own are counted or named.
_LIMIT = f"""
    SELECT l.max_running, l.used,
           (SELECT count(*) FROM (SELECT FROM tasks h WHERE h.held AND h.held_by = $5 AND h.org_id = $2
                AND (h.ready_at, h.task_id) < ($3, $4) LIMIT {CAP}) ahead) AS ahead,
           (SELECT h.task_id FROM tasks h WHERE h.held AND h.held_by = $5 AND h.org_id = $2
                AND (h.ready_at, h.task_id) < ($3, $4) ORDER BY h.ready_at, h.task_id LIMIT 1) AS first
    FROM limits l WHERE l.limit_key = $1"""  # noqa: S608 - constants only

# One that will be sent counts more than one that was refused: it wakes the task all the same.
_OUTBOX = """
    SELECT queue, status, tries, last_error, created_at FROM outbox
    WHERE key = $1 AND kind IN ('task_wakeup', 'task_invoke') ORDER BY status = 'Pending' DESC, outbox_id LIMIT 1"""

_FAILED_CHECKS = """
    SELECT DISTINCT d.name FROM check_results r JOIN datasets d USING (dataset_uuid)
    WHERE r.task_id = $1 AND r.attempt = $2 AND NOT r.passed ORDER BY 1"""

_WHO = """
    SELECT subject, at FROM audit_log WHERE org_id = $1 AND action = 'task.cancel' AND target = $2
    ORDER BY audit_id LIMIT 1"""

_EDGE = f"""
    SELECT d.name, e.failed_units, (
        SELECT count(*) FROM (
            SELECT FROM events v WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version
              AND v.routed_seq > e.position LIMIT {CAP}) waiting) AS backlog
    FROM edges e JOIN datasets d USING (dataset_uuid)
    WHERE e.node_id = $1 AND e.input_index = $2 AND e.failed_units > 0"""  # noqa: S608 - constants only


async def why_task(connection: Connection, org_id: UUID, task_id: UUID) -> WhyReply:
    return answer("task", str(task_id), await task_reasons(connection, org_id, task_id))


async def task_reasons(connection: Connection, org_id: UUID, task_id: UUID) -> list[Reason]:
    row = await connection.fetchrow(_TASK, task_id, org_id)
    if row is None:
        raise TraceError("task_not_found")
    if row["sweep"] == "Drop" and (row["status"] == "Queued" or row["next_retry_at"] is not None):
        text = f"It is about to be cancelled: {row['sweep_reason']}. It returns when its version is active again."
        return [reason("superseded", text, references=_job(row))]
    match row["status"]:
        case "Queued":
            return [await (_limited(connection, row) if row["held"] else _ready(connection, row))]
        case "Running":
            return [_running(row)]
        case "Completed":
            return [_completed(row)]
        case "Canceled":
            return [await _canceled(connection, row)]
        case _:
            return await _failed(connection, row)


def _completed(row: asyncpg.Record) -> Reason:
    text = f"It was completed {since(row['finished_at'], row['now'])} ago, at attempt {row['attempt']}."
    return reason("completed", text, ("see what it wrote", f"trace tasks {row['task_id']}"), references=_job(row))


def _running(row: asyncpg.Record) -> Reason:
    at, now, lease = row["claimed_at"], row["now"], row["lease_expires_at"]
    by = (
        f"The worker {row['worker_id']} has been running attempt {row['attempt']}"
        if row["worker_id"]
        else "It has been running"
    )
    text = f"{by} for {since(at, now)}"
    see = ("see it", f"trace tasks {row['task_id']}")
    if row["cancel_requested"]:
        asker = " because another version of the DAG is active now" if row["superseded"] == "Dropped" else ""
        if row["superseded"] == "Returning":
            return reason(
                "returning",
                f"{text} and was told to stop; its version is active again, so it becomes ready once it has stopped.",
                see,
                references=_job(row),
            )
        text += f" and was asked to stop{asker}; its lease ends {_until(lease, now)} if it does not."
        return reason("stopping", text, see, references=_job(row))
    if lease <= now:
        text += f", but its lease ran out {since(lease, now)} ago without a heartbeat."
        return reason("lease_overdue", text, see, references=_job(row))
    if row["silent"]:
        text += (
            f", but sent its last heartbeat {since(row['heard_at'], now)} ago; "
            f"its lease ends {_until(lease, now)}, and then it is tried again."
        )
        return reason("unheard", text, see, references=_job(row))
    text += f"; its lease holds for {span((lease - now).total_seconds())} more."
    return reason(
        "running", text, see, *_log_step(row), ("stop it", f"trace cancel {row['task_id']}"), references=_job(row)
    )


async def _limited(connection: Connection, row: asyncpg.Record) -> Reason:
    key = await find_limit(connection, row["held_by"], row["org_id"])
    limit = await connection.fetchrow(_LIMIT, key, row["org_id"], row["ready_at"], row["task_id"], row["held_by"])
    place = limit_words(key, limit, f"{row['dag_name']}/{row['name']}")
    ahead = 0 if limit is None else limit["ahead"]
    turn = f"{counted(ahead, 'task', most=CAP)} before it" if ahead else "it is next"
    text = f"It has waited {since(row['ready_at'], row['now'])} for a place under {place}; {turn}."
    references = [*_job(row), *([("task", limit["first"])] if limit is not None and limit["first"] else [])]
    if is_quota(key):
        return reason("at_quota", text, *QUOTA_STEPS, references=references)
    see = ("see what runs", f"trace tasks --dag {row['dag_name']} --job {row['name']} --status Running")
    return reason("limited", text, see, references=references)


async def _ready(connection: Connection, row: asyncpg.Record) -> Reason:
    waited = since(row["ready_at"], row["now"])
    outbox = await connection.fetchrow(_OUTBOX, row["task_id"])
    retried = f" It has been tried {counted(row['attempt'], 'time')}." if row["attempt"] else ""
    if outbox is None:
        workers, steps = await facts.describe_workers(connection, row["org_id"], row["runtime"], row["now"])
        text = f"It has been ready for {waited} and waits for a worker of {row['runtime']}.{retried} {workers}"
        return reason("ready", text, *steps, references=_job(row))
    # Rows are numbered over all orgs; `trace outbox list` shows the task as their key.
    references = [*_job(row), ("outbox", row["task_id"])]
    if outbox["status"] == "Failed":
        text = (
            f"It has been ready for {waited}, but the queue {outbox['queue']} refused its wake-up "
            f"{counted(outbox['tries'], 'time')}: {outbox['last_error'] or 'no reason given'}."
        )
        again = ("send it again", "trace outbox requeue")
        return reason("wakeup_failed", text, again, references=references)
    why = f" (last error: {outbox['last_error']})" if outbox["last_error"] else ""
    text = f"It has been ready for {waited}; its wake-up for {outbox['queue']} is not sent yet{why}.{retried}"
    return reason("wakeup_pending", text, ("see the outbox", "trace outbox list"), references=references)


async def _canceled(connection: Connection, row: asyncpg.Record) -> Reason:
    ended = f"{since(row['finished_at'], row['now'])} ago"
    if row["superseded"] == "Returning" or (row["superseded"] is not None and row["sweep"] == "Return"):
        return reason(
            "returning",
            f"It was stopped {ended} by a cutover; its version is active again and it is about to become ready.",
            references=_job(row),
        )
    if row["superseded"] is not None:
        error = row["error"] or ""
        by = error if error.startswith("superseded by version") else f"superseded by version {row['active_number']}"
        text = f"It was {by} {ended}; it comes back when a version that has it is active again."
        dag, own = row["dag_name"], row["sound_number"]
        steps = () if own is None else (("activate its version again", f"trace rollback {dag} --to {own}"),)
        return reason("superseded", text, *steps, references=[*_job(row), *_version(dag, row["active_number"])])
    request = await connection.fetchrow(_WHO, row["org_id"], f"task:{row['task_id']}")
    text = f"It was cancelled{'' if request is None else ' by ' + request['subject']} {ended}."
    return reason("canceled", text, ("run it after all", f"trace retry {row['task_id']}"), references=_job(row))


def _log_step(row: asyncpg.Record) -> tuple[Step, ...]:
    if row["has_log"]:
        return (("see its log", f"trace logs {row['task_id']}"),)
    return log_steps(row["task_id"], row["error"]) if row["status"] == "Failed" else ()


async def _failed(connection: Connection, row: asyncpg.Record) -> list[Reason]:
    error_text = error_words(row["error"])
    error = f'with "{error_text}"' if error_text else "without saying why"
    if row["outcome"] == "Timeout":
        error = "because its lease ran out"
    of = f" of {row['max_attempts']}" if row["max_attempts"] else ""
    now = row["now"]
    if row["next_retry_at"] is not None:
        text = f"Attempt {row['attempt']}{of} failed {error}; the next one starts {_until(row['next_retry_at'], now)}."
        steps = (*_log_step(row), ("try it now", f"trace retry {row['task_id']}"))
        return [reason("backing_off", text, *steps, references=_job(row))]
    ended = since(row["finished_at"], now)
    if row["skipped_at"] is not None:
        text = f"It failed {error}, and was skipped {since(row['skipped_at'], now)} ago."
        return [reason("skipped", text, ("try it after all", f"trace retry {row['task_id']}"), references=_job(row))]
    retry, skip = retry_or_skip(row["task_id"])
    text = f"It failed {ended} ago at attempt {row['attempt']}{of} {not_retried(final=row['is_final'])} {error}."
    if not row["may_run"] and row["own_number"] is not None and row["active_number"] is not None:
        # Work of a version that is neither active nor being built is not tried again; and nobody should go back to one
        # that failed.
        text += f" Its version is not active; version {row['active_number']} is."
        retry = ("see the active version", f"trace jobs {row['dag_name']}")
    if (row["error"] or "").startswith("check_failed: "):
        reasons = [await _check_failed(connection, row, text, *_log_step(row), retry, skip)]
    else:
        reasons = [reason("failed", text, *_log_step(row), retry, skip, references=_job(row))]
    edge = None
    if _may_hold(row):
        edge = await connection.fetchrow(_EDGE, row["node_id"], row["edge"])
    if edge is not None:
        text = f"It holds the input {edge['name']} at {unit_words(row['unit_key'])}; {waiting(edge['backlog'])}."
        reasons.append(reason("holds_edge", text, retry, skip, references=[*_job(row), ("dataset", edge["name"])]))
    return reasons


async def _check_failed(connection: Connection, row: asyncpg.Record, text: str, *steps: Step) -> Reason:
    datasets = [item["name"] for item in await connection.fetch(_FAILED_CHECKS, row["task_id"], row["attempt"])]
    see = [("see its checks", f"trace checks {name}") for name in datasets[:1]]
    references = [*_job(row), *(("dataset", name) for name in datasets)]
    return reason("check_failed", text, *see, *steps, references=references)


def _may_hold(row: asyncpg.Record) -> bool:
    """Returns whether the task may hold its edge: a cursor unit does, unless a person asked for it."""
    of_edge: bool = row["edge"] is not None and row["edge"] >= 0 and row["unit_key"].startswith("c:")
    return of_edge and row["revision_kind"] != RevisionKind.MANUAL


def _until(at: datetime, now: datetime) -> str:
    seconds = (at - now).total_seconds()
    return f"in {span(seconds)}" if seconds > 0 else "any moment"


def _job(row: asyncpg.Record) -> list[tuple[str, object]]:
    return [("job", f"{row['dag_name']}/{row['name']}")]


def _version(dag: str, number: int | None) -> list[tuple[str, object]]:
    return [] if number is None else [("version", f"{dag}@{number}")]

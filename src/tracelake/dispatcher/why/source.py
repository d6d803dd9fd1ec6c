"""Why a source says nothing."""

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_final_error, is_run
from tracelake.dispatcher.views.pressure import Pressure
from tracelake.dispatcher.views.shared import HEARD_AT, SILENT
from tracelake.dispatcher.views.words import since, span, unit_words
from tracelake.dispatcher.why import facts
from tracelake.dispatcher.why.answer import Reason, error_words, log_steps, not_retried, reason
from tracelake.dispatcher.why.facts import Subject
from tracelake.dispatcher.why.stops import over_quota, paused, pressed

_SAID = """
    SELECT e.unit, e.created_at, d.name FROM job_outputs o JOIN datasets d USING (dataset_uuid) CROSS JOIN LATERAL (
        SELECT v.unit, v.created_at, v.routed_seq FROM events v
        WHERE v.dataset_uuid = o.dataset_uuid AND v.dataset_version = o.dataset_version AND v.routed_seq IS NOT NULL
        ORDER BY v.routed_seq DESC LIMIT 1) e
    WHERE o.job_id = $1 ORDER BY e.routed_seq DESC LIMIT 1"""
"""The newest event of its outputs."""

_RUN = f"""
    SELECT t.task_id, t.status, t.attempt, t.next_retry_at, t.finished_at, t.superseded, t.cancel_requested, t.error,
           t.claimed_at, t.outcome, t.lease_expires_at, {is_final_error("t")} AS is_final, {HEARD_AT} AS heard_at,
           {SILENT} AS silent
    FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.node_id = $1 AND {is_run("t")} AND t.revision = ''"""  # noqa: S608 - constants only
"""The one task of an always_on source."""


async def source_reasons(connection: Connection, subject: Subject, pressure: Pressure) -> list[Reason]:
    run = await connection.fetchrow(_RUN, subject.node_id) if subject.source == "always_on" else None
    last_update = await connection.fetchrow(_SAID, subject.job_id)
    if run is not None and (run["status"] == "Completed" or _is_canceled(run)):
        return [_ended(subject, run)]
    if run is not None and run["status"] == "Failed" and run["next_retry_at"] is None:
        return [_dead(subject, run)]
    reasons = _stopped(subject, pressure)
    if subject.source == "always_on":
        reasons += await _run_reasons(connection, subject, run, silent=last_update is None)
    elif last_update is None:
        reasons.append(_never(subject))
    return reasons or [_spoke(subject, last_update)]


async def last_event(connection: Connection, subject: Subject) -> Reason:
    """When a source announced something for the last time."""
    return _spoke(subject, await connection.fetchrow(_SAID, subject.job_id))


def _stopped(subject: Subject, pressure: Pressure) -> list[Reason]:
    pause = pressure.paused.get(subject.node_id)
    if pause is not None:  # also while nobody reads it
        by = f"by {pause.by} {since(pause.at, pause.now)} ago"
        return [paused(subject.name, lambda it: f"{it.subject} was paused {by}.")]
    if pressure.overuse is not None:
        return [over_quota(pressure.overuse, "its events are kept and create no tasks")]
    cause = pressure.on_source(subject.node_id)
    if cause is None:
        return []
    because = f"because {cause.words}"
    if subject.source != "always_on":
        return [pressed(cause, f"Its events are kept and create no tasks, {because}.")]
    return [pressed(cause, lambda it: f"{it.subject} is told to pause, {because}; its events are kept.")]


async def _run_reasons(
    connection: Connection, subject: Subject, run: asyncpg.Record | None, *, silent: bool
) -> list[Reason]:
    if run is None:
        not_made = "run has not been created yet; this happens within seconds."
        return [reason("source_starting", lambda it: f"{it.possessive} {not_made}")]
    task = [("task", run["task_id"])]
    see = ("see its run", f"trace why {run['task_id']}")
    match run["status"]:
        case "Failed":
            wait = max(0.0, (run["next_retry_at"] - subject.now).total_seconds())
            text = f"Attempt {run['attempt']} of its run died {_error(run)}; the next one starts in {span(wait)}."
            now = ("start it now", f"trace retry {run['task_id']}")
            return [
                reason("source_backing_off", text, now, see, *log_steps(run["task_id"], run["error"]), references=task)
            ]
        case "Running" if run["cancel_requested"]:
            left = span((run["lease_expires_at"] - subject.now).total_seconds())
            stopping = f"run was asked to stop and has not yet; its lease ends in {left} if it does not."
            return [reason("source_stopping", lambda it: f"{it.possessive} {stopping}", see, references=task)]
        case "Running" if run["silent"]:
            left = (run["lease_expires_at"] - subject.now).total_seconds()
            ends = f"ends in {span(left)}" if left > 0 else "has ended"
            text = (
                f"The worker of its run sent its last heartbeat {since(run['heard_at'], subject.now)} ago; "
                f"its lease {ends}, and then it is started again."
            )
            return [reason("source_unheard", text, see, references=task)]
        case "Running" if silent:
            silence = f"has been running for {since(run['claimed_at'], subject.now)} and has said nothing yet."
            return [reason("source_no_events", lambda it: f"{it.subject} {silence}", see, references=task)]
        case "Running":
            return []
        case _:
            workers, steps = await facts.describe_workers(connection, subject.org_id, subject.runtime, subject.now)
            waiting = f"run waits for a worker of {subject.runtime}. {workers}"
            return [reason("source_starting", lambda it: f"{it.possessive} {waiting}", see, *steps, references=task)]


def _never(subject: Subject) -> Reason:
    source = subject.document.source
    assert source is not None
    if subject.source == "webhook":
        text = "Nothing has been delivered to it yet."
        return reason("source_no_events", text, ("see its jobs", f"trace jobs {subject.dag}"))
    if subject.source == "cron":
        schedule = f"schedule ({source.schedule}, {source.time_zone}) has not come round since it was deployed."
        step = ("trigger it now", f"trace trigger {subject.name} --cursor {int(subject.now.timestamp())}")
        return reason("source_never_fired", lambda it: f"{it.possessive} {schedule}", step)
    text = "Nobody has triggered it yet."
    return reason("source_never_fired", text, ("trigger it", f"trace trigger {subject.name} --range START-END"))


def _spoke(subject: Subject, last_update: asyncpg.Record | None) -> Reason:
    if last_update is None:
        return reason("up_to_date", lambda it: f"{it.subject} is running.")
    ago = since(last_update["created_at"], subject.now)
    text = f"Its last event was {unit_words(last_update['unit'])} of {last_update['name']}, {ago} ago."
    return reason("up_to_date", text, references=[("dataset", last_update["name"])])


def _is_canceled(run: asyncpg.Record) -> bool:
    """Returns whether it was cancelled for good: one that a cutover stopped comes back."""
    return run["status"] == "Canceled" and run["superseded"] is None


def _ended(subject: Subject, run: asyncpg.Record) -> Reason:
    how = "returned" if run["status"] == "Completed" else "was cancelled"
    age = since(run["finished_at"], subject.now)
    again = run["status"] == "Canceled"
    step = ("start it again", f"trace retry {run['task_id']}") if again else ("see it", f"trace tasks {run['task_id']}")
    task = [("task", run["task_id"])]
    return reason("source_ended", lambda it: f"{it.possessive} run {how} {age} ago.", step, references=task)


def _dead(subject: Subject, run: asyncpg.Record) -> Reason:
    ended, why = since(run["finished_at"], subject.now), not_retried(final=run["is_final"])
    text = f"run failed {ended} ago {why} {_error(run)}."
    steps = (("start it again", f"trace retry {run['task_id']}"), *log_steps(run["task_id"], run["error"]))
    return reason("source_dead", lambda it: f"{it.possessive} {text}", *steps, references=[("task", run["task_id"])])


def _error(run: asyncpg.Record) -> str:
    if run["outcome"] == "Timeout":
        return "because its lease ran out"
    error = error_words(run["error"])
    return f'with "{error}"' if error else "without saying why"

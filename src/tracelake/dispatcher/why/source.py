"""Why a source says nothing."""

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.views.pressure import Pressure
from tracelake.dispatcher.views.words import since, span, unit_words
from tracelake.dispatcher.why import facts, workers
from tracelake.dispatcher.why.answer import Reason, Sentence, reason
from tracelake.dispatcher.why.facts import Subject
from tracelake.dispatcher.why.stops import over_quota, paused, pressed


async def source_reasons(connection: Connection, subject: Subject, pressure: Pressure) -> list[Reason]:
    run = await facts.read_run(connection, subject.node_id) if subject.source == "always_on" else None
    last_update = await facts.read_said(connection, subject.job_id)
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


def _stopped(subject: Subject, pressure: Pressure) -> list[Reason]:
    pause = pressure.paused.get(subject.node_id)
    if pause is not None:  # also while nobody reads it
        text = Sentence("{It} was paused by {by} {age} ago.", by=pause.by, age=since(pause.at, pause.now))
        return [paused(subject.name, text)]
    if pressure.overuse is not None:
        return [over_quota(pressure.overuse, "what comes to it is kept and makes no tasks")]
    cause = pressure.on_source(subject.node_id)
    if cause is None:
        return []
    if subject.source == "always_on":
        text = Sentence("{It} is told to pause, because {cause}; what it says all the same is kept.", cause=cause.words)
        return [pressed(cause, text)]
    return [pressed(cause, f"What comes to it is kept and makes no tasks, because {cause.words}.")]


async def _run_reasons(
    connection: Connection, subject: Subject, run: asyncpg.Record | None, *, silent: bool
) -> list[Reason]:
    if run is None:
        starting = Sentence("{Its} run has not been made yet; this is done by itself within seconds.")
        return [reason("source_starting", starting)]
    task = [("task", run["task_id"])]
    see = ("see its run", f"trace why {run['task_id']}")
    match run["status"]:
        case "Failed":
            wait = max(0.0, (run["next_retry_at"] - subject.now).total_seconds())
            text = f"Attempt {run['attempt']} of its run died {_error(run)}; the next one starts in {span(wait)}."
            now = ("start it now", f"trace retry {run['task_id']}")
            return [reason("source_backing_off", text, now, see, references=task)]
        case "Running" if run["cancel_requested"]:
            left = (run["lease_expires_at"] - subject.now).total_seconds()
            stopping = Sentence(
                "{Its} run was asked to stop and has not yet; its lease ends in {left} if it does not.", left=span(left)
            )
            return [reason("source_stopping", stopping, see, references=task)]
        case "Running" if run["silent"]:
            left = (run["lease_expires_at"] - subject.now).total_seconds()
            ends = f"ends in {span(left)}" if left > 0 else "has ended"
            text = (
                f"The worker of its run was last heard of {since(run['heard_at'], subject.now)} ago; its lease {ends}, "
                "and then it is started again."
            )
            return [reason("source_unheard", text, see, references=task)]
        case "Running" if silent:
            age = since(run["claimed_at"], subject.now)
            silence = Sentence("{It} has been running for {age} and has said nothing yet.", age=age)
            return [reason("source_no_events", silence, see, references=task)]
        case "Running":
            return []
        case _:
            workers_text, steps = await workers.look(connection, subject.org_id, subject.runtime, subject.now)
            waiting = Sentence(
                "{Its} run waits for a worker of {runtime}. {workers}", runtime=subject.runtime, workers=workers_text
            )
            return [reason("source_starting", waiting, see, *steps, references=task)]


def _never(subject: Subject) -> Reason:
    source = subject.document.source
    assert source is not None
    if subject.source == "webhook":
        text = "Nothing has been delivered to it yet."
        return reason("source_no_events", text, ("see its jobs", f"trace jobs {subject.dag}"))
    if subject.source == "cron":
        waiting = Sentence(
            "{Its} schedule ({schedule}, {time_zone}) has not come round since it was deployed.",
            schedule=source.schedule,
            time_zone=source.time_zone,
        )
        return reason("source_never_fired", waiting, ("set it off now", f"trace trigger {subject.name} --cursor N"))
    text = "Nobody has triggered it yet."
    return reason("source_never_fired", text, ("set it off", f"trace trigger {subject.name} --range START-END"))


def _spoke(subject: Subject, last_update: asyncpg.Record | None) -> Reason:
    if last_update is None:
        return reason("up_to_date", Sentence("{It} is running."))
    ago = since(last_update["created_at"], subject.now)
    text = f"The last it said was {unit_words(last_update['unit'])} of {last_update['name']}, {ago} ago."
    return reason("up_to_date", text, references=[("dataset", last_update["name"])])


def _is_canceled(run: asyncpg.Record) -> bool:
    """For good: one that a cutover stopped comes back."""
    return run["status"] == "Canceled" and run["superseded"] is None


def _ended(subject: Subject, run: asyncpg.Record) -> Reason:
    how = "ended by itself" if run["status"] == "Completed" else "was cancelled"
    text = Sentence("{Its} run {how} {age} ago.", how=how, age=since(run["finished_at"], subject.now))
    again = run["status"] == "Canceled"
    step = ("start it again", f"trace retry {run['task_id']}") if again else ("see it", f"trace tasks {run['task_id']}")
    return reason("source_ended", text, step, references=[("task", run["task_id"])])


def _dead(subject: Subject, run: asyncpg.Record) -> Reason:
    age = since(run["finished_at"], subject.now)
    text = Sentence("{Its} run failed for good {age} ago {error}.", age=age, error=_error(run))
    step = ("start it again", f"trace retry {run['task_id']}")
    return reason("source_dead", text, step, references=[("task", run["task_id"])])


def _error(run: asyncpg.Record) -> str:
    if run["outcome"] == "Timeout":
        return "because its lease ran out"
    return f'with "{run["error"]}"' if run["error"] else "without saying why"

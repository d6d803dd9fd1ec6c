"""Why a source says nothing."""

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.quotas.book import Overuse
from tracelake.dispatcher.views.pressure import Cause, Pressure
from tracelake.dispatcher.views.words import since, span, unit_words
from tracelake.dispatcher.why import facts, workers
from tracelake.dispatcher.why.answer import reason
from tracelake.dispatcher.why.facts import Subject
from tracelake.wire.why import WhyReason

RESUME = "trace resume"


async def source_reasons(connection: Connection, subject: Subject, pressure: Pressure) -> list[WhyReason]:
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


def paused(name: str, text: str) -> WhyReason:
    return reason("source_paused", text, ("let it go on", f"{RESUME} {name}"), references=[("job", name)])


def pressed(cause: Cause, text: str) -> WhyReason:
    name = cause.dataset or cause.name
    steps = (("see all queues", "trace pressure"), ("see why it is slow", f"trace why {name}"))
    return reason("pressure", text, *steps, references=[("dataset" if cause.dataset else "job", name)])


def over_quota(overuse: Overuse, effect: str) -> WhyReason:
    use = "has {:,} queued tasks" if overuse.kind == "queued_tasks" else "stores {:,} bytes"
    text = f"Its organisation {use.format(overuse.used)} and its quota is {overuse.quota:,}, so {effect}."
    return reason("over_quota", text, ("see all quotas", "trace quota"))


def _stopped(subject: Subject, pressure: Pressure) -> list[WhyReason]:
    pause = pressure.paused.get(subject.node_id)
    if pause is not None:  # also while nobody reads it
        return [paused(subject.name, f"It was paused by {pause.by} {since(pause.at, pause.now)} ago.")]
    if pressure.overuse is not None:
        return [over_quota(pressure.overuse, "what comes to it is kept and makes no tasks")]
    cause = pressure.on_source(subject.node_id)
    if cause is None:
        return []
    if subject.source == "always_on":
        return [pressed(cause, f"It is told to pause, because {cause.words}; what it says all the same is kept.")]
    return [pressed(cause, f"What comes to it is kept and makes no tasks, because {cause.words}.")]


async def _run_reasons(
    connection: Connection, subject: Subject, run: asyncpg.Record | None, *, silent: bool
) -> list[WhyReason]:
    if run is None:
        return [reason("source_starting", "Its run has not been made yet; this is done by itself within seconds.")]
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
            text = f"Its run was asked to stop and has not yet; its lease ends in {span(left)} if it does not."
            return [reason("source_stopping", text, see, references=task)]
        case "Running" if run["silent"]:
            left = (run["lease_expires_at"] - subject.now).total_seconds()
            ends = f"ends in {span(left)}" if left > 0 else "has ended"
            text = (
                f"The worker of its run was last heard of {since(run['heard_at'], subject.now)} ago; its lease {ends}, "
                "and then it is started again."
            )
            return [reason("source_unheard", text, see, references=task)]
        case "Running" if silent:
            text = f"It has been running for {since(run['claimed_at'], subject.now)} and has said nothing yet."
            return [reason("source_no_events", text, see, references=task)]
        case "Running":
            return []
        case _:
            workers_text, steps = await workers.look(connection, subject.org_id, subject.runtime, subject.now)
            text = f"Its run waits for a worker of {subject.runtime}. {workers_text}"
            return [reason("source_starting", text, see, *steps, references=task)]


def _never(subject: Subject) -> WhyReason:
    source = subject.document.source
    assert source is not None
    if subject.source == "webhook":
        text = "Nothing has been delivered to it yet."
        return reason("source_no_events", text, ("see its jobs", f"trace jobs {subject.dag}"))
    if subject.source == "cron":
        text = f"Its schedule ({source.schedule}, {source.time_zone}) has not come round since it was deployed."
        return reason("source_never_fired", text, ("set it off now", f"trace trigger {subject.name} --cursor N"))
    text = "Nobody has triggered it yet."
    return reason("source_never_fired", text, ("set it off", f"trace trigger {subject.name} --range START-END"))


def _spoke(subject: Subject, last_update: asyncpg.Record | None) -> WhyReason:
    if last_update is None:
        return reason("up_to_date", "It is running.")
    ago = since(last_update["created_at"], subject.now)
    text = f"The last it said was {unit_words(last_update['unit'])} of {last_update['name']}, {ago} ago."
    return reason("up_to_date", text, references=[("dataset", last_update["name"])])


def _is_canceled(run: asyncpg.Record) -> bool:
    """For good: one that a cutover stopped comes back."""
    return run["status"] == "Canceled" and run["superseded"] is None


def _ended(subject: Subject, run: asyncpg.Record) -> WhyReason:
    how = "ended by itself" if run["status"] == "Completed" else "was cancelled"
    text = f"Its run {how} {since(run['finished_at'], subject.now)} ago."
    again = run["status"] == "Canceled"
    step = ("start it again", f"trace retry {run['task_id']}") if again else ("see it", f"trace tasks {run['task_id']}")
    return reason("source_ended", text, step, references=[("task", run["task_id"])])


def _dead(subject: Subject, run: asyncpg.Record) -> WhyReason:
    text = f"Its run failed for good {since(run['finished_at'], subject.now)} ago {_error(run)}."
    step = ("start it again", f"trace retry {run['task_id']}")
    return reason("source_dead", text, step, references=[("task", run["task_id"])])


def _error(run: asyncpg.Record) -> str:
    if run["outcome"] == "Timeout":
        return "because its lease ran out"
    return f'with "{run["error"]}"' if run["error"] else "without saying why"

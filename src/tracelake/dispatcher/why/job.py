"""Why a job makes no tasks, or has not finished those it has."""

from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.pressure.levels import Level
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.views.pressure import Pressure, read_pressure
from tracelake.dispatcher.views.words import counted, since, span, unit_words, waiting
from tracelake.dispatcher.why import facts, workers
from tracelake.dispatcher.why.answer import Reason, Sentence, answer, reason, retry_or_skip
from tracelake.dispatcher.why.buffered import buffered_reasons
from tracelake.dispatcher.why.facts import Subject
from tracelake.dispatcher.why.source import source_reasons
from tracelake.dispatcher.why.stops import QUOTA_STEPS, limit_words, over_quota, paused, pressed
from tracelake.errors import TraceError
from tracelake.wire.why import WhyReply


async def why_job(connection: Connection, org_id: UUID, quotas: QuotaBook, dag: str, job: str) -> WhyReply:
    versions = await facts.read_dag(connection, org_id, dag, job)
    if not versions["known"]:
        raise TraceError("dag_not_found")
    if versions["newest_with_job"] is None:
        raise TraceError("job_not_found")
    name = f"{dag}/{job}"
    subject = None
    if versions["active_version"] is not None:
        subject = await facts.read_job(connection, versions["active_version"], dag, job)
    if subject is not None:
        pressure = await read_pressure(connection, org_id, quotas)
        return answer("job", name, await job_reasons(connection, subject, pressure))
    return answer("job", name, await _not_counting(connection, versions, dag, job))


async def job_reasons(connection: Connection, subject: Subject, pressure: Pressure) -> list[Reason]:
    """Of a job of the active version; never empty."""
    if subject.source is not None:
        return await source_reasons(connection, subject, pressure)
    edges = await facts.read_edges(connection, subject.node_id)
    behind = await buffered_reasons(connection, [edge["dataset_uuid"] for edge in edges], pressure)
    reasons: list[Reason] = []
    if pressure.overuse is not None:
        events = max((edge["backlog"] for edge in edges), default=0)
        reasons.append(over_quota(pressure.overuse, f"no tasks are made of what comes in; {waiting(events)}"))
    for edge in edges:
        reasons += await _edge(connection, subject, edge, pressure, behind.get(edge["dataset"], []))
    if subject.joins and all(edge["newest_at"] is not None for edge in edges):
        reasons += await _join(connection, edges)
    reasons += await _tasks(connection, subject)
    reasons += _own_queue(subject, edges, pressure)
    return reasons or [_up_to_date(subject, edges)]


async def _not_counting(connection: Connection, versions: asyncpg.Record, dag: str, job: str) -> list[Reason]:
    newest, building = versions["newest_with_job"], versions["building_version"]
    reasons = []
    version = [("version", f"{dag}@{newest}")]
    if building is not None and await facts.read_job(connection, building, dag, job) is not None:
        text = f"It belongs to version {versions['building_number']} of {dag}, which is being built."
        return [reason("being_built", text, ("see the build", f"trace dags {dag} --watch"), references=version)]
    back = ("activate it", f"trace activate {dag} {newest}")
    if versions["active_version"] is None:
        text = f"No version of {dag} is active; version {newest} has the job."
        reasons.append(reason("no_active_version", text, back, references=version))
    else:
        text = f"Version {versions['active_number']} of {dag} is active and does not have it; version {newest} does."
        reasons.append(reason("not_in_active_version", text, back, references=version))
    return reasons


async def _edge(
    connection: Connection,
    subject: Subject,
    edge: asyncpg.Record,
    pressure: Pressure,
    buffered: list[Reason],
) -> list[Reason]:
    """`buffered`: why the table that it reads lacks rows, if it does."""
    dataset, behind = edge["dataset"], edge["position"] is not None
    backlog = waiting(edge["backlog"])
    cause = pressure.on_edge(subject.node_id, (edge["dataset_uuid"], edge["dataset_version"]), behind=behind)
    if cause is not None and cause.state == "paused":
        text = f"{cause.words}, so no tasks are made of {dataset}; {backlog}."
        return [paused(cause.name, text)]
    own = cause is not None and cause.node_id == subject.node_id  # of that `_own_queue` tells
    if cause is not None and not own:
        stopped = Sentence(
            "{It} makes no tasks of {dataset}, because {cause}; {backlog}.",
            dataset=dataset,
            cause=cause.words,
            backlog=backlog,
        )
        return [pressed(cause, stopped)]
    if edge["failed_units"]:
        holder = await facts.read_holder(connection, subject.node_id, edge["input_index"])
        error = "" if holder is None or not holder["error"] else f' The error: "{holder["error"]}".'
        edge_text = Sentence(
            "{Its} input {dataset} is held{at} by {failed}; {backlog}.{error}",
            dataset=dataset,
            at="" if holder is None else f" at {unit_words(holder['unit_key'])}",
            failed=counted(edge["failed_units"], "failed unit"),
            backlog=backlog,
            error=error,
        )
        if holder is None:
            return [reason("edge_held", edge_text, ("see what failed", _failed_tasks(subject)))]
        references = [("task", holder["task_id"]), ("dataset", dataset)]
        return [reason("edge_held", edge_text, *retry_or_skip(holder["task_id"]), references=references)]
    if own:
        return []
    if pressure.overuse is not None:
        return []
    if behind and (edge["backlog"] or edge["drain_until"] is not None):
        draining = Sentence("{Its} input {dataset} is catching up; {backlog}.", dataset=dataset, backlog=backlog)
        step = ("see it", f"trace jobs {subject.dag} --watch")
        return [reason("edge_draining", draining, step, references=[("dataset", dataset)])]
    if buffered:
        why = buffered[0].about(dataset).text
        lacking = Sentence("{Its} input {dataset} lacks rows: {why}", dataset=dataset, why=why)
        return [reason("input_waits", lacking, ("see more", f"trace why {dataset}"), references=[("dataset", dataset)])]
    if edge["newest_at"] is None:
        empty = Sentence("{Its} input {dataset} has no event yet.", dataset=dataset)
        step = ("see why", f"trace why {dataset}")
        return [reason("input_empty", empty, step, references=[("dataset", dataset)])]
    return _passed(subject, edge, pressure)


def _passed(subject: Subject, edge: asyncpg.Record, pressure: Pressure) -> list[Reason]:
    """Its newest event is below what it has read. Only of sources: the tasks of a job may end in any order."""
    writers = pressure.upstream.writers.get((edge["dataset_uuid"], edge["dataset_version"]), frozenset())
    if not (edge["passed"] and subject.by_cursor) or subject.joins or writers.isdisjoint(pressure.upstream.sources):
        return []
    dataset, cursor = edge["dataset"], edge["newest_cursor"]
    text = Sentence(
        "{Its} input {dataset} is at cursor {routed}; the newest event, cursor {cursor}, is not above it, so it makes "
        "no task.",
        dataset=dataset,
        routed=edge["routed"],
        cursor=cursor,
    )
    again = f"trace trigger {subject.name} --cursor {cursor}"
    step = ("make its task by hand", f"{again} --input {edge['input_index']}" if edge["input_index"] else again)
    return [reason("cursor_passed", text, step, references=[("dataset", dataset)])]


def _own_queue(subject: Subject, edges: list[asyncpg.Record], pressure: Pressure) -> list[Reason]:
    """What it has to do is the reason that it gets no more."""
    queue = pressure.queues.get(subject.node_id)
    if queue is None or (queue.level is Level.NONE and not queue.has_no_room):
        return []
    events = max((edge["backlog"] for edge in edges), default=0)
    bulk = "" if queue.level is Level.ALL or queue.has_no_room else " of bulk work"
    if bulk and not events:
        return []
    text = Sentence(
        "{Its} own queue is {state}, so it gets no new tasks{bulk}; {waiting}.",
        state=queue.state_words,
        bulk=bulk,
        waiting=waiting(events),
    )
    return [reason("own_queue_full", text, ("see whom it stops", "trace pressure"))]


async def _join(connection: Connection, edges: list[asyncpg.Record]) -> list[Reason]:
    missing = await facts.find_missing(connection, edges)
    if missing is None:
        return []
    lacks = missing.lacks["dataset"]
    text = Sentence(
        "{Its} input {has} has {unit}, and {lacks} does not have it yet.",
        has=missing.has,
        unit=unit_words(missing.unit),
        lacks=lacks,
    )
    return [reason("join_waits", text, ("see why", f"trace why {lacks}"), references=[("dataset", lacks)])]


async def _tasks(connection: Connection, subject: Subject) -> list[Reason]:
    tasks = await facts.read_tasks(connection, subject.node_id)
    reasons = []
    if row := tasks.get("failed"):  # what holds an input is named there
        error = f', the first with "{row["error"]}"' if row["error"] else ""
        steps = (("see them", _failed_tasks(subject)), *retry_or_skip(row["first"]))
        text = _tasks_sentence(row, "{have} failed for good{error}.", error=error)
        reasons.append(reason("tasks_failed", text, *steps, references=_first(row)))
    if row := tasks.get("held"):
        see = ("see what runs", f"{_of_job(subject)} --status Running")
        reasons.append(reason("tasks_limited", await _held(connection, subject, row), see, references=_first(row)))
    if row := tasks.get("at_quota"):
        text = await _held(connection, subject, row)
        reasons.append(reason("tasks_at_quota", text, *QUOTA_STEPS, references=_first(row)))
    if row := tasks.get("backing_off"):
        error = f', the first with "{row["error"]}"' if row["error"] else ""
        themselves = "itself" if row["number"] == 1 else "themselves"
        template = "{have} failed{error}, and will be tried again by {themselves}."
        text = _tasks_sentence(row, template, error=error, themselves=themselves)
        reasons.append(
            reason("tasks_backing_off", text, ("see it", f"trace why {row['first']}"), references=_first(row))
        )
    if row := tasks.get("ready"):
        waited = since(row["at"], subject.now)
        workers_text, more = await workers.look(connection, subject.org_id, subject.runtime, subject.now)
        one = row["number"] == 1
        text = _tasks_sentence(
            row,
            "{wait} for a worker of {runtime}, {oldest}for {waited}. {workers}",
            wait="waits" if one else "wait",
            runtime=subject.runtime,
            oldest="" if one else "the oldest ",
            waited=waited,
            workers=workers_text,
        )
        see = ("see why", f"trace why {row['first']}")
        reasons.append(reason("tasks_ready", text, see, *more, references=_first(row)))
    if row := tasks.get("silent"):
        left = (row["at"] - subject.now).total_seconds()
        ends = f"ends in {span(left)}" if left > 0 else "has ended"
        first = "the" if row["number"] == 1 else "the first"
        template = "{are} with a worker that is not heard of; {first} lease {ends}, and then it is tried again."
        text = _tasks_sentence(row, template, first=first, ends=ends)
        reasons.append(reason("tasks_unheard", text, ("see it", f"trace why {row['first']}"), references=_first(row)))
    if row := tasks.get("running"):
        text = _tasks_sentence(row, "{are} running, the longest for {age}.", age=since(row["at"], subject.now))
        reasons.append(
            reason(
                "tasks_running",
                text,
                ("see them", f"{_of_job(subject)} --status Running"),
                references=_first(row),
            )
        )
    return reasons


async def _held(connection: Connection, subject: Subject, row: asyncpg.Record) -> Sentence:
    place = limit_words(row["held_by"] or "", await facts.read_limit(connection, row["held_by"]), subject.name)
    return _tasks_sentence(row, "{have} to wait for a place under {place}.", place=place)


def _up_to_date(subject: Subject, edges: list[asyncpg.Record]) -> Reason:
    newest = max(
        (edge for edge in edges if edge["newest_at"] is not None), key=lambda edge: edge["newest_at"], default=None
    )
    if newest is None:
        return reason("up_to_date", Sentence("{It} has no inputs that could bring it work."))
    text = Sentence(
        "{It} has done everything that came in; the newest was {unit} of {dataset}, {age} ago.",
        unit=unit_words(newest["newest_unit"]),
        dataset=newest["dataset"],
        age=since(newest["newest_at"], subject.now),
    )
    return reason("up_to_date", text, references=[("dataset", newest["dataset"])])


def _tasks_sentence(row: asyncpg.Record, template: str, **values: object) -> Sentence:
    """What so many tasks of the job do; the template begins with a verb."""
    one = row["number"] == 1
    verbs = {"have": "has" if one else "have", "are": "is" if one else "are"}
    return Sentence("{tasks} {of_it} " + template, tasks=counted(row["number"], "task"), **verbs, **values)


def _first(row: asyncpg.Record) -> list[tuple[str, object]]:
    return [("task", row["first"])]


def _of_job(subject: Subject) -> str:
    return f"trace tasks --dag {subject.dag} --job {subject.job}"


def _failed_tasks(subject: Subject) -> str:
    return f"{_of_job(subject)} --status Failed"

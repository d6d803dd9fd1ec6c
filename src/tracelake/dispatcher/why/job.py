"""Why a job makes no tasks, or has not finished those it has."""

from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.pressure.levels import Level
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.views.pressure import Pressure, read_pressure
from tracelake.dispatcher.views.words import counted, since, span, unit_words, waiting
from tracelake.dispatcher.why import facts, workers
from tracelake.dispatcher.why.answer import about, answer, reason, retry_or_skip
from tracelake.dispatcher.why.buffered import buffered_reasons
from tracelake.dispatcher.why.facts import Subject
from tracelake.dispatcher.why.source import over_quota, paused, pressed, source_reasons
from tracelake.errors import TraceError
from tracelake.wire.why import WhyReason, WhyReply


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


async def job_reasons(connection: Connection, subject: Subject, pressure: Pressure) -> list[WhyReason]:
    """Of a job that counts; never empty."""
    if subject.source is not None:
        return await source_reasons(connection, subject, pressure)
    edges = await facts.read_edges(connection, subject.node_id)
    behind = await buffered_reasons(connection, [edge["dataset_uuid"] for edge in edges], pressure)
    reasons: list[WhyReason] = []
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


async def _not_counting(connection: Connection, versions: asyncpg.Record, dag: str, job: str) -> list[WhyReason]:
    newest, building = versions["newest_with_job"], versions["building_version"]
    reasons = []
    version = [("version", f"{dag}@{newest}")]
    if building is not None and await facts.read_job(connection, building, dag, job) is not None:
        text = f"It belongs to version {versions['building_number']} of {dag}, which is being built."
        return [reason("being_built", text, ("see the build", f"trace dags {dag} --watch"), references=version)]
    back = ("let it count", f"trace activate {dag} {newest}")
    if versions["active_version"] is None:
        text = f"No version of {dag} counts; version {newest} has the job."
        reasons.append(reason("no_active_version", text, back, references=version))
    else:
        text = f"Version {versions['active_number']} of {dag} counts and does not have it; version {newest} does."
        reasons.append(reason("not_in_active_version", text, back, references=version))
    return reasons


async def _edge(
    connection: Connection,
    subject: Subject,
    edge: asyncpg.Record,
    pressure: Pressure,
    buffered: list[WhyReason],
) -> list[WhyReason]:
    """`buffered`: why the table that it reads lacks rows, if it does."""
    dataset, behind = edge["dataset"], edge["position"] is not None
    backlog = waiting(edge["backlog"])
    cause = pressure.on_edge(subject.node_id, (edge["dataset_uuid"], edge["dataset_version"]), behind=behind)
    if cause is not None and cause.state == "paused":
        text = f"{cause.words}, so no tasks are made of {dataset}; {backlog}."
        return [paused(cause.name, text)]
    own = cause is not None and cause.node_id == subject.node_id  # of that `_own_queue` tells
    if cause is not None and not own:
        text = f"It makes no tasks of {dataset}, because {cause.words}; {backlog}."
        return [pressed(cause, text)]
    if edge["failed_units"]:
        holder = await facts.read_holder(connection, subject.node_id, edge["input_index"])
        at = "" if holder is None else f" at {unit_words(holder['unit_key'])}"
        text = f"Its input {dataset} is held{at} by {counted(edge['failed_units'], 'failed unit')}; {backlog}."
        if holder is None:
            return [reason("edge_held", text, ("see what failed", _failed_tasks(subject)))]
        if holder["error"]:
            text = f'{text[:-1]}. The error: "{holder["error"]}".'
        references = [("task", holder["task_id"]), ("dataset", dataset)]
        return [reason("edge_held", text, *retry_or_skip(holder["task_id"]), references=references)]
    if own:
        return []
    if pressure.overuse is not None:
        return []
    if behind and (edge["backlog"] or edge["drain_until"] is not None):
        text = f"Its input {dataset} is catching up; {backlog}."
        step = ("see it", f"trace jobs {subject.dag} --watch")
        return [reason("edge_draining", text, step, references=[("dataset", dataset)])]
    if buffered:
        text = f"Its input {dataset} lacks rows: {about(dataset, buffered[0]).text}"
        return [reason("input_waits", text, ("see more", f"trace why {dataset}"), references=[("dataset", dataset)])]
    if edge["newest_at"] is None:
        step = ("see why", f"trace why {dataset}")
        return [
            reason("input_empty", f"Its input {dataset} has no event yet.", step, references=[("dataset", dataset)])
        ]
    return _passed(subject, edge, pressure)


def _passed(subject: Subject, edge: asyncpg.Record, pressure: Pressure) -> list[WhyReason]:
    """Its newest event is below what it has read. Only of sources: the tasks of a job may end in any order."""
    writers = pressure.upstream.writers.get((edge["dataset_uuid"], edge["dataset_version"]), frozenset())
    if not (edge["passed"] and subject.by_cursor) or subject.joins or writers.isdisjoint(pressure.upstream.sources):
        return []
    dataset, cursor = edge["dataset"], edge["newest_cursor"]
    text = (
        f"Its input {dataset} is at cursor {edge['routed']}; the newest event, cursor {cursor}, is not above it, so it "
        "makes no task."
    )
    again = f"trace trigger {subject.name} --cursor {cursor}"
    step = ("make its task by hand", f"{again} --input {edge['input_index']}" if edge["input_index"] else again)
    return [reason("cursor_passed", text, step, references=[("dataset", dataset)])]


def _own_queue(subject: Subject, edges: list[asyncpg.Record], pressure: Pressure) -> list[WhyReason]:
    """What it has to do is the reason that it gets no more."""
    queue = pressure.queues.get(subject.node_id)
    if queue is None or (queue.level is Level.NONE and not queue.has_no_room):
        return []
    events = max((edge["backlog"] for edge in edges), default=0)
    bulk = "" if queue.level is Level.ALL or queue.has_no_room else " of bulk work"
    if bulk and not events:
        return []
    words = queue.words.removeprefix(f"{queue.name} is ")
    text = f"Its own queue is {words}, so it gets no new tasks{bulk}; {waiting(events)}."
    return [reason("own_queue_full", text, ("see whom it stops", "trace pressure"))]


async def _join(connection: Connection, edges: list[asyncpg.Record]) -> list[WhyReason]:
    missing = await facts.find_missing(connection, edges)
    if missing is None:
        return []
    lacks = missing.lacks["dataset"]
    text = f"Its input {missing.has} has {unit_words(missing.unit)}, and {lacks} does not have it yet."
    return [reason("join_waits", text, ("see why", f"trace why {lacks}"), references=[("dataset", lacks)])]


async def _tasks(connection: Connection, subject: Subject) -> list[WhyReason]:
    tasks = await facts.read_tasks(connection, subject.node_id)
    reasons = []
    if row := tasks.get("failed"):  # what holds an input is named there
        error = f', the first with "{row["error"]}"' if row["error"] else ""
        steps = (("see them", _failed_tasks(subject)), *retry_or_skip(row["first"]))
        text = f"{_have(row, 'failed for good')}{error}."
        reasons.append(reason("tasks_failed", text, *steps, references=[("task", row["first"])]))
    if row := tasks.get("held"):
        limit = await facts.read_limit(connection, row["held_by"])
        kind, _, rest = (row["held_by"] or "").partition(":")
        names = {"operator": f"the operator {rest}", "org": "your organisation's quota of running tasks"}
        of = names.get(kind, subject.name)
        used = "" if limit is None or limit["max_running"] is None else f" ({limit['used']} of {limit['max_running']})"
        text = f"{_have(row, 'to wait')} for a place under the limit of {of}{used}."
        reasons.append(
            reason(
                "tasks_limited",
                text,
                ("see what runs", f"{_of_job(subject)} --status Running"),
                references=[("task", row["first"])],
            )
        )
    if row := tasks.get("backing_off"):
        error = f', the first with "{row["error"]}"' if row["error"] else ""
        text = f"{_have(row, 'failed')}{error}, and will be tried again by themselves."
        if row["number"] == 1:
            text = text.replace("by themselves", "by itself")
        reasons.append(
            reason(
                "tasks_backing_off", text, ("see it", f"trace why {row['first']}"), references=[("task", row["first"])]
            )
        )
    if row := tasks.get("ready"):
        waited = since(row["at"], subject.now)
        text = (
            f"{counted(row['number'], 'task')} of it wait for a worker of {subject.runtime}, the oldest for {waited}."
        )
        if row["number"] == 1:
            text = f"1 task of it waits for a worker of {subject.runtime}, for {waited}."
        workers_text, more = await workers.look(connection, subject.org_id, subject.runtime, subject.now)
        see = ("see why", f"trace why {row['first']}")
        reasons.append(reason("tasks_ready", f"{text} {workers_text}", see, *more, references=[("task", row["first"])]))
    if row := tasks.get("silent"):
        verb = "is" if row["number"] == 1 else "are"
        left = (row["at"] - subject.now).total_seconds()
        ends = f"ends in {span(left)}" if left > 0 else "has ended"
        first = "the" if row["number"] == 1 else "the first"
        text = (
            f"{counted(row['number'], 'task')} of it {verb} with a worker that is not heard of; {first} lease {ends}, "
            "and then it is tried again."
        )
        reasons.append(
            reason("tasks_unheard", text, ("see it", f"trace why {row['first']}"), references=[("task", row["first"])])
        )
    if row := tasks.get("running"):
        verb = "is" if row["number"] == 1 else "are"
        text = (
            f"{counted(row['number'], 'task')} of it {verb} running, the longest for {since(row['at'], subject.now)}."
        )
        reasons.append(
            reason(
                "tasks_running",
                text,
                ("see them", f"{_of_job(subject)} --status Running"),
                references=[("task", row["first"])],
            )
        )
    return reasons


def _up_to_date(subject: Subject, edges: list[asyncpg.Record]) -> WhyReason:
    newest = max(
        (edge for edge in edges if edge["newest_at"] is not None), key=lambda edge: edge["newest_at"], default=None
    )
    if newest is None:
        return reason("up_to_date", "It has no inputs that could bring it work.")
    ago = since(newest["newest_at"], subject.now)
    text = (
        f"It has done everything that came in; the newest was {unit_words(newest['newest_unit'])} of "
        f"{newest['dataset']}, {ago} ago."
    )
    return reason("up_to_date", text, references=[("dataset", newest["dataset"])])


def _have(row: asyncpg.Record, what: str) -> str:
    verb = "has" if row["number"] == 1 else "have"
    return f"{counted(row['number'], 'task')} of it {verb} {what}"


def _of_job(subject: Subject) -> str:
    return f"trace tasks --dag {subject.dag} --job {subject.job}"


def _failed_tasks(subject: Subject) -> str:
    return f"{_of_job(subject)} --status Failed"

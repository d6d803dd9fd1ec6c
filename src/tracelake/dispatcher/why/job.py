"""Why a job makes no tasks, or has not finished those it has."""

from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.limits import is_quota
from tracelake.dispatcher.engine.pressure.levels import Level
from tracelake.dispatcher.predicates import is_finally_failed
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.views.dags import build_progress
from tracelake.dispatcher.views.pressure import Pressure, read_pressure
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
from tracelake.dispatcher.why.buffered import buffered_reasons
from tracelake.dispatcher.why.builds import failed_build, is_stuck
from tracelake.dispatcher.why.empty_inputs import find_quiet_source, find_running_writer
from tracelake.dispatcher.why.facts import Subject
from tracelake.dispatcher.why.source import source_reasons
from tracelake.dispatcher.why.stops import QUOTA_STEPS, find_limit, limit_words, over_quota, paused, pressed
from tracelake.dispatcher.why.windows import window_reasons
from tracelake.errors import TraceError
from tracelake.wire.why import WhyReply

_HOLDER = f"""
    SELECT t.task_id, t.unit_key, t.error FROM jobs j JOIN tasks t ON t.job_id = j.job_id
    WHERE j.node_id = $1 AND t.edge = $2 AND {is_finally_failed("t")}
      AND t.unit_key LIKE 'c:%' AND t.revision_kind <> 'manual'
    ORDER BY t.unit_end, t.task_id LIMIT 1"""  # noqa: S608
"""The first task that holds an edge."""

_LIMIT = "SELECT max_running, used FROM limits WHERE limit_key = $1"


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
        reasons = await job_reasons(connection, subject, pressure)
        return answer("job", name, [*await _stuck_build(connection, versions, subject), *reasons])
    return answer("job", name, await _not_counting(connection, versions, dag, job))


async def job_reasons(connection: Connection, subject: Subject, pressure: Pressure) -> list[Reason]:
    """Finds the reasons of a job of the active version; never empty."""
    if subject.source is not None:
        return await source_reasons(connection, subject, pressure)
    edges = await facts.read_edges(connection, subject.node_id)
    behind = await buffered_reasons(connection, [edge["dataset_uuid"] for edge in edges], pressure)
    reasons: list[Reason] = []
    if pressure.overuse is not None:
        events = max((edge["backlog"] for edge in edges), default=0)
        reasons.append(over_quota(pressure.overuse, f"no tasks are created; {waiting(events)}"))
    for edge in edges:
        reasons += await _edge(connection, subject, edge, pressure, behind.get(edge["dataset"], []))
    if subject.joins and all(edge["newest_at"] is not None for edge in edges):
        reasons += await _join(connection, edges)
    reasons += await window_reasons(connection, subject)
    reasons += await _tasks(connection, subject)
    reasons += _own_queue(subject, edges, pressure)
    return reasons or [_up_to_date(subject, edges)]


async def _stuck_build(connection: Connection, versions: asyncpg.Record, active: Subject) -> list[Reason]:
    """Tells of a changed definition of the job that cannot become active."""
    building = versions["building_version"]
    changed = None if building is None else await facts.read_job(connection, building, active.dag, active.job)
    if changed is None or changed.node_id == active.node_id:
        return []
    build = await build_progress(connection, building)
    if not is_stuck(build):
        return []
    return [await failed_build(connection, active.dag, building, versions["building_number"], build)]


async def _not_counting(connection: Connection, versions: asyncpg.Record, dag: str, job: str) -> list[Reason]:
    newest, building = versions["newest_with_job"], versions["building_version"]
    version = [("version", f"{dag}@{newest}")]
    if building is not None and await facts.read_job(connection, building, dag, job) is not None:
        number = versions["building_number"]
        build = await build_progress(connection, building)
        if is_stuck(build):
            return [await failed_build(connection, dag, building, number, build)]
        text = f"It belongs to version {number} of {dag}, which is being built."
        return [reason("being_built", text, ("see the build", f"trace dags {dag} --watch"), references=version)]
    sound = versions["sound_with_job"]
    step = ("deploy a document that has it", "trace deploy FILE")
    if sound is not None:
        step = ("activate it" if sound == newest else f"activate version {sound}", f"trace activate {dag} {sound}")
    if versions["active_version"] is None:
        code, text = "no_active_version", f"No version of {dag} is active; version {newest} has the job."
    else:
        code = "not_in_active_version"
        text = f"Version {versions['active_number']} of {dag} is active and does not have it; version {newest} does."
    return [reason(code, text, step, references=version)]


async def _edge(
    connection: Connection, subject: Subject, edge: asyncpg.Record, pressure: Pressure, buffered: list[Reason]
) -> list[Reason]:
    """Finds why an input makes no tasks. `buffered`: why the table that it reads lacks rows, if it does."""
    dataset, behind = edge["dataset"], edge["position"] is not None
    backlog, refers = waiting(edge["backlog"]), [("dataset", edge["dataset"])]
    cause = pressure.on_edge(subject.node_id, (edge["dataset_uuid"], edge["dataset_version"]), behind=behind)
    if cause is not None and cause.state == "paused":
        return [paused(cause.name, f"{cause.words}, so no tasks are created from {dataset}; {backlog}.")]
    own = cause is not None and cause.node_id == subject.node_id  # of that `_own_queue` tells
    if cause is not None and not own:
        words = cause.words
        stopped = pressed(
            cause, lambda it: f"{it.subject} creates no tasks from {dataset}, because {words}; {backlog}."
        )
        return [stopped]
    if edge["failed_units"]:
        return [await _held_edge(connection, subject, edge)]
    if own or pressure.overuse is not None:
        return []
    if behind and (edge["backlog"] or edge["drain_until"] is not None):
        return [
            reason(
                "edge_draining",
                lambda it: f"{it.possessive} input {dataset} is catching up; {backlog}.",
                ("see it", f"trace jobs {subject.dag} --watch"),
                references=refers,
            )
        ]
    if buffered:
        why = buffered[0].about(dataset).text
        return [
            reason(
                "input_waits",
                lambda it: f"{it.possessive} input {dataset} lacks rows: {why}",
                ("see more", f"trace why {dataset}"),
                references=refers,
            )
        ]
    if edge["newest_at"] is None:
        generation = (edge["dataset_uuid"], edge["dataset_version"])
        source = await find_quiet_source(connection, subject.org_id, generation)
        if source is not None:
            return [
                reason(
                    "nothing_due",
                    lambda it: (
                        f"{it.possessive} input {dataset} has no event yet: {source} is running, and nothing is due."
                    ),
                    references=[*refers, ("job", source)],
                )
            ]
        writer = await find_running_writer(connection, subject.org_id, generation)
        if writer is not None:
            return [
                reason(
                    "input_in_progress",
                    lambda it: (
                        f"{it.possessive} input {dataset} has no event yet: a task of {writer} is running for it."
                    ),
                    ("see it", f"trace why {writer}"),
                    references=[*refers, ("job", writer)],
                )
            ]
        return [
            reason(
                "input_empty",
                lambda it: f"{it.possessive} input {dataset} has no event yet.",
                ("see why", f"trace why {dataset}"),
                references=refers,
            )
        ]
    return _passed(subject, edge, pressure)


async def _held_edge(connection: Connection, subject: Subject, edge: asyncpg.Record) -> Reason:
    holder = await connection.fetchrow(_HOLDER, subject.node_id, edge["input_index"])
    state = f"by {counted(edge['failed_units'], 'failed unit')}; {waiting(edge['backlog'])}."
    steps: tuple[Step, ...] = (("see what failed", _failed_tasks(subject)),)
    references: list[tuple[str, object]] = []
    if holder is not None:
        state = f"at {unit_words(holder['unit_key'])} {state}"
        error = error_words(holder["error"])
        state += f' The error: "{error}".' if error else ""
        log = log_steps(holder["task_id"], holder["error"])
        steps = (*log, *_retry_or_skip(subject, edge["failed_units"], holder["task_id"]))
        references = [("task", holder["task_id"]), ("dataset", edge["dataset"])]
    text = f"input {edge['dataset']} is held {state}"
    return reason("edge_held", lambda it: f"{it.possessive} {text}", *steps, references=references)


def _passed(subject: Subject, edge: asyncpg.Record, pressure: Pressure) -> list[Reason]:
    """Tells of a newest event below what was read. Only of sources: the tasks of a job may end in any order."""
    writers = pressure.upstream.writers.get((edge["dataset_uuid"], edge["dataset_version"]), frozenset())
    if not (edge["passed"] and subject.by_cursor) or subject.joins or writers.isdisjoint(pressure.upstream.sources):
        return []
    dataset, cursor = edge["dataset"], edge["newest_cursor"]
    again = f"trace trigger {subject.name} --cursor {cursor}"
    return [
        reason(
            "cursor_passed",
            lambda it: (
                f"{it.possessive} input {dataset} is at cursor {edge['routed']}; the newest event, cursor {cursor}, is "
                "not above it, so it makes no task."
            ),
            ("create its task", f"{again} --input {edge['input_index']}" if edge["input_index"] else again),
            references=[("dataset", dataset)],
        )
    ]


def _own_queue(subject: Subject, edges: list[asyncpg.Record], pressure: Pressure) -> list[Reason]:
    """Tells of a job that gets no more tasks because its own queue is full."""
    queue = pressure.queues.get(subject.node_id)
    if queue is None or (queue.level is Level.NONE and not queue.has_no_room):
        return []
    events = max((edge["backlog"] for edge in edges), default=0)
    bulk = "" if queue.level is Level.ALL or queue.has_no_room else " of bulk work"
    if bulk and not events:
        return []
    text = f"own queue is {queue.state_words}, so it gets no new tasks{bulk}; {waiting(events)}."
    step = ("see whom it stops", "trace pressure")
    return [reason("own_queue_full", lambda it: f"{it.possessive} {text}", step)]


async def _join(connection: Connection, edges: list[asyncpg.Record]) -> list[Reason]:
    missing = await facts.find_missing(connection, edges)
    if missing is None:
        return []
    lacks = missing.lacks["dataset"]
    unit = unit_words(missing.unit, missing.lacks["units"])
    if missing.overlap is not None:
        overlap = unit_words(missing.overlap, missing.lacks["units"])
        text = f"input {missing.has} has {unit}, and {lacks} has {overlap} there: a task needs the same unit of both."
        steps = (
            ("compare the units", f"trace events --dataset {lacks}"),
            ("give the job `units` of its own, or both inputs units of one size", "trace deploy FILE"),
        )
        references = [("dataset", missing.has), ("dataset", lacks)]
        return [reason("units_differ", lambda it: f"{it.possessive} {text}", *steps, references=references)]
    text = f"input {missing.has} has {unit}, and {lacks} does not have it yet."
    step = ("see why", f"trace why {lacks}")
    return [reason("join_waits", lambda it: f"{it.possessive} {text}", step, references=[("dataset", lacks)])]


async def _tasks(connection: Connection, subject: Subject) -> list[Reason]:
    tasks = await facts.read_tasks(connection, subject.node_id)
    running = f"trace tasks --dag {subject.dag} --job {subject.job} --status Running"
    see_running = (("see what runs", running),)
    reasons = []
    if row := tasks.get("failed"):  # what holds an input is named there
        log = log_steps(row["first"], row["error"])
        steps = (("see them", _failed_tasks(subject)), *log, *_retry_or_skip(subject, row["number"], row["first"]))
        text = f"{_has(row)} failed {not_retried(final=row['is_final'])}{_first_error(row)}."
        reasons.append(_of_tasks("tasks_failed", row, text, *steps))
    for state in ("held", "at_quota"):
        if row := tasks.get(state):
            key = await find_limit(connection, row["held_by"], subject.org_id)
            place = limit_words(key, await connection.fetchrow(_LIMIT, key), subject.name)
            code, more = ("tasks_at_quota", QUOTA_STEPS) if is_quota(key) else ("tasks_limited", see_running)
            reasons.append(_of_tasks(code, row, f"{_has(row)} to wait for a place under {place}.", *more))
    if row := tasks.get("backing_off"):
        themselves = "itself" if row["number"] == 1 else "themselves"
        log = log_steps(row["first"], row["error"])
        text = f"{_has(row)} failed{_first_error(row)}, and will be tried again by {themselves}."
        reasons.append(_of_tasks("tasks_backing_off", row, text, ("see it", f"trace why {row['first']}"), *log))
    if row := tasks.get("ready"):
        workers, more = await facts.describe_workers(connection, subject.org_id, subject.runtime, subject.now)
        wait, oldest = ("waits", "") if row["number"] == 1 else ("wait", "the oldest ")
        text = f"{wait} for a worker of {subject.runtime}, {oldest}for {since(row['at'], subject.now)}. {workers}"
        reasons.append(_of_tasks("tasks_ready", row, text, ("see why", f"trace why {row['first']}"), *more))
    if row := tasks.get("silent"):
        left = (row["at"] - subject.now).total_seconds()
        ends = f"ends in {span(left)}" if left > 0 else "has ended"
        first = "the" if row["number"] == 1 else "the first"
        text = f"{_is(row)} with a worker that sends no heartbeats; {first} lease {ends}, and then it is tried again."
        reasons.append(_of_tasks("tasks_unheard", row, text, ("see it", f"trace why {row['first']}")))
    if row := tasks.get("running"):
        text = f"{_is(row)} running, the longest for {since(row['at'], subject.now)}."
        reasons.append(_of_tasks("tasks_running", row, text, ("see them", running)))
    return reasons


def _of_tasks(code: str, row: asyncpg.Record, predicate: str, *steps: Step) -> Reason:
    """A reason that counts tasks of the job; the predicate says what they do."""
    tasks = counted(row["number"], "task")
    return reason(code, lambda it: f"{tasks} {it.of} {predicate}", *steps, references=[("task", row["first"])])


def _has(row: asyncpg.Record) -> str:
    return "has" if row["number"] == 1 else "have"


def _is(row: asyncpg.Record) -> str:
    return "is" if row["number"] == 1 else "are"


def _first_error(row: asyncpg.Record) -> str:
    error = error_words(row["error"])
    return f', the first with "{error}"' if error else ""


def _up_to_date(subject: Subject, edges: list[asyncpg.Record]) -> Reason:
    newest = max(
        (edge for edge in edges if edge["newest_at"] is not None), key=lambda edge: edge["newest_at"], default=None
    )
    if newest is None:
        return reason("up_to_date", lambda it: f"{it.subject} has no inputs that could bring it work.")
    dataset, age = newest["dataset"], since(newest["newest_at"], subject.now)
    unit = unit_words(newest["newest_unit"], newest["units"])
    text = f"has done everything that came in; the newest was {unit} of {dataset}, {age} ago."
    return reason("up_to_date", lambda it: f"{it.subject} {text}", references=[("dataset", dataset)])


def _retry_or_skip(subject: Subject, number: int, first: UUID) -> tuple[Step, ...]:
    """The ways out of failed tasks: all of them at once where there are several, then the first one."""
    if number == 1:
        return retry_or_skip(first)
    failed = f"--dag {subject.dag} --job {subject.job} --failed"
    return (
        ("once the cause is corrected, retry them", f"trace retry {failed}"),
        ("or go on without them", f"trace skip {failed}"),
        ("or try one of them again", f"trace retry {first}"),
    )


def _failed_tasks(subject: Subject) -> str:
    return f"trace tasks --dag {subject.dag} --job {subject.job} --status Failed"

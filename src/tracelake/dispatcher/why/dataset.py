"""Why a dataset is not fresh: its own job, the jobs before it up to the first cause, a build, a version without it."""

from collections import deque
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import has_no_failures
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.records import columns
from tracelake.dispatcher.views.checks import list_checks
from tracelake.dispatcher.views.dags import build_progress
from tracelake.dispatcher.views.given_up import load_given_up
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.pressure import Pressure, read_pressure
from tracelake.dispatcher.views.words import counted, since, unit_words
from tracelake.dispatcher.why import facts
from tracelake.dispatcher.why.answer import Reason, answer, is_cause, reason
from tracelake.dispatcher.why.buffered import buffered_reasons
from tracelake.dispatcher.why.builds import failed_build, is_stuck, rejected_words
from tracelake.dispatcher.why.empty_inputs import find_quiet_source
from tracelake.dispatcher.why.facts import Subject
from tracelake.dispatcher.why.job import job_reasons
from tracelake.dispatcher.why.reasons import REASONS
from tracelake.dispatcher.why.source import last_event
from tracelake.errors import TraceError
from tracelake.model.dag import CheckKind
from tracelake.wire.checks import CheckRow
from tracelake.wire.why import WhyReply

MAX_JOBS = 50
"""That are looked at on the way to the cause."""
NEWEST_EVENTS = 1_000
"""Of a dataset, that are looked at for those that nobody has heard."""

_DATASET = f"""
    SELECT d.dataset_uuid, d.current_version, d.staged_version, d.dag_name, g.building_version,
           a.number AS active_number, b.number AS building_number, newest.unit, newest.created_at, trace_now() AS now,
           (SELECT units FROM dataset_versions n
            WHERE n.dataset_uuid = d.dataset_uuid AND n.dataset_version = d.current_version) AS units,
           EXISTS (SELECT FROM buffered_tables t JOIN dag_version_jobs v ON v.dag_version_id = g.building_version
                   JOIN jobs j USING (job_id) JOIN job_outputs o USING (job_id)
                   WHERE t.dataset_uuid = d.dataset_uuid AND o.dataset_uuid = d.dataset_uuid
                     AND NOT j.node_id = ANY (t.writers)) AS builds_rows,
           (SELECT max(v.number) FROM job_outputs o JOIN dag_version_jobs j USING (job_id)
            JOIN dag_versions v USING (dag_version_id) WHERE o.dataset_uuid = d.dataset_uuid) AS newest_with,
           (SELECT max(v.number) FROM job_outputs o JOIN dag_version_jobs j USING (job_id)
            JOIN dag_versions v USING (dag_version_id)
            WHERE o.dataset_uuid = d.dataset_uuid AND {has_no_failures("v")}) AS sound_with
    FROM datasets d
    LEFT JOIN dags g ON g.org_id = d.org_id AND g.dag_name = d.dag_name
    LEFT JOIN dag_versions a ON a.dag_version_id = g.active_version
    LEFT JOIN dag_versions b ON b.dag_version_id = g.building_version
    LEFT JOIN LATERAL (
        SELECT v.unit, v.created_at FROM events v
        WHERE v.dataset_uuid = d.dataset_uuid AND v.dataset_version = d.current_version AND v.routed_seq IS NOT NULL
        ORDER BY v.routed_seq DESC LIMIT 1) newest ON true
    WHERE d.org_id = $1 AND d.name = $2 AND d.removed_at IS NULL"""  # noqa: S608 - constants only

# What the newest events of the current generation wait for. Only tasks announce what commits later.
_UNROUTED = f"""
    SELECT v.state, v.unit, count(*) OVER (PARTITION BY v.state) AS number, v.created_at, t.task_id,
           row_number() OVER (PARTITION BY v.state ORDER BY v.event_id) AS place, v.event_id = newest.event_id AS newest
    FROM (SELECT * FROM events WHERE dataset_uuid = $1 ORDER BY event_id DESC LIMIT {NEWEST_EVENTS}) v
    JOIN tasks t ON t.task_id = CASE WHEN v.producer ~ '^[0-9a-f-]{{36}}$' THEN v.producer::uuid END
    CROSS JOIN (SELECT max(event_id) AS event_id FROM events WHERE dataset_uuid = $1) newest
    WHERE v.dataset_version = $2
      AND ((v.state = 'AwaitsCommit' AND t.status = 'Running' AND t.attempt = v.attempt)
           OR (v.state = 'Outdated' AND v.event_id = newest.event_id))"""  # noqa: S608 - constants only

_STALE = """
    SELECT DISTINCT n.dag_name, n.dag_name || '/' || n.job_name AS job, i.name AS because, s.since,
           s.rebuild <> '{}' AS rebuilding
    FROM job_outputs o JOIN jobs j USING (job_id) JOIN stale_outputs s ON s.node_id = j.node_id
    JOIN nodes n ON n.node_id = s.node_id JOIN datasets i ON i.dataset_uuid = s.dataset_uuid
    WHERE o.dataset_uuid = $1 AND o.dataset_version = $2 ORDER BY job"""

# Jobs of active versions that write these generations.
_WRITERS = """
    SELECT DISTINCT g.dag_name, g.active_version, v.job_name
    FROM job_outputs o JOIN dag_version_jobs v USING (job_id)
    JOIN dags g ON g.org_id = $1 AND g.active_version = v.dag_version_id
    WHERE (o.dataset_uuid, o.dataset_version) IN (SELECT * FROM unnest($2::uuid[], $3::uuid[]))
    ORDER BY g.dag_name, v.job_name"""


async def why_dataset(connection: Connection, org_id: UUID, quotas: QuotaBook, name: str) -> WhyReply:
    row = await connection.fetchrow(_DATASET, org_id, name)
    if row is None:
        raise TraceError("dataset_not_found")
    rebuilding = await _rebuilding(connection, row)
    pressure = await read_pressure(connection, org_id, quotas)
    own = (await buffered_reasons(connection, [row["dataset_uuid"]], pressure)).get(name, [])
    reasons = [*rebuilding, *await _stale(connection, row), *own, *await _unrouted(connection, row, name)]
    # Rejected rows are missing whatever the jobs upstream and the builds do: these are told besides.
    rejected = any(item.code == "dead_letters" for item in own)
    besides: list[Reason] = []
    if rejected:
        besides = [item for item in rebuilding if item.state == "blocked"]
        reasons = [item for item in reasons if item not in besides]
    gaps = await _given_up(connection, row)
    late = await _late_checks(connection, org_id, name)
    writers = await _writers(connection, org_id, [(row["dataset_uuid"], row["current_version"])])
    if writers:
        causes, others = await _causes(connection, org_id, writers, pressure, besides=rejected)
        reasons += [item for item in causes if not (own and _is_stopped_by(item, name))]
        besides += [item for item in others if not _is_stopped_by(item, name)]
    elif row["dag_name"] is None:
        text = f"No DAG writes it.{_newest(row)}"
        reasons.append(reason("no_producer", text, ("see it", f"trace datasets {name}")))
    elif not rebuilding or row["active_number"] is not None:
        reasons.append(_removed(row, name))
    if (
        writers
        and not gaps
        and all(item.state == "fine" for item in reasons)
        and (row["unit"] is not None or not reasons)
    ):
        complete = await _quiet(connection, org_id, row) or _fresh(row, writers)
        if not late or complete.code != "fresh":
            reasons.insert(0, complete)
    if late:
        explained = not writers or any(item.state != "fine" for item in [*reasons, *besides])
        idle = [] if explained else await _idle_sources(connection, org_id, writers)
        reasons += [_not_fresh(name, check, idle, explained=explained) for check in late]
    return answer("dataset", name, [*reasons, *gaps], besides)


async def _given_up(connection: Connection, row: asyncpg.Record) -> list[Reason]:
    """Tells of gaps that nothing will fill."""
    units = await load_given_up(connection, (row["dataset_uuid"], row["current_version"]))
    if not units.number:
        return []
    first = units.first[0]
    others = f", and {counted(units.number - 1, 'other', most=CAP)}" if units.number > 1 else ""
    was = "was" if units.number == 1 else "were"
    text = (
        f"It has {counted(units.number, 'gap', most=CAP)}: unit {first.unit} of {first.job}{others} "
        f"{was} {first.state} {since(first.at, row['now'])} ago."
    )
    step = ("fill the first one", f"trace retry {first.task_id}")
    references = [("job", first.job), ("task", first.task_id)]
    return [reason("units_given_up", text, step, references=references)]


async def _late_checks(connection: Connection, org_id: UUID, name: str) -> list[CheckRow]:
    checks = (await list_checks(connection, org_id, name)).checks
    return [item for item in checks if item.kind is CheckKind.FRESHNESS and item.state in ("failed", "warned")]


def _not_fresh(name: str, check: CheckRow, idle: list[tuple[Subject, Reason]], *, explained: bool) -> Reason:
    """Tells of a check of the age that fails. `idle`: the sources, if nothing on the way from them explains it."""
    text = f"The check {check.name} fails: {check.message}."
    see = ("see its checks", f"trace checks {name}")
    references: list[tuple[str, object]] = [("dataset", name)]
    if explained:
        return reason("not_fresh", text, see, references=references)
    dags = dict.fromkeys(source.dag for source, _ in idle)
    steps = [("see its sources", f"trace sources --dag {dag}") for dag in dags] or [
        ("see the sources", "trace sources")
    ]
    last_events = " ".join(item.about(source.name).text for source, item in idle[:3])
    text = f"{text} No job between it and its sources waits or has failed, so they bring nothing newer. {last_events}"
    references += [("job", source.name) for source, _ in idle]
    return reason("source_late", text.rstrip(), *steps, see, references=references)


async def _idle_sources(connection: Connection, org_id: UUID, writers: list[Subject]) -> list[tuple[Subject, Reason]]:
    """Finds the sources upstream of these jobs, each with what it said last."""
    waiting, visited = deque(writers), {writer.node_id for writer in writers}
    sources = []
    while waiting and len(visited) <= MAX_JOBS:
        subject = waiting.popleft()
        if subject.source is not None:
            sources.append((subject, await last_event(connection, subject)))
            continue
        for before in await _writers(connection, org_id, await _read(connection, subject, [])):
            if before.node_id not in visited:
                visited.add(before.node_id)
                waiting.append(before)
    return sources


async def _unrouted(connection: Connection, row: asyncpg.Record, name: str) -> list[Reason]:
    """Tells of events that were not routed: of files that are not committed yet, or of older inputs."""
    reasons = []
    for event in await connection.fetch(_UNROUTED, row["dataset_uuid"], row["current_version"]):
        if event["place"] != 1:
            continue
        refers = [("dataset", name), ("task", event["task_id"])]
        step = ("see the task", f"trace why {event['task_id']}")
        age = since(event["created_at"], row["now"])
        if event["state"] == "AwaitsCommit":
            events = counted(event["number"], "event", most=NEWEST_EVENTS)
            verb = "waits" if event["number"] == 1 else "wait"
            first = unit_words(event["unit"], row["units"])
            text = f"{events} of it {verb} for the commit of the files, the first ({first}) for {age}."
            reasons.append(reason("events_await_commit", text, step, references=refers))
        else:
            newest = unit_words(event["unit"], row["units"])
            text = (
                f"The newest event ({newest}, {age} ago) comes from older inputs than its unit was completed with, "
                "and is not passed on."
            )
            reasons.append(reason("events_outdated", text, step, references=refers))
    return reasons


async def _quiet(connection: Connection, org_id: UUID, row: asyncpg.Record) -> Reason | None:
    """Tells of a dataset for which nothing is due yet."""
    if row["unit"] is not None:
        return None
    source = await find_quiet_source(connection, org_id, (row["dataset_uuid"], row["current_version"]))
    if source is None:
        return None
    text = f"It has no event yet: {source} is running, and nothing is due."
    return reason("nothing_due", text, references=[("job", source)])


def _fresh(row: asyncpg.Record, writers: list[Subject]) -> Reason:
    by = ", ".join(writer.name for writer in writers)
    if row["unit"] is None:
        first = writers[0]
        have = "has" if len(writers) == 1 else "have"
        text = f"It has no event yet: {by} {have} processed every event, and reported no event of it."
        step = ("see what was done", f"trace tasks --dag {first.dag} --job {first.job}")
        return reason("dataset_empty", text, step, references=[("job", writer.name) for writer in writers])
    text = f"It contains everything that {by} and the upstream jobs have produced.{_newest(row)}"
    return reason("fresh", text, references=[("job", writer.name) for writer in writers])


def _removed(row: asyncpg.Record, name: str) -> Reason:
    dag, number, with_it = row["dag_name"], row["active_number"], row["newest_with"]
    state = (
        f"No version of {dag} is active"
        if number is None
        else f"Version {number} of {dag} is active and does not write it"
    )
    steps = [("see it", f"trace datasets {name}")]
    if row["sound_with"] is not None:
        steps.insert(0, ("activate a version that writes it", f"trace rollback {dag} --to {row['sound_with']}"))
    return reason("removed", f"{state}.{_newest(row)}", *steps, references=[("version", f"{dag}@{with_it}")])


async def _rebuilding(connection: Connection, row: asyncpg.Record) -> list[Reason]:
    if row["building_version"] is None or (row["staged_version"] is None and not row["builds_rows"]):
        return []
    build = await build_progress(connection, row["building_version"])
    dag, number = row["dag_name"], row["building_number"]
    if is_stuck(build):
        return [await failed_build(connection, dag, row["building_version"], number, build)]
    built = "new rows for its table" if row["builds_rows"] else "a new generation of it"
    text = (
        f"Version {number} of {dag} builds {built}: {build.done:,} done, {build.open:,} open, {build.failed:,} failed"
    )
    text += f", {counted(build.draining_edges, 'input')} reading history" if build.draining_edges else ""
    text += f", {counted(build.waiting_batches, 'batch')} waiting for a sink" if build.waiting_batches else ""
    text += f", {rejected_words(build)}." if build.dead_letters else "."
    steps = [("see the build", f"trace dags {dag} --watch")]
    if build.dead_letters:
        steps[:0] = [
            ("see the rejected batches", f"trace dlq list --dataset {name}") for name in build.rejected_datasets
        ]
    if build.failed:
        steps.insert(0, ("see what failed", f"trace tasks --dag {dag} --version {number} --status Failed"))
    return [reason("rebuilding", text, *steps, references=[("version", f"{dag}@{number}")])]


async def _stale(connection: Connection, row: asyncpg.Record) -> list[Reason]:
    reasons = []
    for item in await connection.fetch(_STALE, row["dataset_uuid"], row["current_version"]):
        because, job = item["because"], item["job"]
        rebuilt = since(item["since"], row["now"])
        text = f"{job} computed units of it from an older generation of {because}, which was rebuilt {rebuilt} ago"
        if item["rebuilding"]:
            text, step = f"{text}; they are being recomputed.", ("see it", f"trace tasks --dag {item['dag_name']}")
        else:
            text, step = f"{text}.", ("recompute them", f"trace rebuild {job}")
        reasons.append(reason("outputs_stale", text, step, references=[("job", job), ("dataset", because)]))
    return reasons


def _is_stopped_by(item: Reason, dataset: str) -> bool:
    """Returns whether a writer waits for the backlog of this dataset, of which the dataset tells itself."""
    return item.code == "pressure" and any(refers == ("dataset", dataset) for refers in item.references)


async def _causes(
    connection: Connection, org_id: UUID, writers: list[Subject], pressure: Pressure, *, besides: bool
) -> tuple[list[Reason], list[Reason]]:
    """Follows the jobs upstream to the nearest cause; returns its reasons, or none if there is no cause.

    With `besides` the cause is known, and the second list has what is blocked upstream.
    """
    waiting = deque((writer, 0) for writer in writers)
    visited = {writer.node_id for writer in writers}
    own: list[Reason] = []
    looked = 0
    while waiting and looked < MAX_JOBS:
        subject, distance = waiting.popleft()
        looked += 1
        reasons = await job_reasons(connection, subject, pressure)
        causes = [item for item in reasons if _counts(item, besides=besides)]
        if distance == 0:
            relevant = causes if causes and not besides else reasons
            own += [item.about(subject.name) for item in relevant if _tells(item)]
        if causes:
            details = [item.about(subject.name) for item in causes]
            if distance == 0:
                return own, []
            return (own, details) if besides else ([*own, _upstream(subject, distance, causes), *details], [])
        read = await _read(connection, subject, reasons)
        lacking = any(item.code == "input_waits" for item in reasons)
        buffered = await buffered_reasons(connection, [uuid for uuid, _ in read], pressure) if lacking else {}
        for dataset, candidates in buffered.items():
            if causes := [item for item in candidates if _counts(item, besides=besides)]:
                details = [item.about(dataset) for item in causes]
                return (own, details) if besides else ([*own, _in_dataset(dataset, subject, causes), *details], [])
        for before in await _writers(connection, org_id, read):
            if before.node_id not in visited:
                visited.add(before.node_id)
                waiting.append((before, distance + 1))
    return own, []


def _tells(item: Reason) -> bool:
    return item.state != "fine" or item.code == "window_open"


def _counts(item: Reason, *, besides: bool) -> bool:
    """Returns whether the walk upstream ends at a reason: besides a cause that is known, only what is blocked."""
    return is_cause(item) and (item.state == "blocked" or not besides)


async def _read(connection: Connection, subject: Subject, reasons: list[Reason]) -> list[tuple[UUID, UUID]]:
    """Returns the generations of its inputs; if it waits for some of them, only of these."""
    edges = await facts.read_edges(connection, subject.node_id)
    awaited = {
        name for item in reasons if REASONS[item.code].upstream for kind, name in item.references if kind == "dataset"
    }
    return [
        (edge["dataset_uuid"], edge["dataset_version"]) for edge in edges if not awaited or edge["dataset"] in awaited
    ]


async def _writers(connection: Connection, org_id: UUID, generations: list[tuple[UUID, UUID]]) -> list[Subject]:
    writers = []
    for row in await connection.fetch(_WRITERS, org_id, *columns(generations, 2)):
        subject = await facts.read_job(connection, row["active_version"], row["dag_name"], row["job_name"])
        if subject is not None:
            writers.append(subject)
    return writers


def _in_dataset(name: str, reader: Subject, causes: list[Reason]) -> Reason:
    text = f"The cause is in {name}, which {reader.name} reads: {causes[0].text}"
    return reason("upstream", text, ("see more", f"trace why {name}"), references=[("dataset", name)])


def _upstream(subject: Subject, distance: int, causes: list[Reason]) -> Reason:
    """Names the job alone: its reasons follow."""
    steps = "1 job" if distance == 1 else f"{distance} jobs"
    if all(item.state == "working" for item in causes):
        code, text = "upstream_in_progress", f"The work of {subject.name}, {steps} upstream, is in progress."
    else:
        code, text = "upstream", f"The cause is {subject.name}, {steps} upstream."
    return reason(code, text, ("see more", f"trace why {subject.name}"), references=[("job", subject.name)])


def _newest(row: asyncpg.Record) -> str:
    if row["unit"] is None:
        return " It has no event yet."
    return f" Last computed: {unit_words(row['unit'], row['units'])}, {since(row['created_at'], row['now'])} ago."

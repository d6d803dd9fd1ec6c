"""The statements behind lifecycle calls: lock, then write, each once per transaction however many rows it moves.

Rows are locked in `task_id` order by a statement of its own: an UPDATE from unnest promises no order, and two
Dispatchers that lock in different orders deadlock. Every UPDATE still compares `(status, attempt, lease_token)`, so
a decision made on anything but the locked row cannot be written.
"""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import NewTask, StateChange, TaskDefinition, WakeTarget, WritePlan, WriteResult
from tracelake.dispatcher.engine.tables import table_units
from tracelake.dispatcher.engine.tables.batch_rows import apply_buffer_publishes, release_publishes
from tracelake.dispatcher.engine.tables.event_rows import apply_events, release_events
from tracelake.dispatcher.engine.tables.publication_rows import apply_publications
from tracelake.dispatcher.engine.unit_order import OPEN_SIBLINGS
from tracelake.dispatcher.records import affected, columns
from tracelake.dispatcher.slices import in_slices
from tracelake.model.task import Outcome, RevisionKind, Status, Task

_COLUMNS = """task_id, org_id, job_id, status, attempt, max_attempts, held, cancel_requested, outcome, lease_token,
    lease_expires_at, deadline_at, claimed_at, worker_id, claim_id, ready_at, next_retry_at, finished_at, error,
    forgiven, skipped_at, held_by, read_as_of, node_id, edge, unit_key, revision, revision_kind, input_order,
    limit_keys, counted, traceparent"""

# $2 are claims. What a cutover dropped and did not reach yet must not start any more: to a claim it is held. With the
# tasks themselves, in the same order, the open ones of the units that $3 speak for (see `unit_order`).
_LOCK = f"""
    SELECT {_COLUMNS}, unit, trace_now() AS now, CASE WHEN task_id = ANY($2) THEN inputs END AS inputs,
           task_id = ANY($2) AND status = 'Queued'
               AND node_id IN (SELECT n.node_id FROM nodes n WHERE n.sweep = 'Drop') AS dropped,
           (SELECT routing_epoch FROM orgs WHERE orgs.org_id = tasks.org_id) AS epoch
    FROM tasks WHERE task_id = ANY(%s) ORDER BY task_id FOR UPDATE"""  # noqa: S608 - constants only

_LOCK_TASKS = _LOCK % "$1"
_LOCK_UNITS = _LOCK % f"$1::uuid[] || ARRAY(SELECT s.task_id FROM ({OPEN_SIBLINGS.replace('$1', '$3')}) s)"  # noqa: S608

_PRESENT = "SELECT task_id FROM tasks WHERE task_id = ANY($1)"

_READ = f"""
    SELECT {_COLUMNS}, unit, inputs, trace_now() AS now,
           (SELECT routing_epoch FROM orgs WHERE orgs.org_id = tasks.org_id) AS epoch
    FROM tasks WHERE task_id = $1"""  # noqa: S608

_TAKE_EXPIRED = f"""
    SELECT {_COLUMNS}, trace_now() AS now FROM tasks
    WHERE status = 'Running' AND lease_expires_at < trace_now()
      AND $1::timestamptz <= trace_now() - make_interval(
            secs => (SELECT lease_seconds FROM jobs WHERE jobs.job_id = tasks.job_id))
    ORDER BY task_id LIMIT $2 FOR UPDATE SKIP LOCKED"""  # noqa: S608

_TAKE_DUE = f"""
    SELECT {_COLUMNS}, trace_now() AS now FROM tasks
    WHERE next_retry_at <= trace_now() ORDER BY next_retry_at LIMIT $1 FOR UPDATE SKIP LOCKED"""  # noqa: S608

_ARCHIVE_ATTEMPTS = """
    INSERT INTO task_attempts (task_id, attempt, lease_token, worker_id, claimed_at, outcome, error)
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[], $5::timestamptz[], $6::text[], $7::text[])"""

_SPARK_METRICS = """
    INSERT INTO spark_metrics (task_id, attempt, figures, operator_package)
    SELECT u.task_id, u.attempt, u.figures::json, u.operator_package
    FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[]) AS u(task_id, attempt, figures, operator_package)
    ON CONFLICT DO NOTHING"""

_CHECK_RESULTS = """
    INSERT INTO check_results (task_id, attempt, output_index, name, org_id, dataset_uuid, dataset_version, unit, kind,
                               severity, passed, rows, offending_rows, message, sample)
    SELECT u.task_id, u.attempt, u.output_index, u.name, u.org_id, u.dataset_uuid, u.dataset_version, u.unit, u.kind,
           u.severity, u.passed, u.rows, u.offending_rows, u.message, u.sample::json
    FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::uuid[], $6::uuid[], $7::uuid[], $8::text[],
                $9::text[], $10::text[], $11::bool[], $12::bigint[], $13::bigint[], $14::text[], $15::text[])
        AS u(task_id, attempt, output_index, name, org_id, dataset_uuid, dataset_version, unit, kind, severity, passed,
             rows, offending_rows, message, sample)
    ON CONFLICT DO NOTHING"""

# The collector looks at a task once: one that it has passed is shown to it again.
_COLLECT_AGAIN = """
    INSERT INTO collect_later (task_id, look_at)
    SELECT u.task_id, trace_now() FROM unnest($1::uuid[]) AS u(task_id), collector c WHERE u.task_id <= c.position
    ON CONFLICT (task_id) DO UPDATE SET look_at = excluded.look_at"""

_MUTABLE = {
    "status": "text", "attempt": "int", "held": "bool", "cancel_requested": "bool", "outcome": "text",
    "lease_token": "uuid", "lease_expires_at": "timestamptz", "deadline_at": "timestamptz",
    "claimed_at": "timestamptz", "worker_id": "text", "claim_id": "text", "ready_at": "timestamptz",
    "next_retry_at": "timestamptz", "finished_at": "timestamptz", "error": "text", "skipped_at": "timestamptz",
    "held_by": "text", "max_attempts": "int", "forgiven": "int", "read_as_of": "text",
}  # fmt: skip
"""The columns that a change may touch, with their types."""
_mutable_values = attrgetter(*_MUTABLE)


# Tasks with their wake-ups. A limited one starts as held; it gets a place, or waits for one, in the same transaction
# (see `places`), and its wake-up comes with the place.
_CREATE = """
    WITH u AS MATERIALIZED (
        SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::text[], $6::text[], $7::uuid[],
                             $8::int[], $9::text[], $10::bigint[], $11::bigint[], $12::text[], $13::text[],
                             $14::text[], $15::text[], $16::bool[], $17::text[], $18::text[], $19::text[])
            AS u(task_id, org_id, job_id, max_attempts, inputs, unit, node_id, edge, unit_key, unit_start, unit_end,
                 revision, limit_keys, kind, queue, counted, traceparent, revision_kind, input_order)),
    made AS (
        INSERT INTO tasks (task_id, org_id, job_id, status, max_attempts, inputs, unit, ready_at,
                           node_id, edge, unit_key, unit_start, unit_end, revision, limit_keys, held, held_by,
                           counted, traceparent, revision_kind, input_order)
        SELECT task_id, org_id, job_id, 'Queued', max_attempts, inputs::json, unit::json, trace_now(),
               node_id, edge, unit_key, unit_start, unit_end, revision, string_to_array(limit_keys, E'\\n'),
               limit_keys IS NOT NULL, split_part(limit_keys, E'\\n', 1), counted, traceparent,
               revision_kind, input_order::bigint[]
        FROM u ON CONFLICT DO NOTHING RETURNING task_id),
    woken AS (
        INSERT INTO outbox (kind, queue, key, org_id)
        SELECT u.kind, u.queue, u.task_id, u.org_id FROM made JOIN u USING (task_id) WHERE u.limit_keys IS NULL)
    SELECT task_id FROM made"""

# Brings the task of the same unit up to date that waits and was never claimed: its first attempt reads what is newest.
_RENEW = """
    WITH u AS MATERIALIZED (
        SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::int[], $5::bigint[], $6::text[], $7::text[],
                             $8::text[], $9::text[], $10::text[], $11::text[])
            AS u(new_id, job_id, node_id, edge, unit_end, unit_key, inputs, revision, revision_kind, input_order,
                 traceparent)),
    queued AS (
        SELECT u.new_id, t.task_id,
               coalesce(t.input_order, '{}') <= coalesce(u.input_order::bigint[], '{}') AS older
        FROM u CROSS JOIN LATERAL (
            SELECT t.task_id, t.input_order FROM tasks t
            WHERE t.node_id = u.node_id AND t.edge = u.edge AND t.unit_end = u.unit_end AND t.unit_key = u.unit_key
              AND t.job_id = u.job_id AND t.status = 'Queued' AND t.attempt = 0
              AND (t.revision_kind = 'event' OR t.revision_kind = 'invalidation' AND u.revision_kind = 'invalidation')
              AND t.superseded IS NULL
            ORDER BY t.task_id LIMIT 1 FOR UPDATE SKIP LOCKED) t
        WHERE NOT EXISTS (
            SELECT FROM tasks s WHERE s.node_id = u.node_id AND s.edge = u.edge AND s.unit_end = u.unit_end
              AND s.unit_key = u.unit_key AND s.revision = u.revision AND s.revision_kind = u.revision_kind)),
    renewed AS (
        UPDATE tasks t SET inputs = u.inputs::json, revision = u.revision, revision_kind = u.revision_kind,
            input_order = u.input_order::bigint[], traceparent = coalesce(u.traceparent, t.traceparent)
        FROM queued q JOIN u USING (new_id) WHERE t.task_id = q.task_id AND q.older)
    SELECT new_id FROM queued"""

CREATE_SLICE = 128
"""Tasks that one statement inserts: its arguments are encoded while the event loop stands still."""

_EXISTING = "SELECT task_id, job_id, inputs, unit, status FROM tasks WHERE task_id = ANY($1)"

# A task that a DAG made, whose node is neither active nor being built. The caller holds the org's routing lock.
_SUPERSEDED = """
    SELECT t.task_id FROM tasks t
    WHERE t.task_id = ANY($1) AND t.node_id IS NOT NULL AND NOT EXISTS (
        SELECT FROM jobs j JOIN dag_version_jobs v ON v.job_id = j.job_id
        JOIN dags d ON v.dag_version_id IN (d.active_version, d.building_version)
        WHERE j.node_id = t.node_id AND d.org_id = j.org_id AND d.dag_name = j.dag_name)"""

_WAKE = """
    INSERT INTO outbox (kind, queue, key, org_id)
    SELECT u.kind, u.queue, u.task_id, (SELECT t.org_id FROM tasks t WHERE t.task_id = u.task_id)
    FROM unnest($1::text[], $2::text[], $3::uuid[]) AS u(kind, queue, task_id)"""


class LockedRows:
    """The locked snapshots of a batch, and the one time its decisions share."""

    def __init__(self, records: Sequence[asyncpg.Record]) -> None:
        self.now: datetime | None = records[0]["now"] if records else None
        self.tasks = {record["task_id"]: snapshot(record) for record in records}
        self.records = {record["task_id"]: record for record in records}


def snapshot(record: asyncpg.Record) -> Task:
    outcome = record["outcome"]
    return Task(
        task_id=record["task_id"],
        org_id=record["org_id"],
        job_id=record["job_id"],
        status=Status(record["status"]),
        attempt=record["attempt"],
        max_attempts=record["max_attempts"],
        held=record["held"] or bool(record.get("dropped")),
        cancel_requested=record["cancel_requested"],
        outcome=None if outcome is None else Outcome(outcome),
        lease_token=record["lease_token"],
        lease_expires_at=record["lease_expires_at"],
        deadline_at=record["deadline_at"],
        claimed_at=record["claimed_at"],
        worker_id=record["worker_id"],
        claim_id=record["claim_id"],
        ready_at=record["ready_at"],
        next_retry_at=record["next_retry_at"],
        finished_at=record["finished_at"],
        error=record["error"],
        forgiven=record["forgiven"],
        skipped_at=record["skipped_at"],
        held_by=record["held_by"],
        read_as_of=record["read_as_of"],
        node_id=record["node_id"],
        edge=record["edge"],
        unit_key=record["unit_key"],
        revision=record["revision"],
        revision_kind=RevisionKind(record["revision_kind"]),
        input_order=tuple(record["input_order"] or ()),
        limit_keys=tuple(record["limit_keys"] or ()),
        counted=record["counted"],
        traceparent=record["traceparent"],
    )


async def lock(
    connection: Connection,
    task_ids: Iterable[UUID],
    with_inputs: Iterable[UUID],
    speakers: Collection[UUID] = (),
    *,
    skip_locked: bool = False,
) -> LockedRows:
    """Locks tasks. `speakers` complete or announce something: the open tasks of their units are locked, too.

    With `skip_locked` a task is left out whose row somebody else holds; so is a speaker for a unit of which somebody
    else holds an open task.
    """
    requested_ids = set(task_ids)
    arguments = [list(requested_ids), list(with_inputs), *([list(speakers)] if speakers else [])]
    statement = _LOCK_UNITS if speakers else _LOCK_TASKS
    records = await connection.fetch(statement + " SKIP LOCKED" if skip_locked else statement, *arguments)
    locked = {record["task_id"]: record for record in records}
    units = [task_id for task_id in speakers if task_id in locked and locked[task_id]["node_id"] is not None]
    if units and skip_locked:
        pairs = await connection.fetch(OPEN_SIBLINGS, units)
        requested_ids -= {row["speaker"] for row in pairs if row["task_id"] not in locked}
    return LockedRows([record for record in records if record["task_id"] in requested_ids])


async def present(connection: Connection, task_ids: Iterable[UUID]) -> set[UUID]:
    """Returns the tasks that exist, whoever holds them."""
    return {row["task_id"] for row in await connection.fetch(_PRESENT, list(task_ids))}


async def read(connection: Connection, task_id: UUID) -> asyncpg.Record | None:
    return await connection.fetchrow(_READ, task_id)


async def existing(connection: Connection, task_ids: Iterable[UUID]) -> dict[UUID, tuple[TaskDefinition, str]]:
    """Reads definition and status of the tasks that exist."""
    rows = await connection.fetch(_EXISTING, list(task_ids))
    return {row["task_id"]: ((row["job_id"], row["inputs"], row["unit"]), row["status"]) for row in rows}


async def superseded(connection: Connection, task_ids: Iterable[UUID]) -> set[UUID]:
    """Returns the tasks of versions that are neither active nor being built."""
    return {row["task_id"] for row in await connection.fetch(_SUPERSEDED, list(task_ids))}


async def take_expired(connection: Connection, judging_since: datetime, limit: int) -> list[asyncpg.Record]:
    """Locks running tasks whose lease ran out, unless the store has been back for less than their lease."""
    return await connection.fetch(_TAKE_EXPIRED, judging_since, limit)


async def take_due(connection: Connection, limit: int) -> list[asyncpg.Record]:
    return await connection.fetch(_TAKE_DUE, limit)


async def apply(connection: Connection, plan: WritePlan) -> WriteResult:
    """Writes everything of a plan but routing, limits and wake-ups, which `writer.py` adds."""
    applied = WriteResult()
    if plan.new_tasks:
        await _create_named(connection, plan, applied)
    if plan.changes:
        await _archive_attempts(connection, plan)
        await _update(connection, plan)
        revived = [each.after.task_id for each in plan.changes if each.before.finished and not each.after.finished]
        if revived:
            await collect_again(connection, revived)
    if plan.spark_metrics:
        await connection.execute(_SPARK_METRICS, *columns(plan.spark_metrics))
    if plan.check_results:
        await connection.execute(_CHECK_RESULTS, *columns(plan.check_results))
    if plan.publications:
        await apply_publications(connection, plan.publications)
        await release_events(connection, plan.publications, applied)
    if plan.events:
        await apply_events(connection, plan.events, applied)
        await _record_positions(connection, plan, applied)
    if plan.buffer_publishes:
        await apply_buffer_publishes(connection, plan.buffer_publishes, applied)
    if plan.releases:
        await release_publishes(connection, plan.releases, applied)
    return applied


async def _record_positions(connection: Connection, plan: WritePlan, applied: WriteResult) -> None:
    """Records the positions of tables that new events announce."""
    new = [item for item in plan.events if item.event.first is not None and not applied.events[item.key].duplicate]
    widened = await table_units.record(connection, new) if new else {}
    if widened:
        applied.routed = [
            event._replace(first_position=widened.get(event.event_id, event.first_position)) for event in applied.routed
        ]


async def collect_again(connection: Connection, revived: Sequence[UUID]) -> None:
    """Shows tasks that had ended and go on to the collector again. The caller has locked them."""
    await connection.execute(_COLLECT_AGAIN, revived)


async def create(connection: Connection, tasks: Sequence[NewTask]) -> list[NewTask]:
    """Inserts tasks with their wake-ups; returns those that did not exist, neither by id nor by unit."""
    new = sorted(tasks, key=lambda task: task.task_id)  # as everything that locks: in one order
    if any(task.renews for task in new):
        new = _newest_of_units(new)
        renewed_ids = await _renew(connection, [task for task in new if task.renews])
        new = [task for task in new if task.task_id not in renewed_ids]
        if not new:
            return []
    created_tasks: list[NewTask] = []
    async for part in in_slices(new, CREATE_SLICE):
        created_tasks += await _create(connection, part)
    return created_tasks


def _newest_of_units(tasks: Sequence[NewTask]) -> list[NewTask]:
    """Leaves out tasks that another one of their unit brings up to date, like one that waits in the queue."""
    newest: dict[tuple[UUID | None, int | None, str | None], NewTask] = {}
    for task in tasks:
        key = (task.node_id, task.edge, task.unit_key)
        if task.renews and (key not in newest or newest[key].input_order <= task.input_order):
            newest[key] = task

    return [task for task in tasks if _stands(task, newest.get((task.node_id, task.edge, task.unit_key), task))]


def _stands(task: NewTask, newest: NewTask) -> bool:
    """Whether no newer task of the unit takes the place of this one."""
    if task is newest or task.renews:
        return task is newest
    is_event = task.revision_kind is RevisionKind.EVENT and task.job_id == newest.job_id
    return not is_event or task.input_order > newest.input_order


async def _create(connection: Connection, new: Sequence[NewTask]) -> list[NewTask]:
    tasks = [
        (task.task_id, task.org_id, task.job_id, task.max_attempts, task.inputs, task.unit, task.node_id, task.edge,
         task.unit_key, task.unit_start, task.unit_end, task.revision, "\n".join(task.limit_keys) or None, *task.wake,
         task.counted, task.traceparent, task.revision_kind, _array(task.input_order))
        for task in new
    ]  # fmt: skip
    rows = await connection.fetch(_CREATE, *columns(tasks))
    created_ids = {row["task_id"] for row in rows}
    return [task for task in new if task.task_id in created_ids]


async def _renew(connection: Connection, tasks: Sequence[NewTask]) -> set[UUID]:
    rows = [
        (task.task_id, task.job_id, task.node_id, task.edge, task.unit_end, task.unit_key, task.inputs, task.revision,
         task.revision_kind, _array(task.input_order), task.traceparent)
        for task in tasks
    ]  # fmt: skip
    return {row["new_id"] for row in await connection.fetch(_RENEW, *columns(rows))}


def _array(numbers: tuple[int, ...]) -> str | None:
    """An array as Postgres writes it: `unnest` takes no array of arrays of different lengths."""
    return "{" + ",".join(map(str, numbers)) + "}" if numbers else None


async def wake(connection: Connection, wakeups: Sequence[tuple[UUID, WakeTarget]]) -> None:
    await connection.execute(_WAKE, *columns((*target, task_id) for task_id, target in wakeups))


async def _create_named(connection: Connection, plan: WritePlan, applied: WriteResult) -> None:
    """Inserts tasks whose caller chose their id, and notes which of them existed before."""
    created_tasks = await create(connection, plan.new_tasks)
    applied.created_tasks += created_tasks
    applied.created = {task.task_id for task in created_tasks}
    existing_ids = [task.task_id for task in plan.new_tasks if task.task_id not in applied.created]
    if existing_ids:
        applied.existing = await existing(connection, existing_ids)


async def _archive_attempts(connection: Connection, plan: WritePlan) -> None:
    replaced = [
        (task.task_id, task.attempt, task.lease_token, task.worker_id, task.claimed_at, task.outcome, task.error)
        for task, after in ((change.before, change.after) for change in plan.changes)
        if 0 < task.attempt < after.attempt
    ]
    if replaced:
        await connection.execute(_ARCHIVE_ATTEMPTS, *columns(replaced))


def update_statement(changes: Sequence[StateChange]) -> tuple[str, list[list[object]]]:
    """Returns one UPDATE for all changes, of the columns in which at least one differs, and its arguments.

    A heartbeat moves one column and a completion half of them; each that is sent costs time on both sides.
    """
    before = [change.before for change in changes]
    old = [_mutable_values(task) for task in before]
    new = [_mutable_values(change.after) for change in changes]
    columns = [
        (name, values)
        for name, was, values in zip(_MUTABLE, zip(*old, strict=True), zip(*new, strict=True), strict=True)
        if was != values
    ]
    arguments: list[list[object]] = [
        [task.task_id for task in before],
        [task.status for task in before],
        [task.attempt for task in before],
        [task.lease_token for task in before],
        *(list(values) for _, values in columns),
    ]
    with_result = any(change.result is not None for change in changes)
    if with_result:
        arguments.append([change.result for change in changes])
    return _update_text(tuple(name for name, _ in columns), with_result=with_result), arguments


@cache
def _update_text(columns: tuple[str, ...], *, with_result: bool) -> str:
    names = ["task_id", "was_status", "was_attempt", "was_lease_token", *columns]
    types = ["uuid", "text", "int", "uuid", *(_MUTABLE[name] for name in columns)]
    # What every change keeps is still written once: an UPDATE sets at least one column.
    settings = [f"{name} = u.{name}" for name in columns] or ["status = t.status"]
    if with_result:
        names.append("result")
        types.append("text")
        settings.append("result = coalesce(u.result::json, t.result)")
    arrays = ", ".join(f"${number}::{kind}[]" for number, kind in enumerate(types, 1))
    return f"""
        UPDATE tasks t SET {", ".join(settings)} FROM unnest({arrays}) AS u({", ".join(names)})
        WHERE t.task_id = u.task_id AND t.status = u.was_status AND t.attempt = u.was_attempt
          AND t.lease_token IS NOT DISTINCT FROM u.was_lease_token"""  # noqa: S608 - names of `_MUTABLE` only


async def _update(connection: Connection, plan: WritePlan) -> None:
    statement, arguments = update_statement(plan.changes)
    if affected(await connection.execute(statement, *arguments)) != len(plan.changes):
        raise AssertionError("a locked task changed under its lock")

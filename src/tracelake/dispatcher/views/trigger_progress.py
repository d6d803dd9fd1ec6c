"""What follows from a trigger, and whether anything of it is still open; read in one snapshot.

A task completes, its events are stored, and the tasks of their readers are created in one transaction (ADR 0008), so in
a snapshot either a task is open or its successors exist. There are states in between where neither is the case, and
each of them is a row that is read here:

- An input is behind (`edges.position`): its events become tasks when the drain loop reaches them. An input falls behind
  when a queue is full, a source is paused, or a unit of it failed.
- A unit of a join or a window waits for an open task upstream, or for its turn (`pending_units`).
- The units of a large invalidation are created page by page (`invalidation_work`).
- Batches of a buffered output were released, and no sink has committed them (`buffer_publishes`): the commit makes the
  event.
- A cutover gives tasks back that another one took away (`nodes.sweep`, `tasks.superseded`).

Followed are the nodes that the triggered one leads to through inputs of active versions, of other DAGs as well where
they lead back into the DAG, or everywhere (`across`). Of these nodes everything counts that came since the trigger,
whoever caused it: it may be more than what follows from the trigger, and is never less. A task from before that was
brought up to date for a newer event counts by its `input_order`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import awaits_sink, is_dead, is_open
from tracelake.dispatcher.views.failures import GroupedFailures, group_failed
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.pressure import read_pressure
from tracelake.dispatcher.views.tasks import first_id
from tracelake.errors import TraceError
from tracelake.wire.jobs import TriggerReply
from tracelake.wire.trigger_progress import TriggerProgressReply, WaitingInput

MAX_INPUTS = 20
_JOBS_OF = "SELECT job_id FROM jobs WHERE job_id = ANY($1) AND dag_name = ANY($2)"
_CLOCKS_APART = timedelta(minutes=10)
"""How far the clock of a Dispatcher, which task ids begin with, may be behind the database's. It bounds what is looked
at; what counts is decided by the clock of the database alone."""

_TRIGGER = "SELECT reply, created_at, trace_now() AS now FROM triggers WHERE org_id = $1 AND idempotency_key = $2"

_START = """
    SELECT coalesce((SELECT node_id FROM tasks WHERE task_id = $2 AND org_id = $1), (
        SELECT v.node_id FROM events e JOIN dataset_versions v USING (dataset_uuid, dataset_version)
        WHERE e.producer = $3 AND e.org_id = $1 LIMIT 1))"""

# Buffered datasets are matched by their table: everybody reads the one there is.
_STEPS = """
    WITH RECURSIVE step AS (
        SELECT NULL::uuid AS writer, $2::uuid AS reader
        UNION
        SELECT s.reader, e.node_id FROM step s JOIN jobs j ON j.node_id = s.reader JOIN job_outputs o USING (job_id)
        JOIN edges e ON e.dataset_uuid = o.dataset_uuid AND e.phase <> 'Parked' AND e.phase = 'Active'
        WHERE e.org_id = $1)
    SELECT s.writer, s.reader, n.dag_name FROM step s JOIN nodes n ON n.node_id = s.reader"""

_JOBS = "SELECT job_id FROM jobs WHERE node_id = ANY($1)"

_SINCE = "t.job_id = j.job_id AND t.task_id >= $2 AND t.created_at >= $3"

_OPEN = f"""
    SELECT count(*) AS open, count(t.next_retry_at) AS retrying, min(t.next_retry_at) AS next_retry_at,
           (array_agg(t.error ORDER BY t.next_retry_at) FILTER (WHERE t.next_retry_at IS NOT NULL))[1] AS retry_error
    FROM (SELECT t.next_retry_at, t.error FROM unnest($1::uuid[]) AS j(job_id) CROSS JOIN LATERAL (
              SELECT t.next_retry_at, left(t.error, 400) AS error FROM tasks t
              WHERE {_SINCE} AND {is_open("t")} AND t.finished_at IS NULL LIMIT {CAP}) t
          LIMIT {CAP}) t"""  # noqa: S608 - constants only

_MADE = f"""
    SELECT count(*) FROM (
        SELECT FROM unnest($1::uuid[]) AS j(job_id) CROSS JOIN LATERAL (
            SELECT FROM tasks t WHERE {_SINCE} LIMIT {CAP}) t
        LIMIT {CAP}) made"""  # noqa: S608 - constants only

# Open tasks from before the trigger whose inputs are newer than it. If there are too many to look at, one counts.
_RENEWED = f"""
    SELECT greatest(count(*) FILTER (WHERE $2 < ANY (input_order)), (count(*) = {CAP})::int)
    FROM (SELECT input_order FROM tasks
          WHERE node_id = ANY($1) AND finished_at IS NULL AND unit_end IS NOT NULL AND created_at < $3
          LIMIT {CAP}) t"""  # noqa: S608 - constants only

_RETURNING = """
    SELECT (SELECT count(*) FROM tasks WHERE superseded = 'Returning' AND job_id = ANY($1) AND status = 'Canceled')
         + (SELECT count(*) FROM nodes WHERE node_id = ANY($2) AND sweep = 'Return')"""

_BEHIND = f"""
    SELECT e.node_id, e.dataset_uuid, e.dataset_version, e.failed_units, d.name AS dataset,
           n.dag_name || '/' || n.job_name AS job, waiting.events
    FROM edges e JOIN datasets d USING (dataset_uuid) JOIN nodes n ON n.node_id = e.node_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS events FROM (
            SELECT FROM events v
            WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version
              AND v.routed_seq > greatest(e.position, $2) LIMIT {CAP}) v) waiting
    WHERE e.node_id = ANY($1) AND e.phase = 'Active' AND e.position IS NOT NULL AND waiting.events > 0
    ORDER BY waiting.events DESC, job"""  # noqa: S608 - constants only

_UNITS = f"""
    SELECT count(*) FROM (
        SELECT FROM pending_units WHERE node_id = ANY($1) AND changed_seq > $2 AND (due OR waits_for IS NOT NULL)
        LIMIT {CAP}) p"""  # noqa: S608 - constants only

_RERUNS = f"""
    SELECT count(*) FROM (
        SELECT FROM invalidation_work w JOIN invalidations i USING (invalidation_id)
        LEFT JOIN events e ON e.dataset_uuid = i.dataset_uuid AND e.event_id = i.event_id
        WHERE w.node_id = ANY($1) AND (e.routed_seq IS NULL OR e.routed_seq > $2) LIMIT {CAP}) w"""  # noqa: S608

_BATCHES = f"""
    WITH tables AS (
        SELECT DISTINCT o.dataset_uuid FROM job_outputs o JOIN datasets d USING (dataset_uuid)
        WHERE o.job_id = ANY($1) AND d.storage = 'buffered')
    SELECT (SELECT count(*) FROM (
                SELECT FROM tables CROSS JOIN LATERAL (
                    SELECT FROM buffer_publishes p WHERE p.dataset_uuid = tables.dataset_uuid
                      AND {awaits_sink("p")} AND p.released_at >= $2) p LIMIT {CAP}) w) AS waiting,
           (SELECT count(*) FROM (
                SELECT FROM tables CROSS JOIN LATERAL (
                    SELECT FROM buffer_publishes p WHERE p.dataset_uuid = tables.dataset_uuid
                      AND {is_dead("p")} AND p.dead_at >= $2 AND p.released_at >= $2) p
                LIMIT {CAP}) d) AS dead"""  # noqa: S608 - constants only


class StoredTrigger(TriggerReply, frozen=True, kw_only=True):
    """The reply of a trigger as the table keeps it, with where its work begins."""

    node_id: UUID | None = None
    """The triggered node."""
    after_seq: int = 0
    """The newest `routed_seq` before the trigger: whatever follows from it has a larger one."""


@dataclass(frozen=True, slots=True)
class _Scope:
    """The part of an org that a trigger leads to, and since when."""

    nodes: list[UUID]
    job_ids: list[UUID]
    least: UUID
    since: datetime
    after_seq: int

    @property
    def tasks(self) -> tuple[list[UUID], UUID, datetime]:
        return self.job_ids, self.least, self.since


async def read_trigger_progress(
    connection: Connection, org_id: UUID, key: str, *, across: bool, dags: Sequence[str] | None = None
) -> TriggerProgressReply:
    """Counts all that follows from the trigger. Errors are those of jobs in `dags`, if these are given."""
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        row = await connection.fetchrow(_TRIGGER, org_id, key)
        if row is None:
            raise TraceError("trigger_not_found")
        trigger = msgspec.json.decode(row["reply"], type=StoredTrigger)
        scope = await _find_scope(connection, org_id, trigger, row["created_at"], key, across=across)
        open_tasks = await connection.fetchrow(_OPEN, *scope.tasks)
        assert open_tasks is not None
        task_count: int = await connection.fetchval(_MADE, *scope.tasks)
        failures = await group_failed(connection, *scope.tasks)
        if dags is not None:
            own_jobs = [row["job_id"] for row in await connection.fetch(_JOBS_OF, scope.job_ids, dags)]
            own_failures = await group_failed(connection, own_jobs, *scope.tasks[1:])
            failures = failures._replace(groups=own_failures.groups)
        before: int = await connection.fetchval(_RENEWED, scope.nodes, scope.after_seq, scope.since)
        before += await connection.fetchval(_RETURNING, scope.job_ids, scope.nodes)
        behind = await _list_waiting(connection, org_id, scope)
        waiting = await _count_waiting(connection, scope)
    return _reply(key, row, trigger, open_tasks, task_count, failures, before, behind, waiting)


async def _find_scope(
    connection: Connection, org_id: UUID, trigger: StoredTrigger, since: datetime, key: str, *, across: bool
) -> _Scope:
    node_id = trigger.node_id
    if node_id is None:  # a trigger of an earlier release did not store it
        node_id = await connection.fetchval(_START, org_id, trigger.task_id, f"manual:{key}")
    steps = [] if node_id is None else await connection.fetch(_STEPS, org_id, node_id)
    nodes = {row["reader"] for row in steps}
    if not across and node_id is not None:
        nodes = _leading_into(steps, next(row["dag_name"] for row in steps if row["reader"] == node_id))
    job_ids = [row["job_id"] for row in await connection.fetch(_JOBS, list(nodes))]
    return _Scope(list(nodes), job_ids, first_id(since - _CLOCKS_APART), since, trigger.after_seq)


def _leading_into(steps: Iterable[asyncpg.Record], dag: str) -> set[UUID]:
    """The nodes of the DAG, and those of other DAGs between them."""
    writers: dict[UUID, set[UUID]] = {}
    nodes: set[UUID] = set()
    for row in steps:
        if row["writer"] is not None:
            writers.setdefault(row["reader"], set()).add(row["writer"])
        if row["dag_name"] == dag:
            nodes.add(row["reader"])
    waiting = list(nodes)
    while waiting:
        for writer in writers.get(waiting.pop(), ()):
            if writer not in nodes:
                nodes.add(writer)
                waiting.append(writer)
    return nodes


async def _list_waiting(connection: Connection, org_id: UUID, scope: _Scope) -> list[WaitingInput]:
    rows = await connection.fetch(_BEHIND, scope.nodes, scope.after_seq)
    if not rows:
        return []
    pressure = await read_pressure(connection, org_id)
    inputs = []
    for row in rows:
        state: Literal["draining", "stopped", "paused", "held"] = "held" if row["failed_units"] else "draining"
        because = ""
        if state == "draining":
            generation = (row["dataset_uuid"], row["dataset_version"])
            cause = pressure.on_edge(row["node_id"], generation, behind=True)
            if cause is not None:
                state, because = ("paused" if cause.state == "paused" else "stopped"), cause.words
        inputs.append(
            WaitingInput(job=row["job"], dataset=row["dataset"], events=row["events"], state=state, because=because)
        )
    return inputs


async def _count_waiting(connection: Connection, scope: _Scope) -> dict[str, int]:
    batches = await connection.fetchrow(_BATCHES, scope.job_ids, scope.since)
    assert batches is not None
    return {
        "waiting_units": await connection.fetchval(_UNITS, scope.nodes, scope.after_seq),
        "waiting_reruns": await connection.fetchval(_RERUNS, scope.nodes, scope.after_seq),
        "waiting_batches": batches["waiting"],
        "dead_letters": batches["dead"],
    }


def _reply(
    key: str,
    row: asyncpg.Record,
    trigger: StoredTrigger,
    open_tasks: asyncpg.Record,
    task_count: int,
    failures: GroupedFailures,
    before: int,
    inputs: Sequence[WaitingInput],
    waiting: dict[str, Any],
) -> TriggerProgressReply:
    waiting_events = sum(item.events for item in inputs if item.state != "held")
    open_count = open_tasks["open"] + before
    still = (waiting["waiting_units"], waiting["waiting_reruns"], waiting["waiting_batches"])
    return TriggerProgressReply(
        idempotency_key=key,
        triggered_at=row["created_at"],
        now=row["now"],
        finished=not (open_count or waiting_events or any(still)),
        done=max(0, task_count - open_tasks["open"] - failures.tasks),
        open=open_count,
        failed=failures.tasks,
        more=CAP in (task_count, open_tasks["open"], failures.tasks, *waiting.values()),
        retrying=open_tasks["retrying"],
        next_retry_at=open_tasks["next_retry_at"],
        retry_error=open_tasks["retry_error"],
        waiting_events=waiting_events,
        inputs=list(inputs[:MAX_INPUTS]),
        errors=failures.groups,
        task_id=trigger.task_id,
        **waiting,
    )

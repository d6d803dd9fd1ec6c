"""Tasks of nodes that become inactive or active again; set-based, and at most `BATCH` in a transaction.

What does not run yet is cancelled at once, what runs is asked to stop: the transitions of a person's cancel. Such tasks
are marked, because nobody decided against their units: they become ready again when their node is active again. A task
that was told to stop and still runs at that time comes back once it has stopped (`take_returning`).

A cutover holds up the whole org, so it moves the first of them alone and marks the nodes that have more; `sweep` does
those. The mark says what is wanted now: a later cutover replaces it, and a task that was not reached has gone on. Until
then what is dropped is not claimed any more (`lifecycle.rows`). It may get places, which come back with the sweep.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine import limits
from tracelake.dispatcher.engine.plan import wake_of
from tracelake.dispatcher.engine.pressure import gauge, queues
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.dispatcher.predicates import is_open
from tracelake.model.runtime import RuntimeRegistry

BATCH = 2_000

# Only what there is something to do for: what was done is not found again. Job by job, along an index: a node has few
# jobs, and one plan serves every number of tasks.
_FIND = f"""
    (SELECT l.task_id FROM jobs j CROSS JOIN LATERAL (
        SELECT t.task_id FROM tasks t
        WHERE t.job_id = j.job_id AND {is_open("t")}
          AND (t.status = 'Queued' OR (t.status = 'Running' AND NOT t.cancel_requested) OR t.next_retry_at IS NOT NULL)
        ORDER BY t.task_id LIMIT $3) l WHERE j.node_id = ANY($1))
    UNION ALL
    (SELECT l.task_id FROM jobs j CROSS JOIN LATERAL (
        SELECT t.task_id FROM tasks t WHERE t.superseded = 'Returning' AND t.job_id = j.job_id
        ORDER BY t.task_id LIMIT $3) l WHERE j.node_id = ANY($1))
    UNION ALL
    (SELECT l.task_id FROM jobs j CROSS JOIN LATERAL (
        SELECT t.task_id FROM tasks t
        WHERE t.superseded = 'Dropped' AND t.job_id = j.job_id AND t.status IN ('Queued', 'Running', 'Canceled')
        ORDER BY t.task_id LIMIT $3) l WHERE j.node_id = ANY($2))
    LIMIT $3"""  # noqa: S608

# By one statement, in the order in which everybody locks tasks. What the first look saw may have moved since.
_LOCK = """
    SELECT t.task_id, t.status, t.held, t.limit_keys, t.next_retry_at, t.cancel_requested, t.superseded, t.counted,
           j.runtime, j.node_id, j.node_id = ANY($1) AS dropped
    FROM tasks t JOIN jobs j USING (job_id) WHERE t.task_id = ANY($2) ORDER BY t.task_id FOR UPDATE OF t"""

_CANCEL = """
    UPDATE tasks SET status = 'Canceled', finished_at = trace_now(), error = $2, superseded = 'Dropped',
        held = false, held_by = NULL, ready_at = NULL, next_retry_at = NULL
    WHERE task_id = ANY($1)"""

_ASK = "UPDATE tasks SET cancel_requested = true, superseded = 'Dropped' WHERE task_id = ANY($1)"

_MARK = "UPDATE tasks SET superseded = $2 WHERE task_id = ANY($1)"

# With one attempt more where the last one was spent: it was stopped, it did not fail.
_REVIVE = """
    UPDATE tasks SET status = 'Queued', finished_at = NULL, error = NULL, superseded = NULL, cancel_requested = false,
        ready_at = trace_now(), held = limit_keys IS NOT NULL, held_by = limit_keys[1],
        max_attempts = CASE WHEN max_attempts <= attempt THEN attempt + 1 ELSE max_attempts END
    WHERE task_id = ANY($1)"""

_RETURNING = """
    SELECT t.task_id, t.limit_keys, t.counted, j.runtime, j.node_id FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.superseded = 'Returning' AND t.status = 'Canceled'
    ORDER BY t.task_id LIMIT $1 FOR UPDATE OF t SKIP LOCKED"""

_TO_SWEEP = """
    UPDATE nodes SET sweep = CASE WHEN node_id = ANY($1) THEN 'Drop' ELSE 'Return' END,
        sweep_reason = CASE WHEN node_id = ANY($1) THEN $3 END
    WHERE node_id = ANY($1) OR node_id = ANY($2)"""

_SWEPT = "UPDATE nodes SET sweep = NULL, sweep_reason = NULL WHERE node_id = ANY($1) AND sweep IS NOT NULL"

# Somebody who sweeps the same org takes another node.
_NEXT_NODE = """
    SELECT node_id, sweep, sweep_reason, uncounted FROM nodes
    WHERE org_id = $1 AND (sweep IS NOT NULL OR uncounted)
    ORDER BY node_id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED"""


@dataclass(slots=True)
class Moved:
    """What is left to do after the tasks are written: limits are locked after edges."""

    freed: dict[str, int] = field(default_factory=dict)
    """Places that cancelled tasks held, per limit, as negative numbers."""
    waiting: set[str] = field(default_factory=set)
    """Limits that revived tasks wait for."""
    ready: list[tuple[UUID, str]] = field(default_factory=list)
    """Revived tasks without a limit, with their runtimes."""
    depths: dict[UUID, int] = field(default_factory=dict)
    """How many more tasks are in each queue that is counted, or fewer."""
    found: int = 0
    whole: bool = True
    """Nothing is left to move."""


async def move(connection: Connection, dropped: Collection[UUID], arriving: Collection[UUID], reason: str) -> Moved:
    """Cancel what the dropped nodes still have to do, and take up again what the arriving ones had left.

    A batch of it; the nodes are marked if there is more.
    """
    moved = await _move(connection, dropped, arriving, reason)
    if moved.whole:
        await connection.execute(_SWEPT, [*dropped, *arriving])
    else:
        await connection.execute(_TO_SWEEP, list(dropped), list(arriving), reason)
    return moved


async def sweep(connection: Connection, org_id: UUID, runtimes: RuntimeRegistry) -> int:
    """One batch of what cutovers left to do. The caller holds the org's routing lock: no pointer moves meanwhile.

    Answers how many tasks it looked at; none means that nothing is left, or that somebody else is at it.
    """
    node = await connection.fetchrow(_NEXT_NODE, org_id)
    if node is None:
        return 0
    nodes = [node["node_id"]]
    if node["sweep"] is None:
        return await queues.count_more(connection, nodes[0])
    dropped, arriving = (nodes, []) if node["sweep"] == "Drop" else ([], nodes)
    moved = await _move(connection, dropped, arriving, node["sweep_reason"])
    if moved.whole:
        await connection.execute(_SWEPT, nodes)
    await settle(connection, moved, (), runtimes)
    await gauge.count(connection, moved.depths)
    return max(1, moved.found)


async def _move(
    connection: Connection, dropped: Collection[UUID], arriving: Collection[UUID], reason: str | None
) -> Moved:
    moved = Moved()
    task_ids = [row["task_id"] for row in await connection.fetch(_FIND, list(dropped), list(arriving), BATCH)]
    if not task_ids:
        return moved
    moved.found, moved.whole = len(task_ids), len(task_ids) < BATCH
    cancel: list[UUID] = []
    ask: list[UUID] = []
    drop_again: list[UUID] = []
    revive: list[UUID] = []
    return_later: list[UUID] = []
    unmark: list[UUID] = []
    for row in await connection.fetch(_LOCK, list(dropped), task_ids):
        task_id, status, node_id = row["task_id"], row["status"], row["node_id"]
        if row["dropped"]:
            if status == "Queued" or (status == "Failed" and row["next_retry_at"] is not None):
                cancel.append(task_id)
                if status == "Queued" and not row["held"]:
                    for key in row["limit_keys"] or ():
                        moved.freed[key] = moved.freed.get(key, 0) - 1
                if status == "Queued" and row["counted"]:
                    moved.depths[node_id] = moved.depths.get(node_id, 0) - 1
            elif status == "Running" and not row["cancel_requested"]:
                ask.append(task_id)
            elif row["superseded"] == "Returning":
                drop_again.append(task_id)
        elif row["superseded"] == "Dropped" and status == "Canceled":
            revive.append(task_id)
            _note_revived(moved, row)
        elif row["superseded"] == "Dropped" and status == "Running" and row["cancel_requested"]:
            return_later.append(task_id)
        elif row["superseded"] == "Dropped" and status in ("Queued", "Running"):
            unmark.append(task_id)  # a person was faster
    if cancel:
        await connection.execute(_CANCEL, cancel, reason)
    if ask:
        await connection.execute(_ASK, ask)
    for mark, marked in (("Dropped", drop_again), ("Returning", return_later), (None, unmark)):
        if marked:
            await connection.execute(_MARK, marked, mark)
    if revive:
        await _revive(connection, revive)
    return moved


async def settle(
    connection: Connection, moved: Moved, changed_limits: Iterable[str], runtimes: RuntimeRegistry
) -> None:
    """Give back and hand out places, and wake whoever is ready now. The queues are the caller's to count."""
    wakeups = [(task_id, wake_of(runtimes, runtime)) for task_id, runtime in moved.ready]
    keys = set(moved.freed) | moved.waiting | set(changed_limits)
    if keys:
        wakeups += await limits.hand_out(connection, keys, runtimes, moved.freed)
    if wakeups:
        await task_rows.wake(connection, wakeups)


async def take_returning(connection: Connection, runtimes: RuntimeRegistry) -> int:
    """Revives tasks that were told to stop, have stopped, and whose node is active again."""
    records = await connection.fetch(_RETURNING, BATCH)
    if not records:
        return 0
    moved = Moved()
    for row in records:
        _note_revived(moved, row)
    await _revive(connection, [row["task_id"] for row in records])
    await settle(connection, moved, (), runtimes)
    await gauge.count(connection, moved.depths)
    return len(records)


async def _revive(connection: Connection, tasks: list[UUID]) -> None:
    await connection.execute(_REVIVE, tasks)
    await task_rows.collect_again(connection, tasks)


def _note_revived(moved: Moved, row: asyncpg.Record) -> None:
    if row["limit_keys"]:
        moved.waiting.update(row["limit_keys"])
    else:
        moved.ready.append((row["task_id"], row["runtime"]))
    if row["counted"]:
        moved.depths[row["node_id"]] = moved.depths.get(row["node_id"], 0) + 1

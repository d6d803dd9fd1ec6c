"""Tasks of nodes that stop counting, and of nodes that count again; set-based, a statement for any number of them.

What does not run yet is cancelled at once, what runs is asked to stop: the transitions of a person's cancel. Such tasks
are marked, because nobody decided against their units: they become ready again when their node counts again. A task
that was told to stop and still runs at that time comes back once it has stopped (`take_returning`).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.backpressure import gauge, queues
from tracelake.dispatcher.lifecycle import places, rows
from tracelake.dispatcher.lifecycle.wake import wake_of
from tracelake.model.runtime import RuntimeRegistry

BATCH = 500

# All that a switch touches is locked by one statement, in the order in which everybody locks tasks.
_LOCK = """
    SELECT t.task_id, t.status, t.held, t.limit_keys, t.next_retry_at, t.cancel_requested, t.superseded, j.runtime,
           j.node_id = ANY($1) AS dropped
    FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.task_id IN (
        SELECT c.task_id FROM jobs k JOIN tasks c USING (job_id)
        WHERE k.node_id = ANY($1) AND c.status IN ('Queued', 'Running', 'Failed')
        UNION ALL
        SELECT c.task_id FROM jobs k JOIN tasks c USING (job_id)
        WHERE (k.node_id = ANY($2) AND c.superseded = 'Dropped')
           OR (k.node_id = ANY($1) AND c.superseded = 'Returning'))
    ORDER BY t.task_id FOR UPDATE OF t"""

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
    SELECT t.task_id, t.limit_keys, j.runtime, j.node_id FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.superseded = 'Returning' AND t.status = 'Canceled'
    ORDER BY t.task_id LIMIT $1 FOR UPDATE OF t SKIP LOCKED"""


@dataclass(slots=True)
class Moved:
    """What is left to do after the tasks are written: limits are locked after edges."""

    freed: dict[str, int] = field(default_factory=dict)
    """Places that cancelled tasks held, per limit, as negative numbers."""
    waiting: set[str] = field(default_factory=set)
    """Limits that revived tasks wait for."""
    ready: list[tuple[UUID, str]] = field(default_factory=list)
    """Revived tasks without a limit, with their runtimes."""
    canceled: int = 0
    asked: int = 0
    revived: int = 0


async def move(connection: Connection, dropped: Collection[UUID], arriving: Collection[UUID], reason: str) -> Moved:
    """Cancel what the dropped nodes still have to do, and take up again what the arriving ones had left."""
    moved = Moved()
    records = await connection.fetch(_LOCK, list(dropped), list(arriving))
    cancel: list[UUID] = []
    ask: list[UUID] = []
    drop_again: list[UUID] = []
    revive: list[UUID] = []
    return_later: list[UUID] = []
    for row in records:
        task_id, status = row["task_id"], row["status"]
        if row["dropped"]:
            if status == "Queued" or (status == "Failed" and row["next_retry_at"] is not None):
                cancel.append(task_id)
                if status == "Queued" and not row["held"]:
                    for key in row["limit_keys"] or ():
                        moved.freed[key] = moved.freed.get(key, 0) - 1
            elif status == "Running" and not row["cancel_requested"]:
                ask.append(task_id)
            elif row["superseded"] == "Returning":
                drop_again.append(task_id)
        elif row["superseded"] == "Dropped" and status == "Canceled":
            revive.append(task_id)
            _note_revived(moved, task_id, row["limit_keys"], row["runtime"])
        elif row["superseded"] == "Dropped" and status == "Running":
            return_later.append(task_id)
    if cancel:
        await connection.execute(_CANCEL, cancel, reason)
    if ask:
        await connection.execute(_ASK, ask)
    if drop_again:
        await connection.execute(_MARK, drop_again, "Dropped")
    if return_later:
        await connection.execute(_MARK, return_later, "Returning")
    if revive:
        await connection.execute(_REVIVE, revive)
    moved.canceled, moved.asked, moved.revived = len(cancel), len(ask), len(revive)
    return moved


async def settle(
    connection: Connection, moved: Moved, changed_limits: Iterable[str], runtimes: RuntimeRegistry
) -> None:
    """Give back and hand out places, and wake whoever is ready now."""
    wakeups = [(task_id, wake_of(runtimes, runtime)) for task_id, runtime in moved.ready]
    keys = set(moved.freed) | moved.waiting | set(changed_limits)
    if keys:
        depths: dict[UUID, int] = {}
        wakeups += await places.hand_out(connection, keys, runtimes, moved.freed, depths)
        if depths:
            await gauge.count(connection, depths)
    if wakeups:
        await rows.wake(connection, wakeups)


async def take_returning(connection: Connection, runtimes: RuntimeRegistry) -> int:
    """Tasks that were told to stop, have stopped, and count again since."""
    records = await connection.fetch(_RETURNING, BATCH)
    if not records:
        return 0
    moved = Moved()
    for row in records:
        _note_revived(moved, row["task_id"], row["limit_keys"], row["runtime"])
    await connection.execute(_REVIVE, [row["task_id"] for row in records])
    await settle(connection, moved, (), runtimes)
    await queues.recount(connection, {row["node_id"] for row in records})
    return len(records)


def _note_revived(moved: Moved, task_id: UUID, limit_keys: list[str] | None, runtime: str) -> None:
    if limit_keys:
        moved.waiting.update(limit_keys)
    else:
        moved.ready.append((task_id, runtime))

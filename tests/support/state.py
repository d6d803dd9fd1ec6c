"""States that tests arrange in the state database directly, because the API cannot produce them or not in one step.

Tests use the API where it can: `DispatcherHarness.make_task`, `tests.routing.support.Flow`. The functions change rows
as a part of the Dispatcher would leave them, or make a counter wrong on purpose. The statements at the end fill tables
with more rows than calls of the API could produce in a test.
"""

from uuid import UUID

from tests.support.dispatcher import DispatcherHarness


def set_edges(
    harness: DispatcherHarness,
    node_id: UUID | None = None,
    *,
    routed: int | None = None,
    position: int | None = None,
    failed_units: int | None = None,
    phase: str | None = None,
) -> None:
    """Changes the progress of the edges of a node, or of all edges."""
    harness.sql(
        """UPDATE edges SET routed = coalesce($2, routed), position = coalesce($3, position),
                            failed_units = coalesce($4, failed_units), phase = coalesce($5, phase)
           WHERE node_id = coalesce($1, node_id)""",
        node_id,
        routed,
        position,
        failed_units,
        phase,
    )


def set_used_places(harness: DispatcherHarness, used: int, org_id: UUID | None = None) -> None:
    """Says how many places of each limit are taken: of the jobs of an org, or of everything."""
    harness.sql("UPDATE limits SET used = $1 WHERE limit_key LIKE $2", used, f"job:{org_id}:%" if org_id else "%")


def set_depth(harness: DispatcherHarness, depth: int) -> None:
    """Makes the counter of every queue wrong."""
    harness.sql("UPDATE pressure SET depth = $1", depth)


def shift_depth(harness: DispatcherHarness, by: int, node_id: UUID | None = None) -> None:
    """Makes the counter of a node's queue, or of every queue, wrong by so many tasks."""
    harness.sql("UPDATE pressure SET depth = depth + $1 WHERE node_id = coalesce($2, node_id)", by, node_id)


def hold_task(harness: DispatcherHarness, task_id: UUID | str, *limit_keys: str) -> None:
    """Has a task wait for a place of the last of these limits, or of the first one that it has."""
    harness.sql(
        """UPDATE tasks SET held = true, limit_keys = coalesce($2, limit_keys), held_by = coalesce($3, limit_keys[1])
           WHERE task_id = $1""",
        task_id,
        list(limit_keys) or None,
        limit_keys[-1] if limit_keys else None,
    )


def stop_tasks(harness: DispatcherHarness, *task_ids: UUID, outcome: str = "Canceled") -> None:
    """Ends running tasks as attempts do that were asked to stop."""
    harness.sql(
        """UPDATE tasks SET status = 'Canceled', outcome = $2, finished_at = trace_now(), lease_expires_at = NULL
           WHERE task_id = ANY($1)""",
        task_ids,
        outcome,
    )


def cancel_queued_tasks(harness: DispatcherHarness, task_id: UUID | None = None) -> None:
    """Cancels a queued task, or all of them, as a cutover does, without its other effects."""
    harness.sql(
        """UPDATE tasks SET status = 'Canceled', finished_at = trace_now(), ready_at = NULL
           WHERE status = 'Queued' AND task_id = coalesce($1, task_id)""",
        task_id,
    )


def allow_one_attempt(harness: DispatcherHarness, task_id: UUID) -> None:
    harness.sql("UPDATE tasks SET max_attempts = 1 WHERE task_id = $1", task_id)


def set_sweep(harness: DispatcherHarness, task_id: UUID, sweep: str | None, reason: str | None = None) -> None:
    """Marks the node of a task as a cutover does that has not processed its tasks yet."""
    harness.sql(
        """UPDATE nodes SET sweep = $2, sweep_reason = $3
           WHERE node_id = (SELECT node_id FROM tasks WHERE task_id = $1)""",
        task_id,
        sweep,
        reason,
    )


def reject_wakeup(harness: DispatcherHarness, key: UUID | str, tries: int) -> int:
    """Leaves the outbox row of a task or batch as the relay does once the queue has rejected it so often."""
    outbox_id: int = harness.sql(
        "UPDATE outbox SET status = 'Failed', tries = $2, last_error = 'too large' WHERE key = $1 RETURNING outbox_id",
        key,
        tries,
    )[0][0]
    return outbox_id


FINISHED_TASKS = """
    INSERT INTO tasks (task_id, org_id, job_id, inputs, status, attempt, lease_token, outcome, finished_at)
    SELECT gen_random_uuid(), $1, $2, '[]', $3::text, 1, gen_random_uuid(), $3::text, trace_now()
    FROM generate_series(1, $4)"""
"""Arguments: org, job, `Completed` or `Failed`, how many."""

QUEUED_TASKS = """
    INSERT INTO tasks (task_id, org_id, job_id, inputs, status, ready_at)
    SELECT gen_random_uuid(), $1, $2, '[]', 'Queued', trace_now() - make_interval(secs => $4)
    FROM generate_series(1, $3)"""
"""Arguments: org, job, how many, since how many seconds they are ready."""

ROUTED_EVENTS = """
    INSERT INTO events (org_id, producer, dataset_uuid, dataset_version, unit, cursor, state, routed_seq)
    SELECT $1, 'cron:' || n, $2, $3, 'c:' || n, n, 'Routed', nextval('events_routed_seq')
    FROM generate_series(1, $4::bigint) n"""
"""Arguments: org, dataset, its version, how many."""

"""Statements that fill the state database with more rows than calls of the API could produce in a test.

Tests with few rows use the API: `DispatcherHarness.make_task`, `tests.routing.support.Flow`, `tests.api.support.World`.
"""

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

CANCEL_TASK = """
    UPDATE tasks SET status = 'Canceled', finished_at = trace_now(), ready_at = NULL
    WHERE status = 'Queued' AND task_id = coalesce($1, task_id)"""
"""Argument: the task, or NULL for every queued one. As a cutover does it, without its other effects."""

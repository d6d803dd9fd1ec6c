"""The quotas of running tasks and functions: limits on running work that all tasks, or functions, of an org share.

A task of such an org is born with the key of the org's limit beside those of its job and operator, waits for a place
like any limited task, and is woken by whoever frees one (`engine/limits.py`): over the quota nothing is claimed,
and no receive is spent. Tasks that were there before the quota get the key here, in batches. Functions have the key of
theirs from the beginning, with or without a quota.
"""

from collections.abc import Mapping
from uuid import UUID

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.engine import limits
from tracelake.dispatcher.engine.limits import FUNCTIONS, functions_key, org_key
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.dispatcher.predicates import is_open
from tracelake.model.runtime import RuntimeRegistry

BATCH = 1_000

_LIMIT = "SELECT max_running FROM limits WHERE limit_key = $1"

_FUNCTION_LIMITS = """
    SELECT limit_key, max_running FROM limits
    WHERE limit_key >= 'org-functions:' AND limit_key < 'org-functions;' AND max_running IS NOT NULL"""

_SET_LIMIT = """
    INSERT INTO limits (limit_key, max_running) VALUES ($1, $2)
    ON CONFLICT (limit_key) DO UPDATE SET max_running = excluded.max_running"""

_WITHOUT_KEY = f"""
    SELECT l.task_id FROM jobs j CROSS JOIN LATERAL (
        SELECT t.task_id FROM tasks t
        WHERE t.job_id = j.job_id AND {is_open("t")}
          AND t.finished_at IS NULL AND NOT coalesce($2 = ANY(t.limit_keys), false)
        ORDER BY t.task_id LIMIT $3) l
    WHERE j.org_id = $1 LIMIT $3"""  # noqa: S608

_LOCK_TASKS = """
    SELECT task_id, status, held, limit_keys FROM tasks
    WHERE task_id = ANY($1) AND finished_at IS NULL AND NOT coalesce($2 = ANY(limit_keys), false)
    ORDER BY task_id FOR UPDATE"""

# What is ready gives its other places back and waits for all of them anew; its wake-up finds it held.
_ADD_KEY = """
    UPDATE tasks SET limit_keys = ARRAY(SELECT unnest(coalesce(limit_keys, '{}') || $2::text) ORDER BY 1),
        held = held OR status = 'Queued', held_by = CASE WHEN held THEN held_by WHEN status = 'Queued' THEN $2 END
    WHERE task_id = ANY($1)"""


async def apply_quota(store: Store, org_id: UUID, quota: int, runtimes: RuntimeRegistry) -> int:
    """From now on so many tasks of this org run at most; 0 is no limit. Answers how many tasks it woke."""
    key, most = org_key(org_id), quota or None
    async with store.connection() as connection:
        row = await connection.fetchrow(_LIMIT, key)
    if (row is None and most is None) or (row is not None and row["max_running"] == most):
        return 0
    async with store.transaction() as connection:
        await connection.execute(_SET_LIMIT, key, most)
        return await _wake(connection, {key: 0}, runtimes)


async def apply_function_quotas(store: Store, quotas: Mapping[UUID, int], runtimes: RuntimeRegistry) -> int:
    """From now on so many functions of each org run at most; 0 is no limit, as for orgs that are not named. Answers how
    many tasks it woke."""
    limits_by_quota = {functions_key(org_id): quota for org_id, quota in quotas.items() if quota}
    async with store.connection() as connection:
        current_limits = {row["limit_key"]: row["max_running"] for row in await connection.fetch(_FUNCTION_LIMITS)}
    changed = {
        key: most
        for key in {*limits_by_quota, *current_limits}
        if (most := limits_by_quota.get(key)) != current_limits.get(key)
    }
    if not changed:
        return 0
    async with store.transaction() as connection:
        counters = await limits.lock(connection, {*changed, FUNCTIONS}, runtimes)
        for key, most in changed.items():
            await connection.execute(_SET_LIMIT, key, most)
            counters[key].max_running = most
        woken = await limits.hand_out_locked(connection, counters, runtimes)
        if woken:
            await task_rows.wake(connection, woken)
    return len(woken)


async def adopt_tasks(store: Store, org_id: UUID, runtimes: RuntimeRegistry) -> int:
    """Give the key to a batch of open tasks that lack it. Answers how many there were."""
    key = org_key(org_id)
    async with store.connection() as connection:
        task_ids = [row["task_id"] for row in await connection.fetch(_WITHOUT_KEY, org_id, key, BATCH)]
    if not task_ids:
        return 0
    async with store.transaction() as connection:
        locked = await connection.fetch(_LOCK_TASKS, task_ids, key)
        moved = {key: sum(row["status"] == "Running" for row in locked)}
        for row in locked:
            if row["status"] == "Queued" and not row["held"]:
                for other in row["limit_keys"] or ():
                    moved[other] = moved.get(other, 0) - 1
        await connection.execute(_ADD_KEY, [row["task_id"] for row in locked], key)
        await _wake(connection, moved, runtimes)
    return len(task_ids)


async def _wake(connection: Connection, moved: dict[str, int], runtimes: RuntimeRegistry) -> int:
    woken = await limits.hand_out(connection, moved, runtimes, moved)
    if woken:
        await task_rows.wake(connection, woken)
    return len(woken)

"""Limits on running work: places, taken and freed in the transactions that make tasks ready or end them.

A limited task that becomes ready is written as held; then every free place goes to the held task that waits longest,
which may be the same one. So there is one way in, and the transaction that frees a place writes the wake-up of whoever
gets it. The counters are locked in the order of their keys, after tasks and edges.

The limit of an operator is shared by orgs: its places go to them in turn, by weight (`model/fair_share.py`), and within
an org to the task that waits longest. Whose turn it is stands in the row of the limit.

Users' functions count under a second limit as well, that of their org. Its row tells how many functions of the org run:
an org that runs fewer comes first, the last places are kept for orgs that run none, and a quota bounds the number. They
always wait for the operator's limit, so that an org at its quota frees places for others and not for itself.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg
from msgspec.structs import replace

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import StateChange, WakeTarget, wake_of
from tracelake.dispatcher.records import columns
from tracelake.model.fair_share import FairShares, OrgBacklog, reserved_slots
from tracelake.model.job import FUNCTION_OPERATOR, Job
from tracelake.model.runtime import RuntimeRegistry
from tracelake.model.task import Status

_ENSURE = "INSERT INTO limits (limit_key) SELECT * FROM unnest($1::text[]) ON CONFLICT DO NOTHING"

_LOCK = """
    SELECT limit_key, max_running, used, shares FROM limits
    WHERE limit_key = ANY($1) ORDER BY limit_key FOR NO KEY UPDATE"""

# From one org that waits for a limit to the next, along the index of held tasks.
_WAITING = """RECURSIVE waiting AS (
        SELECT k.limit_key, (SELECT t.org_id FROM tasks t WHERE t.held AND t.held_by = k.limit_key
                             ORDER BY t.org_id LIMIT 1) AS org_id
        FROM unnest($1::text[]) AS k(limit_key)
        UNION ALL
        SELECT w.limit_key, (SELECT t.org_id FROM tasks t
                             WHERE t.held AND t.held_by = w.limit_key AND t.org_id > w.org_id
                             ORDER BY t.org_id LIMIT 1)
        FROM waiting w WHERE w.org_id IS NOT NULL)"""

# The keys of those who wait longest: what they need besides must be locked before they can be let in.
_PEEK = f"""
    WITH {_WAITING}
    SELECT DISTINCT unnest(h.limit_keys) AS limit_key FROM waiting w
    CROSS JOIN LATERAL (SELECT limit_keys FROM tasks WHERE held AND held_by = w.limit_key AND org_id = w.org_id
                        ORDER BY ready_at, task_id
                        LIMIT (SELECT greatest(1, 100 / greatest(1, count(org_id))) FROM waiting)) h"""  # noqa: S608

_ORGS = f"""
    WITH {_WAITING}
    SELECT w.org_id::text, coalesce((SELECT q.weight FROM org_quotas q WHERE q.org_id = w.org_id), 1.0) AS weight
    FROM waiting w WHERE w.org_id IS NOT NULL"""  # noqa: S608

# Of limits of jobs, which are of one org.
_NEXT = """
    SELECT t.task_id, t.org_id, t.limit_keys, j.runtime FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.held AND t.held_by = $1 ORDER BY t.org_id, t.ready_at, t.task_id LIMIT $2 FOR UPDATE OF t SKIP LOCKED"""

_NEXT_OF_ORGS = """
    SELECT t.* FROM unnest($2::uuid[], $3::int[]) AS a(org_id, most) CROSS JOIN LATERAL (
        SELECT t.task_id, t.org_id, t.limit_keys, j.runtime FROM tasks t JOIN jobs j USING (job_id)
        WHERE t.held AND t.held_by = $1 AND t.org_id = a.org_id
        ORDER BY t.ready_at, t.task_id LIMIT a.most FOR UPDATE OF t SKIP LOCKED) t"""

_ADMIT = "UPDATE tasks SET held = false, held_by = NULL, ready_at = trace_now() WHERE task_id = ANY($1)"

_WAIT_ELSEWHERE = """
    UPDATE tasks t SET held_by = u.held_by FROM unnest($1::uuid[], $2::text[]) AS u(task_id, held_by)
    WHERE t.task_id = u.task_id"""

_SET_USED = """
    UPDATE limits l SET used = u.used, shares = u.shares::json
    FROM unnest($1::text[], $2::int[], $3::text[]) AS u(limit_key, used, shares)
    WHERE l.limit_key = u.limit_key"""

_BATCH = 200

MOST = 2_000
"""So many tasks at most are let in by a limit in one transaction, however much room there is. They have places then,
and whoever gives one back lets in the next."""


@dataclass(slots=True)
class LimitCounter:
    """A limit whose row is locked."""

    max_running: int | None
    used: int
    before: int
    shares: str | None = None
    """The clocks of the orgs, where several share it."""
    turns_moved: bool = False

    @property
    def room(self) -> int:
        return _BATCH if self.max_running is None else max(0, self.max_running - self.used)


def hold_what_becomes_ready(changes: Iterable[StateChange]) -> None:
    """Holds limited tasks that become ready: each gets its place by waiting for it, be it for a moment."""
    for change in changes:
        after = change.after
        if after.limit_keys and after.status is Status.QUEUED and not change.before.takes_place:
            change.after = replace(after, held=True, held_by=after.limit_keys[0])
            change.wake = None


async def settle(
    connection: Connection, changes: Sequence[StateChange], new_keys: Iterable[str], runtimes: RuntimeRegistry
) -> list[tuple[UUID, WakeTarget]]:
    """Counts the places that the changes took and freed, and hands out free ones. Returns whom to wake."""
    moved: dict[str, int] = {}
    for change in changes:
        delta = change.after.takes_place - change.before.takes_place
        if delta or change.after.held:
            for key in change.after.limit_keys:
                moved[key] = moved.get(key, 0) + delta
    keys = set(moved) | set(new_keys)
    if not keys:
        return []
    return await hand_out(connection, keys, runtimes, moved)


async def hand_out(
    connection: Connection, keys: Iterable[str], runtimes: RuntimeRegistry, moved: dict[str, int] | None = None
) -> list[tuple[UUID, WakeTarget]]:
    """Gives the free places of these limits to tasks that wait for them. Depths of queues include waiting tasks."""
    counters = await lock(connection, keys, runtimes)
    for key, delta in (moved or {}).items():
        counters[key].used = max(0, counters[key].used + delta)
    return await hand_out_locked(connection, counters, runtimes)


async def lock(connection: Connection, keys: Iterable[str], runtimes: RuntimeRegistry) -> dict[str, LimitCounter]:
    """Locks these limits and the other limits of tasks that wait for them, in one statement and one order."""
    limit_keys = set(keys)
    limit_keys |= {row["limit_key"] for row in await connection.fetch(_PEEK, sorted(limit_keys))}
    return await _lock(connection, limit_keys, runtimes)


async def hand_out_locked(
    connection: Connection, counters: dict[str, LimitCounter], runtimes: RuntimeRegistry
) -> list[tuple[UUID, WakeTarget]]:
    """Hands out the free places of limits that `lock` locked, and writes their `used`."""
    woken: list[tuple[UUID, WakeTarget]] = []
    # Those that orgs share come last: who has a place under its own limits then waits there, for the turn of its org.
    for key in sorted(counters, key=lambda key: (is_shared(key), key)):
        most = len(woken) + MOST
        passed_on = 0
        while counters[key].room > passed_on and len(woken) < most:
            rows = await _next(connection, key, counters)
            admitted, elsewhere = await _admit(connection, key, rows, counters)
            woken += [(row["task_id"], wake_of(runtimes, row["runtime"])) for row in admitted]
            if not admitted and not elsewhere:
                break
            if not is_shared(key):
                passed_on += sum(is_shared(other) for other in elsewhere)
    changed = [
        (key, counter.used, counter.shares)
        for key, counter in counters.items()
        if counter.used != counter.before or counter.turns_moved
    ]
    if changed:
        await connection.execute(_SET_USED, *columns(changed))
    return woken


async def _lock(connection: Connection, keys: set[str], runtimes: RuntimeRegistry) -> dict[str, LimitCounter]:
    """Locks the rows. Limits of jobs are in the row, limits of operators in the registry."""
    rows = await connection.fetch(_LOCK, sorted(keys))
    if len(rows) < len(keys):
        await connection.execute(_ENSURE, sorted(keys))
        rows = await connection.fetch(_LOCK, sorted(keys))
    operators = operator_limits(runtimes)
    return {
        row["limit_key"]: LimitCounter(
            operators.get(row["limit_key"], row["max_running"]), row["used"], row["used"], row["shares"]
        )
        for row in rows
    }


def operator_limits(runtimes: RuntimeRegistry) -> dict[str, int]:
    return {operator_key(name): most for name, most in runtimes.operator_limits.items()}


async def _next(connection: Connection, key: str, counters: dict[str, LimitCounter]) -> list[asyncpg.Record]:
    """Returns the tasks whose turn it is, as many as there is room for."""
    counter = counters[key]
    room = min(counter.room, _BATCH)
    if not is_shared(key):
        return await connection.fetch(_NEXT, key, room)
    weights = {row["org_id"]: row["weight"] for row in await connection.fetch(_ORGS, [key])}
    if not weights:
        return []
    shares = FairShares.load(counter.shares)
    if key == FUNCTIONS:
        allotted = _allot_functions(shares, weights, counters, room)
    else:
        allotted = shares.allot([OrgBacklog(org, 0, weight) for org, weight in weights.items()], room)
    if not allotted:
        return []
    rows = await connection.fetch(_NEXT_OF_ORGS, key, [UUID(org) for org in allotted], list(allotted.values()))
    shares.charge(Tally(str(row["org_id"]) for row in rows), weights)
    clocks = shares.dump()
    counter.turns_moved |= clocks != counter.shares
    counter.shares = clocks
    return rows


def _allot_functions(
    shares: FairShares, weights: dict[str, float], counters: dict[str, LimitCounter], room: int
) -> dict[str, int]:
    """By what each org runs, within its quota. The places of an org are known if its tasks were seen when locking."""
    places = {org: counter for org in weights if (counter := counters.get(functions_key(UUID(org)))) is not None}
    backlogs = [OrgBacklog(org, places[org].used, weights[org]) for org in places if places[org].room]
    slots = counters[FUNCTIONS].max_running
    allotted = shares.allot(backlogs, room, 0 if slots is None else reserved_slots(slots))
    return {org: min(most, places[org].room) for org, most in allotted.items()}


async def _admit(
    connection: Connection, key: str, rows: Sequence[asyncpg.Record], counters: dict[str, LimitCounter]
) -> tuple[list[asyncpg.Record], list[str]]:
    """Admits tasks that waited for `key` and have a place in each of their limits. The others wait for the one that is
    full, or for their turn at the one that orgs share; returns these limits as well."""
    admitted: list[asyncpg.Record] = []
    elsewhere: list[tuple[UUID, str]] = []
    for row in rows:
        if any(other not in counters for other in row["limit_keys"]):
            continue
        full = next((other for other in row["limit_keys"] if not counters[other].room), None)
        if full is None and not is_shared(key):
            full = next(filter(is_shared, row["limit_keys"]), None)
        if full is not None:
            elsewhere.append((row["task_id"], full))
            continue
        for other in row["limit_keys"]:
            counters[other].used += 1
        admitted.append(row)
    if admitted:
        await connection.execute(_ADMIT, [row["task_id"] for row in admitted])
    if elsewhere:
        await connection.execute(_WAIT_ELSEWHERE, *columns(elsewhere))
    return admitted, [limit for _, limit in elsewhere]


def limit_keys_of(runtimes: RuntimeRegistry, job: Job, *, org_limited: bool = False) -> tuple[str, ...]:
    """Returns the keys of the limits that a task of this job takes a place in, sorted."""
    keys = [org_key(job.org_id)] if org_limited else []
    if job.max_concurrency is not None:
        keys.append(job.limit_key)
    if job.operator in runtimes.operator_limits:
        keys.append(operator_key(job.operator))
    if job.operator == FUNCTION_OPERATOR:
        keys.append(functions_key(job.org_id))
    return tuple(sorted(keys))


def operator_key(operator: str) -> str:
    return f"operator:{operator}"


def org_key(org_id: UUID) -> str:
    """Returns the key of an org's quota of running tasks."""
    return f"org:{org_id}"


def functions_key(org_id: UUID) -> str:
    """Returns the key that counts an org's running functions, and holds its quota. It sorts after that of the operator,
    which is the one that functions wait for."""
    return f"org-functions:{org_id}"


FUNCTIONS = operator_key(FUNCTION_OPERATOR)
"""The limit that functions of all orgs share: as many as runners have slots."""


def is_quota(limit_key: str) -> bool:
    """Whether it is the key of a quota of an org."""
    return limit_key.startswith(("org:", "org-functions:"))


def is_shared(limit_key: str) -> bool:
    """Whether tasks of several orgs may wait for it."""
    return limit_key.startswith("operator:")

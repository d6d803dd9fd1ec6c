"""What a state database needs after it was set back to an earlier moment.

The world went on after the dump: workers hold attempts that it does not know, numbers were given out, files were
written. The rows of the dump are right as they are; what must not happen is that something of the lost time is taken
for something of the new one. So:

- **Leases** that the dump holds end here, by the usual verdict, and their tokens change: whoever still works on such an
  attempt has said things that are lost, so it must not go on; it gets 409 and the task is tried again.
- **Attempts** go on after the last number that was given out: an attempt's number is part of where it writes, and two
  attempts must not share a directory.
- **Sequences** (event ids, the order of routing, publishes, outbox rows, the audit log) go on in the same way.
- **Secrets of webhooks** stay those of now: one that was given up after a leak must not be good again.
- **Wake-ups** are written for everything that is ready, since the queue is emptied.

The state that is replaced tells all that, if it is what became of the dump. Where it is lost, or another one, numbers
are moved on by more than can have been given out.
"""

from datetime import UTC, datetime
from uuid import UUID

import asyncpg
import msgspec

from tracelake.db.migrate import Connection
from tracelake.db.transaction import Store
from tracelake.dispatcher.backpressure.upstream import UpstreamDirectory
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.jobs import Definitions
from tracelake.dispatcher.lifecycle import rows
from tracelake.dispatcher.lifecycle.plan import Change, Plan
from tracelake.dispatcher.lifecycle.writer import Writer
from tracelake.dispatcher.routing.directory import EdgeDirectory
from tracelake.dispatcher.routing.router import Router
from tracelake.model import lifecycle

SEQUENCE_GAP = 1_000_000_000
ATTEMPT_GAP = 1_000
"""How far numbers are moved on where nobody knows which were given out."""

_PAGE = 5_000
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

_NEWEST_EVENT = "SELECT event_id, producer, created_at FROM events ORDER BY event_id DESC LIMIT 1"
_SAME_EVENT = "SELECT EXISTS (SELECT FROM events WHERE event_id = $1 AND producer = $2 AND created_at = $3)"

_SEQUENCES = "SELECT sequencename::text AS name, last_value FROM pg_sequences WHERE schemaname = 'public'"

# Attempts on which only the clock has spoken, or nobody: their workers could still come back.
_FENCE = """
    UPDATE tasks SET lease_token = gen_random_uuid(), lease_expires_at =
        CASE WHEN status = 'Running' THEN least(lease_expires_at, trace_now() - interval '1 second') END
    WHERE attempt > 0 AND status <> 'Completed' AND (outcome IS NULL OR outcome = 'Timeout')"""

_UNFINISHED = """
    SELECT task_id, attempt FROM tasks WHERE status <> 'Completed' AND task_id > $1 ORDER BY task_id LIMIT $2"""
_GIVEN_OUT = "SELECT task_id, attempt FROM tasks WHERE task_id = ANY($1)"

# A number that no attempt of this state had: as if one of it had been heard of no more. What is skipped was tried by
# nobody that this state knows, so it takes no attempt away and makes no wait longer.
_MOVE_ATTEMPTS = """
    UPDATE tasks t SET attempt = f.attempt, max_attempts = t.max_attempts + (f.attempt - t.attempt),
        forgiven = t.forgiven + (f.attempt - t.attempt), lease_token = gen_random_uuid(),
        outcome = coalesce(t.outcome, 'Timeout'), claimed_at = coalesce(t.claimed_at, trace_now())
    FROM unnest($1::uuid[], $2::int[]) AS f (task_id, attempt)
    WHERE t.task_id = f.task_id AND t.status <> 'Completed' AND f.attempt > t.attempt"""

_ROTATIONS = """
    SELECT path, rotation, previous_until FROM webhooks"""
_KEEP_ROTATIONS = """
    UPDATE webhooks w SET rotation = f.rotation, previous_until = f.previous_until
    FROM unnest($1::text[], $2::int[], $3::timestamptz[]) AS f (path, rotation, previous_until)
    WHERE w.path = f.path AND f.rotation > w.rotation"""

# Whatever a Dispatcher remembers of an org's edges is out of date.
_NEW_EPOCH = "UPDATE orgs SET routing_epoch = routing_epoch + $1"


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """What was done, in numbers."""

    continued: bool
    """Whether the replaced state was what had become of the dump."""
    leases_ended: int
    attempts_moved: int
    sequences_moved: int
    webhook_secrets_kept: int


async def rewind(
    restored: Connection, store: Store, replaced: "Connection | None", config: DispatcherConfig
) -> Rewound:
    """Make the restored state safe to go on from. `store` is the same database; `replaced` the one it replaces."""
    before = replaced if replaced is not None and await _continues(restored, replaced) else None
    await restored.execute(_NEW_EPOCH, SEQUENCE_GAP)
    sequences = await _move_sequences(restored, before)
    await restored.execute(_FENCE)
    ended = await _end_leases(store, config)
    attempts = await _move_attempts(restored, before)
    secrets = 0 if before is None else await _keep_rotations(restored, before)
    return Rewound(
        continued=before is not None,
        leases_ended=ended,
        attempts_moved=attempts,
        sequences_moved=sequences,
        webhook_secrets_kept=secrets,
    )


async def _continues(restored: Connection, replaced: Connection) -> bool:
    """Whether the replaced state has the newest event of the restored one, and so every number given out since."""
    try:
        newest = await restored.fetchrow(_NEWEST_EVENT)
        return newest is not None and bool(await replaced.fetchval(_SAME_EVENT, *newest))
    except asyncpg.PostgresError:
        return False  # empty, of another release, or damaged: it tells nothing


async def _move_sequences(restored: Connection, before: "Connection | None") -> int:
    given = {} if before is None else {row["name"]: row["last_value"] or 0 for row in await before.fetch(_SEQUENCES)}
    found = await restored.fetch(_SEQUENCES)
    for row in found:
        last = max(row["last_value"] or 0, given.get(row["name"], 0))
        last += 0 if before is not None else SEQUENCE_GAP
        if last:
            await restored.execute("SELECT setval($1::text::regclass, $2)", row["name"], last)
    return len(found)


async def _end_leases(store: Store, config: DispatcherConfig) -> int:
    """The verdict that the reaper would give, without its waiting: nobody can take these leases back."""
    definitions = Definitions()
    writer = Writer(Router(definitions, EdgeDirectory(definitions), UpstreamDirectory(), config), config)
    ended = 0
    while True:
        async with store.transaction() as connection:
            records = await rows.take_expired(connection, _LONG_AGO, _PAGE)
            plan = Plan()
            for record in records:
                task = rows.snapshot(record)
                retry = lifecycle.next_retry(task, record["now"], config.retry)
                plan.changes.append(Change(task, lifecycle.expire(task, record["now"], retry=retry)))
            await writer.write(connection, plan)
        ended += len(records)
        if len(records) < _PAGE:
            return ended


async def _move_attempts(restored: Connection, before: "Connection | None") -> int:
    moved, after = 0, UUID(int=0)
    while True:
        page = await restored.fetch(_UNFINISHED, after, _PAGE)
        if before is None:
            floors = {row["task_id"]: row["attempt"] + ATTEMPT_GAP for row in page}
        else:
            given = await before.fetch(_GIVEN_OUT, [row["task_id"] for row in page])
            floors = {row["task_id"]: row["attempt"] for row in given}
        tag = await restored.execute(_MOVE_ATTEMPTS, list(floors), list(floors.values()))
        moved += int(tag.rpartition(" ")[2])
        if len(page) < _PAGE:
            return moved
        after = page[-1]["task_id"]


async def _keep_rotations(restored: Connection, before: Connection) -> int:
    rotations = await before.fetch(_ROTATIONS)
    columns = [[row[name] for row in rotations] for name in ("path", "rotation", "previous_until")]
    tag = await restored.execute(_KEEP_ROTATIONS, *columns)
    return int(tag.rpartition(" ")[2])

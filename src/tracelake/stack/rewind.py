"""Makes a state database that was set back to an earlier moment safe to continue from.

The world went on after the dump: workers hold attempts that it does not know, numbers were given out, files were
written. The rows of the dump are right as they are; what must not happen is that something of the lost time is taken
for something of the new one. So:

- **Leases** that the dump holds end here, by the usual verdict, and their tokens change: whoever still works on such an
  attempt has said things that are lost, so it must not go on; it gets 409 and the task is tried again, also if this was
  its last attempt: the attempt did not fail, it was taken away.
- **Attempts** go on after the last number that was given out: an attempt's number is part of where it writes, and two
  attempts must not share a directory.
- **Sequences** (event ids, the order of routing, publishes, outbox rows, the audit log) go on in the same way.
- **Secrets of webhooks** stay those of now: one that was given up after a leak must not be good again, also if the dump
  is older than the webhook and it is deployed anew (`webhook_floors`).
- **Revoked tokens** stay revoked, and tokens that were made since stay listed (`token_revocations`, `user_tokens`). If
  the replaced state is lost, a token that was revoked after the dump is good again until it expires: rotate the keys.
- **Wake-ups** are written for everything that is ready, since the queue is emptied.

The state that is replaced tells all that, if it is what became of the dump. Where it is lost, numbers are moved on by
more than can have been given out. Where it is another one (a home that began with an older dump, say), both hold: it
gave out numbers too, and nobody knows which others were.
"""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import replace

from tracelake.db.migrate import Connection
from tracelake.db.transaction import Store
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.plan import StateChange, WritePlan
from tracelake.dispatcher.engine.pressure.upstream import UpstreamDirectory
from tracelake.dispatcher.engine.routing.changed_units import ChangedUnits
from tracelake.dispatcher.engine.routing.directory import EdgeDirectory
from tracelake.dispatcher.engine.routing.drafts import TaskDrafts
from tracelake.dispatcher.engine.routing.router import EventRouter
from tracelake.dispatcher.engine.tables import task_rows
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.model import lifecycle
from tracelake.model.task import Task

SEQUENCE_GAP = 1_000_000_000
ATTEMPT_GAP = 1_000
"""How far numbers are moved on where it is unknown which were given out."""

_PAGE = 5_000
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

_NEWEST_EVENT = "SELECT event_id, producer, created_at FROM events ORDER BY event_id DESC LIMIT 1"
_SAME_EVENT = "SELECT FROM events WHERE event_id = $1 AND producer = $2 AND created_at = $3"

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

_HAS_FLOORS = "SELECT to_regclass('public.webhook_floors') IS NOT NULL AS there"
_ROTATIONS = "SELECT org_id, dag_name, job_name, rotation, previous_until FROM webhooks"
_FLOORS = "SELECT org_id, dag_name, job_name, rotation, previous_until FROM webhook_floors"
_KEEP_FLOORS = """
    INSERT INTO webhook_floors AS w (org_id, dag_name, job_name, rotation, previous_until)
    SELECT DISTINCT ON (org_id, dag_name, job_name) *
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::int[], $5::timestamptz[])
        AS f (org_id, dag_name, job_name, rotation, previous_until)
    ORDER BY org_id, dag_name, job_name, rotation DESC, previous_until DESC NULLS LAST
    ON CONFLICT (org_id, dag_name, job_name) DO UPDATE
        SET rotation = excluded.rotation, previous_until = excluded.previous_until
        WHERE excluded.rotation > w.rotation"""
_KEEP_ROTATIONS = """
    UPDATE webhooks w SET rotation = f.rotation, previous_until = f.previous_until
    FROM webhook_floors f
    WHERE f.org_id = w.org_id AND f.dag_name = w.dag_name AND f.job_name = w.job_name AND f.rotation > w.rotation"""

_HAS_TOKENS = "SELECT to_regclass('public.token_revocations') IS NOT NULL AS there"
_ROW_COLUMNS = (
    "org, token_id, subject, role, dags, read_dags, created_by, created_at, expires_at, revoked_at, revoked_by"
)
_TOKENS = f"SELECT {_ROW_COLUMNS} FROM user_tokens"  # noqa: S608 - constants only
_KEEP_TOKEN = f"""
    INSERT INTO user_tokens ({_ROW_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
    ON CONFLICT (org, token_id) DO UPDATE SET revoked_at = excluded.revoked_at, revoked_by = excluded.revoked_by
        WHERE user_tokens.revoked_at IS NULL"""  # noqa: S608 - constants only
_REVOCATIONS = "SELECT org, kind, value, issued_until, revoked_by, expires_at FROM token_revocations"
_KEEP_REVOCATION = """
    INSERT INTO token_revocations AS r (org, kind, value, issued_until, revoked_by, expires_at)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (org, kind, value) DO UPDATE
        SET issued_until = greatest(r.issued_until, excluded.issued_until),
            expires_at = CASE WHEN r.expires_at IS NULL OR excluded.expires_at IS NULL THEN NULL
                              ELSE greatest(r.expires_at, excluded.expires_at) END"""

# Whatever a Dispatcher remembers of an org's edges is out of date.
_EPOCH = "SELECT coalesce(max(routing_epoch), 0) AS epoch FROM orgs"
_NEW_EPOCH = "UPDATE orgs SET routing_epoch = greatest(routing_epoch, $1) + $2"


class Rewound(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of what was changed."""

    continued: bool
    """Whether the replaced state descended from the dump."""
    leases_ended: int
    attempts_moved: int
    sequences_moved: int
    webhook_secrets_kept: int
    revocations_kept: int = 0


class _Replaced:
    """The state that is replaced, as far as it can be asked."""

    def __init__(self, connection: "Connection | None") -> None:
        self._connection = connection
        self.continued = connection is not None
        """Whether it descends from the dump, and has answered every question."""

    async def ask(self, statement: str, *arguments: Any) -> list[asyncpg.Record]:
        if self._connection is None:
            return []
        try:
            return await self._connection.fetch(statement, *arguments)
        except (asyncpg.PostgresError, asyncpg.InterfaceError):
            self.continued = False  # empty, of another release, or damaged: it does not tell this
            return []


async def rewind(
    restored: Connection, store: Store, replaced: "Connection | None", config: DispatcherConfig
) -> Rewound:
    """Make the restored state safe to go on from. `store` is the same database; `replaced` the one it replaces."""
    before = _Replaced(replaced)
    await _compare(restored, before)
    epochs = await before.ask(_EPOCH)
    await restored.execute(_NEW_EPOCH, epochs[0]["epoch"] if epochs else 0, SEQUENCE_GAP)
    sequences = await _move_sequences(restored, before)
    await restored.execute(_FENCE)
    ended = await _end_leases(store, config)
    attempts = await _move_attempts(restored, before)
    secrets = await _keep_rotations(restored, before)
    revocations = await _keep_revocations(restored, before)
    return Rewound(
        continued=before.continued,
        leases_ended=ended,
        attempts_moved=attempts,
        sequences_moved=sequences,
        webhook_secrets_kept=secrets,
        revocations_kept=revocations,
    )


async def _compare(restored: Connection, before: _Replaced) -> None:
    """Whether the replaced state has the newest event of the restored one, and so every number given out since."""
    newest = await restored.fetchrow(_NEWEST_EVENT)
    if newest is None or not await before.ask(_SAME_EVENT, *newest):
        before.continued = False


async def _move_sequences(restored: Connection, before: _Replaced) -> int:
    replaced_values = {row["name"]: row["last_value"] or 0 for row in await before.ask(_SEQUENCES)}
    gap = 0 if before.continued else SEQUENCE_GAP
    sequences = await restored.fetch(_SEQUENCES)
    for row in sequences:
        last = max(row["last_value"] or 0, replaced_values.get(row["name"], 0)) + gap
        if last:
            await restored.execute("SELECT setval($1::text::regclass, $2)", row["name"], last)
    return len(sequences)


async def _end_leases(store: Store, config: DispatcherConfig) -> int:
    """The verdict that the reaper would give, without its waiting: nobody can take these leases back."""
    definitions = Definitions()
    drafts = TaskDrafts(definitions, config)
    directory, changed_units = EdgeDirectory(definitions), ChangedUnits(config, drafts)
    writer = Writer(EventRouter(definitions, directory, UpstreamDirectory(), drafts, changed_units), config)
    ended = 0
    while True:
        async with store.transaction() as connection:
            records = await task_rows.take_expired(connection, _LONG_AGO, _PAGE)
            plan = WritePlan()
            for record in records:
                task = task_rows.snapshot(record)
                retry = lifecycle.next_retry(task, record["now"], config.retry)
                plan.changes.append(StateChange(task, lifecycle.expire(_once_more(task), record["now"], retry=retry)))
            await writer.write(connection, plan)
        ended += len(records)
        if len(records) < _PAGE:
            return ended


def _once_more(task: Task) -> Task:
    """The task with an attempt left, unless it is being cancelled: it lost its attempt through no fault of its own."""
    if task.may_retry or task.cancel_requested:
        return task
    return replace(task, max_attempts=task.attempt + 1)


async def _move_attempts(restored: Connection, before: _Replaced) -> int:
    moved, after = 0, UUID(int=0)
    while True:
        page = await restored.fetch(_UNFINISHED, after, _PAGE)
        attempts = await before.ask(_GIVEN_OUT, [row["task_id"] for row in page])
        attempt_numbers = {row["task_id"]: row["attempt"] for row in attempts}
        gap = 0 if before.continued else ATTEMPT_GAP
        floors = {row["task_id"]: max(row["attempt"], attempt_numbers.get(row["task_id"], 0)) + gap for row in page}
        tag = await restored.execute(_MOVE_ATTEMPTS, list(floors), list(floors.values()))
        moved += int(tag.rpartition(" ")[2])
        if len(page) < _PAGE:
            return moved
        after = page[-1]["task_id"]


async def _keep_rotations(restored: Connection, before: _Replaced) -> int:
    """Floors for whatever is deployed anew, and the rotation of now for the webhooks that the dump has."""
    rotations = await before.ask(_ROTATIONS)
    has_floors = await before.ask(_HAS_FLOORS)
    if has_floors and has_floors[0]["there"]:  # a state of an older release has none, and tells everything all the same
        rotations += await before.ask(_FLOORS)
    names = ("org_id", "dag_name", "job_name", "rotation", "previous_until")
    await restored.execute(_KEEP_FLOORS, *([row[name] for row in rotations] for name in names))
    tag = await restored.execute(_KEEP_ROTATIONS)
    return int(tag.rpartition(" ")[2])


async def _keep_revocations(restored: Connection, before: _Replaced) -> int:
    """Every revocation and every token of the replaced state, whether or not it descends from the dump: a token is good
    by its signature, and that is of the same keys."""
    has_tokens = await before.ask(_HAS_TOKENS)
    if not has_tokens or not has_tokens[0]["there"]:  # a state of an older release
        return 0
    await restored.executemany(_KEEP_TOKEN, [tuple(row) for row in await before.ask(_TOKENS)])
    revocations = await before.ask(_REVOCATIONS)
    await restored.executemany(_KEEP_REVOCATION, [tuple(row) for row in revocations])
    return len(revocations)

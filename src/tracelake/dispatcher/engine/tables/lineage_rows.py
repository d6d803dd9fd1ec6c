"""Notes which attempts start and end in a transaction, for the receiver of lineage events."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import StateChange
from tracelake.dispatcher.records import columns
from tracelake.model.task import Outcome, Status

_MAX_ERROR = 4_000

_TYPES = {
    Outcome.COMPLETED: "COMPLETE",
    Outcome.FAILED: "FAIL",
    Outcome.TIMEOUT: "FAIL",
    Outcome.CANCELED: "ABORT",
}

_RECORD = """
    INSERT INTO lineage_events (task_id, attempt, event_type, event_time, error)
    SELECT u.task_id, u.attempt, u.event_type, coalesce(u.event_time, trace_now()), u.error
    FROM unnest($1::uuid[], $2::int[], $3::text[], $4::timestamptz[], $5::text[])
        AS u(task_id, attempt, event_type, event_time, error)"""


async def record(connection: Connection, changes: Sequence[StateChange]) -> None:
    """One statement for all of them, and none where no attempt starts or ends."""
    rows: list[tuple[UUID, int, str, datetime | None, str | None]] = []
    for change in changes:
        before, after = change.before, change.after
        if after.status is Status.RUNNING and after.attempt > before.attempt:
            rows.append((after.task_id, after.attempt, "START", after.claimed_at, None))
        elif after.attempt and after.outcome is not None and after.outcome is not before.outcome:
            error = None if after.error is None else after.error[:_MAX_ERROR]
            rows.append((after.task_id, after.attempt, _TYPES[after.outcome], None, error))
    if rows:
        await connection.execute(_RECORD, *columns(rows))

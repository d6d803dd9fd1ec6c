"""Units that a change has touched and that have no task for it yet: the rows of `pending_units`.

The edges of a node are locked by whoever reads or writes its rows here.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.records import columns
from tracelake.model.task import RevisionKind
from tracelake.model.windows import Window

MORE = "more_units"
MORE_NEW = "more_units_new"
"""Reasons of rows that stand for several windows side by side, which the drain loop goes through: all of them, or those
that have no task yet."""

_NOBODY = UUID(int=0)
_COLUMNS = "node_id, unit_start, unit_end, org_id, changed_seq, revision_kind, traceparent"

# Rows of versions that are not active stay: their edges show what they miss when they are active again.
_WAITING = f"""
    SELECT {_COLUMNS} FROM pending_units p WHERE waits_for = ANY($1)
      AND EXISTS (SELECT FROM edges e WHERE e.node_id = p.node_id AND e.phase <> 'Parked')
    ORDER BY node_id, unit_start"""  # noqa: S608 - constants only

# What somebody gave up announces nothing to the unit behind it, which may have changed for other reasons.
_BEHIND = f"""
    SELECT {_COLUMNS} FROM pending_units p WHERE reason = $2
      AND (p.node_id, p.unit_start) IN (SELECT t.node_id, t.unit_end + 1 FROM tasks t WHERE t.task_id = ANY($1))
      AND EXISTS (SELECT FROM edges e WHERE e.node_id = p.node_id AND e.phase <> 'Parked')
    ORDER BY node_id, unit_start"""  # noqa: S608 - constants only

_OVERLAPPING = f"""
    SELECT {_COLUMNS} FROM pending_units
    WHERE node_id = $1 AND unit_end >= $2 AND reason NOT IN ('{MORE}', '{MORE_NEW}')
    ORDER BY unit_start LIMIT $3"""  # noqa: S608 - constants only

_SAVE = """
    INSERT INTO pending_units AS p (node_id, unit_start, unit_end, org_id, changed_seq, revision_kind, traceparent,
                                    reason, waits_for, due)
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::uuid[], $5::bigint[], $6::text[], $7::text[],
                         $8::text[], $9::uuid[], $10::bool[])
    ON CONFLICT (node_id, unit_start, unit_end) DO UPDATE
    SET changed_seq = greatest(p.changed_seq, excluded.changed_seq), reason = excluded.reason,
        revision_kind = excluded.revision_kind, waits_for = excluded.waits_for, due = excluded.due,
        traceparent = coalesce(excluded.traceparent, p.traceparent)"""

# Of two rows for one range, that for all windows is kept: it is the first of the two in order.
_SAVE_REST = """
    INSERT INTO pending_units AS p (node_id, unit_start, unit_end, org_id, changed_seq, revision_kind, traceparent,
                                    reason, due)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, true)
    ON CONFLICT (node_id, unit_start, unit_end) DO UPDATE
    SET changed_seq = greatest(p.changed_seq, excluded.changed_seq), reason = least(p.reason, excluded.reason),
        revision_kind = excluded.revision_kind, due = true,
        traceparent = coalesce(excluded.traceparent, p.traceparent)"""

_REMOVE = """
    DELETE FROM pending_units p
    USING unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS u(node_id, unit_start, unit_end)
    WHERE p.node_id = u.node_id AND p.unit_start = u.unit_start AND p.unit_end = u.unit_end"""

# Windows that have a task already, from a position on. What a retry or a re-run made is one window.
_EXISTING = """
    SELECT DISTINCT unit_end, unit_start FROM tasks
    WHERE node_id = $1 AND edge = -1 AND unit_end >= $2 AND unit_start <= $3 ORDER BY unit_end LIMIT $4"""

_MARK_EXISTING = """
    INSERT INTO pending_units AS p (node_id, unit_start, unit_end, org_id, changed_seq, revision_kind, due)
    SELECT DISTINCT t.node_id, t.unit_start, t.unit_end, $4::uuid, $5::bigint, $6::text, true FROM tasks t
    WHERE t.node_id = $1 AND t.edge = -1 AND t.unit_end >= $2 AND t.unit_start <= $3
    ON CONFLICT (node_id, unit_start, unit_end) DO UPDATE
    SET changed_seq = greatest(p.changed_seq, excluded.changed_seq), due = true"""

_OF_REASON = f"""
    SELECT {_COLUMNS} FROM pending_units
    WHERE node_id = $1 AND unit_end >= $2 AND unit_start <= $3 AND reason = $4 ORDER BY unit_start LIMIT $5"""  # noqa: S608 - constants only

_MARK_OF_REASON = """
    UPDATE pending_units SET due = true, changed_seq = greatest(changed_seq, $5)
    WHERE node_id = $1 AND unit_end >= $2 AND unit_start <= $3 AND reason = $4"""

_DUE_NODES = """
    WITH RECURSIVE n AS (
        (SELECT org_id, node_id FROM pending_units WHERE due AND (org_id, node_id) > ($2, $3)
         ORDER BY org_id, node_id LIMIT 1)
        UNION ALL
        SELECT f.org_id, f.node_id FROM n CROSS JOIN LATERAL (
            SELECT p.org_id, p.node_id FROM pending_units p
            WHERE p.due AND (p.org_id, p.node_id) > (n.org_id, n.node_id) ORDER BY p.org_id, p.node_id LIMIT 1) f)
    SELECT n.org_id, n.node_id FROM n
    WHERE EXISTS (SELECT FROM edges e WHERE e.node_id = n.node_id AND e.phase <> 'Parked') LIMIT $1"""

_DUE = f"""
    SELECT {_COLUMNS}, reason FROM pending_units WHERE org_id = $1 AND node_id = $2 AND due
    ORDER BY unit_start LIMIT $3"""  # noqa: S608 - constants only

# What waits for a task that has ended was passed by: whoever ended the task could not see the row yet.
_STRANDED = """
    UPDATE pending_units p SET due = true, waits_for = NULL
    WHERE p.waits_for IS NOT NULL AND NOT p.due AND p.since < trace_now() - make_interval(secs => $1)
      AND NOT EXISTS (SELECT FROM tasks t WHERE t.task_id = p.waits_for AND t.finished_at IS NULL)"""


@dataclass(frozen=True, slots=True)
class ChangedUnit:
    """A unit of a node that a change has touched."""

    node_id: UUID
    window: Window
    org_id: UUID
    changed_seq: int
    """The `routed_seq` of the newest change."""
    kind: RevisionKind = RevisionKind.EVENT
    traceparent: str | None = None
    producers: frozenset[str] = frozenset()
    """Who announced the change. A task that announces units while it runs is not waited for: it may never end."""


@dataclass(frozen=True, slots=True)
class WaitingUnit:
    """A changed unit without a task, and why it has none."""

    unit: ChangedUnit
    reason: str = ""
    waits_for: UUID | None = None
    due: bool = False

    @property
    def is_several(self) -> bool:
        return self.reason in (MORE, MORE_NEW)


async def load_waiting(connection: Connection, task_ids: Collection[UUID]) -> list[ChangedUnit]:
    """The units that wait for the end of one of these tasks."""
    return _units(await connection.fetch(_WAITING, list(task_ids)))


async def load_behind(connection: Connection, task_ids: Collection[UUID], reason: str) -> list[ChangedUnit]:
    """The units right behind those of these tasks that are pending for this reason."""
    return _units(await connection.fetch(_BEHIND, list(task_ids), reason))


async def load_from(connection: Connection, node_id: UUID, position: int, limit: int) -> list[ChangedUnit]:
    """Pending units of a node that end at a position or behind it."""
    return _units(await connection.fetch(_OVERLAPPING, node_id, position, limit))


async def load_due(connection: Connection, org_id: UUID, node_id: UUID, limit: int) -> list[WaitingUnit]:
    rows = await connection.fetch(_DUE, org_id, node_id, limit)
    return [WaitingUnit(unit, row["reason"], due=True) for unit, row in zip(_units(rows), rows, strict=True)]


async def list_due_nodes(
    connection: Connection, limit: int, after: tuple[UUID, UUID] | None = None
) -> list[tuple[UUID, UUID]]:
    """org_id and node_id of active nodes that have units to be looked at, in order, from behind one of them on."""
    rows = await connection.fetch(_DUE_NODES, limit, *(after or (_NOBODY, _NOBODY)))
    return [(row["org_id"], row["node_id"]) for row in rows]


async def save(connection: Connection, units: Sequence[WaitingUnit]) -> None:
    rows = [
        (item.unit.node_id, *item.unit.window, item.unit.org_id, item.unit.changed_seq, item.unit.kind,
         item.unit.traceparent, item.reason, item.waits_for, item.due)
        for item in units
    ]  # fmt: skip
    if rows:
        await connection.execute(_SAVE, *columns(rows))


async def save_rest(connection: Connection, change: ChangedUnit, *, new: bool) -> None:
    """Leaves the windows of a range, at least two, to the drain loop; `new`: those of them that have no task."""
    reason = MORE_NEW if new else MORE
    place = (change.node_id, *change.window, change.org_id)
    await connection.execute(_SAVE_REST, *place, change.changed_seq, change.kind, change.traceparent, reason)


async def remove(connection: Connection, units: Iterable[ChangedUnit]) -> None:
    rows = [(unit.node_id, *unit.window) for unit in units]
    if rows:
        await connection.execute(_REMOVE, *columns(rows))


async def list_existing(connection: Connection, node_id: UUID, start: int, end: int, limit: int) -> list[Window]:
    """Windows of a node that have a task and overlap the range."""
    rows = await connection.fetch(_EXISTING, node_id, start, end, limit)
    return [Window(row["unit_start"], row["unit_end"]) for row in rows]


async def mark_existing(connection: Connection, change: ChangedUnit) -> None:
    """Has every window be looked at that has a task and overlaps the changed range, however many there are."""
    place = (change.node_id, *change.window, change.org_id)
    await connection.execute(_MARK_EXISTING, *place, change.changed_seq, change.kind)


async def load_of_reason(connection: Connection, change: ChangedUnit, reason: str, limit: int) -> list[Window]:
    """Windows of a node that overlap the changed range and are pending for this reason."""
    rows = await connection.fetch(_OF_REASON, change.node_id, *change.window, reason, limit)
    return [unit.window for unit in _units(rows)]


async def mark_of_reason(connection: Connection, change: ChangedUnit, reason: str) -> None:
    """Has all of them be looked at, however many there are."""
    await connection.execute(_MARK_OF_REASON, change.node_id, *change.window, reason, change.changed_seq)


async def revive_stranded(connection: Connection, seconds: float) -> int:
    tag: str = await connection.execute(_STRANDED, seconds)
    return int(tag.rpartition(" ")[2])


def _units(rows: Sequence[asyncpg.Record]) -> list[ChangedUnit]:
    return [
        ChangedUnit(
            row["node_id"],
            Window(row["unit_start"], row["unit_end"]),
            row["org_id"],
            row["changed_seq"],
            RevisionKind(row["revision_kind"]),
            row["traceparent"],
        )
        for row in rows
    ]

"""Depth and level of each limited queue, kept by the transactions that make tasks ready or take them.

The rows are locked after everything else, in the order of their nodes. Only tasks of jobs with a threshold are counted
(`tasks.counted`), so nobody else pays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.pressure.levels import Level, Thresholds, next_level, share
from tracelake.dispatcher.records import columns

_LOCK = """
    SELECT node_id, max_depth, max_age_seconds, depth, oldest_ready_at, level, trace_now() AS now
    FROM pressure WHERE node_id = ANY($1) ORDER BY node_id FOR NO KEY UPDATE"""

_WRITE = """
    UPDATE pressure p SET depth = u.depth, oldest_ready_at = u.oldest_ready_at, level = u.level,
        since = CASE WHEN p.level = u.level THEN p.since WHEN u.level = 0 THEN NULL ELSE trace_now() END,
        because = CASE WHEN u.level = 0 THEN NULL WHEN p.level = u.level THEN p.because ELSE u.because END
    FROM unnest($1::uuid[], $2::int[], $3::timestamptz[], $4::int[], $5::text[])
         AS u(node_id, depth, oldest_ready_at, level, because)
    WHERE p.node_id = u.node_id"""


@dataclass(frozen=True, slots=True)
class QueueReading:
    """The depth of a queue, and since when its oldest task waits."""

    depth: int
    oldest_ready_at: datetime | None


async def count(connection: Connection, deltas: Mapping[UUID, int]) -> bool:
    """Adds these numbers to the depths of queues. True if the pressure of one of them eased."""
    rows = await _lock(connection, deltas)
    readings = []
    for row in rows:
        depth = max(0, row["depth"] + deltas[row["node_id"]])
        readings.append(QueueReading(depth, row["oldest_ready_at"] if depth else None))
    return await _write(connection, rows, readings)


async def observe(connection: Connection, readings: Mapping[UUID, QueueReading]) -> bool:
    """Writes readings taken from the tables, whose rows the caller locked before. True if pressure eased."""
    rows = await _lock(connection, readings)
    return await _write(connection, rows, [readings[row["node_id"]] for row in rows])


async def see_oldest(connection: Connection, node_id: UUID, oldest: datetime | None) -> bool:
    """Writes since when the oldest task of this queue waits. True if its pressure eased."""
    rows = await _lock(connection, {node_id: oldest})
    return await _write(
        connection, rows, [QueueReading(row["depth"], oldest if row["depth"] else None) for row in rows]
    )


async def _lock(connection: Connection, nodes: Mapping[UUID, object]) -> list[asyncpg.Record]:
    return await connection.fetch(_LOCK, list(nodes))


async def _write(connection: Connection, rows: Sequence[asyncpg.Record], readings: Sequence[QueueReading]) -> bool:
    depth_rows = []
    eased = False
    for row, reading in zip(rows, readings, strict=True):
        thresholds = Thresholds(row["max_depth"], row["max_age_seconds"])
        oldest = reading.oldest_ready_at
        age = 0.0 if oldest is None else max(0.0, (row["now"] - oldest).total_seconds())
        before = Level(row["level"])
        level = next_level(before, share(thresholds, reading.depth, age))
        eased |= level < before
        depth_rows.append((row["node_id"], reading.depth, oldest, int(level), because(thresholds, reading.depth, age)))
    if depth_rows:
        await connection.execute(_WRITE, *columns(depth_rows))
    return eased


def because(thresholds: Thresholds, depth: int, age_seconds: float) -> str:
    """Describes for people what is too much."""
    parts = []
    if thresholds.max_depth is not None:
        parts.append(f"{depth} of {thresholds.max_depth} queued tasks")
    if thresholds.max_age_seconds is not None:
        parts.append(f"the oldest waits {int(age_seconds)} of {thresholds.max_age_seconds} s")
    return ", ".join(parts)

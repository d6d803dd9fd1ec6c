"""The backlog of buffered datasets: how much waits for the sink, and at which level that stops writers.

A backlog with a threshold is a queue like that of a job: at 80 % it stops `bulk` writers, at 100 % all of them, and
they go on below 50 %. It is looked at by the loop that looks after queues; who publishes pays nothing.
"""

from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.pressure.gauge import because
from tracelake.dispatcher.engine.pressure.levels import Level, Thresholds, next_level, share
from tracelake.dispatcher.predicates import awaits_sink, has_threshold
from tracelake.dispatcher.records import columns
from tracelake.model.dag import Dag

CAP = 100_000
"""Where counting stops: more than that is as full."""

_SET = """
    UPDATE buffered_tables t
    SET max_depth = u.max_depth, max_age_seconds = u.max_age_seconds,
        level = CASE WHEN u.max_depth IS NULL AND u.max_age_seconds IS NULL THEN 0 ELSE t.level END,
        since = CASE WHEN u.max_depth IS NULL AND u.max_age_seconds IS NULL THEN NULL ELSE t.since END
    FROM datasets d LEFT JOIN unnest($3::text[], $4::int[], $5::int[]) AS u(name, max_depth, max_age_seconds)
        ON u.name = d.name
    WHERE d.org_id = $1 AND d.dag_name = $2 AND t.dataset_uuid = d.dataset_uuid
      AND (t.max_depth, t.max_age_seconds) IS DISTINCT FROM (u.max_depth, u.max_age_seconds)"""

LIMITED = f"""
    SELECT dataset_uuid AS node_id FROM buffered_tables
    WHERE {has_threshold()} OR level > 0 ORDER BY dataset_uuid"""  # noqa: S608

_LOOK = f"""
    SELECT t.max_depth, t.max_age_seconds, t.level, b.depth, b.age_seconds
    FROM buffered_tables t CROSS JOIN LATERAL (
        SELECT count(*)::int AS depth,
               coalesce(extract(epoch FROM trace_now() - min(o.released_at)), 0)::float8 AS age_seconds
        FROM (SELECT p.released_at FROM buffer_publishes p
              WHERE p.dataset_uuid = t.dataset_uuid
                AND {awaits_sink("p")}
              ORDER BY p.released_at LIMIT {CAP}) o) b
    WHERE t.dataset_uuid = $1 FOR UPDATE OF t SKIP LOCKED"""  # noqa: S608 - constants only

_WRITE = """
    UPDATE buffered_tables SET depth = $2, level = $3,
        since = CASE WHEN level = $3 THEN since WHEN $3 = 0 THEN NULL ELSE trace_now() END,
        because = CASE WHEN $3 = 0 THEN NULL WHEN level = $3 THEN because ELSE $4 END
    WHERE dataset_uuid = $1"""


async def set_limits(connection: Connection, org_id: UUID, document: Dag) -> None:
    """Sets the thresholds of the version that is active from now on; datasets that it does not publish have none."""
    rows = [(item.name, item.max_queue_depth, item.max_queue_age_seconds) for item in document.publish]
    await connection.execute(_SET, org_id, document.name, *columns(rows, 3))


async def look(connection: Connection, dataset_uuid: UUID) -> bool:
    """Measures what waits now. True if its pressure eased."""
    row = await connection.fetchrow(_LOOK, dataset_uuid)
    if row is None:
        return False  # somebody else is at it
    thresholds = Thresholds(row["max_depth"], row["max_age_seconds"])
    before, age = Level(row["level"]), max(0.0, row["age_seconds"])
    level = next_level(before, share(thresholds, row["depth"], age))
    words = because(thresholds, row["depth"], age) if level else ""
    await connection.execute(_WRITE, dataset_uuid, row["depth"], int(level), words)
    return level < before

"""Everything at once: what each job of an active version has to do, what came lately, what is stopped.

It is read every second by whoever watches, so its cost follows what is live and what came in the window, never what is
stored: open tasks are counted by the index of the live ones, tasks of the window by their ids, which start with the
time, and events backwards from the newest in growing steps until one is older. The window is an hour at most.

All jobs share one budget (`paging.LOOKED_AT` rows of each kind): at first each job is counted up to an equal share of
it, and no less than `_LEAST`; then those that have more are counted again, up to what the others have left over, and
no further than `CAP`. Of the live tasks of a job twice as many are looked at.

The counts are of one snapshot and so of one moment. Finished tasks are counted nowhere; who looks twice knows
how many there were: those made, less those by which the open ones became more.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.predicates import is_finally_failed, is_open, is_ready, lacks_rows
from tracelake.dispatcher.records import to_struct
from tracelake.dispatcher.views.dags import dag_exists
from tracelake.dispatcher.views.given_up import count_given_up
from tracelake.dispatcher.views.paging import CAP, LOOKED_AT
from tracelake.dispatcher.views.pressure import list_pressure, read_pressure
from tracelake.dispatcher.views.sources import list_sources
from tracelake.dispatcher.views.tasks import first_id
from tracelake.errors import TraceError
from tracelake.wire.overview import CountName, JobLoad, OverviewReply

WINDOW = timedelta(seconds=10)
"""Without a `since`."""
LONGEST_WINDOW = timedelta(hours=1)

_LEAST = 100
_FIRST_STEP, _LARGEST_STEP = 16, 4096

# How many there are to share the budget.
_SHARERS = """
    SELECT trace_now() AS now, count(DISTINCT v.job_id) AS jobs, count(o.job_id) AS outputs
    FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version
    LEFT JOIN job_outputs o ON o.job_id = v.job_id
    WHERE d.org_id = $1 AND ($2::text IS NULL OR d.dag_name = $2)"""

_LIVE = "task_id, status, held, ready_at, next_retry_at, skipped_at"

# A definition that differs in limits alone is another row of the same node, and the node's tasks are the job's.
# Of its live tasks the oldest and the newest are looked at: many failed ones do not hide a queue behind them, nor a
# long queue what failed before it.
_JOBS = f"""
    SELECT d.dag_name AS dag, j.name AS job, j.job_id, j.document #>> '{{source,kind}}' AS source, trace_now() AS now,
           made.made, said.events, open.*, {count_given_up("j.node_id")} AS gaps, letters.batches AS dead_letters
    FROM dags d JOIN dag_version_jobs v ON v.dag_version_id = d.active_version JOIN jobs j ON j.job_id = v.job_id
    CROSS JOIN LATERAL (
        SELECT array_agg(s.job_id) AS ids
        FROM (SELECT n.job_id FROM jobs n WHERE n.node_id = j.node_id UNION SELECT j.job_id) s) same
    CROSS JOIN LATERAL (
        SELECT count(*) AS made FROM (
            SELECT FROM unnest(same.ids) AS i(job_id) CROSS JOIN LATERAL (
                SELECT FROM tasks t WHERE t.job_id = i.job_id AND t.task_id >= $3 LIMIT $5 + 1) t
            LIMIT $5 + 1) m) made
    CROSS JOIN LATERAL (
        SELECT sum(c.looked_at)::bigint AS looked_at, bool_or(c.looked_at > 2 * $5) AS cut,
               sum(c.ready)::bigint AS ready, sum(c.running)::bigint AS running, sum(c.held)::bigint AS held,
               sum(c.retrying)::bigint AS retrying, sum(c.failed)::bigint AS failed,
               min(c.oldest_ready_at) AS oldest_ready_at
        FROM unnest(same.ids) AS i(job_id) CROSS JOIN LATERAL (
            WITH oldest AS MATERIALIZED (
                SELECT {_LIVE} FROM tasks
                WHERE job_id = i.job_id AND {is_open()} ORDER BY task_id LIMIT $5)
            SELECT count(*) AS looked_at, count(*) FILTER (WHERE {is_ready("t")}) AS ready,
                   count(*) FILTER (WHERE t.status = 'Running') AS running, count(*) FILTER (WHERE t.held) AS held,
                   count(*) FILTER (WHERE t.next_retry_at IS NOT NULL) AS retrying,
                   count(*) FILTER (WHERE {is_finally_failed("t")}) AS failed,
                   min(t.ready_at) FILTER (WHERE NOT t.held) AS oldest_ready_at
            FROM (
                SELECT * FROM oldest UNION ALL (
                    SELECT {_LIVE} FROM tasks
                    WHERE job_id = i.job_id AND {is_open()}
                      AND task_id > (SELECT o.task_id FROM oldest o ORDER BY o.task_id DESC LIMIT 1)
                    ORDER BY task_id DESC LIMIT $5 + 1)) t) c) open
    CROSS JOIN LATERAL (
        WITH RECURSIVE walk AS (
            SELECT o.dataset_uuid, {2**63 - 1}::bigint AS below, 0::bigint AS fresh, {_FIRST_STEP}::bigint AS step,
                   true AS more
            FROM job_outputs o WHERE o.job_id = j.job_id
            UNION ALL
            SELECT w.dataset_uuid, c.below, w.fresh + c.fresh,
                   least(w.step * 4, {_LARGEST_STEP}, $5 + 1 - w.fresh - c.fresh),
                   c.fresh = w.step AND w.fresh + c.fresh <= $5
            FROM walk w CROSS JOIN LATERAL (
                SELECT min(e.event_id) AS below, count(*) FILTER (WHERE e.created_at >= $2) AS fresh
                FROM (
                    SELECT event_id, created_at FROM events
                    WHERE dataset_uuid = w.dataset_uuid AND event_id < w.below
                    ORDER BY event_id DESC LIMIT w.step) e) c
            WHERE w.more)
        SELECT coalesce(sum(s.fresh), 0)::bigint AS events
        FROM (SELECT max(fresh) AS fresh FROM walk GROUP BY dataset_uuid) s) said
    CROSS JOIN LATERAL (
        SELECT count(*) AS batches FROM (
            SELECT FROM job_outputs o JOIN buffered_tables b USING (dataset_uuid)
            JOIN buffer_publishes p ON p.dataset_uuid = b.dataset_uuid AND {lacks_rows("p")}
            WHERE o.job_id = j.job_id LIMIT $5) p) letters
    WHERE d.org_id = $1 AND ($4::text IS NULL OR d.dag_name = $4)
      AND ($6::uuid[] IS NULL OR j.job_id = ANY($6))
    ORDER BY d.dag_name, j.name"""  # noqa: S608 - constants only


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewFilter:
    since: datetime | None = None
    dag: str | None = None


async def read_overview(
    connection: Connection, org_id: UUID, filters: OverviewFilter, serving_since: datetime
) -> OverviewReply:
    if filters.dag is not None and not await dag_exists(connection, org_id, filters.dag):
        raise TraceError("dag_not_found")
    sharers = await connection.fetchrow(_SHARERS, org_id, filters.dag)
    assert sharers is not None
    now: datetime = sharers["now"]
    since = now - WINDOW if filters.since is None else max(filters.since, now - LONGEST_WINDOW)
    async with connection.transaction(isolation="repeatable_read", readonly=True):
        rows = await _read_loads(connection, org_id, since, filters.dag, max(sharers["jobs"], sharers["outputs"]))
    stops = await read_pressure(connection, org_id)
    pressure = await list_pressure(connection, org_id, stops)
    sources = await list_sources(connection, org_id, stops)
    return OverviewReply(
        now=min((row["now"] for row, _ in rows), default=now),
        since=since,
        serving_since=serving_since,
        jobs=[_load(row, cap) for row, cap in rows],
        queues=[queue for queue in pressure.queues if filters.dag in (None, queue.dag)],
        stopped=[edge for edge in pressure.edges if edge.state != "open" and filters.dag in (None, edge.dag)],
        sources=[source for source in sources.sources if filters.dag in (None, source.dag)],
    )


async def _read_loads(
    connection: Connection, org_id: UUID, since: datetime, dag: str | None, sharers: int
) -> list[tuple[asyncpg.Record, int]]:
    """Reads every job, each with the number up to which it was counted."""
    share = _share(LOOKED_AT, sharers)
    arguments = (org_id, since, first_id(since), dag)
    rows = await connection.fetch(_JOBS, *arguments, share, None)
    more = [row["job_id"] for row in rows if _cut(row, share)]
    spent = sum(max(_counted(row)) for row in rows)
    larger = min(CAP, share + max(0, LOOKED_AT - spent) // max(len(more), 1))
    if not more or larger == share:
        return [(row, share) for row in rows]
    again = {row["job_id"]: row for row in await connection.fetch(_JOBS, *arguments, larger, more)}
    return [(again[row["job_id"]], larger) if row["job_id"] in again else (row, share) for row in rows]


def _share(budget: int, sharers: int) -> int:
    return min(CAP, max(_LEAST, budget // max(sharers, 1)))


def _counted(row: asyncpg.Record) -> tuple[int, ...]:
    """Counts the rows of each kind that were looked at; two live tasks count as one."""
    return row["made"], row["events"], (row["looked_at"] or 0) // 2


def _cut(row: asyncpg.Record, cap: int) -> list[CountName]:
    """Names the counts that stopped early."""
    window: tuple[CountName, ...] = ("made", "events")
    live: tuple[CountName, ...] = ("ready", "running", "held", "retrying", "failed")
    letters: tuple[CountName, ...] = ("dead_letters",) if row["dead_letters"] >= cap else ()
    return [*(name for name in window if row[name] > cap), *(live if row["cut"] else ()), *letters]


def _load(row: asyncpg.Record, cap: int) -> JobLoad:
    oldest: datetime | None = row["oldest_ready_at"]
    return to_struct(
        JobLoad,
        row,
        made=min(row["made"], cap),
        events=min(row["events"], cap),
        oldest_ready_seconds=None if oldest is None else max(0.0, (row["now"] - oldest).total_seconds()),
        cut=_cut(row, cap),
    )

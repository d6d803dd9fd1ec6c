"""Gauges: what the metrics say about the stores, refreshed now and then, so that a scrape costs no query.

A look costs the same however much is stored: every statement goes along an index over what is not done yet, and counts
no further than a bound (`MOST` and the limits in the statements). While a store is away the gauges keep what they said
last, and `trace_loop_failures_total{loop="gauges"}` rises.
"""

import math
from collections import Counter
from datetime import datetime
from typing import get_args
from uuid import UUID

import asyncpg
from prometheus_client import Gauge

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.engine.pressure.levels import Thresholds, share
from tracelake.dispatcher.engine.pressure.watch import PressureWatch
from tracelake.dispatcher.loops.named import Named
from tracelake.dispatcher.metrics import MOST, MOST_EDGES, MOST_OF_EDGE, Metrics
from tracelake.dispatcher.outbox.admin import OUTBOX_COUNTS
from tracelake.dispatcher.predicates import awaits_sink, has_threshold, is_finally_failed, is_ready, lacks_rows
from tracelake.dispatcher.views.freshness import NEWEST_TIMES
from tracelake.dispatcher.views.sources import SourceHealth, read_health
from tracelake.ports import Queue, unavailable_without_queue
from tracelake.wire.sources_view import RunState

_IN_FLIGHT = """
    SELECT j.operator, count(*) AS running FROM tasks t JOIN jobs j USING (job_id)
    WHERE t.status = 'Running' GROUP BY j.operator"""

# Each in the order of its index.
_TASKS = f"""
    SELECT r.ready, r.oldest, h.held, w.retrying, f.failed, trace_now() AS now FROM
        (SELECT count(*) AS ready, min(ready_at) AS oldest FROM (
            SELECT ready_at FROM tasks WHERE {is_ready()}
            ORDER BY ready_at, task_id LIMIT {MOST}) t) r,
        (SELECT count(*) AS held FROM (
            SELECT FROM tasks WHERE held ORDER BY held_by, org_id, ready_at, task_id LIMIT {MOST}) t) h,
        (SELECT count(*) AS retrying FROM (
            SELECT FROM tasks WHERE next_retry_at IS NOT NULL ORDER BY next_retry_at LIMIT {MOST}) t) w,
        (SELECT count(*) AS failed FROM (
            SELECT FROM tasks WHERE {is_finally_failed()}
            ORDER BY job_id, task_id LIMIT {MOST}) t) f"""  # noqa: S608 - constants only

_EDGES = """
    SELECT CASE WHEN failed_units > 0 THEN 'held' WHEN phase = 'Staged' THEN 'building' ELSE 'behind' END AS state,
           count(*) AS edges
    FROM edges WHERE position IS NOT NULL AND phase <> 'Parked' GROUP BY 1"""

_EVENTS = f"""
    SELECT e.state, sum(w.events)::bigint AS events FROM (
        SELECT CASE WHEN failed_units > 0 THEN 'held' WHEN phase = 'Staged' THEN 'building' ELSE 'behind' END AS state,
               dataset_uuid, dataset_version, position
        FROM edges WHERE position IS NOT NULL AND phase <> 'Parked' ORDER BY org_id, node_id LIMIT {MOST_EDGES}) e
    CROSS JOIN LATERAL (
        SELECT count(*) AS events FROM (
            SELECT FROM events v
            WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version
              AND v.routed_seq > e.position
            ORDER BY v.routed_seq LIMIT $1) x) w
    GROUP BY e.state"""  # noqa: S608 - constants only

_FAILED_UNITS = """
    SELECT o.name AS org, n.dag_name, n.job_name, sum(e.failed_units)::bigint AS units
    FROM edges e JOIN nodes n USING (node_id) JOIN orgs o ON o.org_id = e.org_id
    WHERE e.position IS NOT NULL AND e.phase <> 'Parked' AND e.failed_units > 0
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3 LIMIT 100"""

# The checks of active versions of which the newest commit or block of the dataset is too old.
_LATE = f"""
    SELECT org, dataset, max(late) AS late FROM (
        SELECT o.name AS org, d.name AS dataset, (extract(epoch FROM trace_now() - coalesce(
                   CASE WHEN c.entry ->> 'age_of' = 'data' THEN data_at ELSE committed_at END, g.created_at))
               - (c.entry ->> 'max_age_seconds')::float8)::float8 AS late
        FROM dags a JOIN orgs o USING (org_id) JOIN dag_version_jobs v ON v.dag_version_id = a.active_version
        JOIN jobs j USING (job_id)
        CROSS JOIN LATERAL json_array_elements(j.document -> 'checks') AS c(entry)
        JOIN job_outputs u ON u.job_id = j.job_id AND u.output_index = coalesce((c.entry ->> 'output_index')::int, 0)
        JOIN datasets d USING (dataset_uuid) JOIN dataset_versions g USING (dataset_uuid, dataset_version)
        {NEWEST_TIMES}
        WHERE j.document -> 'checks' IS NOT NULL AND c.entry ->> 'kind' = 'freshness') l
    WHERE late > 0 GROUP BY 1, 2 ORDER BY 1, 2 LIMIT 100"""  # noqa: S608 - constants only

_WORK = """
    SELECT (SELECT count(*) FROM (SELECT FROM invalidation_work LIMIT 10000) w) AS invalidations,
           b.builds, b.oldest, trace_now() AS now,
           (SELECT count(*) FROM nodes WHERE sweep IS NOT NULL OR uncounted) AS to_sweep
    FROM (SELECT count(*) AS builds, min(requested_at) AS oldest FROM activations WHERE state = 'Building') b"""

_BACKLOG = f"""
    SELECT count(*) AS batches, min(released_at) AS oldest, trace_now() AS now FROM (
        SELECT released_at FROM buffer_publishes
        WHERE {awaits_sink()}
        ORDER BY released_at, publish_id LIMIT {MOST}) p"""  # noqa: S608 - constants only

# From the side of the tasks: few run at any time, and each is asked by its key.
_PINNED = f"""
    SELECT count(*) AS batches FROM (
        SELECT FROM tasks t JOIN buffer_publishes p ON p.task_id = t.task_id AND p.attempt = t.attempt
        WHERE t.status = 'Running' AND p.released_at IS NULL LIMIT {MOST}) p"""  # noqa: S608 - constants only

_LETTERS = f"""
    SELECT o.name AS org, d.name AS dataset, l.letters
    FROM (SELECT dataset_uuid, count(*) AS letters FROM (
              SELECT p.dataset_uuid FROM buffer_publishes p WHERE {lacks_rows("p")}
              ORDER BY p.dataset_uuid, p.dead_at, p.publish_id LIMIT {MOST}) p
          GROUP BY dataset_uuid ORDER BY dataset_uuid LIMIT 100) l
    JOIN datasets d USING (dataset_uuid) JOIN orgs o USING (org_id)
    WHERE d.removed_at IS NULL"""  # noqa: S608 - constants only

_SINK = "SELECT max(at) AS asked_at, trace_now() AS now FROM sinks_seen"

_SOURCES = """
    SELECT s.node_id, i.last_slot, extract(epoch FROM trace_now() - i.paused_at)::float8 AS paused, last.said_at,
           trace_now() AS now
    FROM unnest($1::uuid[], $2::uuid[]) AS s(node_id, job_id)
    LEFT JOIN source_state i ON i.node_id = s.node_id
    LEFT JOIN LATERAL (
        SELECT max(e.created_at) AS said_at FROM job_outputs o CROSS JOIN LATERAL (
            SELECT v.created_at FROM events v
            WHERE v.dataset_uuid = o.dataset_uuid AND v.dataset_version = o.dataset_version
              AND v.routed_seq IS NOT NULL
            ORDER BY v.routed_seq DESC LIMIT 1) e
        WHERE o.job_id = s.job_id) last ON true"""

_QUEUES = """
    SELECT node_id, max_depth, max_age_seconds, depth, oldest_ready_at, level, trace_now() AS now
    FROM pressure WHERE node_id = ANY($1)"""

_BACKLOGS = f"""
    SELECT o.name AS org, coalesce(d.dag_name, '') AS dag, d.name AS dataset, t.max_depth, t.max_age_seconds, t.depth,
           t.level, trace_now() AS now, (
               SELECT p.released_at FROM buffer_publishes p
               WHERE p.dataset_uuid = t.dataset_uuid
                 AND {awaits_sink("p")}
               ORDER BY p.released_at LIMIT 1) AS oldest_ready_at
    FROM buffered_tables t JOIN datasets d USING (dataset_uuid) JOIN orgs o ON o.org_id = t.org_id
    WHERE d.removed_at IS NULL AND {has_threshold("t")}"""  # noqa: S608

EDGE_STATES = ("held", "building", "behind")


class Gauges:
    def __init__(self, store: Store, queue: Queue, metrics: Metrics, pressure: PressureWatch) -> None:
        self._store = store
        self._queue = queue
        self._metrics = metrics
        self._pressure = pressure
        self._labels = Named()

    async def run_once(self) -> int:
        async with self._store.connection() as connection:
            await self._labels.look(connection)
            await self._read_tasks(connection)
            await self._read_outbox(connection)
            await self._read_edges(connection)
            await self._read_buffers(connection)
            await self._read_late(connection)
            await self._read_sources(connection)
            await self._read_pressure(connection)
        await self._read_queue()
        return 0

    async def _read_tasks(self, connection: Connection) -> None:
        running = await connection.fetch(_IN_FLIGHT)
        row = await _row(connection, _TASKS)
        tasks = self._metrics.tasks
        for state in ("ready", "held", "retrying", "failed"):
            tasks.labels(state).set(row[state])
        tasks.labels("running").set(sum(item["running"] for item in running))
        self._metrics.oldest_ready.set(_age(row["now"], row["oldest"]))
        self._metrics.in_flight.clear()
        for item in running:
            self._metrics.in_flight.labels(item["operator"]).set(item["running"])

    async def _read_outbox(self, connection: Connection) -> None:
        row = await _row(connection, OUTBOX_COUNTS)
        self._metrics.outbox_pending.set(row["pending"])
        self._metrics.outbox_failed.set(row["failed"])
        self._metrics.outbox_lag.set(_age(row["now"], row["oldest"]))

    async def _read_edges(self, connection: Connection) -> None:
        edges = {row["state"]: row["edges"] for row in await connection.fetch(_EDGES)}
        events = await connection.fetch(_EVENTS, _waiting_each(sum(edges.values()))) if edges else []
        waiting = {row["state"]: row["events"] for row in events}
        failed = await connection.fetch(_FAILED_UNITS) if "held" in edges else []
        work = await _row(connection, _WORK)
        for state in EDGE_STATES:
            self._metrics.edges_behind.labels(state).set(edges.get(state, 0))
            self._metrics.events_waiting.labels(state).set(waiting.get(state, 0))
        self._metrics.failed_units.clear()
        for row in failed:
            self._metrics.failed_units.labels(row["org"], row["dag_name"], row["job_name"]).set(row["units"])
        self._metrics.invalidations.set(work["invalidations"])
        self._metrics.builds.set(work["builds"])
        self._metrics.oldest_build.set(_age(work["now"], work["oldest"]))
        self._metrics.sweeping.set(work["to_sweep"])

    async def _read_buffers(self, connection: Connection) -> None:
        backlog, sink = await _row(connection, _BACKLOG), await _row(connection, _SINK)
        letters = await connection.fetch(_LETTERS)
        self._metrics.buffer_backlog.set(backlog["batches"])
        self._metrics.buffer_pinned.set((await _row(connection, _PINNED))["batches"])
        self._metrics.buffer_age.set(_age(backlog["now"], backlog["oldest"]))
        never = sink["asked_at"] is None
        self._metrics.sink_asked.set(math.inf if never else _age(sink["now"], sink["asked_at"]))
        self._metrics.buffer_letters.clear()
        for row in letters:
            self._metrics.buffer_letters.labels(row["org"], row["dataset"]).set(row["letters"])

    async def _read_late(self, connection: Connection) -> None:
        rows = await connection.fetch(_LATE)
        self._metrics.stale_datasets.clear()
        for row in rows:
            self._metrics.stale_datasets.labels(row["org"], row["dataset"]).set(row["late"])

    async def _read_sources(self, connection: Connection) -> None:
        sources = self._labels.sources
        nodes, jobs = [source.node_id for source in sources], [source.job_id for source in sources]
        rows = {row["node_id"]: row for row in await connection.fetch(_SOURCES, nodes, jobs)}
        runs = {run.node_id: run for run in await read_health(connection)}
        self._set_runs(list(runs.values()))
        states: Counter[tuple[str, str]] = Counter()
        metrics = self._metrics
        for gauge in (
            metrics.sources,
            metrics.source_said,
            metrics.source_paused,
            metrics.source_stopped,
            metrics.cron_slot,
            metrics.cron_overdue,
        ):
            gauge.clear()
        for source in sources:
            row = rows[source.node_id]
            states[source.kind, self._state(source.node_id, runs.get(source.node_id), row["paused"])] += 1
            if row["said_at"] is not None:
                metrics.source_said.labels(*source.name, source.kind).set(row["said_at"].timestamp())
            if row["paused"] is not None:
                metrics.source_paused.labels(*source.name).set(max(0.0, row["paused"]))
            if source.slots is not None and row["last_slot"] is not None:
                metrics.cron_slot.labels(*source.name).set(row["last_slot"].timestamp())
            if source.slots is not None and source.owed_since is not None:
                due = source.slots.after(max(source.owed_since, row["last_slot"] or source.owed_since))
                metrics.cron_overdue.labels(*source.name).set(_age(row["now"], due))
            if row["paused"] is None and self._pressure.is_stopped(source.node_id):
                metrics.source_stopped.labels(*source.name).set(1)
        for (kind, state), number in states.items():
            metrics.sources.labels(kind, state).set(number)

    def _state(self, node_id: UUID, run: SourceHealth | None, paused: float | None) -> str:
        """In the words of `trace sources`."""
        state = "waiting" if run is None else run.state
        if state in ("dead", "ended", "stopping"):
            return state
        if paused is not None:
            return "paused"
        return "stopped" if state in ("running", "waiting") and self._pressure.is_stopped(node_id) else state

    def _set_runs(self, runs: list[SourceHealth]) -> None:
        metrics = self._metrics
        states = Counter(run.state for run in runs)
        for state in get_args(RunState):
            metrics.always_on.labels(state).set(states[state])
        followers: dict[Gauge, str] = {
            metrics.follower_lag_blocks: "lag_blocks",
            metrics.follower_lag: "lag_seconds",
            metrics.follower_announced: "announced",
            metrics.follower_reorgs: "reorgs",
            metrics.follower_last_depth: "last_reorg_depth",
            metrics.follower_max_depth: "max_reorg_depth",
        }
        for gauge in (metrics.run_state, metrics.run_attempts, metrics.source_lag, metrics.follower_state, *followers):
            gauge.clear()
        for run in runs:
            name = (run.org, run.dag, run.job)
            metrics.run_state.labels(*name, run.state).set(1)
            metrics.run_attempts.labels(*name).set(run.attempts)
            if run.lag_seconds is not None:
                metrics.source_lag.labels(*name).set(run.lag_seconds)
            if run.progress is None:
                continue
            metrics.follower_state.labels(*name, run.progress.state).set(1)
            for gauge, field in followers.items():
                if (value := getattr(run.progress, field)) is not None:
                    gauge.labels(*name).set(value)

    async def _read_pressure(self, connection: Connection) -> None:
        metrics, queues = self._metrics, self._labels.queues
        rows = await connection.fetch(_QUEUES, list(queues)) if queues else []
        limited = [(queues[row["node_id"]], row) for row in rows]
        backlogs = await connection.fetch(_BACKLOGS)
        limited += [((row["org"], row["dag"], row["dataset"], "backlog"), row) for row in backlogs]
        metrics.producers_stopped.set(self._pressure.stopped)
        values: dict[Gauge, str] = {
            metrics.pressure_depth: "depth",
            metrics.pressure_max_depth: "max_depth",
            metrics.pressure_max_age: "max_age_seconds",
            metrics.pressure_level: "level",
        }
        for gauge in (*values, metrics.pressure_age, metrics.pressure_share):
            gauge.clear()
        for labels, row in limited:
            for gauge, column in values.items():
                if row[column] is not None:
                    gauge.labels(*labels).set(row[column])
            age = _age(row["now"], row["oldest_ready_at"]) if row["depth"] else 0.0
            part = share(Thresholds(row["max_depth"], row["max_age_seconds"]), row["depth"], age)
            metrics.pressure_age.labels(*labels).set(age)
            metrics.pressure_share.labels(*labels).set(float(part))

    async def _read_queue(self) -> None:
        with unavailable_without_queue():
            depths = await self._queue.depths()
        self._metrics.queue_depth.clear()
        self._metrics.queue_oldest.clear()
        for depth in depths:
            self._metrics.queue_depth.labels(depth.queue, "ready").set(depth.ready)
            self._metrics.queue_depth.labels(depth.queue, "in_flight").set(depth.in_flight)
            self._metrics.queue_depth.labels(depth.queue, "dead").set(depth.dead)
            self._metrics.queue_oldest.labels(depth.queue).set(depth.oldest_ready_seconds)


async def _row(connection: Connection, statement: str) -> asyncpg.Record:
    row = await connection.fetchrow(statement)
    assert row is not None
    return row


def _waiting_each(edges: int) -> int:
    """How far to count the events that wait for one edge: its share of all that are counted."""
    return min(MOST_OF_EDGE, MOST // min(edges, MOST_EDGES))


def _age(now: datetime, since: datetime | None) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())

"""Backpressure for people: every queue that has a threshold, and every edge that it stops or could stop.

Who is stopped is stored nowhere; it is asked here as whoever routes asks it, of the same map and the same levels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.engine.pressure.levels import Level, Thresholds, share
from tracelake.dispatcher.engine.pressure.upstream import Stops, Upstream, UpstreamDirectory, read_stops
from tracelake.dispatcher.predicates import awaits_sink, has_threshold, in_removed_dag, is_open
from tracelake.dispatcher.quotas.book import Overuse, QuotaBook
from tracelake.dispatcher.records import columns, to_struct
from tracelake.dispatcher.views.paging import CAP
from tracelake.dispatcher.views.shared import EDGE_COLUMNS
from tracelake.dispatcher.views.words import full_state
from tracelake.dispatcher.views.words import since as since_words
from tracelake.wire.pressure import PressureEdgeRow, PressureReply, PressureState, QueueRow

LOOKED_AT = 1000
"""Queued tasks, the ones made first, among which the oldest is looked for."""

# Of active versions or are being built; a job that both have is one queue, and counts. The row's own note of
# the oldest is as old as the last look of the loop that keeps it, so the tasks are asked.
_QUEUES = f"""
    SELECT DISTINCT ON (p.node_id) p.node_id, p.depth, p.max_depth, p.max_age_seconds, p.level, p.since,
           d.dag_name, j.name, v.dag_version_id = d.active_version AS active, trace_now() AS now, (
               SELECT min(t.ready_at) FROM jobs s CROSS JOIN LATERAL (
                   SELECT r.ready_at FROM tasks r
                   WHERE r.job_id = s.job_id AND {is_open("r")}
                     AND r.status = 'Queued' AND r.counted ORDER BY r.task_id LIMIT {LOOKED_AT}) t
               WHERE s.node_id = p.node_id) AS oldest_ready_at
    FROM dags d JOIN dag_version_jobs v ON v.dag_version_id IN (d.active_version, d.building_version)
    JOIN jobs j ON j.job_id = v.job_id JOIN pressure p ON p.node_id = j.node_id
    WHERE d.org_id = $1 AND p.org_id = $1 AND {has_threshold("p")}
    ORDER BY p.node_id, active DESC NULLS LAST"""  # noqa: S608 - constants only

_EDGES = f"""
    SELECT n.dag_name AS dag, n.job_name AS job, e.node_id, e.dataset_uuid, j.priority, {EDGE_COLUMNS}
    FROM edges e JOIN nodes n USING (node_id) JOIN jobs j ON j.job_id = e.job_id
    JOIN datasets d USING (dataset_uuid)
    WHERE e.org_id = $1 AND e.phase <> 'Parked' AND (e.node_id = ANY($2) OR (e.dataset_uuid, e.dataset_version) IN (
        SELECT * FROM unnest($3::uuid[], $4::uuid[])))
    ORDER BY n.dag_name, n.job_name, e.input_index, e.phase"""  # noqa: S608 - constants only

# Tasks that wait for a place of a limit; the depth counts them too. Counted no further than the cap.
_HELD = f"""
    SELECT q.node_id, (
        SELECT count(*) FROM (
            SELECT FROM jobs s JOIN tasks t ON t.job_id = s.job_id
            WHERE s.node_id = q.node_id AND {is_open("t")} AND t.held
            LIMIT {CAP}) h) AS held
    FROM unnest($1::uuid[]) AS q(node_id)"""  # noqa: S608 - constants only

_BACKLOGS = f"""
    SELECT t.dataset_uuid AS node_id, t.depth, t.max_depth, t.max_age_seconds, t.level, t.since,
           coalesce(d.dag_name, '') AS dag_name, d.name,
           true AS active, trace_now() AS now, (
               SELECT min(p.released_at) FROM buffer_publishes p
               WHERE p.dataset_uuid = t.dataset_uuid
                 AND {awaits_sink("p")}
           ) AS oldest_ready_at
    FROM buffered_tables t JOIN datasets d USING (dataset_uuid)
    WHERE t.org_id = $1 AND d.removed_at IS NULL AND {has_threshold("t")}"""  # noqa: S608

_PAUSED = f"""
    SELECT s.node_id, n.dag_name, n.job_name, s.paused_by, s.paused_at, trace_now() AS now
    FROM source_state s JOIN nodes n USING (node_id) WHERE s.org_id = $1 AND s.paused_at IS NOT NULL
      AND NOT {in_removed_dag("n")}"""  # noqa: S608 - constants only

_STATES: dict[Level, Literal["open", "bulk_stopped", "stopped"]] = {
    Level.NONE: "open",
    Level.BULK: "bulk_stopped",
    Level.ALL: "stopped",
}


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """A queue with a threshold, as it is now."""

    node_id: UUID
    name: str
    building: bool
    depth: int
    thresholds: Thresholds
    age_seconds: float
    level: Level
    since: datetime | None
    now: datetime
    backlog: bool = False
    """Batches of a buffered dataset, not tasks of a job."""

    @property
    def subject(self) -> str:
        """What `trace why` takes: the job, or the dataset."""
        return self.name.partition("/")[2] if self.backlog else self.name

    @property
    def full(self) -> float:
        return float(share(self.thresholds, self.depth, self.age_seconds))

    @property
    def has_no_room(self) -> bool:
        """Whether it lets in nothing that is behind: that is let in by the number of free places."""
        return self.thresholds.max_depth is not None and self.depth >= self.thresholds.max_depth

    @property
    def words(self) -> str:
        return f"{f'the backlog of {self.subject}' if self.backlog else self.name} is {self.state_words}"

    @property
    def state_words(self) -> str:
        limits = self.thresholds
        return full_state(
            self.depth,
            limits.max_depth,
            self.age_seconds,
            limits.max_age_seconds,
            noun="batches" if self.backlog else "queued",
            bulk_alone=self.level is Level.BULK and not self.has_no_room,
            lasted=None if self.since is None else since_words(self.since, self.now),
        )


@dataclass(frozen=True, slots=True)
class Pause:
    """A source that a person paused."""

    name: str
    by: str
    at: datetime
    now: datetime

    @property
    def words(self) -> str:
        return f"{self.name} was paused by {self.by} {since_words(self.at, self.now)} ago"


@dataclass(frozen=True, slots=True)
class Cause:
    """What stops an edge or a source."""

    state: PressureState
    name: str
    """Of the queue's job, or of the source that is paused."""
    since: datetime | None
    words: str
    node_id: UUID
    dataset: str | None = None
    """Whose backlog it is, if it is one."""


@dataclass(frozen=True, slots=True)
class Pressure:
    """All that stops work in an org at one moment, with the names and the reasons."""

    upstream: Upstream
    stops: Stops
    queues: Mapping[UUID, QueueLoad]
    paused: Mapping[UUID, Pause]
    overuse: Overuse | None = None
    """The quota that holds the whole org back."""

    def on_edge(self, consumer: UUID, generation: Generation, *, behind: bool) -> Cause | None:
        """Returns why no task is made from this edge. One that is behind also needs room in its own queue."""
        cause = self._cause(self.upstream.blocked_by(consumer, generation, self.stops))
        own = self.queues.get(consumer)
        if cause is None and behind and own is not None and own.has_no_room:
            return Cause("stopped", own.name, own.since, own.words, consumer)
        return cause

    def on_source(self, node: UUID) -> Cause | None:
        return self._cause(self.upstream.stopped_by(node, self.stops))

    def behind(self, consumer: UUID, generation: Generation) -> list[QueueLoad]:
        """The queues that could stop an edge, the fullest first: its own, those that the job leads to, and those that
        stop whoever writes the dataset. While one of its writers cannot be stopped, no other's queue matters."""
        reached = {consumer, *self.upstream.downstream.get(consumer, ())}
        if self.could_be_silent(generation):
            for writer in self.upstream.writers[generation]:
                reached.update(self.upstream.downstream.get(writer, ()))
        return sorted((self.queues[node] for node in reached if node in self.queues), key=lambda q: (-q.full, q.name))

    def could_be_silent(self, generation: Generation) -> bool:
        """Whether each of its writers is paused, or has a queue that could stop it."""
        writers = self.upstream.writers.get(generation, frozenset())
        return bool(writers) and all(
            writer in self.stops.paused or self.upstream.downstream.get(writer) for writer in writers
        )

    def _cause(self, node: UUID | None) -> Cause | None:
        if node is None:
            return None
        pause = self.paused.get(node)
        if pause is not None and node in self.stops.paused:
            return Cause("paused", pause.name, pause.at, pause.words, node)
        queue = self.queues.get(node)
        if queue is None:  # it eased, or its version went, between two statements
            return None
        state = _STATES[self.stops.levels.get(node, Level.NONE)]
        return Cause(state, queue.name, queue.since, queue.words, node, queue.subject if queue.backlog else None)


async def read_pressure(connection: Connection, org_id: UUID, quotas: QuotaBook | None = None) -> Pressure:
    upstream = await UpstreamDirectory().of(connection, org_id, 0)
    limited = {queue for reached in upstream.downstream.values() for queue in reached}
    stops = await read_stops(connection, limited, upstream.sources)
    queues = {row["node_id"]: _queue(row) for row in await connection.fetch(_QUEUES, org_id)}
    queues |= {row["node_id"]: _queue(row, backlog=True) for row in await connection.fetch(_BACKLOGS, org_id)}
    paused = {
        row["node_id"]: Pause(f"{row['dag_name']}/{row['job_name']}", row["paused_by"], row["paused_at"], row["now"])
        for row in await connection.fetch(_PAUSED, org_id)
    }
    return Pressure(upstream, stops, queues, paused, None if quotas is None else quotas.overuse(org_id))


async def list_pressure(connection: Connection, org_id: UUID, pressure: Pressure | None = None) -> PressureReply:
    """List the queues and edges of an org. `pressure` is what a larger view has read already."""
    pressure = pressure or await read_pressure(connection, org_id)
    fed = {*pressure.queues, *pressure.upstream.downstream}
    generations = [generation for generation in pressure.upstream.writers if pressure.could_be_silent(generation)]
    edges = await connection.fetch(_EDGES, org_id, list(fed), *columns(generations, 2))
    held_counts = {row["node_id"]: row["held"] for row in await connection.fetch(_HELD, list(pressure.queues))}
    return PressureReply(
        queues=_queue_rows(pressure.queues.values(), held_counts), edges=[_edge_row(pressure, row) for row in edges]
    )


def _queue(row: asyncpg.Record, *, backlog: bool = False) -> QueueLoad:
    oldest: datetime | None = row["oldest_ready_at"]
    age = 0.0 if oldest is None or not row["depth"] else max(0.0, (row["now"] - oldest).total_seconds())
    return QueueLoad(
        node_id=row["node_id"],
        name=f"{row['dag_name']}/{row['name']}",
        building=not row["active"],
        depth=row["depth"],
        thresholds=Thresholds(row["max_depth"], row["max_age_seconds"]),
        age_seconds=age,
        level=Level(row["level"]),
        since=row["since"],
        now=row["now"],
        backlog=backlog,
    )


def _queue_rows(queues: Iterable[QueueLoad], held_counts: Mapping[UUID, int]) -> list[QueueRow]:
    rows = []
    for queue in sorted(queues, key=lambda queue: (-queue.level, -queue.full, queue.name)):
        dag, _, job = queue.name.partition("/")
        rows.append(
            QueueRow(
                dag=dag,
                job=job,
                backlog=queue.backlog,
                building=queue.building,
                state=_STATES[queue.level],
                depth=queue.depth,
                held=held_counts.get(queue.node_id, 0),
                max_depth=queue.thresholds.max_depth,
                age_seconds=queue.age_seconds,
                max_age_seconds=queue.thresholds.max_age_seconds,
                since=queue.since,
                because=queue.words if queue.level else "",
            )
        )
    return rows


def _edge_row(pressure: Pressure, row: asyncpg.Record) -> PressureEdgeRow:
    generation = (row["dataset_uuid"], row["dataset_version"])
    cause = pressure.on_edge(row["node_id"], generation, behind=row["position"] is not None)
    behind = pressure.behind(row["node_id"], generation)
    led_to = {row["node_id"], *pressure.upstream.downstream.get(row["node_id"], ())}
    queue = next((queue for queue in behind if cause is None or queue.node_id == cause.node_id), None)
    figures: dict[str, object] = {"depth": 0, "age_seconds": 0.0}
    if queue is not None:
        figures = {"queue": queue.name, "queue_is_backlog": queue.backlog, "depth": queue.depth}
        figures |= {"age_seconds": queue.age_seconds, **asdict(queue.thresholds)}
    return to_struct(
        PressureEdgeRow,
        row,
        building=row["phase"] == "Staged",
        bulk=row["priority"] == "bulk",
        state="open" if cause is None else cause.state,
        queues=[queue.name for queue in behind],
        queues_of_writers=[queue.name for queue in behind if queue.node_id not in led_to],
        since=None if cause is None else cause.since,
        because="" if cause is None else cause.words,
        **figures,
    )

"""Whom a full queue stops: for every node, the limited queues downstream of it, and whether only `bulk` lies between.

Computed for a whole org at once and remembered until a deploy changes it; an org without thresholds and without sources
that are read has an empty map and pays nothing.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.engine.pressure.levels import Level
from tracelake.dispatcher.predicates import has_threshold

Stopped: TypeAlias = Literal["paused", "stopped"]
"""`paused` by a person, `stopped` by a full queue downstream."""

_LIMITED = f"""
    SELECT node_id FROM pressure
    WHERE org_id = $1 AND {has_threshold()}
    UNION ALL
    SELECT dataset_uuid FROM buffered_tables
    WHERE org_id = $1 AND {has_threshold()}"""  # noqa: S608

# Every reader of every generation that is active or being built, with the nodes that write it. A node has one job per
# set of limits; the active one says its priority, before one that is being built. What is being built stops
# no active producer: its drain gives it no more than it has room for, and the active version goes on meanwhile.
# The backlog of a buffered dataset is a queue too: whoever writes it feeds it. What is said of its table is the sink's
# word and nobody else's, so no writer that is stopped holds it back.
_EDGES = f"""
    SELECT w.node_id AS producer, p.priority, p.source, e.consumer, e.dataset_uuid, e.dataset_version, e.buffered
    FROM (SELECT e.node_id AS consumer, e.dataset_uuid, e.dataset_version, e.org_id, e.phase,
                 EXISTS (SELECT FROM buffered_tables t WHERE t.dataset_uuid = e.dataset_uuid) AS buffered
          FROM edges e WHERE e.org_id = $1 AND e.phase <> 'Parked'
          UNION ALL
          SELECT t.dataset_uuid, v.dataset_uuid, v.dataset_version, t.org_id, 'Active', true
          FROM buffered_tables t JOIN dataset_versions v USING (dataset_uuid)
          WHERE t.org_id = $1 AND {has_threshold("t")}) e
    JOIN (SELECT DISTINCT j.node_id, o.dataset_uuid, o.dataset_version FROM jobs j JOIN job_outputs o USING (job_id)
          WHERE j.org_id = $1 AND j.node_id IS NOT NULL) w USING (dataset_uuid, dataset_version)
    CROSS JOIN LATERAL (
        SELECT j.priority, j.document->'source' IS NOT NULL AS source, a.job_id IS NOT NULL AS active FROM jobs j
        LEFT JOIN dags d ON d.org_id = j.org_id AND d.dag_name = j.dag_name
        LEFT JOIN dag_version_jobs a ON a.dag_version_id = d.active_version AND a.job_id = j.job_id
        LEFT JOIN dag_version_jobs b ON b.dag_version_id = d.building_version AND b.job_id = j.job_id
        WHERE j.node_id = w.node_id
        ORDER BY a.job_id IS NULL, b.job_id IS NULL, j.created_at DESC, j.job_id DESC LIMIT 1) p
    WHERE NOT (e.phase = 'Staged' AND p.active)"""  # noqa: S608

_STOPS = """
    SELECT node_id, level::int FROM pressure WHERE node_id = ANY($1) AND level > 0
    UNION ALL
    SELECT dataset_uuid, level::int FROM buffered_tables WHERE dataset_uuid = ANY($1) AND level > 0
    UNION ALL
    SELECT node_id, NULL FROM source_state WHERE node_id = ANY($2) AND paused_at IS NOT NULL"""


@dataclass(frozen=True, slots=True)
class ProducerEdge:
    producer: UUID
    consumer: UUID
    generation: Generation
    bulk: bool
    """The producer is of the kind that is stopped first."""
    source: bool
    buffered: bool = False
    """Rows go through a sink: what is announced of them is its word, not the producer's."""


@dataclass(frozen=True, slots=True)
class Stops:
    """What stops work at one moment: the levels of full queues, and the sources that somebody paused."""

    levels: Mapping[UUID, Level] = field(default_factory=dict)
    paused: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True)
class Upstream:
    """The limited queues downstream of each node of an org. `downstream[node]`: queue -> is the node bulk?"""

    downstream: Mapping[UUID, Mapping[UUID, bool]] = field(default_factory=dict)
    writers: Mapping[Generation, frozenset[UUID]] = field(default_factory=dict)
    """Who makes a generation, where something could stop one of them."""
    sources: frozenset[UUID] = frozenset()
    """Those of them that a person may pause."""
    held_back: bool = False
    """The org has used up a quota: nobody makes anything new."""

    def stopped_by(self, node: UUID, stops: Stops) -> UUID | None:
        """What stops this producer: a queue, or the source itself when somebody paused it."""
        if node in stops.paused or self.held_back:
            return node
        for queue, bulk in self.downstream.get(node, {}).items():
            level = stops.levels.get(queue, Level.NONE)
            if level is Level.ALL or (level is Level.BULK and bulk):
                return queue
        return None

    def blocked_by(self, consumer: UUID, generation: Generation, stops: Stops) -> UUID | None:
        """Why no task of `consumer` may be made from this generation: it is stopped, or everybody who writes it is."""
        stopped = self.stopped_by(consumer, stops)
        if stopped is not None:
            return stopped
        writers = self.writers.get(generation, frozenset())
        causes = [self.stopped_by(writer, stops) for writer in sorted(writers)]
        return causes[0] if causes and None not in causes else None

    async def stops(self, connection: Connection, read: Iterable[tuple[UUID, Generation]]) -> Stops:
        """What stops any of these readers (node and generation) at this moment; no query where nothing could."""
        nodes: set[UUID] = set()
        for node, generation in read:
            nodes.add(node)
            nodes |= self.writers.get(generation, frozenset())
        queues = {queue for node in nodes for queue in self.downstream.get(node, ())}
        return await read_stops(connection, queues, nodes & self.sources)


async def read_stops(connection: Connection, queues: Collection[UUID], sources: Collection[UUID]) -> Stops:
    if not queues and not sources:
        return Stops()
    rows = await connection.fetch(_STOPS, list(queues), list(sources))
    levels = {row["node_id"]: Level(row["level"]) for row in rows if row["level"] is not None}
    return Stops(levels, frozenset(row["node_id"] for row in rows if row["level"] is None))


def build(edges: Collection[ProducerEdge], limited: Collection[UUID]) -> Upstream:
    """Follows the edges upstream from each limited queue. A bulk producer is stopped first, whatever lies between."""
    producers: dict[UUID, list[ProducerEdge]] = {}
    for edge in edges:
        producers.setdefault(edge.consumer, []).append(edge)
    downstream: dict[UUID, dict[UUID, bool]] = {}
    for queue in limited:
        reached: dict[UUID, bool] = {}
        waiting = [queue]
        while waiting:
            for edge in producers.get(waiting.pop(), ()):
                if edge.producer != queue and edge.producer not in reached:
                    reached[edge.producer] = edge.bulk
                    waiting.append(edge.producer)
        for node, bulk in reached.items():
            downstream.setdefault(node, {})[queue] = bulk
    sources = frozenset(edge.producer for edge in edges if edge.source)
    writers: dict[Generation, set[UUID]] = {}
    for edge in edges:
        if not edge.buffered:
            writers.setdefault(edge.generation, set()).add(edge.producer)
    return Upstream(
        downstream,
        {generation: frozenset(by) for generation, by in writers.items() if not by.isdisjoint({*downstream, *sources})},
        sources,
    )


class UpstreamDirectory:
    def __init__(self, held_back: Callable[[UUID], object] = lambda _org_id: None) -> None:
        """`held_back`: whether an org has used up a quota."""
        self._orgs: dict[UUID, tuple[int, Upstream]] = {}
        self._held_back = held_back

    async def of(self, connection: Connection, org_id: UUID, epoch: int) -> Upstream:
        upstream = await self._load(connection, org_id, epoch)
        return replace(upstream, held_back=True) if self._held_back(org_id) else upstream

    async def _load(self, connection: Connection, org_id: UUID, epoch: int) -> Upstream:
        cached = self._orgs.get(org_id)
        if cached is not None and cached[0] == epoch:
            return cached[1]
        limited = [row["node_id"] for row in await connection.fetch(_LIMITED, org_id)]
        upstream = build([_edge(row) for row in await connection.fetch(_EDGES, org_id)], limited)
        self._orgs[org_id] = (epoch, upstream)
        return upstream

    async def stopped(
        self, connection: Connection, org_id: UUID, epoch: int, nodes: Collection[UUID]
    ) -> dict[UUID, Stopped]:
        """Returns the producers of an org that should emit nothing now, and why."""
        upstream = await self.of(connection, org_id, epoch)
        queues = {queue for node in nodes for queue in upstream.downstream.get(node, ())}
        stops = await read_stops(connection, queues, nodes)
        causes = {node: upstream.stopped_by(node, stops) for node in nodes}
        return {
            node: "paused" if cause in stops.paused else "stopped"
            for node, cause in causes.items()
            if cause is not None
        }

    async def source_stopped(
        self, connection: Connection, org_id: UUID, epoch: int, node: UUID, *, paused: bool
    ) -> Stopped | None:
        """Returns the same for one source whose pause the caller knows; no query if no queue can stop it."""
        if paused:
            return "paused"
        upstream = await self.of(connection, org_id, epoch)
        stops = await read_stops(connection, upstream.downstream.get(node, {}).keys(), ())
        return None if upstream.stopped_by(node, stops) is None else "stopped"


def _edge(row: asyncpg.Record) -> ProducerEdge:
    generation = (row["dataset_uuid"], row["dataset_version"])
    return ProducerEdge(
        row["producer"], row["consumer"], generation, row["priority"] == "bulk", row["source"], row["buffered"]
    )

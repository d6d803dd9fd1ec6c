"""Whom a full queue stops: for every node, the limited queues downstream of it, and whether only `bulk` lies between.

Computed for a whole org at once and remembered until a deploy changes it; an org without thresholds has an empty map
and pays nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection
from tracelake.dispatcher.backpressure.levels import Level

_LIMITED = """
    SELECT node_id FROM pressure
    WHERE org_id = $1 AND (max_depth IS NOT NULL OR max_age_seconds IS NOT NULL)"""

# Every reader of every generation that counts or is being built, with the nodes that write it.
_EDGES = """
    SELECT v.node_id AS producer, p.priority, p.source, e.node_id AS consumer
    FROM edges e
    JOIN (SELECT DISTINCT j.node_id, o.dataset_uuid, o.dataset_version FROM jobs j JOIN job_outputs o USING (job_id)
          WHERE j.org_id = $1 AND j.node_id IS NOT NULL) v USING (dataset_uuid, dataset_version)
    CROSS JOIN LATERAL (
        SELECT j.priority, j.document->'source' IS NOT NULL AS source FROM jobs j
        WHERE j.node_id = v.node_id ORDER BY j.created_at DESC LIMIT 1) p
    WHERE e.org_id = $1 AND e.phase <> 'Parked'"""

_LEVELS = "SELECT node_id, level FROM pressure WHERE node_id = ANY($1) AND level > 0"


@dataclass(frozen=True, slots=True)
class Edge:
    producer: UUID
    consumer: UUID
    bulk: bool
    """The producer is of the kind that is stopped first."""
    source: bool


@dataclass(frozen=True, slots=True)
class Upstream:
    """For one org at one epoch. `downstream[node]`: limited queue -> is some way there all bulk?."""

    downstream: Mapping[UUID, Mapping[UUID, bool]] = field(default_factory=dict)
    sources: Mapping[UUID, tuple[UUID, ...]] = field(default_factory=dict)
    """For every consumer: the sources that feed it directly."""

    def watched(self, nodes: Iterable[UUID]) -> set[UUID]:
        """The queues whose levels decide about these nodes."""
        found: set[UUID] = set()
        for node in nodes:
            found.update(self.downstream.get(node, ()))
            for source in self.sources.get(node, ()):
                found.update(self.downstream.get(source, ()))
        return found

    def stopped(self, node: UUID, levels: Mapping[UUID, Level]) -> UUID | None:
        """The queue that stops this producer, if one does."""
        for queue, bulk in self.downstream.get(node, {}).items():
            level = levels.get(queue, Level.NONE)
            if level is Level.ALL or (level is Level.BULK and bulk):
                return queue
        return None

    def blocked(self, consumer: UUID, producers: Iterable[UUID], levels: Mapping[UUID, Level]) -> UUID | None:
        """Why no task of `consumer` may be made from what these producers say: it is stopped, or the source is."""
        for node in (consumer, *(item for item in producers if item in self.sources.get(consumer, ()))):
            queue = self.stopped(node, levels)
            if queue is not None:
                return queue
        return None


def build(edges: Collection[Edge], limited: Collection[UUID]) -> Upstream:
    """Breadth first from each limited queue, against the edges; a way through bulk producers alone is worth more."""
    producers: dict[UUID, list[Edge]] = {}
    for edge in edges:
        producers.setdefault(edge.consumer, []).append(edge)
    downstream: dict[UUID, dict[UUID, bool]] = {}
    for queue in limited:
        reached: dict[UUID, bool] = {}
        waiting: list[tuple[UUID, bool]] = [(queue, True)]
        while waiting:
            node, bulk = waiting.pop()
            for edge in producers.get(node, ()):
                all_bulk = bulk and edge.bulk
                if edge.producer == queue or reached.get(edge.producer) in (True, all_bulk):
                    continue
                reached[edge.producer] = all_bulk
                waiting.append((edge.producer, all_bulk))
        for node, bulk in reached.items():
            downstream.setdefault(node, {})[queue] = bulk
    sources: dict[UUID, set[UUID]] = {}
    for edge in edges:
        if edge.source:
            sources.setdefault(edge.consumer, set()).add(edge.producer)
    return Upstream(downstream, {node: tuple(sorted(found)) for node, found in sources.items()})


class UpstreamDirectory:
    def __init__(self) -> None:
        self._orgs: dict[UUID, tuple[int, Upstream]] = {}

    async def of(self, connection: Connection, org_id: UUID, epoch: int) -> Upstream:
        known = self._orgs.get(org_id)
        if known is not None and known[0] == epoch:
            return known[1]
        limited = [row["node_id"] for row in await connection.fetch(_LIMITED, org_id)]
        edges = [_edge(row) for row in await connection.fetch(_EDGES, org_id)] if limited else []
        upstream = build(edges, limited)
        self._orgs[org_id] = (epoch, upstream)
        return upstream


async def read_levels(connection: Connection, queues: Collection[UUID]) -> dict[UUID, Level]:
    if not queues:
        return {}
    rows = await connection.fetch(_LEVELS, list(queues))
    return {row["node_id"]: Level(row["level"]) for row in rows}


def _edge(row: asyncpg.Record) -> Edge:
    return Edge(row["producer"], row["consumer"], row["priority"] == "bulk", row["source"])

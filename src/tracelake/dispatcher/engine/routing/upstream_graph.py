"""Which nodes and generations stand behind a node: remembered until a deploy changes them."""

from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.model.dag import ReadMode, UnitGrid

_EDGES = """
    SELECT e.node_id, e.dataset_uuid, e.dataset_version, v.node_id AS producer,
           coalesce(j.document->'inputs'->e.input_index->>'read', 'unit') AS read, j.document->'units' AS units
    FROM edges e JOIN dataset_versions v USING (dataset_uuid, dataset_version) JOIN jobs j USING (job_id)
    WHERE e.org_id = $1 AND e.phase <> 'Parked' ORDER BY e.node_id, e.input_index"""

_EXTENDED_BY = frozenset((ReadMode.UNIT, ReadMode.WINDOW, ReadMode.HISTORY))
"""Inputs whose units become units of the output. Others are looked things up in."""
_GRID = msgspec.json.Decoder(UnitGrid | None)


class UpstreamInput(NamedTuple):
    generation: Generation
    read: ReadMode


@dataclass(eq=False)
class UpstreamGraph:
    """The active and building nodes of an org. Rows that went through a sink have no producer here."""

    inputs: dict[UUID, list[UpstreamInput]] = field(default_factory=dict)
    producers: dict[Generation, UUID] = field(default_factory=dict)
    grids: dict[UUID, UnitGrid] = field(default_factory=dict)
    _ancestors: dict[UUID, frozenset[UUID]] = field(default_factory=dict)

    def ancestors(self, node_id: UUID) -> frozenset[UUID]:
        """All nodes whose tasks may change what the node reads; never the node itself."""
        cached = self._ancestors.get(node_id)
        if cached is not None:
            return cached
        reached: set[UUID] = set()
        waiting = [node_id]
        while waiting:
            for item in self.inputs.get(waiting.pop(), ()):
                producer = self.producers.get(item.generation)
                if producer is not None and producer != node_id and producer not in reached:
                    reached.add(producer)
                    waiting.append(producer)
        self._ancestors[node_id] = frozenset(reached)
        return self._ancestors[node_id]

    def extents(self, node_id: UUID) -> list[Generation]:
        """The generations whose units become units of what the node makes."""
        return [
            item.generation
            for item in self.inputs.get(node_id, ())
            if item.read in _EXTENDED_BY and self.producers.get(item.generation) != node_id
        ]

    def grid_of(self, generation: Generation) -> UnitGrid | None:
        """The grid that a generation's units are on, if its job chose one; a job without follows its inputs."""
        reached: set[Generation] = set()
        waiting = [generation]
        while waiting:
            following = waiting.pop()
            producer = self.producers.get(following)
            if producer is None or following in reached:
                continue
            reached.add(following)
            if producer in self.grids:
                return self.grids[producer]
            waiting += self.extents(producer)
        return None

    def is_in_seconds(self, generation: Generation) -> bool:
        grid = self.grid_of(generation)
        return grid is not None and grid.by == "time"


class UpstreamGraphs:
    def __init__(self) -> None:
        self._orgs: dict[UUID, tuple[int, UpstreamGraph]] = {}

    async def of(self, connection: Connection, org_id: UUID, epoch: int) -> UpstreamGraph:
        cached = self._orgs.get(org_id)
        if cached is not None and cached[0] == epoch:
            return cached[1]
        graph = UpstreamGraph()
        for row in await connection.fetch(_EDGES, org_id):
            generation = (row["dataset_uuid"], row["dataset_version"])
            item = UpstreamInput(generation, ReadMode(row["read"]))
            graph.inputs.setdefault(row["node_id"], []).append(item)
            if row["producer"] is not None:
                graph.producers[generation] = row["producer"]
            grid = _GRID.decode(row["units"] or "null")
            if grid is not None:
                graph.grids[row["node_id"]] = grid
        self._orgs[org_id] = (epoch, graph)
        return graph

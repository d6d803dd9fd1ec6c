"""Which nodes and generations stand behind a node: remembered until a deploy changes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.model.dag import ReadMode, UnitGrid
from tracelake.model.windows import Window, shift_window, window_at

_EDGES = """
    SELECT e.node_id, e.dataset_uuid, e.dataset_version, v.node_id AS producer,
           coalesce(j.document->'inputs'->e.input_index->>'read', 'unit') AS read,
           coalesce((j.document->'inputs'->e.input_index->>'lookback')::int, 0) AS lookback,
           j.document->'units' AS units,
           EXISTS (SELECT FROM jobs s WHERE s.node_id = v.node_id AND s.document->'source'->>'kind' = 'cron')
           AS follows_clock
    FROM edges e JOIN dataset_versions v USING (dataset_uuid, dataset_version) JOIN jobs j USING (job_id)
    WHERE e.org_id = $1 AND e.phase <> 'Parked' ORDER BY e.node_id, e.input_index"""

_EXTENDED_BY = frozenset((ReadMode.UNIT, ReadMode.WINDOW, ReadMode.HISTORY))
"""Inputs whose units become units of the output. Others are looked things up in."""
_GRID = msgspec.json.Decoder(UnitGrid | None)


class UpstreamInput(NamedTuple):
    generation: Generation
    read: ReadMode
    lookback: int = 0


@dataclass(eq=False)
class UpstreamGraph:
    """The active and building nodes of an org. Rows that went through a sink have no producer here."""

    inputs: dict[UUID, list[UpstreamInput]] = field(default_factory=dict)
    producers: dict[Generation, UUID] = field(default_factory=dict)
    grids: dict[UUID, UnitGrid] = field(default_factory=dict)
    clocks: set[UUID] = field(default_factory=set)
    """Sources whose cursors are seconds."""
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

    def trace_back(self, node_id: UUID, direct: Mapping[UUID, Window]) -> dict[UUID, Window]:
        """For each ancestor, the range of its units that what the node reads is made from.

        `direct` are the ranges that the node reads of its producers. They widen on the way back: by the windows of each
        node, by lookback, and to the beginning where a node reads history or its own unit before. A range of blocks
        behind a range of seconds is not known here, so such ancestors are left out.
        """
        spans = dict(direct)
        for ancestor in sorted(self.ancestors(node_id), key=lambda node: (-len(self.ancestors(node)), node)):
            if ancestor not in spans:
                continue
            span, grid = spans[ancestor], self.grids.get(ancestor)
            if grid is not None:
                span = Window(window_at(grid, span.start).start, window_at(grid, span.end).end)
            inputs = self.inputs.get(ancestor, ())
            sequential = any(item.read is ReadMode.PREVIOUS for item in inputs)
            if sequential:  # a unit that is open brings along all behind it
                spans[ancestor] = Window(0, span.end)
            for item in inputs:
                producer = self.producers.get(item.generation)
                if producer in (None, ancestor) or self.counts_seconds(producer) != self.counts_seconds(ancestor):
                    continue
                start = span.start
                if sequential or item.read in (ReadMode.HISTORY, ReadMode.LATEST):
                    start = 0
                elif item.lookback and grid is not None:
                    start = shift_window(grid, Window(*span), -item.lookback).start
                other = spans.get(producer, Window(start, span.end))
                spans[producer] = Window(min(other.start, start), max(other.end, span.end))
        return spans

    def counts_seconds(self, node_id: UUID) -> bool:
        """Whether the units of a node are ranges of seconds: windows of time, or what lies between two slots."""
        grid = self.grids.get(node_id)
        if grid is not None:
            return grid.by == "time"
        return any(self.is_in_seconds(generation) for generation in self.extents(node_id))

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
        return self.follows_clock(generation) if grid is None else grid.by == "time"

    def follows_clock(self, generation: Generation) -> bool:
        """Whether every unit of the generation is one of a schedule: the seconds after a slot, up to the next one."""
        reached: set[Generation] = set()
        waiting = [generation]
        while waiting:
            following = waiting.pop()
            producer = self.producers.get(following)
            if following in reached or producer in self.clocks:
                continue
            extents = [] if producer is None else self.extents(producer)
            if not extents:
                return False
            reached.add(following)
            waiting += extents
        return True


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
            item = UpstreamInput(generation, ReadMode(row["read"]), row["lookback"])
            graph.inputs.setdefault(row["node_id"], []).append(item)
            if row["producer"] is not None:
                graph.producers[generation] = row["producer"]
                if row["follows_clock"]:
                    graph.clocks.add(row["producer"])
            grid = _GRID.decode(row["units"] or "null")
            if grid is not None:
                graph.grids[row["node_id"]] = grid
        self._orgs[org_id] = (epoch, graph)
        return graph

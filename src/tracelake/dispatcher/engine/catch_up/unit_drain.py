"""Goes through the pending units of nodes that a change has touched by the hundred, a page in each transaction."""

import logging
from dataclasses import dataclass
from uuid import UUID

from tracelake.db.transaction import Store
from tracelake.dispatcher.engine.catch_up.invalidation_drain import Room
from tracelake.dispatcher.engine.catch_up.pace import BackgroundPace
from tracelake.dispatcher.engine.plan import WritePlan
from tracelake.dispatcher.engine.routing import edges, pending_units
from tracelake.dispatcher.engine.routing.changed_units import AT_ONCE
from tracelake.dispatcher.engine.routing.directory import EdgeDirectory
from tracelake.dispatcher.engine.routing.router import RoutingScope
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.metrics import Metrics

logger = logging.getLogger(__name__)

_NODES_A_ROUND = 100

_STILL = "SELECT EXISTS (SELECT FROM edges WHERE node_id = $1 AND phase <> 'Parked')"


@dataclass(eq=False)
class UnitDrain:
    store: Store
    directory: EdgeDirectory
    writer: Writer
    room: Room
    metrics: Metrics
    pace: BackgroundPace
    _last: tuple[UUID, UUID] | None = None
    """Where the round ended that had more nodes than it took. The next one goes on behind it: nobody's nodes come first
    each time."""

    async def run_once(self) -> int:
        """Handles one page for each node that has units to be looked at; returns how many units."""
        async with self.store.connection() as connection:
            nodes = await pending_units.list_due_nodes(connection, _NODES_A_ROUND, self._last)
            if not nodes and self._last is not None:
                nodes = await pending_units.list_due_nodes(connection, _NODES_A_ROUND)
        self._last = nodes[-1] if len(nodes) == _NODES_A_ROUND else None
        return await self.pace.work_through(nodes, self._take_on)

    async def _take_on(self, place: tuple[UUID, UUID]) -> int:
        org_id, node_id = place
        async with self.store.transaction(routing=[org_id], wait=False) as connection:
            if not await connection.fetchval(_STILL, node_id):
                return 0
            consumer = (await self.directory.nodes(connection, [node_id]))[node_id]
            states = await edges.lock(connection, {(node_id, item.input_index) for item in consumer.inputs})
            page = min(AT_ONCE, self.pace.page(AT_ONCE))
            units = await pending_units.load_due(connection, org_id, node_id, page)
            scope = RoutingScope({}, states)
            for item in units:
                if not item.is_several:
                    scope.touched.add(consumer, item.unit)
            several = next((item for item in units if item.is_several), None)
            looked_at = len(units) - sum(item.is_several for item in units)
            for read in consumer.inputs if several is not None else ():
                page = min(page, await self.room(connection, org_id, consumer, read.input_index, page))
            if several is not None and page:  # there may be millions of windows: they wait for room in the queue
                changed_units = self.writer.router.changed_units
                await changed_units.touch_more(connection, consumer, several, scope.touched, page)
                looked_at += 1
            created_tasks = await self.writer.create_units(connection, WritePlan(), scope)
        self.metrics.created_tasks.labels("drain").inc(len(created_tasks))
        logger.debug("settled units", extra={"units": looked_at, "tasks": len(created_tasks)})
        return looked_at

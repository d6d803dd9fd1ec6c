"""The drain loop: shows stored events to edges that fell behind.

An edge falls behind when a failed unit held it, when its version was not active, or because it is new and has a history
to build from. It is shown the events of its generation in the order they were routed, a page in each transaction, and
is live again once none are left. What it was shown before makes no second task. Large invalidations are gone through in
the same rounds (see `catch_up.invalidation_drain`).
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.engine.catch_up.invalidation_drain import InvalidationDrain
from tracelake.dispatcher.engine.catch_up.pace import BackgroundPace
from tracelake.dispatcher.engine.catch_up.unit_drain import UnitDrain
from tracelake.dispatcher.engine.plan import RoutedEvent, WritePlan
from tracelake.dispatcher.engine.pressure.upstream import UpstreamDirectory
from tracelake.dispatcher.engine.routing import coverage, edges
from tracelake.dispatcher.engine.routing.directory import Consumer, EdgeDirectory
from tracelake.dispatcher.engine.routing.edges import EdgeState
from tracelake.dispatcher.engine.routing.router import EventRouter, RoutingScope
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.metrics import Metrics

logger = logging.getLogger(__name__)

PAGE = 200
"""A page holds its edge, and its wake-ups stand before everybody else's: larger ones drain a little faster, and whoever
has nothing to do with them waits for as much longer."""
_EDGES_A_ROUND = 100

_BEHIND = """
    SELECT org_id, node_id, input_index, dataset_uuid, dataset_version FROM edges
    WHERE position IS NOT NULL AND phase <> 'Parked' AND failed_units = 0
      AND (drain_until IS NULL OR position < drain_until)"""

_EPOCHS = "SELECT org_id, routing_epoch FROM orgs WHERE org_id = ANY($1)"

_STILL = "SELECT phase FROM edges WHERE node_id = $1 AND input_index = $2"

_ROOM = "SELECT max_depth - depth FROM pressure WHERE node_id = $1"

_EVENTS = """
    SELECT routed_seq, event_id, org_id, dataset_uuid, dataset_version, cursor, partition_key, range_start, range_end,
           effective_revision, invalidates, producer, traceparent, revision_kind, invalidation_id, first_position
    FROM events WHERE dataset_uuid = $1 AND dataset_version = $2 AND routed_seq > $3 AND routed_seq <= $4
    ORDER BY routed_seq LIMIT $5"""


@dataclass(eq=False)
class EdgeDrain:
    store: Store
    directory: EdgeDirectory
    upstream: UpstreamDirectory
    router: EventRouter
    writer: Writer
    metrics: Metrics
    pace: BackgroundPace

    def __post_init__(self) -> None:
        self._rework = InvalidationDrain(
            self.store, self.directory, self.router, self.writer, self._room, self._not_stopped, self.metrics, self.pace
        )
        self._units = UnitDrain(self.store, self.directory, self.writer, self._room, self.metrics, self.pace)

    async def run_once(self) -> int:
        """Handles one page for each edge that is behind, each unfinished invalidation, each node with changed units.

        Returns how many events were shown to edges, edges made live, pages of units made again, units looked at.
        """
        async with self.store.connection() as connection:
            behind = await self._not_stopped(connection, await connection.fetch(_BEHIND))
        done = await self.pace.work_through(behind[:_EDGES_A_ROUND], self._take_on)
        return done + await self._rework.run_once() + await self._units.run_once()

    async def _not_stopped(self, connection: Connection, waiting: Sequence[asyncpg.Record]) -> list[asyncpg.Record]:
        """Returns the edges that nothing stops, in random order: each has its turn, however many are stopped."""
        orgs: dict[UUID, list[asyncpg.Record]] = {}
        for row in waiting:
            orgs.setdefault(row["org_id"], []).append(row)
        unblocked: list[asyncpg.Record] = []
        for org_id, epoch in await connection.fetch(_EPOCHS, list(orgs)):
            upstream = await self.upstream.of(connection, org_id, epoch)
            read = [(row["node_id"], (row["dataset_uuid"], row["dataset_version"])) for row in orgs[org_id]]
            stops = await upstream.stops(connection, read)
            unblocked += [
                row
                for row, reader in zip(orgs[org_id], read, strict=True)
                if upstream.blocked_by(*reader, stops) is None
            ]
        random.shuffle(unblocked)
        return unblocked

    async def _take_on(self, row: asyncpg.Record) -> int:
        org_id, node_id, input_index = row["org_id"], row["node_id"], row["input_index"]
        plan = WritePlan()
        most = self.pace.page(PAGE)
        async with self.store.transaction(routing=[org_id], wait=False) as connection:
            if await connection.fetchval(_STILL, node_id, input_index) in (None, "Parked"):
                return 0
            consumers = await self.directory.nodes(connection, [node_id])
            consumer = consumers[node_id]
            page = await self._room(connection, org_id, consumer, input_index, most)
            if not page:
                return 0
            if consumer.waits:
                generation = consumer.input(input_index).generation
                await coverage.lock_generations(connection, [generation])
            states = await edges.lock(connection, set(consumer.edges_of(input_index)))
            if consumer.job.counted:  # somebody else may have shown it a page while this one waited for the lock
                page = await self._room(connection, org_id, consumer, input_index, most)
                if not page:
                    return 0
            edge = states[(node_id, input_index)]
            if edge.position is None or edge.failed_units:
                return 0
            events, created_tasks = await self._show(connection, plan, consumer, edge, RoutingScope({}, states), page)
        self.writer.committed(plan)
        self.metrics.drained.inc(events)
        self.metrics.created_tasks.labels("drain").inc(created_tasks)
        return events + (1 if edge.live else 0)

    async def _room(self, connection: Connection, org_id: UUID, consumer: Consumer, input_index: int, most: int) -> int:
        """Returns how many units it may get: none while pressure stops it, at most what its queue has room for."""
        epoch = await connection.fetchval("SELECT routing_epoch FROM orgs WHERE org_id = $1", org_id)
        upstream = await self.upstream.of(connection, org_id, epoch)
        generation = consumer.input(input_index).generation
        stops = await upstream.stops(connection, [(consumer.node_id, generation)])
        if upstream.blocked_by(consumer.node_id, generation, stops) is not None:
            return 0
        if not consumer.job.counted:
            return most
        room = await connection.fetchval(_ROOM, consumer.node_id)
        return most if room is None else max(0, min(most, room))

    async def _show(
        self,
        connection: Connection,
        plan: WritePlan,
        consumer: Consumer,
        edge: EdgeState,
        scope: RoutingScope,
        page: int,
    ) -> tuple[int, int]:
        """Shows a page of events; returns how many events it had, and how many tasks they made."""
        item = consumer.input(edge.input_index)
        until = 2**63 - 1 if edge.drain_until is None else edge.drain_until
        rows = await connection.fetch(_EVENTS, *item.generation, edge.position, until, page)
        events = [RoutedEvent(*row) for row in rows]
        tasks = await self.router.show(connection, scope, events, (consumer, item))
        created_tasks = await self.writer.create(connection, plan, tasks)
        if scope.touched.units:
            created_tasks += await self.writer.create_units(connection, plan, scope)
        self.writer.shown(plan, events, created_tasks, (consumer, item))
        whole = len(rows) < page
        if whole and edge.drain_until is None:
            edge.seen(None)
        else:
            edge.seen(until if whole else events[-1].routed_seq)
        await edges.write(connection, scope.edges.values())
        logger.debug("drained", extra={"events": len(events), "tasks": len(created_tasks)})
        return len(events), len(created_tasks)

"""Large invalidations: their units are made again a page at a time, each page in a transaction of its own.

The row of work says which unit came last, and goes when there are no more. A page that is made twice makes no second
task. A reader whose version is not active keeps its row and goes on when it is active again; one that reads another
generation by now has nothing to make again, since what was wrong is not what it reads. One that a pause or a full queue
stops keeps its row too, and takes no turn of others.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias
from uuid import UUID

import asyncpg

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.engine.catch_up.pace import BackgroundPace
from tracelake.dispatcher.engine.plan import WritePlan
from tracelake.dispatcher.engine.routing import edges, pending_units
from tracelake.dispatcher.engine.routing.directory import Consumer, EdgeDirectory
from tracelake.dispatcher.engine.routing.invalidations import InvalidationPosition, InvalidRange, next_units
from tracelake.dispatcher.engine.routing.pending_units import ChangedUnit
from tracelake.dispatcher.engine.routing.router import EventRouter
from tracelake.dispatcher.engine.writer import Writer
from tracelake.dispatcher.metrics import Metrics
from tracelake.model.task import RevisionKind
from tracelake.model.windows import LAST_POSITION, Window

logger = logging.getLogger(__name__)

PAGE = 1_000
_ROWS_A_ROUND = 100

Room: TypeAlias = Callable[[Connection, UUID, Consumer, int, int], Awaitable[int]]
"""(connection, org_id, consumer, input_index, most): how many units a reader may be given now."""

NotStopped: TypeAlias = Callable[[Connection, Sequence[asyncpg.Record]], Awaitable[list[asyncpg.Record]]]
"""(connection, rows with `org_id`, `node_id`, `dataset_uuid`, `dataset_version`): those that may go on now, mixed."""

_WAITING = """
    SELECT w.org_id, w.node_id, w.input_index, w.invalidation_id, e.dataset_uuid, e.dataset_version
    FROM invalidation_work w JOIN edges e USING (node_id, input_index)
    WHERE e.phase <> 'Parked'"""

_STILL = "SELECT phase FROM edges WHERE node_id = $1 AND input_index = $2"

# Under the edge's lock, which everybody takes who writes here.
_WORK = """
    SELECT w.own_unit, w.unit_size, w.unit_offset, w.unit_start, w.cursor,
           i.dataset_uuid, i.dataset_version, i.range_start, i.range_end,
           coalesce(e.routed_seq, 0) AS routed_seq, e.traceparent
    FROM invalidation_work w JOIN invalidations i USING (invalidation_id)
    LEFT JOIN events e ON e.dataset_uuid = i.dataset_uuid AND e.event_id = i.event_id
    WHERE w.node_id = $1 AND w.input_index = $2 AND w.invalidation_id = $3"""

_MOVE_ON = """
    UPDATE invalidation_work SET unit_size = $4, unit_offset = $5, unit_start = $6, cursor = $7
    WHERE node_id = $1 AND input_index = $2 AND invalidation_id = $3"""

_END = "DELETE FROM invalidation_work WHERE node_id = $1 AND input_index = $2 AND invalidation_id = $3"


@dataclass(eq=False)
class InvalidationDrain:
    store: Store
    directory: EdgeDirectory
    router: EventRouter
    writer: Writer
    room: Room
    not_stopped: NotStopped
    metrics: Metrics
    pace: BackgroundPace

    async def run_once(self) -> int:
        """Handles one page for each row of work; returns how many moved on."""
        async with self.store.connection() as connection:
            waiting = await self.not_stopped(connection, await connection.fetch(_WAITING))
        return await self.pace.work_through(waiting[:_ROWS_A_ROUND], self._take_on)

    async def _newest(self, connection: Connection) -> int:
        """As new as whatever was announced so far."""
        newest: int = await connection.fetchval("SELECT last_value FROM events_routed_seq")
        return newest

    async def _take_on(self, row: asyncpg.Record) -> int:
        org_id, node_id, input_index, invalidation_id, *_ = row
        most = self.pace.page(PAGE)
        async with self.store.transaction(routing=[org_id], wait=False) as connection:
            if await connection.fetchval(_STILL, node_id, input_index) in (None, "Parked"):
                return 0
            consumer = (await self.directory.nodes(connection, [node_id]))[node_id]
            page = await self.room(connection, org_id, consumer, input_index, most)
            if not page:
                return 0
            states = await edges.lock(connection, set(consumer.edges_of(input_index)))
            if consumer.job.counted:  # somebody else may have made a page while this one waited for the lock
                page = await self.room(connection, org_id, consumer, input_index, most)
                if not page:
                    return 0
            key = (node_id, input_index, invalidation_id)
            work = await connection.fetchrow(_WORK, *key)
            if work is None:
                return 0
            wrong = InvalidRange(
                invalidation_id,
                (work["dataset_uuid"], work["dataset_version"]),
                work["range_start"],
                work["range_end"],
                work["routed_seq"],
            )
            item = consumer.input(input_index)
            if item.generation != wrong.generation:
                await connection.execute(_END, *key)
                return 1
            if consumer.has_windows:
                change = ChangedUnit(
                    node_id, Window(0, LAST_POSITION), org_id, await self._newest(connection),
                    RevisionKind.INVALIDATION, work["traceparent"],
                )  # fmt: skip
                await pending_units.mark_existing(connection, change)
                await connection.execute(_END, *key)
                return 1
            position = InvalidationPosition(
                int(work["unit_size"]), int(work["unit_offset"]), work["unit_start"], work["cursor"]
            )
            requests, more = await next_units(connection, wrong, consumer, item, position, page)
            requests = [
                replace(request, traceparent=work["traceparent"])
                for request in requests
                if request.unit_key != work["own_unit"]
            ]
            created_tasks = await self.writer.create(
                connection, WritePlan(), await self.router.drafts.draft(connection, requests, states)
            )
            if more is None:
                await connection.execute(_END, *key)
            else:
                await connection.execute(_MOVE_ON, *key, *more)
        self.metrics.created_tasks.labels("invalidation").inc(len(created_tasks))
        logger.debug("made again", extra={"units": len(requests), "tasks": len(created_tasks)})
        return 1

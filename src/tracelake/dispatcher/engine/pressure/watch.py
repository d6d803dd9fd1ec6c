"""The loop that looks after what changes by itself: the age of what waits, and who is stopped at the moment.

Now and then it counts, so that a counter that was wrong for some reason is right again soon. Neither holds up the tasks
of the queue, however long it is (see `queues`). What it knows of stopped producers is for the metrics alone; whoever
routes or answers a heartbeat asks the tables.
"""

import logging
from collections.abc import Awaitable, Callable
from uuid import UUID

from tracelake.db.transaction import HELD_UP, Connection, StatementTimeoutError, Store
from tracelake.dispatcher.engine.pressure import backlog, queues
from tracelake.dispatcher.engine.pressure.upstream import UpstreamDirectory, read_stops
from tracelake.dispatcher.predicates import has_threshold

logger = logging.getLogger(__name__)

_ALL_EVERY = 30
"""Rounds between two counts; ages are looked at every time."""

_AGED = "SELECT node_id FROM pressure WHERE max_age_seconds IS NOT NULL AND depth > 0 ORDER BY node_id"

_EVERY = f"""
    SELECT node_id FROM pressure WHERE {has_threshold()} OR level > 0
    ORDER BY node_id"""  # noqa: S608

_LATER = (*HELD_UP, StatementTimeoutError)
"""Somebody else's lock, or a count that takes too long: no reason to leave the other queues out."""

_ORGS = """
    SELECT o.org_id, o.routing_epoch FROM orgs o
    WHERE EXISTS (SELECT FROM pressure p WHERE p.org_id = o.org_id AND p.level > 0)
       OR EXISTS (SELECT FROM buffered_tables t WHERE t.org_id = o.org_id AND t.level > 0)
       OR EXISTS (SELECT FROM source_state s WHERE s.org_id = o.org_id AND s.paused_at IS NOT NULL)"""


class PressureWatch:
    def __init__(self, store: Store, upstream: UpstreamDirectory) -> None:
        self._store = store
        self._upstream = upstream
        self._rounds = 0
        self._stopped: frozenset[UUID] = frozenset()

    def is_stopped(self, node_id: UUID) -> bool:
        """Whether this job or source is, as of the last look."""
        return node_id in self._stopped

    @property
    def stopped(self) -> int:
        """How many jobs and sources are, as of the last look."""
        return len(self._stopped)

    async def run_once(self) -> int:
        """Answers in how many queues the pressure eased. A queue that cannot be looked at now is looked at later."""
        count = self._rounds % _ALL_EVERY == 0
        self._rounds += 1
        eased = await self._each(_AGED, queues.look_at_age)
        eased += await self._each(backlog.LIMITED, backlog.look)
        if count:
            eased += await self._each(_EVERY, queues.correct)
        async with self._store.connection() as connection:
            self._stopped = await self._look(connection)
        return eased

    async def _each(self, statement: str, look: Callable[[Connection, UUID], Awaitable[bool]]) -> int:
        eased = 0
        for node in await self._nodes(statement):
            try:
                async with self._store.transaction() as connection:
                    eased += await look(connection, node)
            except _LATER as error:
                logger.warning("a queue could not be looked at", extra={"reason": type(error).__name__})
        return eased

    async def _nodes(self, statement: str) -> list[UUID]:
        async with self._store.connection() as connection:
            return [row["node_id"] for row in await connection.fetch(statement)]

    async def _look(self, connection: Connection) -> frozenset[UUID]:
        stopped: set[UUID] = set()
        for org_id, epoch in await connection.fetch(_ORGS):
            upstream = await self._upstream.of(connection, org_id, epoch)
            limited = {queue for reached in upstream.downstream.values() for queue in reached}
            stops = await read_stops(connection, limited, upstream.sources)
            stopped |= {node for node in {*upstream.downstream, *upstream.sources} if upstream.stopped_by(node, stops)}
        return frozenset(stopped)

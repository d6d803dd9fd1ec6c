"""The loop that looks after what changes by itself: the age of what waits, and who is stopped at the moment.

Now and then it counts, so that a counter that was wrong for some reason is right again soon. Neither holds up the tasks
of the queue, however long it is (see `queues`). What it knows of stopped producers is for the metrics alone; whoever
routes or answers a heartbeat asks the tables.
"""

from uuid import UUID

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.backpressure import queues
from tracelake.dispatcher.backpressure.upstream import UpstreamDirectory, read_stops

_ALL_EVERY = 30
"""Rounds between two counts; ages are looked at every time."""

_AGED = "SELECT node_id FROM pressure WHERE max_age_seconds IS NOT NULL AND depth > 0 ORDER BY node_id"

_EVERY = "SELECT node_id FROM pressure ORDER BY node_id"

_ORGS = """
    SELECT o.org_id, o.routing_epoch FROM orgs o
    WHERE EXISTS (SELECT FROM pressure p WHERE p.org_id = o.org_id AND p.level > 0)
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
        """Answers in how many queues the pressure eased."""
        eased = 0
        if self._rounds % _ALL_EVERY == 0:
            for node in await self._nodes(_EVERY):
                async with self._store.transaction() as connection:
                    eased += await queues.correct(connection, node)
        for node in await self._nodes(_AGED):
            async with self._store.transaction() as connection:
                eased += await queues.look_at_age(connection, node)
        async with self._store.connection() as connection:
            self._stopped = await self._look(connection)
        self._rounds += 1
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

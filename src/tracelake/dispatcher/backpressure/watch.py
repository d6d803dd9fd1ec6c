"""The loop that looks after what changes by itself: the age of what waits, and who is stopped at the moment.

It counts anew while it looks, so that a counter that was wrong for some reason is right again soon. What it knows of
stopped producers is for heartbeats alone; whoever routes asks the tables.
"""

from uuid import UUID

from tracelake.db.transaction import Connection, Store
from tracelake.dispatcher.backpressure import queues
from tracelake.dispatcher.backpressure.upstream import UpstreamDirectory, read_stops

_ALL_EVERY = 30
"""Rounds between two looks at every queue; those under pressure or with an age are looked at every time."""

_QUEUES = """
    SELECT node_id FROM pressure
    WHERE level > 0 OR (max_age_seconds IS NOT NULL AND depth > 0) OR $1
    ORDER BY node_id"""

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

    def is_stopped(self, node_id: UUID | None) -> bool:
        """As of the last look."""
        return node_id in self._stopped

    @property
    def stopped(self) -> int:
        """How many jobs and sources are, as of the last look."""
        return len(self._stopped)

    async def run_once(self) -> int:
        """Answers in how many queues the pressure eased."""
        everything = self._rounds % _ALL_EVERY == 0
        async with self._store.connection() as connection:
            nodes = [row["node_id"] for row in await connection.fetch(_QUEUES, everything)]
        eased = 0
        for node in nodes:
            async with self._store.transaction() as connection:
                eased += await queues.recount(connection, [node])
        async with self._store.connection() as connection:
            self._stopped = await self._look(connection)
        self._rounds += 1
        return eased

    async def _look(self, connection: Connection) -> frozenset[UUID]:
        stopped: set[UUID] = set()
        for org_id, epoch in await connection.fetch(_ORGS):
            upstream = await self._upstream.of(connection, org_id, epoch)
            limited = {queue for reached in upstream.downstream.values() for queue in reached}
            stops = await read_stops(connection, limited, upstream.sources)
            stopped |= {node for node in {*upstream.downstream, *upstream.sources} if upstream.stopped_by(node, stops)}
        return frozenset(stopped)

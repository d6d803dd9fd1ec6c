"""The rows of `edges`: locked in one order, read once, written once."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.routing.directory import EdgeKey
from tracelake.dispatcher.records import columns

_LOCK = """
    SELECT node_id, input_index, routed, position, drain_until, failed_units,
           (SELECT last_value FROM events_routed_seq) AS newest
    FROM edges JOIN unnest($1::uuid[], $2::int[]) AS k(node_id, input_index) USING (node_id, input_index)
    ORDER BY node_id, input_index FOR NO KEY UPDATE OF edges"""

_UPDATE = """
    UPDATE edges e SET routed = u.routed, position = u.position, failed_units = u.failed_units
    FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[], $5::int[])
         AS u(node_id, input_index, routed, position, failed_units)
    WHERE e.node_id = u.node_id AND e.input_index = u.input_index"""


@dataclass(slots=True)
class EdgeState:
    """A locked edge. What changes here is written by `write`."""

    node_id: UUID
    input_index: int
    routed: int
    position: int | None
    drain_until: int | None
    failed_units: int
    newest: int
    """A routed_seq that was given out: every event this edge has not been shown has a larger one, or is shown again."""
    changed: bool = False

    @property
    def live(self) -> bool:
        return self.position is None

    @property
    def behind(self) -> bool:
        """It has events to be shown, and nothing holds it."""
        return self.position is not None and not self.failed_units

    def advance(self, cursor: int) -> None:
        self.routed = cursor
        self.changed = True

    def hold(self, units: int) -> None:
        """Counts units that failed and have no retries left (negative: fewer). From the first on, events wait."""
        self.failed_units = max(0, self.failed_units + units)
        if self.failed_units and self.position is None:
            self.position = self.newest
        self.changed = True

    def seen(self, position: int | None) -> None:
        self.position = position
        self.changed = True


async def lock(connection: Connection, keys: Collection[EdgeKey]) -> dict[EdgeKey, EdgeState]:
    if not keys:
        return {}
    rows = await connection.fetch(_LOCK, *columns(keys))
    return {(row["node_id"], row["input_index"]): EdgeState(*row) for row in rows}


async def write(connection: Connection, edges: Iterable[EdgeState]) -> None:
    changed = [
        (edge.node_id, edge.input_index, edge.routed, edge.position, edge.failed_units)
        for edge in edges
        if edge.changed
    ]
    if changed:
        await connection.execute(_UPDATE, *columns(changed))

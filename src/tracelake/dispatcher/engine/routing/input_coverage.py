"""What an input lacks of a unit that a user asks for.

Files say which blocks they cover. Datasets without data of their own cover what was announced: ranges, and everything
up to the highest cursor. A table is live: no range of it can be missing, only a cursor that was not announced.
"""

from dataclasses import dataclass
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.routing import coverage
from tracelake.dispatcher.engine.routing.coverage import Presence
from tracelake.dispatcher.engine.routing.directory import ConsumerInput
from tracelake.model.job import Storage

MOST_RANGES = 20
"""So many missing ranges of an input are named."""

# What the edge has been shown, and what waits for it. A manual run says nothing of the cursors before its own.
_HIGHEST_CURSOR = """
    SELECT greatest(e.routed, (
        SELECT max(v.cursor) FROM events v
        WHERE v.dataset_uuid = e.dataset_uuid AND v.dataset_version = e.dataset_version AND v.routed_seq > e.position
          AND v.revision_kind <> 'manual')) AS routed
    FROM edges e WHERE e.node_id = $1 AND e.input_index = $2"""

# A PerPartition edge counts no cursors: those of what a join reads are kept by their keys, others have their tasks.
_IS_ANNOUNCED = """
    SELECT EXISTS (SELECT FROM dataset_keys WHERE dataset_uuid = $1 AND dataset_version = $2 AND unit = $3)
        OR EXISTS (SELECT FROM tasks WHERE node_id = $4 AND edge = -1 AND unit_end = $5 AND unit_key = $3
                   AND revision_kind <> 'manual')"""

_IS_WHOLE = "SELECT EXISTS (SELECT FROM dataset_units WHERE dataset_uuid = $1 AND dataset_version = $2 AND unit = '*')"

_COMMITTED = """
    SELECT range_start, range_end FROM (
        (SELECT range_start, range_end FROM dataset_units
         WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3 ORDER BY range_start DESC LIMIT 1)
        UNION ALL
        (SELECT range_start, range_end FROM dataset_units
         WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start > $3 AND range_start <= $4)) u
    WHERE range_end >= $3"""

_ANNOUNCED = """
    SELECT range_start, range_end FROM dataset_runs
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $4 AND range_end >= $3"""


@dataclass(frozen=True, slots=True)
class InputUnit:
    """A unit of one input of a node."""

    node_id: UUID
    input: ConsumerInput
    storage: Storage
    key: str
    start: int | None
    end: int | None

    @property
    def text(self) -> str:
        return self.key.partition(":")[2]


async def missing_ranges(connection: Connection, unit: InputUnit) -> list[str]:
    """The first ranges that are not there, as `START-END`; none if the unit is completely covered."""
    if unit.start is None or unit.end is None:
        return [] if await has_unit(connection, unit) else [unit.text]
    spans: list[tuple[int, int]] = []
    if unit.storage.has_files:
        if await connection.fetchval(_IS_WHOLE, *unit.input.generation):
            return []
        spans += [
            tuple(row) for row in await connection.fetch(_COMMITTED, *unit.input.generation, unit.start, unit.end)
        ]
    else:
        if unit.storage is not Storage.NONE and not unit.key.startswith("c:"):
            return []
        highest = await connection.fetchval(_HIGHEST_CURSOR, unit.node_id, unit.input.input_index)
        if highest is not None and highest >= 0:
            spans.append((0, highest))
        spans += [
            tuple(row) for row in await connection.fetch(_ANNOUNCED, *unit.input.generation, unit.start, unit.end)
        ]
        place = (*unit.input.generation, unit.key, unit.node_id, unit.end)
        if unit.key.startswith("c:") and await connection.fetchval(_IS_ANNOUNCED, *place):
            spans.append((unit.end, unit.end))
    missing: list[str] = []
    first = unit.start
    for start, end in [*coverage.merge(spans), (unit.end + 1, unit.end + 1)]:
        if first < start and first <= unit.end:
            missing.append(f"{first}-{min(start - 1, unit.end)}")
        first = max(first, end + 1)
    return missing[:MOST_RANGES]


async def has_unit(connection: Connection, unit: InputUnit) -> bool:
    """The very unit was announced, with these bounds."""
    return bool(
        await coverage.read_revisions(connection, [Presence(unit.input.generation, unit.key, unit.start, unit.end)])
    )

"""Invalidations: the units that a range declared wrong overlaps are made again, one by one.

Widened to the reader's own units that share a block with the range. What those units' tasks announce carries the
invalidation on as its revision, so the next reader is reached by the same road as by any other news. A reader with many
such units gets a row of work instead, and `catch_up.invalidation_drain` goes through them a page at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation, RoutedEvent
from tracelake.dispatcher.engine.routing import coverage
from tracelake.dispatcher.engine.routing.coverage import GridRange
from tracelake.dispatcher.engine.routing.directory import Consumer, ConsumerInput
from tracelake.dispatcher.engine.routing.units import ALL_INPUTS, UnitRequest
from tracelake.dispatcher.records import columns
from tracelake.model.task import RevisionKind
from tracelake.wire.units import Invalidates

AT_ONCE = 1_000
"""How many units of one reader are made again in the transaction that hears of it."""

_REMEMBER = """
    INSERT INTO invalidations (invalidation_id, org_id, dataset_uuid, dataset_version, range_start, range_end, reason,
                               producer, event_id)
    SELECT * FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bigint[], $6::bigint[], $7::text[],
                         $8::text[], $9::bigint[])
    ON CONFLICT DO NOTHING"""

# Cursor units (after, to] of an edge that share a block with the range, by their end. Units may overlap (a cursor below
# the edge's own has a unit inside a longer one), so nothing but its own bounds tells whether one does; they are in the
# index. What a person asked for is no unit of the edge: nobody announced it.
_CURSOR_UNITS = """
    SELECT DISTINCT unit_end FROM tasks
    WHERE node_id = $1 AND edge = $2 AND unit_end >= $3 AND unit_start <= $4 AND unit_end > $5 AND unit_key LIKE 'c:%'
      AND revision_kind <> 'manual'
    ORDER BY unit_end LIMIT $6"""

_LATER = """
    INSERT INTO invalidation_work (invalidation_id, node_id, input_index, org_id, own_unit)
    VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"""

_DECODER = msgspec.json.Decoder(Invalidates)


def invalidation_id(event: RoutedEvent) -> str:
    return event.invalidation_id or str(event.event_id)


async def remember(connection: Connection, events: Sequence[RoutedEvent]) -> None:
    rows = []
    for event in events:
        assert event.invalidates is not None
        wrong = _DECODER.decode(event.invalidates)
        place = (invalidation_id(event), event.org_id, event.dataset_uuid, event.dataset_version)
        rows.append((*place, wrong.start, wrong.end, wrong.reason, event.producer, event.event_id))
    await connection.execute(_REMEMBER, *columns(rows))


class InvalidationPosition(NamedTuple):
    """How many of a reader's units were handled. Ranges come first; `cursor` is None until all of them were."""

    unit_size: int = 0
    unit_offset: int = 0
    unit_start: int = -1
    cursor: int | None = None

    @property
    def place(self) -> GridRange:
        return GridRange(self.unit_size, self.unit_offset, self.unit_start)


@dataclass(frozen=True, slots=True)
class InvalidRange:
    """A range of a generation that was declared wrong."""

    invalidation_id: str
    generation: Generation
    start: int
    end: int
    routed_seq: int

    @classmethod
    def said_by(cls, event: RoutedEvent) -> "InvalidRange":
        assert event.invalidates is not None
        wrong = _DECODER.decode(event.invalidates)
        return cls(invalidation_id(event), event.generation, wrong.start, wrong.end, event.routed_seq)

    def range_again(self, consumer: Consumer, item: ConsumerInput, start: int, end: int) -> UnitRequest:
        return UnitRequest(consumer, item, None, f"{start}-{end}", start, end, *self._revision, again=True)

    def cursor_again(self, consumer: Consumer, item: ConsumerInput, cursor: int) -> UnitRequest:
        return UnitRequest(consumer, item, cursor, None, None, None, *self._revision, again=True)

    @property
    def _revision(self) -> tuple[str, RevisionKind, int]:
        return self.invalidation_id, RevisionKind.INVALIDATION, self.routed_seq


async def rerun(
    connection: Connection, event: RoutedEvent, consumer: Consumer, item: ConsumerInput, at_once: int = AT_ONCE
) -> list[UnitRequest]:
    """Returns the reader's units that overlap, in a revision that is this invalidation's.

    More than `at_once` are left to `catch_up.invalidation_drain`, all but the event's own unit: so an event has its
    task from the first moment on, however long the others take.
    """
    wrong = InvalidRange.said_by(event)
    requests, more = await next_units(connection, wrong, consumer, item, InvalidationPosition(), at_once + 1)
    if more is None and len(requests) <= at_once:
        return requests
    place = (wrong.invalidation_id, consumer.node_id, item.input_index)
    await connection.execute(_LATER, *place, event.org_id, event.unit_key)
    return await _own(connection, wrong, event, consumer, item)


async def next_units(
    connection: Connection,
    wrong: InvalidRange,
    consumer: Consumer,
    item: ConsumerInput,
    position: InvalidationPosition,
    limit: int,
) -> tuple[list[UnitRequest], InvalidationPosition | None]:
    """Reads up to `limit` units behind the position, and the new position; None if there are no more."""
    requests: list[UnitRequest] = []
    if position.cursor is None:
        places = await coverage.overlapping(
            connection, wrong.generation, wrong.start, wrong.end, after=position.place, limit=limit
        )
        requests = [wrong.range_again(consumer, item, place.start, place.end) for place in places]
        if len(requests) == limit:
            return requests, InvalidationPosition(*places[-1])
    after = -1 if position.cursor is None else position.cursor
    room = limit - len(requests)
    cursors = await _cursors(connection, wrong, consumer, item, after, room)
    requests += [wrong.cursor_again(consumer, item, cursor) for cursor in cursors]
    return requests, position._replace(cursor=cursors[-1]) if len(cursors) == room else None


async def _own(
    connection: Connection, wrong: InvalidRange, event: RoutedEvent, consumer: Consumer, item: ConsumerInput
) -> list[UnitRequest]:
    """Returns the event's own unit, if it is one of those that are made again."""
    if event.cursor is not None:
        cursors = await _cursors(connection, wrong, consumer, item, event.cursor - 1, 1)
        return [wrong.cursor_again(consumer, item, event.cursor)] if cursors == [event.cursor] else []
    start, end = event.range_start, event.range_end
    if start is None or end is None or start > wrong.end or end < wrong.start:
        return []
    return [wrong.range_again(consumer, item, start, end)]


async def _cursors(
    connection: Connection, wrong: InvalidRange, consumer: Consumer, item: ConsumerInput, after: int, limit: int
) -> list[int]:
    edge = ALL_INPUTS if consumer.job.strategy.is_of_all_inputs else item.input_index
    place = (consumer.node_id, edge, wrong.start, wrong.end)
    return [row["unit_end"] for row in await connection.fetch(_CURSOR_UNITS, *place, after, limit)]

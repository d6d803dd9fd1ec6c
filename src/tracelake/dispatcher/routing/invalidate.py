"""Invalidations: what was declared wrong is made again, unit by unit, each as itself.

Widened to the reader's own units that share a block with the range. What those units' tasks announce carries the
invalidation on as its revision, so the next reader is reached by the same road as by any other news.
"""

from collections.abc import Sequence

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.lifecycle.plan import RoutedEvent
from tracelake.dispatcher.routing import coverage
from tracelake.dispatcher.routing.directory import Consumer, Input
from tracelake.dispatcher.routing.units import Ask
from tracelake.model.dag import Strategy
from tracelake.wire.units import Invalidates

_REMEMBER = """
    INSERT INTO invalidations (invalidation_id, org_id, dataset_uuid, dataset_version, range_start, range_end, reason,
                               producer)
    SELECT * FROM unnest($1::text[], $2::uuid[], $3::uuid[], $4::uuid[], $5::bigint[], $6::bigint[], $7::text[],
                         $8::text[])
    ON CONFLICT DO NOTHING"""

# Cursor units (after, to] of an edge by their end: those that end inside the range, and those that reach beyond it.
_CURSOR_UNITS = """
    SELECT DISTINCT unit_end FROM (
        SELECT unit_key, unit_start, unit_end FROM tasks
        WHERE node_id = $1 AND edge = $2 AND unit_end BETWEEN $3 AND $4
        UNION ALL
        (SELECT unit_key, unit_start, unit_end FROM tasks
         WHERE node_id = $1 AND edge = $2 AND unit_end > $4 ORDER BY unit_end LIMIT 64)) u
    WHERE unit_start <= $4 AND unit_key LIKE 'c:%'"""

_DECODER = msgspec.json.Decoder(Invalidates)


def invalidation_id(event: RoutedEvent) -> str:
    return f"i:{event.event_id}"


async def remember(connection: Connection, events: Sequence[RoutedEvent]) -> None:
    rows = []
    for event in events:
        assert event.invalidates is not None
        wrong = _DECODER.decode(event.invalidates)
        place = (invalidation_id(event), event.org_id, event.dataset_uuid, event.dataset_version)
        rows.append((*place, wrong.start, wrong.end, wrong.reason, event.producer))
    await connection.execute(_REMEMBER, *(list(column) for column in zip(*rows, strict=True)))


async def rerun(connection: Connection, event: RoutedEvent, consumer: Consumer, item: Input) -> list[Ask]:
    """The reader's units that overlap, in a revision that is this invalidation's."""
    assert event.invalidates is not None
    wrong = _DECODER.decode(event.invalidates)
    revision = invalidation_id(event)
    asks = [
        Ask(consumer, item, None, f"{start}-{end}", start, end, revision)
        for start, end in await coverage.overlapping(connection, event.generation, wrong.start, wrong.end)
    ]
    edge = -1 if consumer.job.strategy is Strategy.PER_PARTITION else item.input_index
    rows = await connection.fetch(_CURSOR_UNITS, consumer.node_id, edge, wrong.start, wrong.end)
    return asks + [Ask(consumer, item, row["unit_end"], None, None, None, revision) for row in rows]

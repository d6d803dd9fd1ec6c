"""What tasks have read: the committed units of each input at the moment that their attempt was pinned to.

Units side by side of one revision are one range, so a long history is a few rows.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.read_pins import decode_pins, moment_of
from tracelake.dispatcher.views.words import window_words
from tracelake.wire.datasets import ReadRange
from tracelake.wire.units import PayloadInput

MOST_UNITS = 2_000
"""Of one input, that are looked at."""
MOST_RANGES = 20

_READ = """
    SELECT u.range_start, u.range_end, m.revision
    FROM dataset_units u CROSS JOIN LATERAL (
        SELECT revision FROM manifests m
        WHERE m.dataset_uuid = u.dataset_uuid AND m.dataset_version = u.dataset_version AND m.unit = u.unit
          AND m.created_at <= $5 AND m.revision IS NOT NULL
        ORDER BY m.revision DESC LIMIT 1) m
    WHERE u.dataset_uuid = $1 AND u.dataset_version = $2 AND u.range_start <= $4 AND u.range_end >= $3
      AND u.range_start >= coalesce((
            SELECT max(f.range_start) FROM dataset_units f
            WHERE f.dataset_uuid = $1 AND f.dataset_version = $2 AND f.range_start <= $3), $3)
    ORDER BY u.range_start LIMIT $6"""

_GRID = "SELECT units FROM dataset_versions WHERE dataset_uuid = $1 AND dataset_version = $2"

_LAST = 2**63 - 1


async def read_ranges(
    connection: Connection, inputs: Sequence[PayloadInput], read_as_of: str | None
) -> list[ReadRange]:
    """The ranges and revisions that an attempt read, by input; nothing of inputs that are not kept in files."""
    pins = decode_pins(read_as_of)
    ranges: list[ReadRange] = []
    for item in inputs:
        pinned = moment_of(pins.get(item.dataset_version))
        if pinned is not None and not (item.scope is not None and item.scope.empty):
            ranges += await _ranges_of(connection, item, pinned)
    return ranges


async def _ranges_of(connection: Connection, item: PayloadInput, pinned: datetime) -> list[ReadRange]:
    generation: tuple[UUID, UUID] = (item.dataset_uuid, item.dataset_version)
    start, end = item.positions
    bounds = (start or 0, _LAST if end is None else end)
    rows = await connection.fetch(_READ, *generation, *bounds, pinned, MOST_UNITS)
    ranges: list[ReadRange] = []
    for row in rows:
        last = ranges[-1] if ranges else None
        if last is not None and last.end + 1 == row["range_start"] and last.revision == row["revision"]:
            ranges[-1] = msgspec.structs.replace(last, end=row["range_end"], units=last.units + 1)
        elif len(ranges) < MOST_RANGES:
            ranges.append(
                ReadRange(
                    input_index=item.input_index,
                    dataset=item.name,
                    start=row["range_start"],
                    end=row["range_end"],
                    revision=row["revision"],
                    as_of=pinned,
                )
            )
    units = await connection.fetchval(_GRID, *generation) if ranges else None
    return [msgspec.structs.replace(item, window=window_words(units, item.start, item.end)) for item in ranges]

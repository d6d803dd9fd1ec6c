"""What tasks have read: the committed units of each input at the moment that their attempt was pinned to.

Units side by side of one revision are one range, so a long history is a few rows. What cannot be told is not guessed:
an attempt without a pin, and units whose commits of that time were deleted since.
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
from msgspec.structs import replace

from tracelake.db.transaction import Connection
from tracelake.dispatcher.read_pins import LivePin, ReadPin, decode_pins, moment_of
from tracelake.dispatcher.views.words import window_words
from tracelake.model.job import Storage
from tracelake.wire.datasets import InputRead, ReadRange
from tracelake.wire.units import PayloadInput

MOST_UNITS = 20_000
"""Of one input, that are looked at; what lies above is said to be left out."""
MOST_RANGES = 20

# Most units have not changed since: their pointer has the commit. Of the others all commits are looked at. Revisions of
# a unit are numbered without gaps, so one that follows and is not the next number, or is not the first where none was
# committed before, shows that the commits between were deleted.
_READ = """
    WITH looked AS (
        SELECT u.unit, u.range_start, u.range_end, u.revision, u.manifest_id FROM dataset_units u
        WHERE u.dataset_uuid = $1 AND u.dataset_version = $2 AND u.range_start <= $4 AND u.range_end >= $3
          AND u.range_start >= coalesce((
                SELECT max(f.range_start) FROM dataset_units f
                WHERE f.dataset_uuid = $1 AND f.dataset_version = $2 AND f.range_start <= $3), $3)
        ORDER BY u.range_start LIMIT $6),
    units AS (
        SELECT u.range_start, u.range_end,
               CASE WHEN c.created_at <= $5 THEN u.revision ELSE coalesce(m.revision, 0) END AS revision,
               c.created_at > $5 AND coalesce(m.later > coalesce(m.revision, 0) + 1, false) AS deleted
        FROM looked u JOIN manifests c USING (manifest_id) CROSS JOIN LATERAL (
            SELECT max(m.revision) FILTER (WHERE m.created_at <= $5) AS revision,
                   min(m.revision) FILTER (WHERE m.created_at > $5) AS later
            FROM manifests m
            WHERE m.dataset_uuid = $1 AND m.dataset_version = $2 AND m.unit = u.unit AND c.created_at > $5) m),
    steps AS (
        SELECT *, lag(range_end) OVER w + 1 IS DISTINCT FROM range_start OR lag(revision) OVER w <> revision
                  OR lag(deleted) OVER w <> deleted AS begins
        FROM units WHERE deleted OR revision > 0 WINDOW w AS (ORDER BY range_start)),
    islands AS (SELECT *, count(*) FILTER (WHERE begins) OVER (ORDER BY range_start) AS island FROM steps),
    ranges AS (
        SELECT min(range_start) AS range_start, max(range_end) AS range_end, min(revision) AS revision, deleted,
               count(*) AS units
        FROM islands GROUP BY island, deleted)
    SELECT r.*, count(*) FILTER (WHERE NOT deleted) OVER () AS number,
           (sum(units) FILTER (WHERE deleted) OVER ())::bigint AS deleted_units,
           CASE WHEN (SELECT count(*) FROM looked) = $6 THEN (SELECT max(range_end) FROM looked) END AS looked_to
    FROM ranges r ORDER BY deleted, range_start LIMIT $7"""

_READ_WHOLE = """
    SELECT revision FROM manifests
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND unit = '*' AND created_at <= $3 AND revision IS NOT NULL
    ORDER BY revision DESC LIMIT 1"""

# A generation without units that an attempt was pinned to has lost them.
_GENERATION = """
    SELECT units, removed_at IS NULL AND EXISTS (
        SELECT FROM dataset_units u WHERE u.dataset_uuid = $1 AND u.dataset_version = $2) AS has_units
    FROM dataset_versions WHERE dataset_uuid = $1 AND dataset_version = $2"""

_WITH_FILES = "SELECT dataset_uuid FROM datasets WHERE dataset_uuid = ANY($1) AND storage = ANY($2)"

_FILES = [storage.value for storage in Storage if storage.has_files]
_LAST = 2**63 - 1


async def find_datasets_with_files(connection: Connection, inputs: Collection[PayloadInput]) -> frozenset[UUID]:
    uuids = list({item.dataset_uuid for item in inputs})
    return frozenset(row["dataset_uuid"] for row in await connection.fetch(_WITH_FILES, uuids, _FILES))


async def read_ranges(
    connection: Connection, inputs: Sequence[PayloadInput], read_as_of: str | None, with_files: Collection[UUID]
) -> tuple[list[ReadRange], list[InputRead]]:
    """The ranges and revisions that an attempt read, and what is known of each input; nothing of inputs that are not
    kept in files."""
    pins = decode_pins(read_as_of)
    ranges: list[ReadRange] = []
    reads: list[InputRead] = []
    for item in inputs:
        if item.dataset_version not in pins:
            if item.dataset_uuid in with_files:
                reads.append(unrecorded(item))
            continue
        of_input, read = await _read_of(connection, item, pins[item.dataset_version])
        ranges += of_input
        reads.append(read)
    return ranges, reads


def unrecorded(item: PayloadInput) -> InputRead:
    return InputRead(input_index=item.input_index, dataset=item.name, read_known=False)


async def _read_of(connection: Connection, item: PayloadInput, pin: ReadPin) -> tuple[list[ReadRange], InputRead]:
    read = InputRead(input_index=item.input_index, dataset=item.name, read_known=True)
    if item.scope is not None and item.scope.empty:
        return [], read
    start, end = item.positions
    first, last = start or 0, _LAST if end is None else end
    if isinstance(pin, LivePin) and (pin.boundary is None or last > pin.boundary):
        above = None if pin.boundary is None else max(pin.boundary, first - 1)
        read = replace(read, reads_table=True, table_above=above)
    if isinstance(pin, LivePin) and pin.boundary is not None:
        last = min(last, pin.boundary)
    pinned = moment_of(pin)
    if pinned is None or first > last:
        return [], read
    generation: tuple[UUID, UUID] = (item.dataset_uuid, item.dataset_version)
    state = await connection.fetchrow(_GENERATION, *generation)
    if state is None or not state["has_units"]:
        return [], replace(read, read_known=False)
    whole = await connection.fetchval(_READ_WHOLE, *generation, pinned)
    if whole is not None:
        one = ReadRange(input_index=item.input_index, dataset=item.name, revision=whole, as_of=pinned)
        return [one], replace(read, ranges=1)
    rows = await connection.fetch(_READ, *generation, first, last, pinned, MOST_UNITS, MOST_RANGES)
    if not rows:
        return [], read
    deleted = rows[0]["deleted_units"] or 0
    return [_range(item, row, pinned, state["units"]) for row in rows if not row["deleted"]], replace(
        read,
        read_known=not deleted,
        ranges=rows[0]["number"],
        deleted_units=deleted,
        looked_to=rows[0]["looked_to"],
    )


def _range(item: PayloadInput, row: asyncpg.Record, pinned: datetime, units: str | None) -> ReadRange:
    return ReadRange(
        input_index=item.input_index,
        dataset=item.name,
        start=row["range_start"],
        end=row["range_end"],
        window=window_words(units, row["range_start"], row["range_end"]),
        revision=row["revision"],
        units=row["units"],
        as_of=pinned,
    )

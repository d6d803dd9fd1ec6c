"""The statements about positions of tables that tasks write directly: which were announced, and their times.

One row for each write. A write that replaces positions cuts them out of earlier rows, so rows of a generation never
overlap. The caller has locked the generation.
"""

from collections.abc import Sequence

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation, NewEvent
from tracelake.dispatcher.records import affected

# All generations of a dataset are one table: what was written under another version is there as well.
_ADOPT = """
    INSERT INTO table_units (dataset_uuid, dataset_version, range_start, range_end, times, time_min, time_max)
    SELECT dataset_uuid, $2, range_start, range_end, times, time_min, time_max FROM table_units
    WHERE dataset_uuid = $1 AND dataset_version = (
            SELECT v.dataset_version FROM dataset_versions v
            WHERE v.dataset_uuid = $1
              AND EXISTS (SELECT FROM table_units t
                          WHERE t.dataset_uuid = $1 AND t.dataset_version = v.dataset_version)
            ORDER BY v.created_at DESC LIMIT 1)"""

# Rows that share a position with the range: the one that begins at or before it, and those that begin within it.
_CUT = """
    DELETE FROM table_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $4 AND range_end >= $3
      AND range_start >= coalesce((SELECT max(range_start) FROM table_units
                                   WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3), 0)
    RETURNING range_start, range_end, times"""

_INSERT = """
    INSERT INTO table_units (dataset_uuid, dataset_version, range_start, range_end, times, time_min, time_max)
    SELECT $1, $2, $3, $4, $5::bigint[], (SELECT min(t) FROM unnest($5::bigint[]) t),
           (SELECT max(t) FROM unnest($5::bigint[]) t)"""

_TIMES = """
    SELECT min(x.time) AS time_min, max(x.time) AS time_max
    FROM table_units u CROSS JOIN LATERAL unnest(u.times[greatest(1, $3::bigint - u.range_start + 1)
                                                         : least($4::bigint, u.range_end) - u.range_start + 1]) x(time)
    WHERE u.dataset_uuid = $1 AND u.dataset_version = $2 AND u.range_start <= $4 AND u.range_end >= $3
      AND u.range_start >= coalesce((SELECT max(range_start) FROM table_units
                                     WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3), 0)"""

# Times never decrease, so only the first and the last of the ranges have positions outside of the window.
_BETWEEN = """
    SELECT min(u.range_start + x.place - 1) AS first, max(u.range_start + x.place - 1) AS last
    FROM table_units u CROSS JOIN LATERAL unnest(u.times) WITH ORDINALITY x(time, place)
    WHERE u.dataset_uuid = $1 AND u.dataset_version = $2 AND u.range_start = ANY($3) AND x.time BETWEEN $4 AND $5"""

# The first event of a generation announces what it has adopted, too: nobody has read that as this generation.
_WIDEN = """
    UPDATE events SET first_position = $6
    WHERE producer = $1 AND dataset_uuid = $2 AND dataset_version = $3 AND unit = $4 AND revision = $5
    RETURNING event_id"""

_FIRST = """
    SELECT range_start FROM table_units WHERE dataset_uuid = $1 AND dataset_version = $2 ORDER BY range_start LIMIT 1"""


# Above the boundary rows are read from the table, so it is known from the first of them on.
_BEGIN_LIVE = """
    INSERT INTO live_boundaries (dataset_uuid, dataset_version, table_start, boundary)
    SELECT dataset_uuid, $2, $3::bigint, $3::bigint - 1 FROM datasets WHERE dataset_uuid = $1 AND storage = 'live'
    ON CONFLICT DO NOTHING"""


async def record(connection: Connection, events: Sequence[NewEvent]) -> dict[int, int]:
    """Records the positions that new events announce, in their order. Returns the first position of those events that
    announce more than their write, by event."""
    widened: dict[int, int] = {}
    for item in events:
        event, last = item.event, item.event.last_position
        if event.first is None or last is None or item.outdated:
            continue
        generation = (event.dataset_uuid, event.dataset_version)
        await connection.execute(_BEGIN_LIVE, *generation, event.first)
        if await read_first(connection, generation) is None and affected(await connection.execute(_ADOPT, *generation)):
            first = min(await read_first(connection, generation) or 0, event.first)
            widened[await connection.fetchval(_WIDEN, *item.key, first)] = first
        replaced_end = last if event.invalidates is None else max(last, event.invalidates.end)
        for row in await connection.fetch(_CUT, *generation, event.first, replaced_end):
            start, end, times = row["range_start"], row["range_end"], row["times"]
            if start < event.first:
                await _insert(connection, generation, start, event.first - 1, times and times[: event.first - start])
            if end > replaced_end:
                await _insert(
                    connection, generation, replaced_end + 1, end, times and times[replaced_end + 1 - start :]
                )
        await _insert(connection, generation, event.first, last, list(event.times) or None)
    return widened


async def keep_times(connection: Connection, generation: Generation, start: int, end: int) -> None:
    """Makes one row of the positions whose rows are in files from now on: their times stay known."""
    rows = await connection.fetch(_CUT, *generation, start, end)
    times: list[int] | None = []
    for row in sorted(rows, key=lambda row: int(row["range_start"])):
        first, last, known_times = row["range_start"], row["range_end"], row["times"]
        if first < start:
            await _insert(connection, generation, first, start - 1, known_times and known_times[: start - first])
        if last > end:
            await _insert(connection, generation, end + 1, last, known_times and known_times[end + 1 - first :])
        if times is not None:
            times = None if known_times is None else times + known_times[max(0, start - first) : end + 1 - first]
    if times is not None and len(times) == end - start + 1:
        await _insert(connection, generation, start, end, times)


async def forget_times(connection: Connection, generation: Generation, start: int, end: int) -> None:
    """Forgets positions whose rows were read anew into files."""
    for row in await connection.fetch(_CUT, *generation, start, end):
        first, last, times = row["range_start"], row["range_end"], row["times"]
        if first < start:
            await _insert(connection, generation, first, start - 1, times and times[: start - first])
        if last > end:
            await _insert(connection, generation, end + 1, last, times and times[end + 1 - first :])


async def _insert(
    connection: Connection, generation: Generation, start: int, end: int, times: list[int] | None
) -> None:
    if start == 0 and times and times[0] == 0:
        # The genesis of a chain may have no time. It counts with the block behind it, not with the year 1970.
        times = [times[1], *times[1:]] if len(times) > 1 else None
    await connection.execute(_INSERT, *generation, start, end, times)


async def read_times(connection: Connection, generation: Generation, start: int, end: int) -> tuple[int, int] | None:
    """The lowest and the highest time of these positions; None if none is known."""
    row = await connection.fetchrow(_TIMES, *generation, start, end)
    assert row is not None
    return None if row["time_min"] is None else (row["time_min"], row["time_max"])


async def find_positions(
    connection: Connection, generation: Generation, ranges: Sequence[int], first: int, last: int
) -> tuple[int, int] | None:
    """The first and the last position in ranges, given by their starts, whose time lies between these; None: none."""
    row = await connection.fetchrow(_BETWEEN, *generation, list(ranges), first, last)
    assert row is not None
    return None if row["first"] is None else (row["first"], row["last"])


async def read_first(connection: Connection, generation: Generation) -> int | None:
    """The first position of the table; None if nobody announced any."""
    position: int | None = await connection.fetchval(_FIRST, *generation)
    return position

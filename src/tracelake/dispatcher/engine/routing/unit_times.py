"""The times of the blocks that an event announces, and of the units that adjoin them.

Between two units that adjoin no block is missing, so the windows between their times are known to be empty. Between
others nothing is known, and the windows there are no business of the event, however many they are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation, RoutedEvent
from tracelake.dispatcher.engine.routing.directory import ConsumerInput
from tracelake.dispatcher.engine.tables import table_units
from tracelake.model.windows import Window
from tracelake.wire.units import Invalidates

# Of every revision of the unit: one whose times changed was in other windows before. The time 0 is no revision's time
# if another one is known: older releases recorded it for block 0 of chains whose genesis has no time.
_TIMES = """
    SELECT coalesce(min(time_min) FILTER (WHERE time_min > 0), min(time_min)) AS time_min, max(time_max) AS time_max
    FROM manifests WHERE dataset_uuid = $1 AND dataset_version = $2 AND unit = $3"""

_UNIT_BEFORE = """
    SELECT range_end = $3::bigint - 1 AS adjoins, time_max AS time FROM readable_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start < $3 ORDER BY range_start DESC LIMIT 1"""

_UNIT_BEHIND = """
    SELECT time_min FROM readable_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start = $3::bigint + 1 LIMIT 1"""

_TIMES_BETWEEN = """
    SELECT min(time_min) AS time_min, max(time_max) AS time_max FROM dataset_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $4 AND range_end >= $3
      AND range_start >= coalesce((SELECT max(range_start) FROM dataset_units
                                   WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3), 0)"""

_UNIT_OF_CURSOR = """
    SELECT range_start, range_end FROM dataset_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3 ORDER BY range_start DESC LIMIT 1"""

_EXTENT = """
    SELECT (SELECT range_start FROM readable_units WHERE dataset_uuid = $1 AND dataset_version = $2
              AND range_start IS NOT NULL ORDER BY range_start LIMIT 1) AS first,
           (SELECT range_end FROM readable_units WHERE dataset_uuid = $1 AND dataset_version = $2
              AND range_start IS NOT NULL ORDER BY range_start DESC LIMIT 1) AS last"""

_IS_PRECEDED = """
    SELECT EXISTS (SELECT FROM readable_units WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start < $3)"""

_INVALIDATES = msgspec.json.Decoder(Invalidates)


class UnitTimes(NamedTuple):
    span: Window
    """From the first to the last block."""
    neighbours: Sequence[Window] = ()
    """Ranges beside it whose windows may be complete only now; of others the event changes nothing."""
    declared: bool = False
    """An event says that there is something, in positions of the input: there may be no unit at all."""

    @property
    def around(self) -> Window:
        """From the unit before, if one is known, to the one behind."""
        spans = (self.span, *self.neighbours)
        return Window(min(span.start for span in spans), max(span.end for span in spans))


async def read_positions(connection: Connection, event: RoutedEvent, item: ConsumerInput) -> list[Window]:
    """The range of the unit that the event announces, and the one that it declares wrong."""
    spans: list[Window] = []
    if event.range_start is not None and event.range_end is not None:
        spans.append(Window(event.range_start, event.range_end))
    elif event.cursor is not None and event.first_position is not None:
        spans.append(Window(event.first_position, event.cursor))
    elif event.cursor is not None:
        row = await connection.fetchrow(_UNIT_OF_CURSOR, *item.generation, event.cursor)
        if row is not None and row["range_end"] >= event.cursor:
            spans.append(Window(row["range_start"], row["range_end"]))
    if event.invalidates is not None:
        wrong = _INVALIDATES.decode(event.invalidates)
        spans.append(Window(wrong.start, wrong.end))
    return spans


def clip_first_slot(span: Window) -> Window:
    """The seconds of a unit of a schedule. The first one has no slot before it and is of the slot alone, though its
    task is told that it begins at 0."""
    return Window(span.end, span.end) if span.start == 0 else span


async def is_preceded(connection: Connection, generation: Generation, span: Window) -> bool:
    """Whether the input has a unit before this one."""
    preceded: bool = await connection.fetchval(_IS_PRECEDED, *generation, span.start)
    return preceded


async def clip_to_units(connection: Connection, generation: Generation, span: Window) -> Window | None:
    """The part of a range between the first and the last unit that is committed. What is committed later is announced
    then, so of the rest nobody needs to know."""
    row = await connection.fetchrow(_EXTENT, *generation)
    assert row is not None
    if row["first"] is None or row["last"] < span.start or row["first"] > span.end:
        return None
    return Window(max(span.start, row["first"]), min(span.end, row["last"]))


async def read_times(
    connection: Connection, event: RoutedEvent, generation: Generation, span: Window
) -> list[UnitTimes]:
    """The times of these blocks of files, in all revisions together; if they are unknown, those beside them."""
    row = await connection.fetchrow(_TIMES, *generation, f"p:{span.start}-{span.end}")
    assert row is not None
    if row["time_min"] is not None:
        times = _between(row["time_min"], row["time_max"])
        return [UnitTimes(times, await _neighbours(connection, generation, span, times))]
    if event.invalidates is None:  # the windows beside it wait for its times
        before = await connection.fetchrow(_UNIT_BEFORE, *generation, span.start)
        behind = await connection.fetchval(_UNIT_BEHIND, *generation, span.end)
        beside = [time for time in (None if before is None else before["time"], behind) if time is not None]
        return [UnitTimes(_between(beside[0], beside[-1]))] if beside else []
    row = await connection.fetchrow(_TIMES_BETWEEN, *generation, *span)  # not a unit, but a range over several
    assert row is not None
    return [] if row["time_min"] is None else [UnitTimes(_between(row["time_min"], row["time_max"]))]


async def read_times_of_table(
    connection: Connection, event: RoutedEvent, generation: Generation, span: Window
) -> list[UnitTimes]:
    """The times of these blocks of a table that tasks write: those of now, and those from before the event."""
    spans: list[UnitTimes] = []
    times = await table_units.read_times(connection, generation, *span)
    if times is not None:
        now = _between(*times)
        before = await table_units.read_times(connection, generation, span.start - 1, span.start - 1)
        behind = await table_units.read_times(connection, generation, span.end + 1, span.end + 1)
        neighbours = await _neighbours(connection, generation, span, now) if None in (before, behind) else ()
        if before is not None:
            neighbours = (*neighbours, _between(before[1], now.start))
        if behind is not None:
            neighbours = (*neighbours, _between(now.end, behind[0]))
        spans.append(UnitTimes(now, neighbours))
    wrong = None if event.invalidates is None else _INVALIDATES.decode(event.invalidates)
    if wrong is not None and wrong.time_min is not None and wrong.time_max is not None:
        spans.append(UnitTimes(_between(wrong.time_min, wrong.time_max)))
    return spans


async def _neighbours(
    connection: Connection, generation: Generation, span: Window, times: Window
) -> tuple[Window, ...]:
    """The times up to the units that adjoin. Behind a gap the last window before it has just this one more to wait
    for: it is looked at, so that people see what it waits for."""
    neighbours: list[Window] = []
    before = await connection.fetchrow(_UNIT_BEFORE, *generation, span.start)
    if before is not None and before["time"] is not None:
        neighbours.append(_between(before["time"], times.start if before["adjoins"] else before["time"]))
    behind = await connection.fetchval(_UNIT_BEHIND, *generation, span.end)
    if behind is not None:
        neighbours.append(_between(times.end, behind))
    return tuple(neighbours)


def _between(one: int, other: int) -> Window:
    """In order, though times of units that were computed anew may overlap."""
    return Window(min(one, other), max(one, other))

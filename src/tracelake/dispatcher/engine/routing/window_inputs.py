"""Whether the inputs of a window are there, and what of each a task reads.

Windows of time are found among blocks by the times that each unit has (`readable_units.time_min`, `time_max`), so no
file is opened. Times never decrease from block to block, so units are in the order of their times. Of a table that
tasks write directly, each position has a time (`table_units`), and a window reads exactly its own positions.

An input begins where it, or anything that it is made from, was first announced: a window that begins before that is
complete from there on. So a unit at the beginning that is late, or has failed, keeps windows waiting; one that nobody
asked for does not.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from msgspec.structs import replace

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.engine.routing import coverage
from tracelake.dispatcher.engine.routing.coverage import Presence
from tracelake.dispatcher.engine.routing.directory import Consumer, ConsumerInput
from tracelake.dispatcher.engine.routing.unit_times import clip_first_slot
from tracelake.dispatcher.engine.routing.upstream_graph import UpstreamGraph
from tracelake.dispatcher.engine.tables import table_units
from tracelake.model.dag import Input, ReadMode
from tracelake.model.windows import LAST_POSITION, LAST_TIME, Window, previous_window, shift_window, window_at
from tracelake.wire.units import ReadScope

NOT_ANNOUNCED = "input_empty"
GAP = "input_gap"
NOT_PASSED = "input_not_passed"
NO_TIMES = "input_without_times"
PREVIOUS_OPEN = "previous_unit"
UNIT_MISSING = "input_unit"

_FIRST = """
    SELECT least(
        (SELECT min(range_start) FROM dataset_runs WHERE dataset_uuid = $1 AND dataset_version = $2),
        (SELECT range_start FROM readable_units WHERE dataset_uuid = $1 AND dataset_version = $2
           AND range_start IS NOT NULL ORDER BY range_start LIMIT 1))"""

_UNIT_AT = """
    SELECT range_start, range_end, time_min, time_max FROM readable_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3 ORDER BY range_start DESC LIMIT 1"""

_UNIT_BY_TIME = """
    SELECT range_start, range_end, time_min, time_max FROM readable_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND time_max >= $3 ORDER BY time_max, range_start LIMIT 1"""

_RUNS = """
    SELECT range_start, range_end FROM dataset_runs
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $4 AND range_end >= $3"""

_UNITS = """
    SELECT range_start, range_end FROM readable_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $4 AND range_end >= $3
      AND range_start >= coalesce((SELECT max(range_start) FROM readable_units
                                   WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3), $3)"""

# Block 0 may have no time: it counts with the block behind it.
_HAS_UNTIMED = """
    SELECT EXISTS (SELECT FROM readable_units
                   WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start BETWEEN $3 AND $4
                     AND range_start IS NOT NULL AND range_end > 0 AND time_max IS NULL)"""

_HAS_UNITS = "SELECT EXISTS (SELECT FROM readable_units WHERE dataset_uuid = $1 AND dataset_version = $2)"

_TABLE_UNIT = """
    SELECT range_start FROM (
        SELECT range_start, range_end FROM table_units
        WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3 ORDER BY range_start DESC LIMIT 1) u
    WHERE range_end >= $3"""

_IS_PENDING = """
    SELECT EXISTS (SELECT FROM pending_units WHERE node_id = $1 AND unit_start = $2 AND unit_end = $3)"""

# Units of a node do not overlap, so of its open tasks only the first that ends at or behind the range can touch it.
_OPEN = """
    SELECT t.task_id FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS n(node_id, range_start, range_end)
    CROSS JOIN LATERAL (
        SELECT task_id, unit_start FROM tasks
        WHERE tasks.node_id = n.node_id AND finished_at IS NULL AND unit_end IS NOT NULL AND unit_end >= n.range_start
          AND task_id::text <> ALL($4::text[])
        ORDER BY unit_end LIMIT 1) t
    WHERE t.unit_start <= n.range_end LIMIT 1"""

# Units upstream that will get a task, each with the open task whose end decides on it: its own, or for a unit behind
# others of its node, the task of the nearest of these.
_PENDING = """
    SELECT p.root FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS n(node_id, range_start, range_end)
    CROSS JOIN LATERAL (
        SELECT coalesce(u.waits_for, CASE WHEN u.reason = $5 THEN coalesce(
            (SELECT t.task_id FROM tasks t WHERE t.node_id = u.node_id AND t.finished_at IS NULL
               AND t.unit_end < u.unit_start ORDER BY t.unit_end DESC LIMIT 1),
            (SELECT q.waits_for FROM pending_units q WHERE q.node_id = u.node_id AND q.unit_start < u.unit_start
               AND q.waits_for IS NOT NULL ORDER BY q.unit_start DESC LIMIT 1)) END) AS root
        FROM pending_units u
        WHERE u.node_id = n.node_id AND u.unit_start <= n.range_end AND u.unit_end >= n.range_start) p
    WHERE p.root::text <> ALL($4::text[]) LIMIT 1"""

_OWN_TASK = """
    SELECT task_id FROM tasks
    WHERE node_id = $1 AND finished_at IS NULL AND unit_end = $3 AND unit_start = $2 AND edge = -1
      AND (attempt > 0 OR $4) ORDER BY task_id LIMIT 1"""


class Obstacle(Exception):  # noqa: N818 - a state, not an error
    """Why a window cannot be computed now."""

    def __init__(self, reason: str, waits_for: UUID | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.waits_for = waits_for


class _TimedUnit(NamedTuple):
    start: int
    end: int
    time_min: int | None
    time_max: int | None


@dataclass(eq=False)
class WindowInputs:
    """What the inputs of windows are, as one transaction sees them."""

    connection: Connection
    graph: UpstreamGraph
    _first: dict[Generation, int | None] = field(default_factory=dict)

    async def resolve(self, consumer: Consumer, window: Window) -> list[ReadScope | None]:
        """What each input is for the window, in order. Raises Obstacle if one of them is not there."""
        await self._check_begun(consumer, window)
        return [await self._resolve(consumer, item, window) for item in consumer.inputs]

    async def find_open_work(
        self, consumer: Consumer, window: Window, scopes: Sequence[ReadScope | None], producers: Collection[str] = ()
    ) -> None:
        """Raises Obstacle if a task upstream, or of this very unit, is open and will change what the window is.

        `producers` have announced the change, and are not waited for.
        """
        place = (consumer.node_id, *window)
        own = await self.connection.fetchval(_OWN_TASK, *place, False)
        if own is not None:
            raise Obstacle("own_task", own)
        questions = [(node_id, *span) for node_id, span in self._trace_back(consumer, window, scopes).items()]
        if questions:
            spans = [list(column) for column in zip(*questions, strict=True)]
            open_task = await self.connection.fetchval(_OPEN, *spans, list(producers))
            if open_task is None:
                open_task = await self.connection.fetchval(_PENDING, *spans, list(producers), PREVIOUS_OPEN)
            if open_task is not None:
                raise Obstacle("upstream_task", open_task)

    def is_in_seconds(self, consumer: Consumer) -> bool:
        """Whether the units of the consumer are windows of time."""
        if consumer.job.units is not None:
            return consumer.job.units.by == "time"
        return any(
            self.graph.is_in_seconds(item.generation)
            for item in consumer.inputs
            if consumer.spec(item).read is ReadMode.UNIT
        )

    def _trace_back(self, consumer: Consumer, window: Window, scopes: Sequence[ReadScope | None]) -> dict[UUID, Window]:
        """The range of each ancestor's units that the window is made from."""
        in_seconds = self.is_in_seconds(consumer)
        sequential = any(consumer.spec(item).read is ReadMode.PREVIOUS for item in consumer.inputs)
        read: dict[bool, list[Window]] = {False: [], True: []}
        read[in_seconds].append(window)
        direct: dict[UUID, Window] = {}
        for item, scope in zip(consumer.inputs, scopes, strict=True):
            producer = self.graph.producers.get(item.generation)
            if consumer.spec(item).read is ReadMode.PREVIOUS:
                continue
            span = window
            if scope is not None and scope.start is not None and scope.end is not None:
                span = Window(scope.start, scope.end)
                read[scope.in_seconds].append(span)
            elif producer is not None and self.graph.counts_seconds(producer) != in_seconds:
                continue
            if sequential:
                span = Window(0, span.end)
            if producer is not None:
                direct[producer] = _hull([span, direct.get(producer, span)])
        if in_seconds:
            # One input tells the blocks of the window now, another those that its units had when they were committed:
            # after a reorganisation, a unit that has none of them yet may be about to get some.
            for producer in direct.keys() & self._read_by_time(consumer):
                direct[producer] = _hull([direct[producer], *read[False]])
        ranges = self.graph.trace_back(consumer.node_id, direct)
        for node_id in self.graph.ancestors(consumer.node_id) - ranges.keys():
            spans = read[self.graph.counts_seconds(node_id)]
            if spans:
                ranges[node_id] = _hull(spans)
        return ranges

    def _read_by_time(self, consumer: Consumer) -> set[UUID]:
        """The producers of whose blocks the consumer reads those of a window of time."""
        producers = {
            self.graph.producers.get(item.generation)
            for item in consumer.inputs
            if consumer.spec(item).read is ReadMode.WINDOW and not self.graph.is_in_seconds(item.generation)
        }
        return {producer for producer in producers if producer is not None}

    # --- inputs

    async def _check_begun(self, consumer: Consumer, window: Window) -> None:
        """Raises Obstacle if no input knows anything of a window that is computed as its inputs grow: they have not
        reached it, or it lies in a gap.

        Otherwise each unit of a running state would bring along the next one, without end, and a gap of years would
        be as many tasks without rows.
        """
        grid = consumer.job.units
        if grid is None or grid.when == "complete":
            return
        reason = NOT_PASSED
        for item in consumer.inputs:
            if consumer.spec(item).read not in (ReadMode.UNIT, ReadMode.WINDOW, ReadMode.HISTORY):
                continue
            by_time = grid.by == "time" and not self.graph.is_in_seconds(item.generation)
            find = self._why_unknown_time if by_time else self._why_unknown
            unknown = await find(item.generation, window)
            if unknown is None:
                return
            reason = unknown
        raise Obstacle(reason)

    async def _why_unknown_time(self, generation: Generation, window: Window) -> str | None:
        """Why no block of the window is known, nor that it has none; None if that is known."""
        behind = await self._unit_by_time(generation, window.start)
        if behind is None:
            return await self._why_not_passed(generation)
        if behind.time_min is None or behind.time_min <= window.end:
            return None
        first = await self._first_position(generation)
        if first is None or behind.start <= first:
            return None
        return GAP if await self._gaps(generation, Window(behind.start - 1, behind.start)) else None

    async def _why_unknown(self, generation: Generation, window: Window) -> str | None:
        newest = await self._unit_at(generation, LAST_POSITION)
        if newest is None or newest.end < window.start:
            return NOT_PASSED
        nearest = await self._unit_at(generation, window.end)
        return GAP if nearest is not None and nearest.end < window.start else None

    async def _resolve(self, consumer: Consumer, item: ConsumerInput, window: Window) -> ReadScope | None:
        spec = consumer.spec(item)
        if spec.read is ReadMode.UNIT:
            unit = Presence(item.generation, f"p:{window.start}-{window.end}", *window)
            if not await coverage.read_revisions(self.connection, [unit]):
                raise Obstacle(UNIT_MISSING)
            return None
        in_seconds = self.is_in_seconds(consumer)
        if spec.read is ReadMode.PREVIOUS:
            return await self._previous(consumer, item, spec, window, in_seconds=in_seconds)
        if not await self.connection.fetchval(_HAS_UNITS, *item.generation):
            raise Obstacle(NOT_ANNOUNCED)
        scope = ReadScope(
            mode=spec.read,
            in_seconds=self.graph.is_in_seconds(item.generation),
            unit_in_seconds=in_seconds,
        )
        if spec.read is ReadMode.ALL:
            return scope
        span = self._span(consumer, spec, window)
        by_time = in_seconds and not scope.in_seconds
        complete = consumer.job.units is None or consumer.job.units.when == "complete"
        latest = spec.read is ReadMode.LATEST
        if by_time:
            units = await self._by_time(item.generation, span, complete=complete, latest=latest)
        else:
            units = await self._by_position(item.generation, span, complete=complete, latest=latest)
        units = await self._narrow(item.generation, units, span, by_time=by_time, latest=latest)
        rows = (spec.by, *span) if spec.by is not None and spec.read is not ReadMode.LATEST else (None, None, None)
        zone = None if spec.by is None or not in_seconds else self._time_zone(consumer)
        return replace(
            scope,
            start=units.span.start,
            end=units.span.end,
            empty=units.empty,
            column=rows[0],
            first=rows[1],
            last=rows[2],
            time_zone=zone,
        )

    def _time_zone(self, consumer: Consumer) -> str | None:
        """Whose days the units of the consumer are; None for UTC."""
        grids = [consumer.job.units, *(self.graph.grid_of(item.generation) for item in consumer.inputs)]
        zones = (grid.time_zone for grid in grids if grid is not None and grid.by == "time")
        return next((zone for zone in zones if zone != "UTC"), None)

    def _span(self, consumer: Consumer, spec: Input, window: Window) -> Window:
        if spec.read is ReadMode.WINDOW:
            if not spec.lookback:
                return window
            assert consumer.job.units is not None
            return Window(shift_window(consumer.job.units, window, -spec.lookback).start, window.end)
        return Window(0, window.end)

    async def _previous(
        self, consumer: Consumer, item: ConsumerInput, spec: Input, window: Window, *, in_seconds: bool
    ) -> ReadScope:
        """The unit before; an empty relation for the first unit."""
        scope = ReadScope(mode=ReadMode.PREVIOUS, in_seconds=in_seconds, unit_in_seconds=in_seconds)
        before = await self._window_before(consumer, window)
        if before is None:
            return replace(scope, empty=True, columns=spec.columns)
        unit = await self.connection.fetchrow(_UNIT_AT, *item.generation, before.start)
        committed = unit is not None and (unit["range_start"], unit["range_end"]) == tuple(before)
        if not committed or await self.connection.fetchval(_IS_PENDING, consumer.node_id, *before):
            raise Obstacle(PREVIOUS_OPEN)
        open_task = await self.connection.fetchval(_OWN_TASK, consumer.node_id, *before, True)
        if open_task is not None:
            raise Obstacle(PREVIOUS_OPEN, open_task)
        return replace(scope, start=before.start, end=before.end)

    async def _window_before(self, consumer: Consumer, window: Window) -> Window | None:
        """The unit before this one; None if this is the first that the inputs have."""
        firsts = [await self._first_of_window(consumer, item) for item in consumer.inputs]
        positions = [first for first in firsts if first is not None]
        if not positions or window.start <= min(positions) <= window.end or window.end < min(positions):
            return None
        grid = consumer.job.units
        if grid is not None:
            return previous_window(grid, window)
        for item in consumer.inputs:  # the driving input tells
            if consumer.spec(item).read is ReadMode.UNIT:
                row = await self.connection.fetchrow(_UNIT_AT, *item.generation, window.start - 1)
                if row is None or row["range_end"] != window.start - 1:
                    raise Obstacle(GAP)
                return Window(row["range_start"], row["range_end"])
        return None

    async def _first_of_window(self, consumer: Consumer, item: ConsumerInput) -> int | None:
        """Where an input begins, in positions of the consumer's units."""
        if consumer.spec(item).read not in (ReadMode.UNIT, ReadMode.WINDOW, ReadMode.HISTORY):
            return None
        if self.is_in_seconds(consumer):
            first = await self._first_second(item.generation)
            if first is None:
                raise Obstacle(NOT_ANNOUNCED)
            return first
        return await self._first_position(item.generation)

    # --- ranges of blocks, and of seconds where the dataset's units are windows

    async def _by_position(
        self, generation: Generation, span: Window, *, complete: bool, latest: bool
    ) -> "_FoundUnits":
        first = await self._first_position(generation)
        if first is None:
            raise Obstacle(NOT_ANNOUNCED)
        if latest:
            unit = await self.connection.fetchrow(_UNIT_AT, *generation, span.end)
            if unit is None:
                return await self._nearest(generation, first)
            return _FoundUnits(Window(unit["range_start"], unit["range_end"]))
        if first > span.end:
            return await self._nearest(generation, first)
        read = Window(max(span.start, first), span.end)
        gaps = await self._gaps(generation, read)
        if complete and gaps:
            raise Obstacle(GAP)
        if gaps == [read]:
            return await self._nearest(generation, first)
        if gaps and gaps[-1].end == read.end:  # a window that grows ends where its input does
            read = Window(read.start, gaps[-1].start - 1)
        return _FoundUnits(read)

    async def _by_time(self, generation: Generation, span: Window, *, complete: bool, latest: bool) -> "_FoundUnits":
        first = await self._first_position(generation)
        if first is None:
            raise Obstacle(NOT_ANNOUNCED)
        behind = await self._unit_by_time(generation, span.end + 1)
        if behind is None and complete:
            raise Obstacle(await self._why_not_passed(generation))
        if behind is None:
            last = await self._unit_at(generation, LAST_POSITION)
        elif behind.time_min is not None and behind.time_min <= span.end:
            last = behind
        else:
            last = await self._unit_at(generation, behind.start - 1) if behind.start > 0 else None
        low = await self._unit_by_time(generation, span.start)
        assert low is not None or behind is None
        await self._check_timed(generation, last if latest else low, behind)
        if latest:
            return _FoundUnits(Window(last.start, last.end)) if last else await self._nearest(generation, first)
        if complete:
            assert low is not None
            assert behind is not None
            # A unit that begins before the window shows that nothing of the window is missing in front of it. Behind
            # any other, the block before must be there as well.
            begins_before = low.time_min is not None and low.time_min < span.start
            covered = Window(low.start if begins_before else max(first, low.start - 1), behind.end)
            if await self._gaps(generation, covered):
                raise Obstacle(GAP)
        if low is None or last is None or low.start > last.start:
            return await self._nearest(generation, first if behind is None else behind.start)
        return _FoundUnits(Window(low.start, last.end))

    async def _check_timed(self, generation: Generation, first: _TimedUnit | None, behind: _TimedUnit | None) -> None:
        """Raises Obstacle if a unit without times may have blocks of the window: one from that in front of the first
        unit to the one behind the last."""
        newest = behind or await self._unit_at(generation, LAST_POSITION)
        if newest is None:
            return
        begin = newest.start if first is None else first.start
        before = await self._unit_at(generation, begin - 1) if begin > 0 else None
        span = (begin if before is None else before.start, newest.start)
        if await self.connection.fetchval(_HAS_UNTIMED, *generation, *span):
            raise Obstacle(NO_TIMES)

    async def _narrow(
        self, generation: Generation, units: "_FoundUnits", span: Window, *, by_time: bool, latest: bool
    ) -> "_FoundUnits":
        """Of a table that tasks write directly, the very positions of the window; its newest one for `latest`. How
        the table was written is then no part of what a task reads."""
        if units.empty or await self.connection.fetchval(_TABLE_UNIT, *generation, units.span.end) is None:
            return units
        first, last = units.span
        if by_time:
            begin, end = [await self.connection.fetchval(_TABLE_UNIT, *generation, place) for place in units.span]
            positions = await table_units.find_positions(self.connection, generation, [begin, end], *span)
            if begin is None:  # it begins with units of files
                last = end - 1 if positions is None else positions[1]
            elif positions is None:
                return units._replace(empty=True)
            else:
                first, last = positions
        last = min(last, span.end) if not by_time else last
        return _FoundUnits(Window(last if latest else first, last))

    async def _why_not_passed(self, generation: Generation) -> str:
        newest = await self._unit_at(generation, LAST_POSITION)
        return NO_TIMES if newest is not None and newest.time_max is None else NOT_PASSED

    async def _nearest(self, generation: Generation, position: int) -> "_FoundUnits":
        """A unit that tells the columns of an input without rows."""
        unit = await self._unit_at(generation, position)
        unit = unit or await self._unit_at(generation, LAST_POSITION)
        if unit is None:
            raise Obstacle(NOT_ANNOUNCED)
        return _FoundUnits(Window(unit.start, unit.end), empty=True)

    async def _gaps(self, generation: Generation, span: Window) -> list[Window]:
        """The parts of the range that no committed unit covers."""
        for statement in (_RUNS, _UNITS):  # runs are few, but units of cursors are not among them
            rows = await self.connection.fetch(statement, *generation, *span)
            gaps, position = [], span.start
            for start, end in coverage.merge((row["range_start"], row["range_end"]) for row in rows):
                if start > position:
                    gaps.append(Window(position, start - 1))
                position = max(position, end + 1)
            if position <= span.end:
                gaps.append(Window(position, span.end))
            if not gaps:
                return []
        return gaps

    async def _unit_at(self, generation: Generation, position: int) -> _TimedUnit | None:
        row = await self.connection.fetchrow(_UNIT_AT, *generation, position)
        return None if row is None else _TimedUnit(*row)

    async def _unit_by_time(self, generation: Generation, time: int) -> _TimedUnit | None:
        row = await self.connection.fetchrow(_UNIT_BY_TIME, *generation, time)
        return None if row is None else _TimedUnit(*row)

    # --- beginnings

    async def _first_position(self, generation: Generation) -> int | None:
        """The first position that was announced of the generation, or of what it is made from."""
        if generation not in self._first:
            self._first[generation] = await self._find_first(generation)
        return self._first[generation]

    async def _find_first(self, generation: Generation) -> int | None:
        producer = self.graph.producers.get(generation)
        grid = None if producer is None else self.graph.grids.get(producer)
        extents = [] if producer is None else self.graph.extents(producer)
        if grid is not None and grid.by == "time":
            seconds = [await self._first_second(item) for item in extents]
            positions = [second for second in seconds if second is not None]
            if len(positions) < len(seconds) or not positions:
                return None
            return window_at(grid, min(*positions, LAST_TIME)).start
        firsts = [await self.connection.fetchval(_FIRST, *generation)]
        if firsts == [0] and self.graph.follows_clock(generation):
            unit = await self._unit_at(generation, 0)
            firsts = [None if unit is None else clip_first_slot(Window(unit.start, unit.end)).start]
        firsts += [await self._first_position(item) for item in extents]
        positions = [first for first in firsts if first is not None]
        if not positions:
            return None
        return min(positions) if grid is None else window_at(grid, min(positions)).start

    async def _first_second(self, generation: Generation) -> int | None:
        """The time of the first position; None as long as its unit is not committed."""
        first = await self._first_position(generation)
        if first is None or self.graph.is_in_seconds(generation):
            return first
        unit = await self._unit_at(generation, first)
        if unit is not None and unit == (0, 0, None, None):  # the genesis of a chain may have no time
            first, unit = 1, await self._unit_at(generation, 1)
        return unit.time_min if unit is not None and unit.end >= first else None


class _FoundUnits(NamedTuple):
    span: Window
    empty: bool = False


def _hull(spans: Sequence[Window]) -> Window:
    return Window(min(span.start for span in spans), max(span.end for span in spans))

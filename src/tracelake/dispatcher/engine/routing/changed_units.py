"""From events to the units that they touch, where a unit waits for more than the event: joins and windows.

A unit is computed once for a change, however many of its inputs the change reaches: while a task upstream is open whose
unit it is made from, it waits for the end of that task. A task that is queued for it is brought up to date, and one
that runs is waited for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.limits import limit_keys_of
from tracelake.dispatcher.engine.plan import NewTask, RoutedEvent, WakeTarget, wake_of
from tracelake.dispatcher.engine.routing import coverage, pending_units, unit_times
from tracelake.dispatcher.engine.routing.coverage import NewestRevision, Presence
from tracelake.dispatcher.engine.routing.directory import Consumer, ConsumerInput
from tracelake.dispatcher.engine.routing.drafts import TaskDrafts
from tracelake.dispatcher.engine.routing.pending_units import ChangedUnit, WaitingUnit
from tracelake.dispatcher.engine.routing.unit_times import UnitTimes
from tracelake.dispatcher.engine.routing.units import ALL_INPUTS, UnitRequest, draft
from tracelake.dispatcher.engine.routing.upstream_graph import UpstreamGraph, UpstreamGraphs
from tracelake.dispatcher.engine.routing.window_inputs import (
    GAP,
    NOT_ANNOUNCED,
    NOT_PASSED,
    PREVIOUS_OPEN,
    Obstacle,
    WindowInputs,
)
from tracelake.dispatcher.slices import pause_between
from tracelake.model.dag import ReadMode, UnitGrid
from tracelake.model.ids import new_id
from tracelake.model.task import RevisionKind
from tracelake.model.windows import (
    LAST_POSITION,
    LAST_TIME,
    Window,
    count_windows,
    iterate_windows,
    next_window,
    shift_window,
    window_at,
)
from tracelake.wire.units import ReadScope, TaskInput, Unit

AT_ONCE = 100
"""How many units of one node are settled in the transaction that hears of a change; the drain loop settles the rest."""


@dataclass(eq=False)
class TouchedUnits:
    """What the events of one transaction ask of nodes whose units wait."""

    consumers: dict[UUID, Consumer] = field(default_factory=dict)
    units: dict[UUID, dict[Window, ChangedUnit]] = field(default_factory=dict)

    def add(self, consumer: Consumer, unit: ChangedUnit) -> None:
        self.consumers[consumer.node_id] = consumer
        earlier = self.units.setdefault(consumer.node_id, {}).get(unit.window)
        if earlier is not None:
            newest = max(earlier, unit, key=lambda item: item.changed_seq)
            unit = replace(newest, producers=earlier.producers | unit.producers)
        self.units[consumer.node_id][unit.window] = unit

    def in_order(self, graph: UpstreamGraph) -> list[UUID]:
        """Nodes in an order in which none comes before one that it is made from."""
        return sorted(self.units, key=lambda node: (len(graph.ancestors(node)), node))


@dataclass(eq=False)
class ChangedUnits:
    config: DispatcherConfig
    drafts: TaskDrafts
    graphs: UpstreamGraphs = field(default_factory=UpstreamGraphs)

    async def graph(self, connection: Connection, org_id: UUID, epoch: int | None = None) -> UpstreamGraph:
        if epoch is None:
            epoch = await connection.fetchval("SELECT routing_epoch FROM orgs WHERE org_id = $1", org_id)
        return await self.graphs.of(connection, org_id, epoch)

    # --- which units an event touches

    async def touch(
        self,
        connection: Connection,
        graph: UpstreamGraph,
        event: RoutedEvent,
        consumer: Consumer,
        item: ConsumerInput,
        touched: TouchedUnits,
    ) -> None:
        """Notes the units of a consumer with windows that an event touches, and those that exist and lie behind it."""
        change = ChangedUnit(
            consumer.node_id, Window(0, LAST_POSITION), event.org_id, event.routed_seq,
            RevisionKind(event.revision_kind), event.traceparent, frozenset({event.producer}),
        )  # fmt: skip
        if consumer.spec(item).read is ReadMode.ALL:
            await self._touch_existing(connection, consumer, change, touched)
            return
        # What a schedule brings first is the newest for all that lies before it.
        clips = graph.follows_clock(item.generation) and consumer.spec(item).read is not ReadMode.LATEST
        for positions in await unit_times.read_positions(connection, event, item):
            if not await unit_times.is_preceded(connection, item.generation, positions):
                # The input has just begun: windows waited for that wherever they are.
                await self._touch_waiting(connection, consumer, change, NOT_ANNOUNCED, touched)
            span = unit_times.clip_first_slot(positions) if clips else positions
            await self._touch_span(connection, graph, event, consumer, item, change, span, touched)

    async def _touch_span(
        self,
        connection: Connection,
        graph: UpstreamGraph,
        event: RoutedEvent,
        consumer: Consumer,
        item: ConsumerInput,
        change: ChangedUnit,
        span: Window,
        touched: TouchedUnits,
    ) -> None:
        spec, grid = consumer.spec(item), consumer.job.units
        if spec.read is ReadMode.PREVIOUS:
            if span.end >= _last_position(grid):
                return
            if grid is not None:
                touched.add(consumer, replace(change, window=next_window(grid, span)))
            else:
                await self._touch_existing(
                    connection,
                    consumer,
                    replace(change, window=Window(span.end + 1, span.end + 1)),
                    touched,
                    first=True,
                )
            return
        spans = [UnitTimes(span, declared=True)]
        if WindowInputs(connection, graph).is_in_seconds(consumer) and not graph.is_in_seconds(item.generation):
            spans = await self._times(connection, event, item, span)
        for times in spans:
            if not times.declared and times.around.start == times.span.start:
                # No block is before it: what lies there is known to be empty now.
                before = replace(change, window=Window(0, times.span.start))
                await self._touch_waiting(connection, consumer, before, GAP, touched)
            await self._touch_passed(connection, consumer, item, change, times.around, touched)
            await self._touch_times(connection, consumer, item, change, times, touched)

    async def _touch_passed(
        self,
        connection: Connection,
        consumer: Consumer,
        item: ConsumerInput,
        change: ChangedUnit,
        around: Window,
        touched: TouchedUnits,
    ) -> None:
        """Notes the windows that waited until an input passes them, where the unit that does so lies behind them: those
        that read the newest unit before, and those that are computed as their inputs grow."""
        grid = consumer.job.units
        if grid is not None and grid.when == "updated":
            passed = Window(0, around.end)  # few: any input that gets there computes them
        elif consumer.spec(item).read is ReadMode.LATEST:
            passed = around
        else:
            return
        await self._touch_waiting(connection, consumer, replace(change, window=passed), NOT_PASSED, touched)

    async def _touch_waiting(
        self, connection: Connection, consumer: Consumer, change: ChangedUnit, reason: str, touched: TouchedUnits
    ) -> None:
        """Notes every window in the changed range that is pending for this reason."""
        windows = await pending_units.load_of_reason(connection, change, reason, AT_ONCE + 1)
        if len(windows) > AT_ONCE:
            await pending_units.mark_of_reason(connection, change, reason)
            return
        for window in windows:
            touched.add(consumer, replace(change, window=window))

    async def _touch_times(
        self,
        connection: Connection,
        consumer: Consumer,
        item: ConsumerInput,
        change: ChangedUnit,
        times: UnitTimes,
        touched: TouchedUnits,
    ) -> None:
        """`times` are positions of the consumer's own units."""
        spec, grid, span = consumer.spec(item), consumer.job.units, times.span
        if spec.read is ReadMode.UNIT and grid is None:
            touched.add(consumer, replace(change, window=span))
            return
        if grid is not None and spec.read is not ReadMode.LATEST and span.start <= _last_position(grid):
            own = _range_reading(grid, span, spec.lookback)
            if times.declared and count_windows(grid, *own) > AT_ONCE:
                units = await unit_times.clip_to_units(connection, item.generation, span)
                own = _range_reading(grid, units or Window(span.start, span.start), spec.lookback)
            await self._touch_range(connection, consumer, replace(change, window=own), touched)
            for neighbour in times.neighbours:
                start, end = _range_reading(grid, neighbour, spec.lookback)
                beside = (Window(start, min(end, own.start - 1)), Window(max(start, own.end + 1), end))
                for part in beside:
                    if part.start <= part.end:
                        await self._touch_range(connection, consumer, replace(change, window=part), touched, new=True)
        if spec.read in (ReadMode.HISTORY, ReadMode.LATEST) or grid is None:
            end = LAST_POSITION if spec.read is not ReadMode.WINDOW else times.span.end
            place = Window(times.span.start, end)
            await self._touch_existing(connection, consumer, replace(change, window=place), touched)

    async def touch_more(
        self, connection: Connection, consumer: Consumer, rest: WaitingUnit, touched: TouchedUnits, room: int
    ) -> None:
        """Notes the next of those windows that an earlier transaction left over."""
        await pending_units.remove(connection, [rest.unit])
        new = rest.reason == pending_units.MORE_NEW
        await self._touch_range(connection, consumer, rest.unit, touched, new=new, room=room)

    async def _touch_range(
        self,
        connection: Connection,
        consumer: Consumer,
        change: ChangedUnit,
        touched: TouchedUnits,
        *,
        new: bool = False,
        room: int = AT_ONCE,
    ) -> None:
        """Notes the windows of a range; `new`: those that may be complete only now.

        A unit may lie in millions of windows. Those that do not fit into the transaction are left to the drain loop, as
        one row for the rest of the range.
        """
        grid = consumer.job.units
        assert grid is not None
        room = max(1, room - len(touched.units.get(consumer.node_id, ())))
        windows = list(islice(iterate_windows(grid, *change.window), room + 1))
        if len(windows) > room and windows[-1].end < change.window.end:
            rest = replace(change, window=Window(windows.pop().start, change.window.end))
            await pending_units.save_rest(connection, rest, new=new)
        if new:
            windows = await self._not_computed(connection, consumer, windows)
        for number, window in enumerate(windows):
            await pause_between(number)
            touched.add(consumer, replace(change, window=window))

    async def _not_computed(self, connection: Connection, consumer: Consumer, windows: list[Window]) -> list[Window]:
        """Those windows beside a changed unit that may be complete only now. Of others the unit changes nothing."""
        place = (connection, consumer.node_id, windows[0].start)
        existing = set(await pending_units.list_existing(*place, windows[-1].end, 2 * AT_ONCE))
        pending = {unit.window for unit in await pending_units.load_from(*place, 2 * AT_ONCE)}
        return [window for window in windows if window in pending or window not in existing]

    async def _touch_existing(
        self,
        connection: Connection,
        consumer: Consumer,
        change: ChangedUnit,
        touched: TouchedUnits,
        *,
        first: bool = False,
    ) -> None:
        """Notes every window in the changed range that has a task or is pending. `first`: only the first of them."""
        node_id, (start, end) = consumer.node_id, change.window
        limit = 1 if first else AT_ONCE + 1
        windows = await pending_units.list_existing(connection, node_id, start, LAST_POSITION if first else end, limit)
        pending = [unit.window for unit in await pending_units.load_from(connection, node_id, start, limit)]
        windows += [window for window in pending if window not in windows and window.start <= max(end, start)]
        if len(windows) > AT_ONCE:
            await pending_units.mark_existing(connection, change)
            return
        for window in windows:
            if not first or window.start == start:
                touched.add(consumer, replace(change, window=window))

    async def _times(
        self, connection: Connection, event: RoutedEvent, item: ConsumerInput, span: Window
    ) -> list[UnitTimes]:
        generation = item.generation
        if self.drafts.has_positions(generation):
            spans = await unit_times.read_times_of_table(connection, event, generation, span)
            if spans or self.drafts.is_direct_table(generation):
                return spans
        return await unit_times.read_times(connection, event, generation, span)

    # --- which of them get a task

    async def settle(
        self, connection: Connection, graph: UpstreamGraph, consumer: Consumer, units: Iterable[ChangedUnit]
    ) -> list[NewTask]:
        """Drafts tasks of units that are complete; the others are pending from here on. The node's edges are locked."""
        inputs = WindowInputs(connection, graph)
        tasks: list[NewTask] = []
        waiting: list[WaitingUnit] = []
        done: list[ChangedUnit] = []
        for number, unit in enumerate(sorted(units, key=lambda item: item.window)):
            await pause_between(number)
            if number >= AT_ONCE:
                waiting.append(WaitingUnit(unit, due=True))
                continue
            try:
                if number and _reads_previous(consumer):
                    raise Obstacle(PREVIOUS_OPEN)  # a unit before it has changed, and its end brings this one along
                scopes = await inputs.resolve(consumer, unit.window)
                await inputs.find_open_work(consumer, unit.window, scopes, unit.producers)
                tasks.append(await self._draft(connection, consumer, unit, scopes))
                done.append(unit)
            except Obstacle as obstacle:
                waiting.append(WaitingUnit(unit, obstacle.reason, obstacle.waits_for))
        await pending_units.save(connection, waiting)
        await pending_units.remove(connection, done)
        return tasks

    async def draft_manual(
        self, connection: Connection, graph: UpstreamGraph, consumer: Consumer, unit: ChangedUnit, revision: str
    ) -> NewTask:
        """Drafts the task of a window that a person asks for. Raises Obstacle if its inputs are not there."""
        scopes = await WindowInputs(connection, graph).resolve(consumer, unit.window)
        return replace(await self._draft(connection, consumer, unit, scopes), revision=revision, renews=False)

    async def _draft(
        self, connection: Connection, consumer: Consumer, unit: ChangedUnit, scopes: Sequence[ReadScope | None]
    ) -> NewTask:
        start, end = unit.window
        key = f"{start}-{end}"
        revisions = await self._revisions(connection, consumer, unit)
        if consumer.joins:
            request = UnitRequest(
                consumer, consumer.inputs[0], None, key, start, end, "", unit.kind, unit.changed_seq,
                traceparent=unit.traceparent,
            )  # fmt: skip
            newest = [revision for revision in revisions if revision is not None]
            return replace(draft(request, *self._wake_and_limits(consumer), newest), renews=True)
        wire_unit = Unit(partition_key=key, start=start, end=end)
        in_seconds = any(scope is not None and scope.unit_in_seconds for scope in scopes)
        unit_scope = ReadScope(
            mode=ReadMode.UNIT, start=start, end=end, in_seconds=in_seconds, unit_in_seconds=in_seconds
        )
        inputs = [
            TaskInput(
                input_index=item.input_index,
                dataset_uuid=item.generation[0],
                dataset_version=item.generation[1],
                unit=wire_unit,
                revision="" if newest is None else newest.revision,
                where=item.where,
                scope=scope or unit_scope,
            )
            for item, scope, newest in zip(consumer.inputs, scopes, revisions, strict=True)
        ]
        wake, limit_keys = self._wake_and_limits(consumer)
        job = consumer.job
        return NewTask(
            task_id=new_id(),
            org_id=job.org_id,
            job_id=job.job_id,
            max_attempts=job.max_attempts,
            inputs=msgspec.json.encode(inputs).decode(),
            unit=msgspec.json.encode(wire_unit).decode(),
            wake=wake,
            limit_keys=limit_keys,
            node_id=consumer.node_id,
            edge=ALL_INPUTS,
            unit_key=f"p:{key}",
            unit_start=start,
            unit_end=end,
            revision=str(unit.changed_seq),
            revision_kind=unit.kind,
            input_order=(max(item.pinned_seq for item in consumer.inputs), unit.changed_seq),
            counted=job.counted,
            traceparent=unit.traceparent,
            renews=True,
        )

    async def _revisions(
        self, connection: Connection, consumer: Consumer, unit: ChangedUnit
    ) -> list[NewestRevision | None]:
        """The newest revision of the unit in each input that is read by unit; None for the others."""
        read = [item for item in consumer.inputs if consumer.joins or consumer.spec(item).read is ReadMode.UNIT]
        questions = [
            Presence(
                item.generation, f"p:{unit.window.start}-{unit.window.end}", *unit.window,
                usual=self.drafts.usual_revision(item.generation),
            )
            for item in read
        ]  # fmt: skip
        newest = await coverage.read_revisions(connection, questions)
        by_input = {item.input_index: newest[number] for number, item in enumerate(read)}
        return [by_input.get(item.input_index) for item in consumer.inputs]

    def _wake_and_limits(self, consumer: Consumer) -> tuple[WakeTarget, tuple[str, ...]]:
        runtimes, job = self.config.runtimes, consumer.job
        org_limited = self.drafts.limits_running(job.org_id)
        return wake_of(runtimes, job.runtime), limit_keys_of(runtimes, job, org_limited=org_limited)


def _reads_previous(consumer: Consumer) -> bool:
    return any(item.read is ReadMode.PREVIOUS for item in consumer.job.inputs)


def _last_position(grid: UnitGrid | None) -> int:
    """The last position that windows are made for. Behind it there is none, whatever an event says."""
    return LAST_TIME if grid is not None and grid.by == "time" else LAST_POSITION - 1


def _range_reading(grid: UnitGrid, span: Window, lookback: int) -> Window:
    """The windows that read a range: those that it lies in, and as many behind them as look back."""
    last = _last_position(grid)
    first_window, last_window = (window_at(grid, min(position, last)) for position in span)
    return Window(first_window.start, shift_window(grid, last_window, lookback).end)

"""From events to the units that they touch, where a unit waits for more than the event: joins and windows.

A unit is computed once for a change, however many of its inputs the change reaches: while a task upstream is open whose
unit it is made from, it waits for the end of that task. A task that is queued for it is brought up to date, and one
that runs is waited for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.limits import limit_keys_of
from tracelake.dispatcher.engine.plan import NewTask, RoutedEvent, WakeTarget, wake_of
from tracelake.dispatcher.engine.routing import coverage, pending_units
from tracelake.dispatcher.engine.routing.coverage import NewestRevision, Presence
from tracelake.dispatcher.engine.routing.directory import Consumer, ConsumerInput
from tracelake.dispatcher.engine.routing.drafts import TaskDrafts
from tracelake.dispatcher.engine.routing.pending_units import ChangedUnit, WaitingUnit
from tracelake.dispatcher.engine.routing.units import ALL_INPUTS, UnitRequest, draft
from tracelake.dispatcher.engine.routing.upstream_graph import UpstreamGraph, UpstreamGraphs
from tracelake.dispatcher.engine.routing.window_inputs import PREVIOUS_OPEN, Obstacle, WindowInputs
from tracelake.dispatcher.engine.tables import table_units
from tracelake.dispatcher.slices import pause_between
from tracelake.model.dag import ReadMode, UnitGrid
from tracelake.model.ids import new_id
from tracelake.model.task import RevisionKind
from tracelake.model.windows import LAST_POSITION, Window, next_window, shift_window, windows_between
from tracelake.wire.units import Invalidates, ReadScope, TaskInput, Unit

AT_ONCE = 100
"""How many units of one node are settled in the transaction that hears of a change; the drain loop settles the rest."""

# Of every revision of the unit: one whose times changed was in other windows before. The times of the blocks around it
# show the windows between that have no block, and the one behind it that may be complete only now.
_TIMES = """
    SELECT min(m.time_min) AS time_min, max(m.time_max) AS time_max, (
        SELECT b.time_max FROM readable_units b
        WHERE b.dataset_uuid = $1 AND b.dataset_version = $2 AND b.range_start < $3
        ORDER BY b.range_start DESC LIMIT 1) AS before, (
        SELECT a.time_min FROM readable_units a
        WHERE a.dataset_uuid = $1 AND a.dataset_version = $2 AND a.range_start > $3
        ORDER BY a.range_start LIMIT 1) AS behind
    FROM manifests m WHERE m.dataset_uuid = $1 AND m.dataset_version = $2 AND m.unit = $4"""

_UNIT_OF_CURSOR = """
    SELECT range_start, range_end FROM dataset_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3 ORDER BY range_start DESC LIMIT 1"""

_TIMES_BETWEEN = """
    SELECT min(time_min) AS time_min, max(time_max) AS time_max, NULL::bigint AS before,
           NULL::bigint AS behind FROM dataset_units
    WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $4 AND range_end >= $3
      AND range_start >= coalesce((SELECT max(range_start) FROM dataset_units
                                   WHERE dataset_uuid = $1 AND dataset_version = $2 AND range_start <= $3), 0)"""

_INVALIDATES = msgspec.json.Decoder(Invalidates)


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
        for span in await self._positions(connection, event, item):
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
        if WindowInputs(connection, graph).is_in_seconds(consumer) and not graph.is_in_seconds(item.generation):
            for times in await self._times(connection, event, item, span):
                await self._touch_times(connection, consumer, item, change, *times, touched)
            return
        await self._touch_times(connection, consumer, item, change, span, span, touched)

    async def _touch_times(
        self,
        connection: Connection,
        consumer: Consumer,
        item: ConsumerInput,
        change: ChangedUnit,
        span: Window,
        around: Window,
        touched: TouchedUnits,
    ) -> None:
        """`span` and what lies `around` it are positions of the consumer's own units."""
        spec, grid = consumer.spec(item), consumer.job.units
        if spec.read is ReadMode.UNIT and grid is None:
            touched.add(consumer, replace(change, window=span))
            return
        if grid is not None and spec.read is not ReadMode.LATEST:
            windows = _windows_reading(grid, span, spec.lookback)
            if around != span:
                windows += await self._not_computed(
                    connection, consumer, [w for w in _windows_reading(grid, around, spec.lookback) if w not in windows]
                )
            for number, window in enumerate(windows):
                await pause_between(number)
                touched.add(consumer, replace(change, window=window))
        if spec.read in (ReadMode.HISTORY, ReadMode.LATEST) or grid is None:
            end = LAST_POSITION if spec.read is not ReadMode.WINDOW else span.end
            await self._touch_existing(connection, consumer, replace(change, window=Window(span.start, end)), touched)

    async def _not_computed(self, connection: Connection, consumer: Consumer, windows: list[Window]) -> list[Window]:
        """Those windows beside a changed unit that may be complete only now. Of others the unit changes nothing."""
        if not windows or len(windows) > AT_ONCE:
            return windows
        place = (connection, consumer.node_id, windows[0].start)
        existing = await pending_units.list_existing(*place, windows[-1].end, 2 * AT_ONCE)
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

    async def _positions(self, connection: Connection, event: RoutedEvent, item: ConsumerInput) -> list[Window]:
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

    async def _times(
        self, connection: Connection, event: RoutedEvent, item: ConsumerInput, span: Window
    ) -> list[tuple[Window, Window]]:
        """The times of these blocks, each without and with the blocks around them; none if they are unknown.

        Of files, in all revisions together. Of a table that tasks write, those of now, and those from before the event.
        """
        if self.drafts.has_positions(item.generation):
            spans = await self._times_of_table(connection, event, item, span)
            if spans or self.drafts.is_direct_table(item.generation):
                return spans
        row = await connection.fetchrow(_TIMES, *item.generation, span.start, f"p:{span.start}-{span.end}")
        assert row is not None
        if row["time_min"] is None and event.invalidates is not None:  # not a unit, but a range over several
            row = await connection.fetchrow(_TIMES_BETWEEN, *item.generation, *span)
            assert row is not None
        if row["time_min"] is None:
            return []
        times = [row[name] for name in ("time_min", "time_max", "before", "behind") if row[name] is not None]
        return [(Window(row["time_min"], row["time_max"]), Window(min(times), max(times)))]

    async def _times_of_table(
        self, connection: Connection, event: RoutedEvent, item: ConsumerInput, span: Window
    ) -> list[tuple[Window, Window]]:
        spans: list[tuple[Window, Window]] = []
        times = await table_units.read_times(connection, item.generation, *span)
        if times is not None:
            before = await table_units.read_times(connection, item.generation, span.start - 1, span.start - 1)
            behind = await table_units.read_times(connection, item.generation, span.end + 1, span.end + 1)
            around = [*times, *(before or ()), *(behind or ())]
            spans.append((Window(*times), Window(min(around), max(around))))
        wrong = None if event.invalidates is None else _INVALIDATES.decode(event.invalidates)
        if wrong is not None and wrong.time_min is not None and wrong.time_max is not None:
            former = Window(wrong.time_min, wrong.time_max)
            spans.append((former, former))
        return spans

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


def _windows_reading(grid: UnitGrid, span: Window, lookback: int) -> list[Window]:
    """The windows that read a range: those that it lies in, and as many behind them as look back."""
    windows = windows_between(grid, span.start, span.end)
    last = shift_window(grid, windows[-1], lookback)
    while windows[-1].start < last.start:
        windows.append(next_window(grid, windows[-1]))
    return windows

"""From routed events to tasks, inside the transaction that routes them.

`lock` comes before any event is written: the edges of everybody who reads what the transaction may announce are
locked in one order, so that for each edge the order of `routed_seq` is the order of commits, and two inputs of a join
see each other. `route` comes after, and is idempotent by the unique index over units: an event that is routed twice
makes its task once.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation, NewTask, RoutedEvent, StateChange, WritePlan
from tracelake.dispatcher.engine.pressure.upstream import UpstreamDirectory
from tracelake.dispatcher.engine.routing import coverage, edges, pending_units
from tracelake.dispatcher.engine.routing.changed_units import ChangedUnits, TouchedUnits
from tracelake.dispatcher.engine.routing.coverage import Presence
from tracelake.dispatcher.engine.routing.directory import EdgeDirectory, EdgeKey, Reader
from tracelake.dispatcher.engine.routing.drafts import TaskDrafts
from tracelake.dispatcher.engine.routing.edges import EdgeState
from tracelake.dispatcher.engine.routing.invalidations import AT_ONCE, remember, rerun
from tracelake.dispatcher.engine.routing.pending_units import ChangedUnit
from tracelake.dispatcher.engine.routing.units import UnitRequest
from tracelake.dispatcher.engine.routing.window_inputs import PREVIOUS_OPEN
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.slices import pause_between
from tracelake.model.job import Storage
from tracelake.model.task import RevisionKind, Status
from tracelake.model.windows import Window
from tracelake.wire.units import Invalidates


@dataclass(slots=True)
class RoutingScope:
    """What a transaction may route to: the readers of each generation, and their edges."""

    readers: dict[Generation, tuple[Reader, ...]] = field(default_factory=dict)
    edges: dict[EdgeKey, EdgeState] = field(default_factory=dict)
    blocked: set[EdgeKey] = field(default_factory=set)
    """Live edges that pressure stops: their events wait from now on."""
    touched: TouchedUnits = field(default_factory=TouchedUnits)
    """Units of joins and windows that are settled after the other tasks were made."""
    epochs: dict[UUID, int] = field(default_factory=dict)


@dataclass(eq=False)
class EventRouter:
    definitions: Definitions
    directory: EdgeDirectory
    upstream: UpstreamDirectory
    drafts: TaskDrafts
    changed_units: ChangedUnits

    async def lock(self, connection: Connection, plan: WritePlan) -> RoutingScope:
        """Locks the edges that this plan may touch; edges of units that fail in it are held from here on."""
        scope = RoutingScope()
        announced: dict[UUID, set[Generation]] = {}
        range_generations: set[Generation] = set()
        for event in plan.events:
            if event.outdated or (event.waits and event.commit_revision is None):
                continue
            generation = (event.event.dataset_uuid, event.event.dataset_version)
            announced.setdefault(event.org_id, set()).add(generation)
            if event.event.partition_key is not None or event.event.first is not None:
                range_generations.add(generation)
        for publication in plan.publications:
            if publication.revision is None:
                continue
            generation = (publication.dataset_uuid, publication.dataset_version)
            announced.setdefault(publication.org_id, set()).add(generation)
            range_generations.add(generation)
        hold_changes = _holds(plan.changes)
        scope.epochs = plan.epochs
        await self._revive(connection, plan, scope)
        if not announced and not hold_changes and not scope.touched.units:
            return scope
        dataset_uuids = (dataset_uuid for generations in announced.values() for dataset_uuid, _ in generations)
        await self.definitions.load_datasets(connection, dataset_uuids)
        for org_id, generations in announced.items():
            readers_of = await self.directory.readers(connection, org_id, plan.epochs[org_id], generations)
            scope.readers.update(readers_of)
            scope.blocked |= await self._blocked(connection, org_id, plan.epochs[org_id], readers_of)
        range_generations |= {generation for generation, readers in scope.readers.items() if _is_joined(readers)}
        await coverage.lock_generations(connection, sorted(range_generations))
        keys = {key for readers in scope.readers.values() for reader, item in readers
                for key in reader.edges_of(item.input_index)}  # fmt: skip
        keys |= {(consumer.node_id, item.input_index) for consumer in scope.touched.consumers.values()
                 for item in consumer.inputs}  # fmt: skip
        scope.edges = await edges.lock(connection, keys | set(hold_changes))
        for key, units in hold_changes.items():
            if key in scope.edges:
                scope.edges[key].hold(units)
        return scope

    async def _revive(self, connection: Connection, plan: WritePlan, scope: RoutingScope) -> None:
        """Notes the units that wait for a task which ends in this transaction, or for the unit of one that a person
        gives up."""
        ended = [
            change.after.task_id for change in plan.changes if change.after.finished and not change.before.finished
        ]
        units = await pending_units.load_waiting(connection, ended) if ended else []
        given_up = [change.after.task_id for change in plan.changes if _is_given_up(change)]
        if given_up:
            units += await pending_units.load_behind(connection, given_up, PREVIOUS_OPEN)
        if units:
            consumers = await self.directory.nodes(connection, {unit.node_id for unit in units})
            for unit in units:
                scope.touched.add(consumers[unit.node_id], unit)

    async def settle(self, connection: Connection, scope: RoutingScope) -> AsyncIterator[list[NewTask]]:
        """Drafts the tasks of units that wait, node by node. The caller creates the tasks of one node before it asks
        for the next: whatever is made from a unit that is computed again waits for it."""
        for org_id in {consumer.job.org_id for consumer in scope.touched.consumers.values()}:
            graph = await self.changed_units.graph(connection, org_id, scope.epochs.get(org_id))
            for node_id in scope.touched.in_order(graph):
                consumer = scope.touched.consumers[node_id]
                if consumer.job.org_id == org_id:
                    units = scope.touched.units[node_id].values()
                    yield await self.changed_units.settle(connection, graph, consumer, units)

    async def route(self, connection: Connection, scope: RoutingScope, events: Sequence[RoutedEvent]) -> list[NewTask]:
        """Drafts the tasks that these events ask for; some may exist. Writes coverage and edges, not tasks.

        Units that wait for more than their event are left to `settle`."""
        await self._record(connection, scope.readers, events)
        await self._remember(connection, events)
        requests: list[UnitRequest] = []
        again: Counter[EdgeKey] = Counter()
        for number, event in enumerate(_in_order(events)):
            await pause_between(number)
            live = []
            for consumer, item in scope.readers.get(event.generation, ()):
                key = (consumer.node_id, item.input_index)
                edge = scope.edges.get(key)
                if edge is None or not edge.live:
                    continue
                if key in scope.blocked:
                    edge.seen(edge.newest)  # from before this event on, it waits
                else:
                    live.append((consumer, item))
            requests += await self._requests_of(connection, event, live, again, scope)
        tasks = await self.drafts.draft(connection, self._put_off(requests, scope), scope.edges)
        await edges.write(connection, scope.edges.values())
        return tasks

    async def _blocked(
        self, connection: Connection, org_id: UUID, epoch: int, readers: Mapping[Generation, Sequence[Reader]]
    ) -> set[EdgeKey]:
        upstream = await self.upstream.of(connection, org_id, epoch)
        read = [(consumer, item) for items in readers.values() for consumer, item in items]
        stops = await upstream.stops(connection, ((consumer.node_id, item.generation) for consumer, item in read))
        return {
            (consumer.node_id, item.input_index)
            for consumer, item in read
            if upstream.blocked_by(consumer.node_id, item.generation, stops) is not None
        }

    async def show(
        self, connection: Connection, scope: RoutingScope, events: Sequence[RoutedEvent], reader: Reader
    ) -> list[NewTask]:
        """Drafts the tasks that events routed before ask of one reader that fell behind. The caller writes edges, and
        holds the generation if the reader joins."""
        if reader[0].waits:
            await self._record(connection, {reader[1].generation: (reader,)}, events)
        await self._remember(connection, events)
        again: Counter[EdgeKey] = Counter()
        requests = [
            request
            for event in _in_order(events)
            for request in await self._requests_of(connection, event, [reader], again, scope)
        ]
        if reader[0].has_windows:
            return []
        lost = await self.drafts.draft_lost(
            connection, [UnitRequest.of(event, *reader) for event in events], scope.edges
        )
        return lost + await self.drafts.draft(connection, requests, scope.edges)

    async def _remember(self, connection: Connection, events: Sequence[RoutedEvent]) -> None:
        invalidating = [event for event in events if event.invalidates is not None]
        if invalidating:
            await remember(connection, invalidating)

    async def _requests_of(
        self,
        connection: Connection,
        event: RoutedEvent,
        readers: Iterable[Reader],
        counts: Counter[EdgeKey],
        scope: RoutingScope,
    ) -> list[UnitRequest]:
        """Returns what one event asks of these readers: its own unit, and the units it declares wrong.

        `counts`: how many were declared wrong in this transaction. Many small invalidations are a large one, too.
        """
        requests: list[UnitRequest] = []
        for consumer, item in readers:
            if consumer.has_windows:
                graph = await self.changed_units.graph(connection, event.org_id, scope.epochs.get(event.org_id))
                await self.changed_units.touch(connection, graph, event, consumer, item, scope.touched)
                continue
            again: list[UnitRequest] = []
            if event.invalidates is not None:
                key = (consumer.node_id, item.input_index)
                again = await rerun(connection, event, consumer, item, max(0, AT_ONCE - counts[key]))
                counts[key] += len(again)
                again = [replace(request, traceparent=event.traceparent) for request in again]
            own = UnitRequest.of(event, consumer, item)
            if not self._is_change(event) and own.unit_key not in {request.unit_key for request in again}:
                requests.append(own)
            requests += again
        return requests

    def _put_off(self, requests: Sequence[UnitRequest], scope: RoutingScope) -> list[UnitRequest]:
        """Leaves units of joins that are computed again to `settle`: others of their inputs may be about to change."""
        at_once: list[UnitRequest] = []
        for request in requests:
            usual = self.drafts.usual_revision(request.input.generation)
            repeated = request.revision != usual or request.kind is not RevisionKind.EVENT
            if request.consumer.joins and repeated and not request.again and None not in (request.start, request.end):
                assert request.start is not None
                assert request.end is not None
                place = (request.consumer.node_id, Window(request.start, request.end), request.consumer.job.org_id)
                producers = frozenset({request.producer})
                unit = ChangedUnit(*place, request.routed_seq, request.kind, request.traceparent, producers)
                scope.touched.add(request.consumer, unit)
            else:
                at_once.append(request)
        return at_once

    async def _record(
        self, connection: Connection, readers: dict[Generation, tuple[Reader, ...]], events: Sequence[RoutedEvent]
    ) -> None:
        joined = {generation for generation, items in readers.items() if _is_joined(items)}
        units = [
            self._event_presence(event)
            for event in events
            if (event.partition_key is not None or event.generation in joined) and not self._is_change(event)
        ]
        if units:
            await coverage.record(connection, units)

    def _is_change(self, event: RoutedEvent) -> bool:
        """Whether an event of a live dataset only says that stored blocks changed. Units are what announced the blocks
        first, so the range of such an event is none."""
        if event.invalidates is None or event.range_start is None or event.range_end is None:
            return False
        dataset = self.definitions.dataset(event.generation[0])
        if dataset is None or dataset.storage is not Storage.LIVE:
            return False
        wrong = msgspec.json.decode(event.invalidates, type=Invalidates)
        return wrong.start <= event.range_start and event.range_end <= wrong.end

    def _event_presence(self, event: RoutedEvent) -> Presence:
        usual = self.drafts.usual_revision(event.generation)
        return Presence(
            event.generation,
            event.unit_key,
            event.range_start,
            event.range_end,
            event.revision,
            usual,
            event.routed_seq,
            RevisionKind(event.revision_kind),
        )


def _is_given_up(change: StateChange) -> bool:
    canceled = change.after.status is Status.CANCELED and not change.before.finished
    return canceled or (change.after.skipped_at is not None and change.before.skipped_at is None)


def _is_joined(readers: Iterable[Reader]) -> bool:
    return any(consumer.waits for consumer, _ in readers)


def _in_order(events: Sequence[RoutedEvent]) -> list[RoutedEvent]:
    """Sorts cursors that come together from below, so that each of them has a unit of its own."""
    return sorted(events, key=lambda event: (event.cursor is not None, event.cursor or 0, event.routed_seq))


def _holds(changes: Sequence[StateChange]) -> dict[EdgeKey, int]:
    """Counts, by edge, how many more of its units have failed (no retries left), or fewer."""
    changes_of_edges: dict[EdgeKey, int] = {}
    for change in changes:
        delta = change.after.holds_edge - change.before.holds_edge
        if delta:
            assert change.after.node_id is not None
            assert change.after.edge is not None
            key = (change.after.node_id, change.after.edge)
            changes_of_edges[key] = changes_of_edges.get(key, 0) + delta
    return changes_of_edges

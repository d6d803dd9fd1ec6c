"""From routed events to tasks, inside the transaction that routes them.

`lock` comes before any event is written: the edges of everybody who reads what the transaction may announce are
locked in one order, so that for each edge the order of `routed_seq` is the order of commits, and two inputs of a join
see each other. `route` comes after, and is idempotent by the unique index over units: an event that is routed twice
makes its task once.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.backpressure.upstream import UpstreamDirectory
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.jobs import Definitions
from tracelake.dispatcher.lifecycle.plan import Change, NewTask, Plan, RoutedEvent
from tracelake.dispatcher.lifecycle.wake import limit_keys_of, wake_of
from tracelake.dispatcher.quotas.book import QuotaBook
from tracelake.dispatcher.routing import coverage, edges
from tracelake.dispatcher.routing.coverage import NewestRevision, Presence
from tracelake.dispatcher.routing.directory import EdgeDirectory, EdgeKey, Generation, Reader
from tracelake.dispatcher.routing.edges import EdgeState
from tracelake.dispatcher.routing.invalidate import AT_ONCE, remember, rerun
from tracelake.dispatcher.routing.units import Ask, draft
from tracelake.dispatcher.slices import pause_between
from tracelake.model.dag import Strategy
from tracelake.model.job import Storage
from tracelake.model.task import RevisionKind

# What a unit below the edge's cursor reads from: as it did before, or else from the end of the unit before it. Ranges
# on the same edge are no such units, and what a person asked for is none either: nobody announced that it ends there.
_PREDECESSORS = """
    SELECT q.number, (
        SELECT min(t.unit_start) - 1 FROM tasks t
        WHERE t.node_id = q.node_id AND t.edge = q.edge AND t.unit_end = q.cursor AND t.unit_key = 'c:' || q.cursor
          AND t.revision_kind <> 'manual') AS same, (
        SELECT t.unit_end FROM tasks t
        WHERE t.node_id = q.node_id AND t.edge = q.edge AND t.unit_end < q.cursor AND t.unit_key = 'c:' || t.unit_end
          AND t.revision_kind <> 'manual'
        ORDER BY t.unit_end DESC LIMIT 1) AS before
    FROM unnest($1::int[], $2::uuid[], $3::int[], $4::bigint[]) AS q(number, node_id, edge, cursor)"""

# Cursors that no unit of the edge reads, though it has passed them. There are none unless a task was lost. The unit
# that reads a cursor is the first one that ends there or behind it; what a person asked for stands in for none.
_UNREAD = """
    SELECT q.number FROM unnest($1::int[], $2::uuid[], $3::int[], $4::bigint[]) AS q(number, node_id, edge, cursor)
    WHERE coalesce((
        SELECT t.unit_start FROM tasks t
        WHERE t.node_id = q.node_id AND t.edge = q.edge AND t.unit_end >= q.cursor AND t.unit_key = 'c:' || t.unit_end
          AND t.revision_kind <> 'manual'
        ORDER BY t.unit_end LIMIT 1) > q.cursor, true)
    ORDER BY q.number"""


# How new the inputs are that tasks of the unit were made for.
_NEWEST_ORDER = """
    SELECT max(input_order) FROM tasks
    WHERE node_id = $1 AND edge = $2 AND unit_key = $4
      AND (unit_end = $3 OR ($3::bigint IS NULL AND unit_end IS NULL))"""


@dataclass(slots=True)
class Locked:
    """What a transaction may route to: the readers of each generation, and their edges."""

    readers: dict[Generation, tuple[Reader, ...]] = field(default_factory=dict)
    edges: dict[EdgeKey, EdgeState] = field(default_factory=dict)
    blocked: set[EdgeKey] = field(default_factory=set)
    """Live edges that pressure stops: their events wait from now on."""


class Router:
    def __init__(
        self,
        definitions: Definitions,
        directory: EdgeDirectory,
        upstream: UpstreamDirectory,
        config: DispatcherConfig,
        quotas: QuotaBook | None = None,
    ) -> None:
        self._quotas = quotas or QuotaBook()
        self._definitions = definitions
        self._directory = directory
        self._upstream = upstream
        self._config = config

    async def lock(self, connection: Connection, plan: Plan) -> Locked:
        """The edges that this plan may touch; failed units already hold theirs."""
        locked = Locked()
        spoken: dict[UUID, set[Generation]] = {}
        ranged: set[Generation] = set()
        for event in plan.events:
            if event.outdated or (event.waits and event.commit_revision is None):
                continue
            generation = (event.event.dataset_uuid, event.event.dataset_version)
            spoken.setdefault(event.org_id, set()).add(generation)
            if event.event.partition_key is not None:
                ranged.add(generation)
        for publication in plan.publications:
            if publication.revision is None:
                continue
            generation = (publication.dataset_uuid, publication.dataset_version)
            spoken.setdefault(publication.org_id, set()).add(generation)
            ranged.add(generation)
        held = _holds(plan.changes)
        if not spoken and not held:
            return locked
        said = (dataset_uuid for generations in spoken.values() for dataset_uuid, _ in generations)
        await self._definitions.load_datasets(connection, said)
        for org_id, generations in spoken.items():
            found = await self._directory.readers(connection, org_id, plan.epochs[org_id], generations)
            locked.readers.update(found)
            locked.blocked |= await self._blocked(connection, org_id, plan.epochs[org_id], found)
        ranged |= {generation for generation, readers in locked.readers.items() if _is_joined(readers)}
        await coverage.lock_generations(connection, sorted(ranged))
        keys = {key for readers in locked.readers.values() for reader, item in readers
                for key in reader.edges_of(item.input_index)}  # fmt: skip
        locked.edges = await edges.lock(connection, keys | set(held))
        for key, units in held.items():
            if key in locked.edges:
                locked.edges[key].hold(units)
        return locked

    async def route(self, connection: Connection, locked: Locked, events: Sequence[RoutedEvent]) -> list[NewTask]:
        """The tasks that these events ask for; some may be there already. Writes coverage and edges, not tasks."""
        await self._record(connection, locked.readers, events)
        await self._remember(connection, events)
        asks: list[Ask] = []
        again: Counter[EdgeKey] = Counter()
        for number, event in enumerate(_in_order(events)):
            await pause_between(number)
            live = []
            for consumer, item in locked.readers.get(event.generation, ()):
                key = (consumer.node_id, item.input_index)
                edge = locked.edges.get(key)
                if edge is None or not edge.live:
                    continue
                if key in locked.blocked:
                    edge.seen(edge.newest)  # from before this event on, it waits
                else:
                    live.append((consumer, item))
            asks += await self._asks_of(connection, event, live, again)
        tasks = await self.draft(connection, asks, locked.edges)
        await edges.write(connection, locked.edges.values())
        return tasks

    async def _blocked(
        self, connection: Connection, org_id: UUID, epoch: int, readers: Mapping[Generation, Sequence[Reader]]
    ) -> set[EdgeKey]:
        upstream = await self._upstream.of(connection, org_id, epoch)
        read = [(consumer, item) for items in readers.values() for consumer, item in items]
        stops = await upstream.stops(connection, ((consumer, item.generation) for consumer, item in read))
        return {
            (consumer.node_id, item.input_index)
            for consumer, item in read
            if upstream.blocked_by(consumer.node_id, item.generation, stops) is not None
        }

    async def show(
        self, connection: Connection, locked: Locked, events: Sequence[RoutedEvent], reader: Reader
    ) -> list[NewTask]:
        """What these events, routed before, ask of one reader that did not hear them then. The caller writes edges, and
        holds the generation if the reader joins."""
        if reader[0].joins:
            await self._record(connection, {reader[1].generation: (reader,)}, events)
        await self._remember(connection, events)
        again: Counter[EdgeKey] = Counter()
        asks = [ask for event in _in_order(events) for ask in await self._asks_of(connection, event, [reader], again)]
        lost = await self._draft_lost(connection, [Ask.of(event, *reader) for event in events], locked.edges)
        return lost + await self.draft(connection, asks, locked.edges)

    async def by_hand(self, connection: Connection, ask: Ask) -> NewTask | None:
        """The task of a unit that a person asks for; None if a join lacks it. The edge's cursor stays where it is.

        It reads what is there: as new as whatever its unit was made for last, so that neither outdates the other.
        """
        if ask.consumer.joins:
            tasks = await self._draft_joins(connection, [ask])
        elif ask.cursor is not None and ask.consumer.job.strategy is Strategy.PER_UPDATE:
            tasks = await self._draft_below(connection, [ask], [])
        else:
            tasks = [self._draft(ask)]
        if not tasks:
            return None
        task = tasks[0]
        place = (task.node_id, task.edge, task.unit_end, task.unit_key)
        order = await connection.fetchval(_NEWEST_ORDER, *place)
        return replace(task, input_order=tuple(order or ()))

    async def _remember(self, connection: Connection, events: Sequence[RoutedEvent]) -> None:
        remembered = [event for event in events if event.invalidates is not None]
        if remembered:
            await remember(connection, remembered)

    async def _asks_of(
        self, connection: Connection, event: RoutedEvent, readers: Iterable[Reader], counts: Counter[EdgeKey]
    ) -> list[Ask]:
        """What one event asks of these readers: its own unit, and the units it declares wrong.

        `counts`: how many were declared wrong in this transaction. Many small invalidations are a large one, too.
        """
        asks: list[Ask] = []
        for consumer, item in readers:
            again: list[Ask] = []
            if event.invalidates is not None:
                key = (consumer.node_id, item.input_index)
                again = await rerun(connection, event, consumer, item, max(0, AT_ONCE - counts[key]))
                counts[key] += len(again)
                again = [replace(ask, traceparent=event.traceparent) for ask in again]
            own = Ask.of(event, consumer, item)
            if own.unit_key not in {ask.unit_key for ask in again}:
                asks.append(own)
            asks += again
        return asks

    async def draft(
        self, connection: Connection, asks: Sequence[Ask], states: dict[EdgeKey, EdgeState]
    ) -> list[NewTask]:
        tasks: list[NewTask] = []
        below: list[Ask] = []
        joins: list[Ask] = []
        for number, ask in enumerate(asks):
            await pause_between(number)
            if ask.consumer.joins:
                joins.append(ask)
            elif ask.cursor is None or ask.consumer.job.strategy is Strategy.PER_PARTITION:
                tasks.append(self._draft(ask))
            else:
                edge = states[(ask.consumer.node_id, ask.input.input_index)]
                # A manual run says that its own unit is there, and nothing of what lies before it.
                if ask.cursor > edge.routed and not ask.again and ask.kind is not RevisionKind.MANUAL:
                    tasks.append(self._draft(ask, after=edge.routed))
                    edge.advance(ask.cursor)
                elif ask.revision:
                    below.append(ask)
        tasks += await self._draft_below(connection, below, tasks)
        tasks += await self._draft_joins(connection, joins)
        return tasks

    def _draft(
        self, ask: Ask, *, after: int | None = None, revisions: Sequence[NewestRevision] | None = None
    ) -> NewTask:
        job = ask.consumer.job
        runtimes = self._config.runtimes
        keys = limit_keys_of(runtimes, job, org_limited=self._quotas.limits_running(job.org_id))
        read = [self._own_revision(ask)] if revisions is None else revisions
        return draft(ask, wake_of(runtimes, job.runtime), keys, read, after=after)

    def _own_revision(self, ask: Ask) -> NewestRevision:
        """The first revision of a unit is as old as can be, whenever its event was routed."""
        first = not ask.again and ask.revision == self._usual(ask.input.generation)
        return NewestRevision(ask.revision, ask.kind, 0 if first else ask.routed_seq)

    async def _draft_lost(
        self, connection: Connection, asks: Sequence[Ask], states: dict[EdgeKey, EdgeState]
    ) -> list[NewTask]:
        """Cursors that the edge has passed, but that no task reads: one was lost. In the order they were routed."""
        passed = [
            ask
            for ask in asks
            if ask.consumer.job.strategy is Strategy.PER_UPDATE
            and not ask.revision
            and ask.cursor is not None
            and ask.cursor <= states[(ask.consumer.node_id, ask.input.input_index)].routed
        ]
        if not passed:
            return []
        tasks: list[NewTask] = []
        for row in await connection.fetch(_UNREAD, *_places(passed)):
            ask = passed[row["number"]]
            if not any(_reads(task, ask) for task in tasks):
                tasks += await self._draft_below(connection, [ask], tasks)
        return tasks

    async def _draft_below(
        self, connection: Connection, asks: Sequence[Ask], drafted: Sequence[NewTask]
    ) -> list[NewTask]:
        """Cursors at or below what the edge has routed, in a revision of their own: from the unit before them.

        Asks come in the order of their cursors. Those drafted are not in the table yet, but their units end there too.
        """
        if not asks:
            return []
        rows = await connection.fetch(_PREDECESSORS, *_places(asks))
        units: dict[EdgeKey, dict[int, int]] = {}
        for task in drafted:
            _note_unit(units, task)
        tasks = []
        for ask, row in zip(asks, sorted(rows, key=lambda row: int(row["number"])), strict=True):
            assert ask.cursor is not None
            known = units.get((ask.consumer.node_id, ask.edge), {})
            after = row["same"] if row["same"] is not None else known.get(ask.cursor)
            if after is None:
                ends = [-1 if row["before"] is None else row["before"], *(end for end in known if end < ask.cursor)]
                after = max(ends)
            task = self._draft(ask, after=after)
            _note_unit(units, task)
            tasks.append(task)
        return tasks

    async def _draft_joins(self, connection: Connection, asks: Sequence[Ask]) -> list[NewTask]:
        """Only units that every input has. The event's own is there by now, like the others'."""
        questions = [self._presence(ask, item.generation) for ask in asks for item in ask.consumer.inputs]
        there = await coverage.ask(connection, questions)
        tasks = []
        first = 0
        for ask in asks:
            numbers = range(first, first + len(ask.consumer.inputs))
            first = numbers.stop
            if all(number in there for number in numbers):
                said = [there[number] for number in numbers]
                own = ask.consumer.inputs.index(ask.input)
                said[own] = self._own_revision(ask)
                tasks.append(self._draft(ask, revisions=said))
        return tasks

    async def _record(
        self, connection: Connection, readers: dict[Generation, tuple[Reader, ...]], events: Sequence[RoutedEvent]
    ) -> None:
        joined = {generation for generation, items in readers.items() if _is_joined(items)}
        units = [
            self._event_presence(event)
            for event in events
            if event.partition_key is not None or event.generation in joined
        ]
        if units:
            await coverage.record(connection, units)

    def _event_presence(self, event: RoutedEvent) -> Presence:
        usual = self._usual(event.generation)
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

    def _presence(self, ask: Ask, generation: Generation) -> Presence:
        return Presence(generation, ask.unit_key, ask.start, ask.end, usual=self._usual(generation))

    def _usual(self, generation: Generation) -> str:
        """Files are counted from their first commit on; everything else has no revision until somebody says one."""
        dataset = self._definitions.dataset(generation[0])
        assert dataset is not None, "loaded with its readers, or when the transaction began to speak of it"
        return "1" if dataset.storage is Storage.S3 else ""


def _places(asks: Sequence[Ask]) -> tuple[list[int], list[UUID], list[int], list[int | None]]:
    """Columns of questions about cursors: number, node, edge, cursor."""
    nodes = [ask.consumer.node_id for ask in asks]
    return list(range(len(asks))), nodes, [ask.edge for ask in asks], [ask.cursor for ask in asks]


def _reads(task: NewTask, ask: Ask) -> bool:
    assert task.unit_start is not None
    assert task.unit_end is not None
    assert ask.cursor is not None
    return task.unit_start <= ask.cursor <= task.unit_end


def _note_unit(units: dict[EdgeKey, dict[int, int]], task: NewTask) -> None:
    """Per edge: the cursor that a unit ends with, and what it reads after."""
    if task.unit_key == f"c:{task.unit_end}" and task.revision_kind is not RevisionKind.MANUAL:
        assert task.node_id is not None
        assert task.edge is not None
        assert task.unit_start is not None
        assert task.unit_end is not None
        units.setdefault((task.node_id, task.edge), {}).setdefault(task.unit_end, task.unit_start - 1)


def _is_joined(readers: Iterable[Reader]) -> bool:
    return any(consumer.joins for consumer, _ in readers)


def _in_order(events: Sequence[RoutedEvent]) -> list[RoutedEvent]:
    """Cursors that come together are taken from below, so that each of them has a unit of its own."""
    return sorted(events, key=lambda event: (event.cursor is not None, event.cursor or 0, event.routed_seq))


def _holds(changes: Sequence[Change]) -> dict[EdgeKey, int]:
    """Per edge: how many more of its units have failed for good, or fewer."""
    held: dict[EdgeKey, int] = {}
    for change in changes:
        delta = change.after.holds_edge - change.before.holds_edge
        if delta:
            assert change.after.node_id is not None
            assert change.after.edge is not None
            key = (change.after.node_id, change.after.edge)
            held[key] = held.get(key, 0) + delta
    return held

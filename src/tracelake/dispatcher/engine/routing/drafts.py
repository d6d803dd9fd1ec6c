"""From requests for units to tasks: which cursors a unit reads after, and which revisions a task was made for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from tracelake.db.transaction import Connection
from tracelake.dispatcher.config import DispatcherConfig
from tracelake.dispatcher.engine.limits import limit_keys_of
from tracelake.dispatcher.engine.plan import Generation, NewTask, wake_of
from tracelake.dispatcher.engine.routing import coverage
from tracelake.dispatcher.engine.routing.coverage import NewestRevision, Presence
from tracelake.dispatcher.engine.routing.directory import EdgeKey
from tracelake.dispatcher.engine.routing.edges import EdgeState
from tracelake.dispatcher.engine.routing.units import UnitRequest, draft
from tracelake.dispatcher.engine.tables import table_units
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.records import columns
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

# The committed unit of files that ends with a cursor. Units upstream may be committed in any order, so what the edge
# has passed does not tell where one begins.
_UNITS_OF_CURSORS = """
    SELECT q.number, u.range_start
    FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::bigint[]) AS q(number, dataset_uuid, dataset_version, cursor)
    CROSS JOIN LATERAL (
        SELECT range_start, range_end FROM dataset_units d
        WHERE d.dataset_uuid = q.dataset_uuid AND d.dataset_version = q.dataset_version AND d.range_start <= q.cursor
        ORDER BY d.range_start DESC LIMIT 1) u
    WHERE u.range_end = q.cursor"""

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


@dataclass(eq=False)
class TaskDrafts:
    """Drafts the tasks of requested units. Nothing is written but the cursors of locked edges, in memory."""

    definitions: Definitions
    config: DispatcherConfig
    limits_running: Callable[[UUID], bool] = lambda _org_id: False
    """Whether an org has a quota of running tasks."""

    async def draft(
        self, connection: Connection, requests: Sequence[UnitRequest], states: dict[EdgeKey, EdgeState]
    ) -> list[NewTask]:
        tasks: list[NewTask] = []
        below: list[UnitRequest] = []
        joins: list[UnitRequest] = []
        starts = await self._starts(connection, requests)
        for number, request in enumerate(requests):
            await pause_between(number)
            if request.consumer.joins:
                joins.append(request)
            elif request.cursor is None or request.consumer.job.strategy is Strategy.PER_PARTITION:
                tasks.append(self._draft(request))
            else:
                edge = states[(request.consumer.node_id, request.input.input_index)]
                # A manual run says that its own unit is there, and nothing of what lies before it.
                if request.cursor > edge.routed and not request.again and request.kind is not RevisionKind.MANUAL:
                    if (start := starts.get((request.input.generation, request.cursor))) is not None:
                        after = start - 1
                    else:
                        after = edge.routed if edge.routed >= 0 else await self._before_first(connection, request)
                    tasks.append(self._draft(request, after=after))
                    edge.advance(request.cursor)
                elif request.revision:
                    below.append(request)
        tasks += await self._draft_below(connection, below, tasks)
        tasks += await self._draft_joins(connection, joins)
        return tasks

    async def _starts(
        self, connection: Connection, requests: Sequence[UnitRequest]
    ) -> dict[tuple[Generation, int | None], int]:
        """Where the units of files begin that end with these cursors."""
        cursors = {
            (request.input.generation, request.cursor)
            for request in requests
            if request.cursor is not None
            and request.consumer.job.strategy is Strategy.PER_UPDATE
            and self._storage(request.input.generation) is Storage.S3
        }
        if not cursors:
            return {}
        places = sorted(cursors, key=str)
        rows = await connection.fetch(
            _UNITS_OF_CURSORS,
            *columns((number, *generation, cursor) for number, (generation, cursor) in enumerate(places)),
        )
        return {places[row["number"]]: row["range_start"] for row in rows}

    async def _before_first(self, connection: Connection, request: UnitRequest) -> int:
        """The position before all of a dataset: of a table that tasks write, the one before its first row."""
        if not self.is_direct_table(request.input.generation):
            return -1
        first = await table_units.read_first(connection, request.input.generation)
        return -1 if first is None or request.cursor is None else min(first, request.cursor) - 1

    async def draft_manual(self, connection: Connection, request: UnitRequest) -> NewTask | None:
        """Drafts the task of a unit that a person asks for; None if a join lacks it. The edge's cursor stays.

        It reads what is there: as new as whatever its unit was made for last, so that neither outdates the other.
        """
        if request.consumer.joins:
            tasks = await self._draft_joins(connection, [request])
        elif request.cursor is not None and request.consumer.job.strategy is Strategy.PER_UPDATE:
            tasks = await self._draft_below(connection, [request], [])
        else:
            tasks = [self._draft(request)]
        if not tasks:
            return None
        task = tasks[0]
        place = (task.node_id, task.edge, task.unit_end, task.unit_key)
        order = await connection.fetchval(_NEWEST_ORDER, *place)
        return replace(task, input_order=tuple(order or ()))

    async def draft_lost(
        self, connection: Connection, requests: Sequence[UnitRequest], states: dict[EdgeKey, EdgeState]
    ) -> list[NewTask]:
        """Drafts tasks for cursors that the edge has passed but no task reads: one was lost."""
        passed = [
            request
            for request in requests
            if request.consumer.job.strategy is Strategy.PER_UPDATE
            and not request.revision
            and request.cursor is not None
            and request.cursor <= states[(request.consumer.node_id, request.input.input_index)].routed
        ]
        if not passed:
            return []
        tasks: list[NewTask] = []
        for row in await connection.fetch(_UNREAD, *_places(passed)):
            request = passed[row["number"]]
            if not any(_reads(task, request) for task in tasks):
                tasks += await self._draft_below(connection, [request], tasks)
        return tasks

    async def _draft_below(
        self, connection: Connection, requests: Sequence[UnitRequest], drafted: Sequence[NewTask]
    ) -> list[NewTask]:
        """Drafts tasks for cursors at or below the edge's, in a revision of their own: from the unit before them.

        Requests come in the order of their cursors. Those drafted are not in the table yet, but their units end there
        too.
        """
        if not requests:
            return []
        rows = await connection.fetch(_PREDECESSORS, *_places(requests))
        starts = await self._starts(connection, requests)
        units: dict[EdgeKey, dict[int, int]] = {}
        for task in drafted:
            _note_unit(units, task)
        tasks = []
        for request, row in zip(requests, sorted(rows, key=lambda row: int(row["number"])), strict=True):
            assert request.cursor is not None
            edge_units = units.get((request.consumer.node_id, request.edge), {})
            after = row["same"] if row["same"] is not None else edge_units.get(request.cursor)
            start = starts.get((request.input.generation, request.cursor))
            if after is None and start is not None:
                after = start - 1
            if after is None:
                ends = [
                    -1 if row["before"] is None else row["before"],
                    *(end for end in edge_units if end < request.cursor),
                ]
                after = max(ends)
            task = replace(self._draft(request, after=after), renews=await self._is_renewable(connection, request))
            _note_unit(units, task)
            tasks.append(task)
        return tasks

    async def _draft_joins(self, connection: Connection, requests: Sequence[UnitRequest]) -> list[NewTask]:
        """Drafts tasks for units that every input has. The event's own unit is recorded by now."""
        questions = [
            self._presence(request, item.generation) for request in requests for item in request.consumer.inputs
        ]
        existing_units = await coverage.read_revisions(connection, questions)
        tasks = []
        first = 0
        for request in requests:
            numbers = range(first, first + len(request.consumer.inputs))
            first = numbers.stop
            if all(number in existing_units for number in numbers):
                revisions = [existing_units[number] for number in numbers]
                own = request.consumer.inputs.index(request.input)
                revisions[own] = self._own_revision(request)
                tasks.append(self._draft(request, revisions=revisions))
        return tasks

    def _draft(
        self, request: UnitRequest, *, after: int | None = None, revisions: Sequence[NewestRevision] | None = None
    ) -> NewTask:
        job = request.consumer.job
        runtimes = self.config.runtimes
        keys = limit_keys_of(runtimes, job, org_limited=self.limits_running(job.org_id))
        read = [self._own_revision(request)] if revisions is None else revisions
        return draft(request, wake_of(runtimes, job.runtime), keys, read, after=after)

    def _own_revision(self, request: UnitRequest) -> NewestRevision:
        """The revision of the request. A unit's first is the oldest possible, whenever its event was routed."""
        first = not request.again and request.revision == self.usual_revision(request.input.generation)
        return NewestRevision(request.revision, request.kind, 0 if first else request.routed_seq)

    def _presence(self, request: UnitRequest, generation: Generation) -> Presence:
        return Presence(generation, request.unit_key, request.start, request.end, usual=self.usual_revision(generation))

    async def _is_renewable(self, connection: Connection, request: UnitRequest) -> bool:
        """Whether a task of the unit that waits in the queue is brought up to date, so that there is no second one.

        It would read the newest rows anyhow: of files, or of a table whose positions are replaced. Each event without
        rows, and what a person asks for, has a task of its own."""
        if request.kind is RevisionKind.MANUAL:
            return False
        if self._storage(request.input.generation) is Storage.S3:
            return True
        if not self.is_direct_table(request.input.generation):
            return False
        return await table_units.read_first(connection, request.input.generation) is not None

    def is_direct_table(self, generation: Generation) -> bool:
        """Whether tasks write the rows themselves, each with a position."""
        return self._storage(generation) is Storage.POSTGRES

    def has_positions(self, generation: Generation) -> bool:
        """Whether tasks write rows themselves, each with a position; of a live dataset, a part of them."""
        return self._storage(generation) in (Storage.POSTGRES, Storage.LIVE)

    def _storage(self, generation: Generation) -> Storage | None:
        dataset = self.definitions.dataset(generation[0])
        return None if dataset is None else dataset.storage

    def usual_revision(self, generation: Generation) -> str:
        """The revision of a first time: 1 for files, which count commits; none for everything else."""
        dataset = self.definitions.dataset(generation[0])
        assert dataset is not None, "loaded with its readers, or when the transaction began to speak of it"
        return "1" if dataset.storage.has_files else ""


def _places(requests: Sequence[UnitRequest]) -> list[list[Any]]:
    """Columns of questions about cursors: number, node, edge, cursor."""
    return columns(
        (number, request.consumer.node_id, request.edge, request.cursor) for number, request in enumerate(requests)
    )


def _reads(task: NewTask, request: UnitRequest) -> bool:
    assert task.unit_start is not None
    assert task.unit_end is not None
    assert request.cursor is not None
    return task.unit_start <= request.cursor <= task.unit_end


def _note_unit(units: dict[EdgeKey, dict[int, int]], task: NewTask) -> None:
    """Per edge: the cursor that a unit ends with, and what it reads after."""
    if task.unit_key == f"c:{task.unit_end}" and task.revision_kind is not RevisionKind.MANUAL:
        assert task.node_id is not None
        assert task.edge is not None
        assert task.unit_start is not None
        assert task.unit_end is not None
        units.setdefault((task.node_id, task.edge), {}).setdefault(task.unit_end, task.unit_start - 1)

"""Who reads what: the consumers of a generation, remembered until a deploy changes them.

A transaction that routes holds its org's routing lock shared, so the epoch it reads after that cannot move under it.
What was remembered for another epoch is forgotten as a whole.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias
from uuid import UUID

import msgspec

from tracelake.db.transaction import Connection
from tracelake.dispatcher.engine.plan import Generation
from tracelake.dispatcher.job_definitions import Definitions
from tracelake.dispatcher.records import columns
from tracelake.model.dag import Input, Strategy, Where
from tracelake.model.job import Job

EdgeKey: TypeAlias = tuple[UUID, int]
"""node_id, input_index."""

_LOAD = """
    SELECT e.node_id, e.input_index, e.job_id, e.dataset_uuid, e.dataset_version, e.filter, e.pinned_seq
    FROM edges e
    WHERE e.phase <> 'Parked' AND e.node_id IN (
        SELECT c.node_id FROM edges c
        JOIN unnest($1::uuid[], $2::uuid[]) AS g(dataset_uuid, dataset_version) USING (dataset_uuid, dataset_version)
        WHERE c.phase <> 'Parked')
    ORDER BY e.node_id, e.input_index"""

_LOAD_NODES = """
    SELECT e.node_id, e.input_index, e.job_id, e.dataset_uuid, e.dataset_version, e.filter, e.pinned_seq
    FROM edges e WHERE e.node_id = ANY($1) ORDER BY e.node_id, e.input_index"""

_WHERE = msgspec.json.Decoder(Where)


@dataclass(frozen=True, slots=True)
class ConsumerInput:
    input_index: int
    generation: Generation
    where: Where | None
    pinned_seq: int = 0
    """The `routed_seq` at which it was pinned to this generation; 0 if it never read another. Whatever it reads now is
    newer than what it read before, whenever that was announced."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """A node that reads, with the job definition that its tasks are made by."""

    node_id: UUID
    job: Job
    inputs: tuple[ConsumerInput, ...]

    @property
    def joins(self) -> bool:
        """It waits until every input has a unit."""
        return self.job.strategy is Strategy.PER_PARTITION and len(self.inputs) > 1

    @property
    def has_windows(self) -> bool:
        """Its units are its own, or it reads more than one unit of an input."""
        return self.job.strategy is Strategy.PER_WINDOW

    @property
    def waits(self) -> bool:
        """An event may find that other inputs are not there yet."""
        return self.joins or self.has_windows

    def spec(self, item: ConsumerInput) -> Input:
        """The input as its document has it."""
        return self.job.inputs[item.input_index]

    def input(self, input_index: int) -> ConsumerInput:
        return next(item for item in self.inputs if item.input_index == input_index)

    def edges_of(self, input_index: int) -> Iterable[EdgeKey]:
        """The edges that an event on that input locks: two inputs of a join must not miss each other's unit."""
        return (
            (self.node_id, item.input_index) for item in self.inputs if self.waits or item.input_index == input_index
        )


Reader: TypeAlias = tuple[Consumer, ConsumerInput]


class EdgeDirectory:
    def __init__(self, definitions: Definitions) -> None:
        self._definitions = definitions
        self._orgs: dict[UUID, tuple[int, dict[Generation, tuple[Reader, ...]]]] = {}

    async def readers(
        self, connection: Connection, org_id: UUID, epoch: int, generations: Collection[Generation]
    ) -> dict[Generation, tuple[Reader, ...]]:
        cached_epoch, cached = self._orgs.get(org_id, (-1, {}))
        if cached_epoch != epoch:
            cached = {}
            self._orgs[org_id] = (epoch, cached)
        missing = [generation for generation in generations if generation not in cached]
        if missing:
            consumers: dict[Generation, list[Reader]] = {generation: [] for generation in missing}
            for consumer in await self._load(connection, _LOAD, *columns(missing)):
                for item in consumer.inputs:
                    if item.generation in consumers:
                        consumers[item.generation].append((consumer, item))
            cached.update({generation: tuple(readers) for generation, readers in consumers.items()})
        return {generation: cached[generation] for generation in generations}

    def known_readers(self, org_id: UUID, generations: Iterable[Generation]) -> int:
        """The most readers that any of these generations had when it was last looked up; 1 for those never looked up.

        An estimate for the weight of a call, taken without a lock or a query.
        """
        _, cached = self._orgs.get(org_id, (-1, {}))
        return max((len(cached[generation]) for generation in generations if generation in cached), default=1)

    async def nodes(self, connection: Connection, node_ids: Iterable[UUID]) -> dict[UUID, Consumer]:
        """Reads these nodes, in whatever phase; they are not cached."""
        return {consumer.node_id: consumer for consumer in await self._load(connection, _LOAD_NODES, list(node_ids))}

    async def _load(self, connection: Connection, query: str, *arguments: object) -> list[Consumer]:
        rows = await connection.fetch(query, *arguments)
        await self._definitions.load_jobs(connection, (row["job_id"] for row in rows))
        await self._definitions.load_datasets(connection, (row["dataset_uuid"] for row in rows))
        inputs: dict[UUID, list[ConsumerInput]] = {}
        jobs: dict[UUID, UUID] = {}
        for row in rows:
            where = None if row["filter"] is None else _WHERE.decode(row["filter"])
            generation = (row["dataset_uuid"], row["dataset_version"])
            inputs.setdefault(row["node_id"], []).append(
                ConsumerInput(row["input_index"], generation, where, row["pinned_seq"])
            )
            jobs[row["node_id"]] = row["job_id"]
        return [
            Consumer(node_id, self._definitions.job(jobs[node_id]), tuple(items)) for node_id, items in inputs.items()
        ]

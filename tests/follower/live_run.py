"""A random chain that is followed into live datasets: blocks that are final become files, and leave the tables.

Ranges that the follower announces for files are jobs: each event of them makes one task, and tasks run in any order. A
reorganisation of final blocks stops the follower until a repair.
"""

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from tests.follower.block_tree import MadeBlock
from tests.follower.chain_run import MANNERS, ChainRun
from tests.follower.deliveries import EventKey, event_key
from tests.follower.memory_store import CrashError, Row
from tests.follower.support import OUTPUTS, AtOnce
from tests.follower.world import ChainWorld, ShownNode
from tracelake.follower.follow import BlockFollower, FollowOutcome
from tracelake.follower.options import FollowOptions, RangeOutputs, RepairPermit
from tracelake.follower.store import HotChainStore
from tracelake.wire.units import EventIn, StorageOut, TaskOutput

RANGES = RangeOutputs(
    *(
        TaskOutput(
            output_index=index,
            dataset_uuid=UUID(int=index + 1),
            dataset_version=UUID(int=index + 101),
            storage=StorageOut(kind="none"),
        )
        for index in (3, 4)
    )
)
ReadRows = Callable[[str, int, int], dict[int, list[Row]]]
"""The rows of a table by block, from the first of these blocks to the last."""


class RangeReader:
    """Reads what events of one table announce or declare wrong, each event once."""

    def __init__(self, table: str, read: ReadRows) -> None:
        self.rows: dict[int, list[Row]] = {}
        self._table = table
        self._read = read
        self._taken: set[EventKey] = set()

    def take(self, event: EventIn) -> None:
        if event_key(event) in self._taken:
            return
        self._taken.add(event_key(event))
        assert event.start is not None
        assert event.end is not None
        self.read(event.start, event.end)

    def read(self, start: int, end: int) -> None:
        self.rows |= self._read(self._table, start, end)


class LiveRun(ChainRun):
    replaced = 0.03

    def __init__(
        self,
        seed: int,
        rng: random.Random,
        sizes: Sequence[int],
        batches: Sequence[int],
        outputs: Mapping[str, TaskOutput] = OUTPUTS,
    ) -> None:
        """`sizes`: of units; `batches`: blocks of a write; one of each is taken."""
        self.outputs = outputs
        world = ChainWorld(rng, rng.randrange(1, 200))
        nodes = [
            ShownNode(world, f"node-{number + 1}", rng.choice(MANNERS) if number else "honest", lag=2)
            for number in range(rng.choice((1, 2, 3)))
        ]
        for node in nodes:
            node.failing = rng.choice((0.0, 0.05))
        super().__init__(seed, rng, world, nodes)
        self.size = rng.choice(sizes)
        # The deepest reorganisation that needs no repair may go down to the seal.
        deepest = max(self.depths)
        final = rng.choice([depth for depth in (3, 20, 70, deepest) if depth >= deepest])
        self.options = FollowOptions(
            start=rng.choice((None, 0, 0, rng.randrange(40))),
            finality_depth=final,
            max_reorg_depth=final,
            batch_blocks=rng.choice(batches),
            unit_blocks=self.size,
        )
        self.crashes = rng.choice((0.0, 0.02))
        self.permits = 0
        self.readers = {output.dataset_uuid: RangeReader(table, self.read) for table, output in outputs.items()}
        self.pending: list[tuple[int, EventIn, list[MadeBlock]]] = []
        """Ranges whose files are not made yet, with the chain that they are read from: no other reorganisation of final
        blocks comes before they are."""
        self.heard: set[EventKey] = set()

    @property
    def start(self) -> int | None:
        return self.options.start

    @abstractmethod
    def open_store(self) -> HotChainStore:
        """Of this attempt."""

    @abstractmethod
    def read(self, table: str, start: int, end: int) -> dict[int, list[Row]]:
        """As readers of a live dataset see it: files up to the boundary, the table above."""

    @abstractmethod
    def ingest(self, order: int, chain: Sequence[MadeBlock], start: int, end: int) -> Sequence[tuple[int, int]]:
        """Reads units from a chain into files; returns those that changed. `order`: of the event that asks for it."""

    @abstractmethod
    def compact(self, start: int, end: int) -> None:
        """Makes a sealed unit of the tables files."""

    def make_follower(self) -> BlockFollower:
        self.attempt += 1
        return BlockFollower(
            self.open_store(),
            self.nodes,
            self.outputs,
            self.options,
            self.attempt,
            self.emit,
            clock=lambda: self.world.now,
            ranges=RANGES,
            ahead=AtOnce() if self.attempt % 2 else None,
        )

    def emit(self, events: Sequence[EventIn]) -> None:
        for event in events:
            if self.rng.random() < self.crashes:
                raise CrashError
            if event.dataset_uuid in self.readers:
                self.deliveries.accept(event)
            elif event_key(event) not in self.heard:
                self.heard.add(event_key(event))
                self.pending.append((len(self.heard), event, list(self.world.chain)))

    def take(self, event: EventIn) -> None:
        self.readers[event.dataset_uuid].take(event)

    def make_files(self) -> None:
        """One of the waiting ranges, in any order."""
        order, event, chain = self.pending.pop(self.rng.randrange(len(self.pending)))
        assert event.start is not None
        assert event.end is not None
        if event.dataset_uuid == RANGES.final.dataset_uuid:
            self.compact(event.start, event.end)
            return
        for unit in self.ingest(order, chain, event.start, event.end):
            for reader in self.readers.values():
                reader.read(*unit)

    def look(self, follower: BlockFollower) -> FollowOutcome:
        self.world.now += self.rng.choice((0.1, 1.0, 40.0))
        return follower.run_once()

    def advance(self, follower: BlockFollower) -> tuple[BlockFollower, FollowOutcome | None]:
        follower, outcome = super().advance(follower)
        if outcome is not None and outcome.state == "reorg_too_deep":
            self.permit_repair()
            self.retire(follower)
            follower = self.make_follower()
        if self.pending and self.rng.random() < 0.4:
            self.make_files()
        return follower, outcome

    def permit_repair(self) -> None:
        """A person says that the chain is right. They may not know which block changed first, or name one that would
        leave files as they were, which is refused."""
        self.permits += 1
        from_block = self.rng.choice((None, None, 0, len(self.world.chain) + self.size))
        self.options = replace(self.options, repair=RepairPermit(self.permits, float("inf"), from_block))

    def settle(self, follower: BlockFollower) -> None:
        super().settle(follower)
        while self.pending:
            self.make_files()

    def check_result(self) -> None:
        """Whoever reads the datasets now, or has read what events announced, has the chain."""
        first = self.first_stored if self.options.start is None else self.options.start
        chain = {block.number: block for block in self.world.chain if block.number >= first}
        for table, output in self.outputs.items():
            expected = {number: block.rows[table] for number, block in chain.items()}
            assert self.read(table, first, self.world.head.number) == expected
            rows = self.readers[output.dataset_uuid].rows
            assert {number: rows.get(number) for number in chain} == expected

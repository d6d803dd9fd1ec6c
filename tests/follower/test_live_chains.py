"""Random chains, followed into live datasets: blocks that are final become files, and leave the tables.

However it went, files up to the boundary and the tables above it are the chain, row by row; and whoever has only heard
of the events has the same rows. A reorganisation of final blocks stops the follower until a repair. `TRACE_SEED=123`
runs that seed alone.
"""

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest

from tests.follower.block_tree import MadeBlock
from tests.follower.memory_store import CrashError, CrashPoint, MemoryStore, MemoryTables, Row
from tests.follower.support import OUTPUTS, AtOnce
from tests.follower.world import ChainWorld, Manner, ShownNode
from tracelake.follower.follow import BlockFollower, FollowOptions, FollowOutcome, RangeOutputs
from tracelake.follower.store import HotStoreUnavailableError, StaleFollowerError
from tracelake.wire.units import EventIn, StorageOut, TaskOutput

MANNERS: tuple[Manner, ...] = ("honest", "late", "forked", "liar")
SEEDS = [int(os.environ["TRACE_SEED"])] if "TRACE_SEED" in os.environ else list(range(60))
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


class LiveRelation:
    """Files and tables as readers see them, with the jobs that make the files."""

    def __init__(self, tables: MemoryTables, size: int) -> None:
        self.tables = tables
        self._size = size
        self.files: dict[int, dict[str, list[Row]]] = {}
        self.compacted: set[tuple[int, int]] = set()
        self._orders: dict[tuple[int, int], int] = {}

    def read(self, table: str, number: int) -> list[Row]:
        start = self.tables.extent.table_start
        if start is None or number < start or (self.tables.boundary is not None and number <= self.tables.boundary):
            return self.files.get(number, {}).get(table, [])
        removed = self.tables.extent.removed_to
        assert removed is None or number > removed, "rows are neither in files nor in the table"
        return self.tables.rows[table].get(number, [])

    def ingest(self, order: int, chain: Sequence[MadeBlock], start: int, end: int) -> list[tuple[int, int]]:
        """Reads units from a chain; returns them. Of a unit that was announced later, an older one changes nothing."""
        units = []
        while start <= end:
            last = min(end, start - start % self._size + self._size - 1)
            if self._orders.get((start, last), -1) < order:
                self._orders[start, last] = order
                self.files |= {block.number: dict(block.rows) for block in chain[start : last + 1]}
                units.append((start, last))
            start = last + 1
        return units

    def compact(self, start: int, end: int) -> None:
        """Removes what the boundary has passed, and makes a unit of files; the order of units does not matter."""
        extent = self.tables.extent
        assert extent.sealed_to is not None
        assert extent.table_start is not None
        assert end <= extent.sealed_to
        if (start, end) in self.compacted:
            return
        if self.tables.boundary is not None:
            self._remove(self.tables.boundary)
        for number in range(start, end + 1):
            assert number in self.tables.links, "a sealed block is missing"
            self.files[number] = self.tables.content(number)
        self.compacted.add((start, end))
        boundary = extent.table_start - 1
        for first, last in sorted(self.compacted):
            boundary = last if first == boundary + 1 else boundary
        self.tables.boundary = boundary

    def _remove(self, to: int) -> None:
        for number in [number for number in self.tables.links if number <= to]:
            del self.tables.links[number]
            for rows in self.tables.rows.values():
                rows.pop(number, None)
        self.tables.extent = replace(self.tables.extent, removed_to=to)


class RangeReader:
    """Reads what events of one table announce or declare wrong, each event once."""

    def __init__(self, table: str, relation: LiveRelation) -> None:
        self.rows: dict[int, list[Row]] = {}
        self._table = table
        self._relation = relation
        self._taken: set[tuple[str | None, str]] = set()

    def take(self, event: EventIn) -> None:
        key = (event.partition_key, event.revision)
        if key in self._taken:
            return
        self._taken.add(key)
        assert event.start is not None
        assert event.end is not None
        self.read(event.start, event.end)

    def read(self, start: int, end: int) -> None:
        for number in range(start, end + 1):
            self.rows[number] = self._relation.read(self._table, number)


class LiveRun:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(f"live {seed}")
        self.world = ChainWorld(rng, rng.randrange(1, 200))
        self.nodes = [
            ShownNode(self.world, f"node-{number + 1}", rng.choice(MANNERS) if number else "honest", lag=2)
            for number in range(rng.choice((1, 2, 3)))
        ]
        for node in self.nodes:
            node.failing = rng.choice((0.0, 0.05))
        self.tables = MemoryTables()
        size = rng.choice((1, 3, 10, 40))
        self.relation = LiveRelation(self.tables, size)
        self.readers = {output.dataset_uuid: RangeReader(table, self.relation) for table, output in OUTPUTS.items()}
        depth = rng.choice((3, 20, 70))
        self.options = FollowOptions(
            start=rng.choice((None, 0, 0, rng.randrange(40))),
            finality_depth=depth,
            max_reorg_depth=depth,
            batch_blocks=rng.choice((1, 5, 100)),
            unit_blocks=size,
        )
        self.crashes = rng.choice((0.0, 0.02))
        self.attempt = 0
        self.pending: list[tuple[int, EventIn, list[MadeBlock]]] = []
        """Ranges whose files are not made yet, with the chain that they are read from: no other reorganisation of final
        blocks comes before they are."""
        self.heard: set[tuple[UUID, str | None, str]] = set()
        self.stale: list[BlockFollower] = []

    def make_follower(self) -> BlockFollower:
        self.attempt += 1
        store = MemoryStore(self.tables, self.attempt, self._fault, live=True)
        follower = BlockFollower(
            store,
            self.nodes,
            OUTPUTS,
            self.options,
            self.attempt,
            self._emit,
            clock=lambda: self.world.now,
            ahead=AtOnce() if self.attempt % 2 else None,
        )
        follower.ranges = RANGES
        return follower

    def _fault(self, point: CrashPoint) -> None:
        if self.rng.random() < self.crashes:
            raise HotStoreUnavailableError(f"no answer ({point})") if self.rng.random() < 0.5 else CrashError

    def _emit(self, events: Sequence[EventIn]) -> None:
        for event in events:
            if self.rng.random() < self.crashes:
                raise CrashError
            if event.dataset_uuid in self.readers:
                self.readers[event.dataset_uuid].take(event)
                continue
            key = (event.dataset_uuid, event.partition_key, event.revision)
            if key not in self.heard:
                self.heard.add(key)
                self.pending.append((len(self.heard), event, list(self.world.chain)))

    def make_files(self) -> None:
        """One of the waiting ranges, in any order."""
        order, event, chain = self.pending.pop(self.rng.randrange(len(self.pending)))
        assert event.start is not None
        assert event.end is not None
        if event.dataset_uuid == RANGES.final.dataset_uuid:
            self.relation.compact(event.start, event.end)
            return
        for unit in self.relation.ingest(order, chain, event.start, event.end):
            for reader in self.readers.values():
                reader.read(*unit)

    def step(self, follower: BlockFollower) -> tuple[BlockFollower, FollowOutcome | None]:
        self.world.now += self.rng.choice((0.1, 1.0, 40.0))
        try:
            return follower, follower.run_once()
        except CrashError:
            return self.make_follower(), None

    def follow(self, steps: int) -> None:
        self.world.restless = 0.1
        follower = self.make_follower()
        for _ in range(steps):
            follower, outcome = self.step(follower)
            if outcome is not None and outcome.state == "reorg_too_deep":
                self.options = replace(self.options, repair_from=0)  # a person says that the chain is right
                follower = self.make_follower()
            elif self.rng.random() < 0.03:
                self.stale.append(follower)
                follower = self.make_follower()
            if self.stale and self.rng.random() < 0.3:
                self._run_stale()
            if self.pending and self.rng.random() < 0.4:
                self.make_files()
        self._settle()

    def _run_stale(self) -> None:
        links = dict(self.tables.links)
        follower = self.rng.choice(self.stale)
        try:
            follower.run_once()
        except (StaleFollowerError, CrashError):
            self.stale.remove(follower)
        if self.tables.fence == self.attempt:
            assert self.tables.links == links

    def _settle(self) -> None:
        self.world.restless = self.crashes = 0.0
        for node in self.nodes:
            node.heal()
        passed = max(self.options.start or 0, *self.tables.links, 0)
        self.world.grow(max(1, passed - self.world.head.number + 1))
        self.options = replace(self.options, repair_from=0)
        follower = self.make_follower()
        for _ in range(2000):
            follower, outcome = self.step(follower)
            self.world.now += 40.0
            if outcome is not None and outcome.state == "at_head":
                break
            if self.pending and self.rng.random() < 0.5:
                self.make_files()
        else:
            raise AssertionError(f"it never came to the head: {outcome}")
        while self.pending:
            self.make_files()


def check(seed: int) -> LiveRun:
    run = LiveRun(seed)
    run.follow(run.rng.choice((30, 80)))
    extent = run.tables.extent
    assert extent.table_start is not None
    first = extent.table_start if run.options.start is None else run.options.start
    chain = {block.number: block for block in run.world.chain if block.number >= first}
    for table, output in OUTPUTS.items():
        expected = {number: block.rows[table] for number, block in chain.items()}
        assert {number: run.relation.read(table, number) for number in chain} == expected
        assert {number: run.readers[output.dataset_uuid].rows.get(number) for number in chain} == expected
    assert not run.tables.waiting
    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_files_and_tables_are_the_chain_however_it_was_followed(seed: int) -> None:
    check(seed)


@pytest.mark.soak
def test_many_more_live_chains() -> None:
    """As many as `TRACE_CHAINS` says."""
    first = int(os.environ.get("TRACE_SEED", 1_000))
    for seed in range(first, first + int(os.environ.get("TRACE_CHAINS", 5_000))):
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"TRACE_SEED={seed}")
            raise

"""Random chains with reorganisations, followed through crashes, two attempts at once and nodes of all kinds.

Looks take place when the time of a block is over or when a block is announced. Announcements are right, repeated, late,
false, or missing.

However it went, once the nodes agree the tables are those of the chain, row by row, and whoever has only heard of the
events, late, in any order and some of them several times, has the same rows. `TRACE_SEED=123` runs that seed alone.
"""

import os
import random
import threading
from collections.abc import Sequence

import pytest

from tests.follower.block_tree import chain_to
from tests.follower.chain_run import MANNERS, ChainRun, depth_of
from tests.follower.coverage import Coverage, RewriteRecord, check_chains, seeds_of_run, seeds_of_soak
from tests.follower.deliveries import EventKey, accept_some, event_key
from tests.follower.memory_store import CrashError, CrashPoint, MemoryStore, MemoryTables, Row
from tests.follower.support import OUTPUTS, AtOnce
from tests.follower.world import DEEPEST, ChainWorld, ShownNode
from tracelake.follower.follow import BlockFollower, FollowOutcome
from tracelake.follower.head_signal import HeadSignal
from tracelake.follower.options import FollowOptions
from tracelake.follower.pace import PollPace
from tracelake.follower.store import HotStoreUnavailableError
from tracelake.wire.units import EventIn

CHAINS = 100
PARTS = 4


class EventReader:
    """A reader of one table: takes each event once, by its key, and reads again what the event says has changed."""

    def __init__(self, table: str, tables: MemoryTables) -> None:
        self.rows: dict[int, list[Row]] = {}
        self._table = table
        self._tables = tables
        self._position = -1
        self._taken: set[EventKey] = set()

    def take(self, event: EventIn) -> None:
        if event_key(event) in self._taken:
            return
        self._taken.add(event_key(event))
        assert event.cursor is not None
        numbers = set(range(self._position + 1, event.cursor + 1))
        if event.invalidates is not None:
            numbers |= set(range(event.invalidates.start, event.invalidates.end + 1))
        for number in numbers:
            self.rows[number] = self._tables.rows[self._table].get(number, [])
        self._position = max(self._position, event.cursor)


class Run(ChainRun):
    """Into tables in memory, with events by cursor."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        world = ChainWorld(rng, rng.randrange(1, 100))
        nodes = [
            ShownNode(world, f"node-{number + 1}", rng.choice(MANNERS) if number else "honest", lag=rng.randrange(9))
            for number in range(rng.choice((1, 1, 2, 3, 4)))
        ]
        for node in nodes:
            node.failing = rng.choice((0.0, 0.02, 0.1))
        super().__init__(seed, rng, world, nodes)
        self.tables = MemoryTables()
        self.readers = {output.dataset_uuid: EventReader(table, self.tables) for table, output in OUTPUTS.items()}
        self.options = FollowOptions(
            start=rng.choice((None, 0, 0, rng.randrange(40))),
            max_reorg_depth=4 * DEEPEST,
            batch_blocks=rng.choice((1, 5, 20, 100)),
        )
        self.crashes = rng.choice((0.0, 0.01, 0.05))
        self.announcing = random.Random(f"announcements of {seed}")
        self.signal = HeadSignal(threading.Event(), clock=lambda: self.world.now)
        self.pace = PollPace(0.2, 15)

    @property
    def rewrites(self) -> RewriteRecord:
        return self.tables.record

    @property
    def start(self) -> int | None:
        return self.options.start

    def take(self, event: EventIn) -> None:
        self.readers[event.dataset_uuid].take(event)

    def make_follower(self) -> BlockFollower:
        self.attempt += 1
        store = MemoryStore(self.tables, self.attempt, self._fault)
        return BlockFollower(
            store,
            self.nodes,
            OUTPUTS,
            self.options,
            self.attempt,
            self._emit,
            clock=lambda: self.world.now,
            ahead=AtOnce() if self.attempt % 2 else None,
        )

    def _fault(self, point: CrashPoint) -> None:
        if self.rng.random() < self.crashes:
            if point != "after_mark" and self.rng.random() < 0.5:
                raise HotStoreUnavailableError(f"no answer ({point})")
            raise CrashError

    def _emit(self, events: Sequence[EventIn]) -> None:
        if not accept_some(events, self.rng, self.crashes, self.deliveries.accept):
            raise CrashError

    def look(self, follower: BlockFollower) -> FollowOutcome:
        self.world.now += self.rng.choice((0.0, 0.1, 1.0, 40.0))
        self._announce()
        if not self.signal.wait(0):
            self.world.now += self.pace.next_wait(announced=self.signal.is_followed)
        self.signal.forget()
        outcome = follower.run_once()
        if follower.newest is not None:
            self.signal.store(follower.newest.hash)
        if outcome.newest is not None:
            self.pace.observe(outcome.newest)
        return outcome

    def _announce(self) -> None:
        """What subscriptions say before the next look."""
        rng, chain = self.announcing, self.world.chain
        for _ in range(rng.choice((0, 0, 1, 1, 2, 5))):
            kind = rng.random()
            if kind < 0.5:
                self.signal.announce(chain[-1].hash)
            elif kind < 0.8:
                self.signal.announce(rng.choice([*chain[-5:], *self.world.tips]).hash)
            elif kind < 0.95:
                self.signal.announce(f"0x{rng.randbytes(32).hex()}")
            else:
                self.signal.lose()

    def run_stale(self, follower: BlockFollower) -> None:
        fence, links = self.tables.fence, dict(self.tables.links)
        try:
            follower.run_once()
        finally:
            if fence > 0 and self.tables.fence != fence:
                raise AssertionError("a stale attempt moved the fence")
            if fence == self.attempt:
                assert self.tables.links == links


def check(seed: int) -> Coverage:
    run = Run(seed)
    coverage = run.follow(run.rng.choice((20, 50, 80)))
    tables = run.tables
    first = min(tables.links)
    chain = {block.number: block for block in chain_to(run.world.head) if block.number >= first}
    if run.options.start is not None:
        assert first == run.options.start
    for table in OUTPUTS:
        expected = {number: block.rows[table] for number, block in chain.items() if block.rows[table]}
        assert tables.rows[table] == expected
        reader = run.readers[OUTPUTS[table].dataset_uuid]
        assert {number: rows for number, rows in reader.rows.items() if rows} == expected
    assert not tables.waiting
    return coverage


@pytest.mark.parametrize("part", range(PARTS))
def test_the_tables_are_those_of_the_chain_however_it_was_followed(part: int) -> None:
    """Each part has chains of all depths, with everything that may happen to them."""
    coverage = check_chains(seeds_of_run(CHAINS)[part::PARTS], check)
    if "TRACE_SEED" not in os.environ:
        coverage.check()


@pytest.mark.soak
def test_many_more_chains() -> None:
    """As many as `TRACE_CHAINS` says."""
    check_chains(seeds_of_soak(5_000), check)


def test_neighbouring_seeds_have_every_depth() -> None:
    assert {depth_of(seed) for seed in range(7, 7 + DEEPEST)} == set(range(1, DEEPEST + 1))

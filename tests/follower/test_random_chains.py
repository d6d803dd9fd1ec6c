"""Random chains with reorganisations, followed through crashes, two attempts at once and nodes of all kinds.

Looks take place when the time of a block is over or when a block is announced. Announcements are right, repeated, late,
false, or missing.

However it went, once the nodes agree the tables are those of the chain, row by row, and whoever has only heard of the
events has the same rows. `TRACE_SEED=123` runs that seed alone.
"""

import os
import random
import threading
from collections.abc import Sequence

import pytest

from tests.follower.block_tree import chain_to
from tests.follower.memory_store import CrashError, CrashPoint, MemoryStore, MemoryTables, Row
from tests.follower.support import OUTPUTS, AtOnce
from tests.follower.world import DEEPEST, ChainWorld, Manner, ShownNode
from tracelake.follower.follow import BlockFollower, FollowOptions, FollowOutcome
from tracelake.follower.head_signal import HeadSignal
from tracelake.follower.pace import PollPace
from tracelake.follower.store import HotStoreUnavailableError, StaleFollowerError
from tracelake.wire.units import EventIn

MANNERS: tuple[Manner, ...] = ("honest", "late", "forked", "liar")
SEEDS = [int(os.environ["TRACE_SEED"])] if "TRACE_SEED" in os.environ else list(range(200))


class EventReader:
    """A reader of one table: takes each event once, by its key, and reads again what the event says has changed."""

    def __init__(self, table: str, tables: MemoryTables) -> None:
        self.rows: dict[int, list[Row]] = {}
        self._table = table
        self._tables = tables
        self._position = -1
        self._taken: set[tuple[int | None, str]] = set()

    def take(self, event: EventIn) -> None:
        key = (event.cursor, event.revision)
        if key in self._taken:
            return
        self._taken.add(key)
        assert event.cursor is not None
        numbers = set(range(self._position + 1, event.cursor + 1))
        if event.invalidates is not None:
            numbers |= set(range(event.invalidates.start, event.invalidates.end + 1))
        for number in numbers:
            self.rows[number] = self._tables.rows[self._table].get(number, [])
        self._position = max(self._position, event.cursor)


class Run:
    """One chain, followed from its first block until all is quiet."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.world = ChainWorld(rng, rng.randrange(1, 100))
        self.nodes = [
            ShownNode(
                self.world, f"node-{number + 1}", rng.choice(MANNERS) if number else "honest", lag=rng.randrange(9)
            )
            for number in range(rng.choice((1, 1, 2, 3, 4)))
        ]
        for node in self.nodes:
            node.failing = rng.choice((0.0, 0.02, 0.1))
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
        self.attempt = 0
        self.stale: list[BlockFollower] = []
        self.first: int | None = None

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
        taken = list(events)
        if self.rng.random() < self.crashes:
            taken = taken[: self.rng.randrange(len(taken) + 1)]  # the process ends before the rest is accepted
        for event in taken:
            self.readers[event.dataset_uuid].take(event)
        if len(taken) < len(events) or self.rng.random() < self.crashes:
            raise CrashError

    def step(self, follower: BlockFollower) -> tuple[BlockFollower, FollowOutcome | None]:
        self.world.now += self.rng.choice((0.0, 0.1, 1.0, 40.0))
        self._announce()
        if not self.signal.wait(0):
            self.world.now += self.pace.next_wait(announced=self.signal.is_followed)
        self.signal.forget()
        try:
            outcome = follower.run_once()
        except CrashError:
            return self.make_follower(), None
        if follower.newest is not None:
            self.signal.store(follower.newest.hash)
        if outcome.newest is not None:
            self.pace.observe(outcome.newest)
        return follower, outcome

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

    def follow(self, steps: int) -> None:
        self.world.restless = 0.08
        follower = self.make_follower()
        for _ in range(steps):
            before = follower
            follower, _ = self.step(follower)
            if follower is before and self.rng.random() < 0.02:
                self.stale.append(follower)  # its lease was lost, and it does not know
                follower = self.make_follower()
            if self.stale and self.rng.random() < 0.2:
                self._run_stale(self.rng.choice(self.stale))
        self._settle(follower)

    def _run_stale(self, follower: BlockFollower) -> None:
        fence, links = self.tables.fence, dict(self.tables.links)
        try:
            follower.run_once()
        except (StaleFollowerError, CrashError):
            self.stale.remove(follower)
        if fence > 0 and self.tables.fence != fence:
            raise AssertionError("a stale attempt moved the fence")
        if fence == self.attempt:
            assert self.tables.links == links

    def _settle(self, follower: BlockFollower) -> None:
        """The nodes agree, and the chain goes past whatever is stored."""
        self.world.restless = self.crashes = 0.0
        for node in self.nodes:
            node.heal()
        passed = max(self.options.start or 0, *self.tables.links, 0)
        self.world.grow(max(1, passed - self.world.head.number + 1))
        for _ in range(2000):
            follower, outcome = self.step(follower)
            self.world.now += 40.0
            if outcome is not None and outcome.state == "at_head":
                return
        raise AssertionError(f"it never came to the head: {outcome}")


def check(seed: int) -> Run:
    run = Run(seed)
    run.follow(run.rng.choice((20, 50, 80)))
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
    return run


@pytest.mark.parametrize("seed", SEEDS)
def test_the_tables_are_those_of_the_chain_however_it_was_followed(seed: int) -> None:
    check(seed)


@pytest.mark.soak
def test_many_more_chains() -> None:
    """As many as `TRACE_CHAINS` says."""
    first = int(os.environ.get("TRACE_SEED", 1_000))
    for seed in range(first, first + int(os.environ.get("TRACE_CHAINS", 5_000))):
        try:
            check(seed)
        except BaseException as error:
            error.add_note(f"TRACE_SEED={seed}")
            raise

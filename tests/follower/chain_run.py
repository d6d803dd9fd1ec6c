"""One random chain, followed from its first block until all is quiet; where its rows go is said by subclasses.

Between stretches in which anything happens, the nodes agree for a moment, and blocks that are stored are replaced: to a
depth that follows from the seed, and often once more before the first replacement was seen, while it is read, or just
after it was written.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from tests.follower.coverage import LEAST_REORGANISATIONS, Coverage, RewriteRecord
from tests.follower.deliveries import Deliveries
from tests.follower.memory_store import CrashError
from tests.follower.world import DEEPEST, ChainWorld, Manner, ShownNode
from tracelake.follower.follow import BlockFollower, FollowOutcome
from tracelake.follower.store import StaleFollowerError
from tracelake.wire.units import EventIn

MANNERS: tuple[Manner, ...] = ("honest", "late", "forked", "liar")
RESTLESS = 0.08
_BEHIND = ("before_start", "shorter_chain", "nodes_behind")


def depth_of(seed: int) -> int:
    """Of the first reorganisation: neighbouring seeds are far apart, and of 64 of them each has another."""
    return seed * 37 % DEEPEST + 1


class ChainRun(ABC):
    replaced = 0.02
    """How likely the lease of an attempt is lost after a look."""

    def __init__(self, seed: int, rng: random.Random, world: ChainWorld, nodes: list[ShownNode]) -> None:
        self.rng = rng
        self.world = world
        self.nodes = nodes
        self.crashes = 0.0
        """How likely the process ends at each point where it may."""
        self.attempt = 0
        self.stale: list[BlockFollower] = []
        self.coverage = Coverage(chains=1)
        self.deliveries = Deliveries(random.Random(f"deliveries of {seed}"), self.take)
        later = random.Random(f"reorganisations of {seed}")
        deeper = later.choice((1, later.randint(2, 8), later.randint(1, DEEPEST)))
        self.depths = [depth_of(seed), deeper, *([later.randint(1, DEEPEST)] if later.random() < 0.3 else [])]

    @property
    @abstractmethod
    def rewrites(self) -> RewriteRecord: ...

    @property
    def first_stored(self) -> int:
        assert self.rewrites.first is not None
        return self.rewrites.first

    @abstractmethod
    def make_follower(self) -> BlockFollower:
        """Of the next attempt."""

    @abstractmethod
    def look(self, follower: BlockFollower) -> FollowOutcome:
        """Some time passes, and the follower looks once."""

    @abstractmethod
    def take(self, event: EventIn) -> None:
        """An event arrives at its reader."""

    @abstractmethod
    def run_stale(self, follower: BlockFollower) -> None:
        """Lets an attempt look that was replaced. Raises StaleFollowerError if it has noticed."""

    def retire(self, follower: BlockFollower) -> None:  # noqa: B027 - most have nothing to give back
        """Of a process that is gone."""

    def advance(self, follower: BlockFollower) -> tuple[BlockFollower, FollowOutcome | None]:
        try:
            outcome = self.look(follower)
        except CrashError:
            self.coverage.crashes += 1
            self.retire(follower)
            return self.make_follower(), None
        return follower, outcome

    def follow(self, steps: int) -> Coverage:
        follower = self.make_follower()
        for depth in self.depths:
            follower = self.wander(follower, steps // len(self.depths))
            follower = self.reorganise(follower, depth)
        while len(self.rewrites.depths) < LEAST_REORGANISATIONS:
            follower = self.reorganise(follower, 1)
        self.settle(follower)
        self.coverage.depths, self.coverage.nested = self.rewrites.depths, self.rewrites.nested
        self.coverage.repeated, self.coverage.reordered = self.deliveries.repeated, self.deliveries.reordered
        return self.coverage

    def wander(self, follower: BlockFollower, steps: int) -> BlockFollower:
        """Anything may happen."""
        self.world.restless = RESTLESS
        for _ in range(steps):
            before = follower
            follower, _ = self.advance(follower)
            if follower is before and self.rng.random() < self.replaced:
                self.stale.append(follower)  # its lease was lost, and it does not know
                follower = self.make_follower()
            if self.stale and self.rng.random() < 0.25:
                self._run_stale(self.rng.choice(self.stale))
            self.deliveries.pass_some()
        return follower

    def reorganise(self, follower: BlockFollower, depth: int) -> BlockFollower:
        """Stored blocks are replaced; what is stored in the end is what the nodes have."""
        rng = self.rng
        before = len(self.rewrites.depths)
        while len(self.rewrites.depths) == before:
            follower = self.catch_up(follower, depth)
            self.world.reorganise(depth, depth + rng.choice((0, 1, 1, 2, 5)))
            for _ in range(rng.choice((0, 1, 1, 2))):
                self.world.restless = RESTLESS
                for _ in range(rng.randrange(3)):
                    follower, _ = self.advance(follower)
                    self.deliveries.pass_some()
                again = rng.choice((1, depth, rng.randint(1, depth)))
                self.world.reorganise(again, again + rng.choice((0, 1, 2)))
            follower = self.catch_up(follower, 0)
        return follower

    def catch_up(self, follower: BlockFollower, room: int) -> BlockFollower:
        """Until the tables end at the head, with so many blocks above the first one at least."""
        self.world.restless = 0.0
        outcome = None
        with self._agreement():
            for _ in range(2000):
                follower, outcome = self.advance(follower)
                self.deliveries.pass_some()
                self.world.now += 40.0
                if outcome is None:
                    continue
                if outcome.state in _BEHIND:
                    self.world.grow(max(1, self.lowest_head - self.world.head.number))
                elif outcome.state == "at_head":
                    missing = self.first_stored + room - self.world.head.number
                    if missing <= 0:
                        return follower
                    self.world.grow(missing)
        raise AssertionError(f"it never came to the head: {outcome}")

    @property
    @abstractmethod
    def start(self) -> int | None:
        """The first block that is asked for."""

    @property
    def lowest_head(self) -> int:
        """A head that is behind whatever is stored."""
        return max(self.start or 0, (self.rewrites.newest or 0) + 1)

    def settle(self, follower: BlockFollower) -> None:
        """The nodes agree, and the chain goes past whatever is stored."""
        self.world.restless = self.crashes = 0.0
        for node in self.nodes:
            node.heal()
        self.world.grow(max(1, self.lowest_head - self.world.head.number))
        self.retire(self.catch_up(follower, 0))
        self.deliveries.pass_all()

    def _run_stale(self, follower: BlockFollower) -> None:
        self.coverage.stale_looks += 1
        try:
            self.run_stale(follower)
        except (StaleFollowerError, CrashError):
            self.stale.remove(follower)
            self.retire(follower)

    @contextmanager
    def _agreement(self) -> Iterator[None]:
        """Every node shows the chain as it is, and answers."""
        before = [(node.manner, node.failing) for node in self.nodes]
        for node in self.nodes:
            node.heal()
        yield
        for node, (manner, failing) in zip(self.nodes, before, strict=True):
            node.manner, node.failing = manner, failing

"""One follower of a live dataset in memory, with the jobs that make its files."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from tests.follower.live_run import RANGES
from tests.follower.memory_store import CrashPoint, MemoryStore, MemoryTables
from tests.follower.support import OUTPUTS
from tests.follower.test_live_chains import LiveRelation
from tests.follower.world import ChainWorld, ShownNode
from tracelake.follower.follow import BlockFollower, FollowOutcome
from tracelake.follower.options import FollowOptions, RepairPermit
from tracelake.wire.units import EventIn

UNIT = 10


class LiveFollower:
    """Units of ten blocks, of which all but the newest five are final. It is at the head of a chain that has grown."""

    def __init__(self, blocks: int = 60, *, first: int = 6, max_reorg_depth: int = 5, finality_depth: int = 5) -> None:
        """`first`: blocks of the chain when the tables begin; those of whole units that are final are in files."""
        self.world = ChainWorld(random.Random(1), first)
        self.tables = MemoryTables()
        self.relation = LiveRelation(self.tables, UNIT)
        self.options = FollowOptions(
            start=0, finality_depth=finality_depth, max_reorg_depth=max_reorg_depth, unit_blocks=UNIT
        )
        self.fault: Callable[[CrashPoint], None] = lambda _point: None
        self.attempt = self.orders = 0
        self.read_again: list[tuple[int, int]] = []
        """Ranges of which files were announced to be read."""
        self.restart()
        self.run_until("at_head")
        self.world.grow(blocks - first)
        self.run_until("at_head")
        self.read_again.clear()

    def restart(self) -> None:
        self.attempt += 1
        self.follower = BlockFollower(
            MemoryStore(self.tables, self.attempt, lambda point: self.fault(point), live=True),
            [ShownNode(self.world, "node-1")],
            OUTPUTS,
            self.options,
            self.attempt,
            self._emit,
            clock=lambda: self.world.now,
            ranges=RANGES,
        )

    def permit(self, from_block: int | None = None, *, permit_id: int = 1, seconds: float = 1e9) -> None:
        """The next attempt has the permission."""
        self.options = replace(self.options, repair=RepairPermit(permit_id, self.world.now + seconds, from_block))
        self.restart()

    def run_until(self, state: str) -> FollowOutcome:
        for _ in range(100):
            outcome = self.follower.run_once()
            self.world.now += 60.0
            if outcome.state == state:
                return outcome
        raise AssertionError(f"it ended with {outcome}")

    def _emit(self, events: Sequence[EventIn]) -> None:
        for event in events:
            if event.dataset_uuid not in (RANGES.history.dataset_uuid, RANGES.final.dataset_uuid):
                continue
            assert event.start is not None
            assert event.end is not None
            if event.dataset_uuid == RANGES.final.dataset_uuid:
                self.relation.compact(event.start, event.end)
            else:
                self.orders += 1
                self.read_again.append((event.start, event.end))
                self.relation.ingest(self.orders, self.world.chain, event.start, event.end)

    @property
    def wrong_blocks(self) -> list[int]:
        """Blocks whose rows, in files or in tables, are not those of the chain."""
        return [
            block.number
            for block in self.world.chain
            if any(self.relation.read_block(table, block.number) != block.rows[table] for table in OUTPUTS)
        ]

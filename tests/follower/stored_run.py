"""A random chain that is followed into Postgres and compacted into Parquet files, by the code that does it in a stack.

After every change, files up to the boundary and the tables above it are compared with rows that plain Python makes of
the blocks, row by row and column by column: no row is missing, none is there twice, and no value differs, also between
a crash and the next attempt. Compactions fail between uploads, before and after their commit and amid removals; and
while one copies rows, blocks are reorganised, others are sealed, and another attempt makes the same files.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

from tests.direct.support import ask
from tests.follower.block_tree import MadeBlock
from tests.follower.coverage import RewriteRecord
from tests.follower.live_run import RANGES, LiveRun
from tests.follower.memory_store import CrashError, CrashPoint, Row
from tests.follower.stored_files import AWAY, LiveFiles, Unit, units_of
from tests.follower.stored_tables import StoredTables
from tests.follower.world import tables_of
from tracelake.catalogue.context import NonRetryableError
from tracelake.errors import StoreUnavailableError
from tracelake.follower.follow import BlockFollower, FollowOutcome
from tracelake.follower.table_store import TableChainStore
from tracelake.spark.directory_transfer import DirectoryTransfer

TERMINATE = (
    "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
FATES = ("crash", "crash", "database_ends", "database_away", "unreported", "reorganisation", "reorganisation", "rival")
"""What may happen to an attempt of a compaction."""
_NUMBER = {"blocks": 3, "transactions": 0, "logs": 0}
"""Where the number of the block is in a row."""
_WRITES: tuple[CrashPoint, ...] = ("amid_commit", "after_commit")


class StoredRun(LiveRun):
    replaced = 0.1

    def __init__(self, seed: int, dsn: str, objects: Path) -> None:
        self.tables = StoredTables(dsn)
        rng = random.Random(f"stored {seed}")
        super().__init__(seed, rng, (20, 40), (10, 100), self.tables.outputs)
        self.crashes = rng.choice((0.0, 0.05, 0.05))
        self.files = LiveFiles(self.tables, DirectoryTransfer(objects))
        self.fates: Counter[str] = Counter()
        self.checks = 0
        self._settles = False
        self._changed = False
        self._content: dict[str, dict[int, list[Row]]] = {}
        self._made: dict[bytes, MadeBlock] = {}
        self._orders: dict[Unit, int] = {}
        self._follower: BlockFollower | None = None

    @property
    def rewrites(self) -> RewriteRecord:
        return self.tables.record

    # --- the follower

    def open_store(self) -> TableChainStore:
        attempt = self.attempt
        return TableChainStore(
            lambda: self.tables.open(attempt, self.files.boundary, self._fault, self.emit, RANGES),
            self.outputs,
            live=True,
        )

    def _fault(self, point: CrashPoint) -> None:
        self._changed |= point in _WRITES
        if self.rng.random() >= self.crashes:
            return
        kind = self.rng.random()
        if kind < 0.2:
            ask(self.tables.dsn, TERMINATE)  # whoever uses a connection next notices
        elif kind < 0.6:
            raise StoreUnavailableError(f"no answer ({point})")
        else:
            raise CrashError

    def make_follower(self) -> BlockFollower:
        self._follower = super().make_follower()
        return self._follower

    def retire(self, follower: BlockFollower) -> None:
        assert isinstance(follower.store, TableChainStore)
        follower.store.close()

    def look(self, follower: BlockFollower) -> FollowOutcome:
        try:
            return super().look(follower)
        finally:
            self.check_rows()

    def run_stale(self, follower: BlockFollower) -> None:
        writes, is_replaced = self.rewrites.writes, self.tables.claimed == self.attempt
        try:
            follower.run_once()
        finally:
            assert not is_replaced or self.rewrites.writes == writes

    def settle(self, follower: BlockFollower) -> None:
        self._settles = True
        # A unit at least is final.
        self.world.grow(self.options.finality_depth + 2 * self.size)
        super().settle(follower)
        for stale in self.stale:
            self.retire(stale)
        self.check_rows()
        self.files.close()

    # --- files

    def ingest(self, order: int, chain: Sequence[MadeBlock], start: int, end: int) -> Sequence[Unit]:
        units = [unit for unit in units_of(start, end, self.size) if self._orders.get(unit, -1) < order]
        for unit in units:
            self._orders[unit] = order
            self.files.ingest(unit, tables_of(chain[unit[0] : unit[1] + 1]))
            self._changed = True
        self.check_rows()
        return units

    def compact(self, start: int, end: int) -> None:
        """Attempt after attempt, until the files of the unit are committed."""
        while (start, end) not in self.files.committed:
            self._attempt((start, end))
        if self.rng.random() < 0.2:
            self._attempt((start, end))  # the event came again

    def _attempt(self, unit: Unit, fate: str | None = None) -> None:
        rng = self.rng
        fate = fate or rng.choice((*FATES, *["fine"] * len(FATES)))
        attempt = self.files.claim(unit, rng.choice((3, 8, 100)))
        before = unit in self.files.committed
        try:
            result = attempt.run(
                self._interruption(unit, fate, rng.randrange(16)), AWAY if fate == "database_away" else None
            )
        except (CrashError, StoreUnavailableError):
            self.fates[fate] += 1
            return
        except NonRetryableError as error:
            if not before or "were removed from the table" not in str(error):
                raise
            self.fates["again"] += 1
            return
        finally:
            self._changed = True
            self.check_rows()
        self.fates[fate] += 1
        # The Dispatcher takes one result of a unit; some are lost on the way.
        if unit not in self.files.committed and fate != "unreported":
            self.files.complete(result)
            self._changed = True
            self.check_rows()

    def _interruption(self, unit: Unit, fate: str, place: int) -> Callable[[str], None]:
        """What happens at some upload or removal, counted from the first."""
        calls = iter(range(1_000))

        def happen(_event: str) -> None:
            if next(calls) != place:
                return
            if fate == "crash":
                raise CrashError
            if fate == "database_ends":
                ask(self.tables.dsn, TERMINATE)
            elif fate == "rival":
                self._attempt(unit, "fine")
            elif fate == "reorganisation" and not self._settles:
                self._reorganise_meanwhile()

        return happen

    def _reorganise_meanwhile(self) -> None:
        """The current follower writes another chain, down to the seal or below it, while rows are copied."""
        assert self._follower is not None
        crashes, self.crashes = self.crashes, 0.0
        depth = self.rng.randint(1, min(self.options.finality_depth, 64))
        self.world.reorganise(depth, depth + self.rng.choice((1, 1, self.size)))
        for _ in range(3):
            self.world.now += 40.0
            self._follower.run_once()
            self.check_rows()
        self.crashes = crashes

    # --- readers

    def read(self, table: str, start: int, end: int) -> dict[int, list[Row]]:
        self.check_rows()
        return {number: self._content[table].get(number, []) for number in range(start, end + 1)}

    def check_rows(self) -> None:
        """Compares everything that readers see with the reference, if something has changed."""
        first, newest = self.rewrites.first, self.rewrites.newest
        if not self._changed or first is None or newest is None:
            return
        self._changed = False
        self.checks += 1
        content = self.files.read()
        history = [n for unit in sorted(self.files.committed) if unit[1] < first for n in range(unit[0], unit[1] + 1)]
        numbers = [row[_NUMBER["blocks"]] for row in content["blocks"]]
        assert numbers == [*history, *range(first, newest + 1)], "blocks are missing, or there twice"
        self._made |= {bytes.fromhex(block.hash[2:]): block for block in self.world.made[len(self._made) :]}
        blocks = [self._made[row[0]] for row in content["blocks"]]
        for table, rows in content.items():
            assert rows == [row for block in blocks for row in block.rows[table]], table
        # Files are of one chain, and so is the table; between the two there may be others until a repair has ended.
        edges = {unit[0] for unit in self.files.committed if self.files.is_read(unit)} | {
            first if self.files.boundary is None else self.files.boundary + 1
        }
        assert all(block.number in edges or block.parent is below for below, block in pairwise(blocks))
        self._content = {table: {} for table in content}
        for table, rows in content.items():
            by_block = self._content[table]
            for row in rows:
                by_block.setdefault(row[_NUMBER[table]], []).append(row)

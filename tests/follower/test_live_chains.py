"""Random chains, followed into live datasets: blocks that are final become files, and leave the tables.

However it went, files up to the boundary and the tables above it are the chain, row by row; and whoever has only heard
of the events, in any order, has the same rows. A reorganisation of final blocks stops the follower until a repair.
`TRACE_SEED=123` runs that seed alone. `test_stored_chains.py` does the same with Postgres and Parquet.
"""

import os
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.follower.block_tree import MadeBlock
from tests.follower.coverage import Coverage, RewriteRecord, check_chains, seeds_of_run, seeds_of_soak
from tests.follower.live_run import LiveRun
from tests.follower.memory_store import CrashError, CrashPoint, MemoryStore, MemoryTables, Row
from tracelake.follower.follow import BlockFollower
from tracelake.follower.store import HotStoreUnavailableError

CHAINS = 60
PARTS = 3


class LiveRelation:
    """Files and tables as readers see them, with the jobs that make the files."""

    def __init__(self, tables: MemoryTables, size: int) -> None:
        self.tables = tables
        self._size = size
        self.files: dict[int, dict[str, list[Row]]] = {}
        self.compacted: set[tuple[int, int]] = set()
        self._orders: dict[tuple[int, int], int] = {}

    def read(self, table: str, start: int, end: int) -> dict[int, list[Row]]:
        return {number: self.read_block(table, number) for number in range(start, end + 1)}

    def read_block(self, table: str, number: int) -> list[Row]:
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


class MemoryRun(LiveRun):
    """Tables and files in memory."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, random.Random(f"live {seed}"), sizes=(1, 3, 10, 40), batches=(1, 5, 100))
        self.tables = MemoryTables()
        self.relation = LiveRelation(self.tables, self.size)

    @property
    def rewrites(self) -> RewriteRecord:
        return self.tables.record

    def open_store(self) -> MemoryStore:
        return MemoryStore(self.tables, self.attempt, self._fault, live=True)

    def _fault(self, point: CrashPoint) -> None:
        if self.rng.random() < self.crashes:
            raise HotStoreUnavailableError(f"no answer ({point})") if self.rng.random() < 0.5 else CrashError

    def read(self, table: str, start: int, end: int) -> dict[int, list[Row]]:
        return self.relation.read(table, start, end)

    def ingest(self, order: int, chain: Sequence[MadeBlock], start: int, end: int) -> Sequence[tuple[int, int]]:
        return self.relation.ingest(order, chain, start, end)

    def compact(self, start: int, end: int) -> None:
        self.relation.compact(start, end)

    def run_stale(self, follower: BlockFollower) -> None:
        links = dict(self.tables.links)
        try:
            follower.run_once()
        finally:
            if self.tables.fence == self.attempt:
                assert self.tables.links == links


def check(seed: int) -> Coverage:
    run = MemoryRun(seed)
    coverage = run.follow(run.rng.choice((30, 80)))
    run.check_result()
    assert not run.tables.waiting
    return coverage


@pytest.mark.parametrize("part", range(PARTS))
def test_files_and_tables_are_the_chain_however_it_was_followed(part: int) -> None:
    coverage = check_chains(seeds_of_run(CHAINS)[part::PARTS], check)
    if "TRACE_SEED" not in os.environ:
        coverage.check()


@pytest.mark.soak
def test_many_more_live_chains() -> None:
    """As many as `TRACE_CHAINS` says."""
    check_chains(seeds_of_soak(5_000), check)

"""Compaction of a chain that is reorganised meanwhile, and attempts that end at each point where they may."""

import random
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.direct.support import ask
from tests.follower.block_tree import chain_to
from tests.follower.live_run import RANGES
from tests.follower.memory_store import CrashError
from tests.follower.stored_files import AWAY, LiveFiles, Unit, units_of
from tests.follower.stored_run import TERMINATE
from tests.follower.stored_tables import StoredTables
from tests.follower.world import ChainWorld, ShownNode, tables_of
from tests.support.postgres import TestCluster
from tracelake.errors import StoreUnavailableError
from tracelake.follower.follow import BlockFollower, FollowOutcome
from tracelake.follower.options import FollowOptions, RepairPermit
from tracelake.follower.table_store import TableChainStore
from tracelake.ports.direct_tables import WHOLE_TABLE, RangeReplacement, RangeSealedError, TableWriter
from tracelake.spark.directory_transfer import DirectoryTransfer
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.wire.units import EventIn

SIZE, FINAL = 10, 16


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


class FollowedChain:
    """Blocks 0 to 59 in tables, sealed up to 39; files are made when a test asks for them."""

    def __init__(self, dsn: str, objects: Path) -> None:
        self.world = ChainWorld(random.Random(11), 20)
        self.tables = StoredTables(dsn)
        self.files = LiveFiles(self.tables, DirectoryTransfer(objects))
        self.events: list[EventIn] = []
        self.options = FollowOptions(start=0, finality_depth=FINAL, max_reorg_depth=64, unit_blocks=SIZE)
        self.attempt = 0
        self.follower = self.open()
        self.run()
        self.world.grow(40)
        self.run()

    def open(self) -> BlockFollower:
        self.attempt += 1
        attempt = self.attempt
        store = TableChainStore(
            lambda: self.tables.open(attempt, self.files.boundary, lambda _: None, self.events.extend, RANGES),
            self.tables.outputs,
            live=True,
        )
        node = ShownNode(self.world, "node-1")
        return BlockFollower(
            store,
            [node],
            self.tables.outputs,
            self.options,
            attempt,
            self.events.extend,
            clock=lambda: self.world.now,
            ranges=RANGES,
        )

    def run(self) -> FollowOutcome:
        """Until there is nothing more to do."""
        while True:
            self.world.now += 40.0
            outcome = self.follower.run_once()
            if not outcome.wrote and outcome.state not in ("chain_moved", "store_unavailable"):
                return outcome

    def reopen(self, options: FollowOptions) -> None:
        self.close()
        self.options = options
        self.follower = self.open()

    def close(self) -> None:
        store = self.follower.store
        assert isinstance(store, TableChainStore)
        store.close()
        self.files.close()

    def compact(self, *units: Unit) -> None:
        for unit in units:
            self.files.complete(self.files.claim(unit, 4).run())

    def check(self) -> None:
        """What readers see is the chain of the nodes: each row once, with the values of the reference."""
        for table, rows in self.files.read().items():
            assert rows == [row for block in self.world.chain for row in block.rows[table]], table

    def check_files(self) -> None:
        """Files alone, without the tables."""
        for start, end in self.files.committed:
            content = self.files.read_unit((start, end))
            for table, rows in content.items():
                assert rows == [row for block in self.world.chain[start : end + 1] for row in block.rows[table]]


@pytest.fixture
def chain(dsn: str, tmp_path: Path) -> Iterator[FollowedChain]:
    with closing(FollowedChain(dsn, tmp_path / "objects")) as chain:
        yield chain


def write_sealed_rows(chain: FollowedChain, first: int) -> None:
    """Another chain from a sealed block on, as a follower would write it that knew nothing of the seal."""
    chain.attempt += 1
    writer = TableWriter(chain.tables.task_id, chain.attempt)
    rows = tables_of(chain.world.chain[first:])
    batches = {table.dataset_uuid: rows[name].to_batches() for name, table in chain.tables.declared.items()}
    with closing(chain.tables.store.open(list(chain.tables.declared.values()), WHOLE_TABLE, writer)) as opened:
        opened.replace(RangeReplacement(first, chain.world.head.number, batches, above=True, live=True))


def test_rows_above_the_seal_change_while_a_unit_is_compacted(chain: FollowedChain) -> None:
    """At each upload another chain replaces everything that is not final, and what is final grows."""
    chain.compact((0, 9), (10, 19))
    rewrites = len(chain.tables.record.depths)

    def reorganise(event: str) -> None:
        if event.startswith("before"):
            chain.world.reorganise(FINAL, FINAL + 3)
            assert chain.run().state == "at_head"
            chain.check()

    chain.files.complete(chain.files.claim((20, 29), 4).run(reorganise))
    assert len(chain.tables.record.depths) - rewrites == 12, "three chunks and a marker of each of three tables"
    chain.check()
    chain.compact((30, 39), *units_of(40, 79, SIZE))
    chain.check()
    chain.check_files()


@pytest.mark.parametrize("returns", [True, False])
def test_sealed_rows_are_refused_while_they_are_compacted(chain: FollowedChain, returns: bool) -> None:
    """The nodes leave sealed blocks: nothing is written until they return, or until a repair reads the files anew."""
    chain.compact((0, 9), (10, 19))
    former = chain.world.head
    refused: list[bool] = []

    def reorganise(_event: str) -> None:
        if not refused:
            chain.world.reorganise(36, 37)
            assert chain.run().state == "reorg_too_deep"
            with pytest.raises(RangeSealedError, match="up to position 39 are final"):
                write_sealed_rows(chain, 24)
            refused.append(True)

    chain.files.complete(chain.files.claim((20, 29), 4).run(reorganise))
    assert refused
    abandoned = chain.world.head
    chain.world.chain = chain_to(former)
    chain.check()
    chain.check_files()
    if returns:
        chain.world.grow(3)
        chain.reopen(chain.options)
        assert chain.run().state == "at_head"
    else:
        chain.world.chain = chain_to(abandoned)
        chain.reopen(replace(chain.options, repair=RepairPermit(1, float("inf"), 24)))
        assert chain.run().state == "repair_waits"
        chain.compact((30, 39))
        assert chain.run().state == "at_head"
        (repaired,) = (
            event for event in chain.events if event.dataset_uuid == RANGES.history.dataset_uuid and event.end == 39
        )
        assert repaired.start == 20
        for unit in units_of(20, 39, SIZE):
            chain.files.ingest(unit, tables_of(chain.world.chain[unit[0] : unit[1] + 1]))
    chain.check()
    chain.check_files()


def crash(_chain: FollowedChain) -> None:
    raise CrashError


def end_connections(chain: FollowedChain) -> None:
    ask(chain.tables.dsn, TERMINATE)


@pytest.mark.parametrize(("happen", "step"), [(crash, 1), (end_connections, 5)])
def test_an_attempt_may_end_anywhere(chain: FollowedChain, happen: Callable[[FollowedChain], None], step: int) -> None:
    """At each removal and around each upload: nothing that readers see changes, and the next attempt ends the same."""
    chain.compact((0, 9))
    points: list[str] = []
    chain.files.claim((10, 19), 5).run(points.append)  # its report is lost
    chain.check()
    assert [point.partition(" ")[0] for point in points[:3]] == ["removed"] * 3
    assert len(points) == 3 + 2 * (3 * 2 + 3), "removals; before and after each file of two chunks, and each marker"
    for place in range(0, len(points), step):
        calls = iter(range(len(points)))

        def interrupt(_event: str, place: int = place, calls: Iterator[int] = calls) -> None:
            if next(calls) == place:
                happen(chain)

        try:
            chain.files.claim((10, 19), 5).run(interrupt)
        except (CrashError, StoreUnavailableError):
            pass
        else:
            assert happen is end_connections, "nothing was left to do in the database"
        assert list(chain.files.committed) == [(0, 9)]
        chain.check()
    with pytest.raises(StoreUnavailableError):
        chain.files.claim((10, 19), 5).run(dsn=AWAY)
    chain.compact((10, 19), (20, 29), (30, 39))
    chain.world.grow(1)
    assert chain.run().state == "at_head"
    chain.check()
    chain.check_files()


def test_a_removal_may_end_after_each_part(chain: FollowedChain, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are committed, and the attempt that removes their rows goes away again and again."""
    chain.compact((0, 9), (10, 19))
    remove_part = PostgresDirectTables._remove_part
    monkeypatch.setattr(StoredTables, "rows_per_removal", 4)
    crashes = 0
    while True:
        parts = iter(range(1_000))

        def remove_one(*arguments: object, parts: Iterator[int] = parts) -> tuple[int, bool]:
            if next(parts) == 1:
                raise CrashError
            return remove_part(*arguments)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(PostgresDirectTables, "_remove_part", remove_one)
            try:
                result = chain.files.claim((20, 29)).run()
                break
            except CrashError:
                crashes += 1
        chain.check()
        if crashes > 12:
            result = chain.files.claim((20, 29)).run()
            break
    assert crashes > 3
    chain.files.complete(result)
    chain.check()
    chain.check_files()

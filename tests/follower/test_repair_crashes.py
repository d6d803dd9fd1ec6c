"""Crashes during a repair on real tables: before and after each statement, each commit and each event, the next attempt
ends with the same tables, and has the same files read again."""

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pytest

from tests.direct.support import stored_rows
from tests.follower.live_follower import UNIT
from tests.follower.live_run import RANGES
from tests.follower.memory_store import CrashError
from tests.follower.test_table_store import Tables, comparable
from tests.follower.world import ChainWorld, ShownNode
from tests.support.postgres import TestCluster
from tracelake.catalogue.evm_columns import EVM_TABLES
from tracelake.follower.follow import BlockFollower
from tracelake.follower.options import FollowOptions, RepairPermit
from tracelake.follower.table_store import TableChainStore
from tracelake.ports.direct_tables import WHOLE_TABLE, TableWriter
from tracelake.spark.evm.tables import schema_of
from tracelake.storage import direct_tables
from tracelake.storage.data_connection import DataConnection, Run
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.storage.output_tables import DirectOutputs
from tracelake.wire.units import EventIn

OPTIONS = FollowOptions(start=0, finality_depth=5, max_reorg_depth=5, unit_blocks=UNIT)


@dataclass
class CrashSchedule:
    """Counts the steps of an attempt, and ends its process before one of them."""

    point: int | None = None
    """None: it counts, and nothing happens."""
    passed: int = 0

    def arm(self, point: int | None) -> None:
        self.point, self.passed = point, 0

    def step(self) -> None:
        self.passed += 1
        if self.passed - 1 == self.point:
            raise CrashError


class LiveTables(Tables):
    """The tables of a live dataset, with a job that makes its files as soon as it hears of them."""

    def __init__(self, dsn: str, world: ChainWorld, schedule: CrashSchedule) -> None:
        super().__init__(dsn)
        self.world = world
        self.schedule = schedule
        self.files: dict[int, bytes] = {}
        """Hashes of blocks, by number."""
        self.boundary: int | None = None
        self.read_again: list[tuple[int, int]] = []
        self.announced: dict[tuple[object, ...], EventIn] = {}

    def begin(self, permit: RepairPermit | None) -> tuple[BlockFollower, TableChainStore]:
        """The next attempt."""
        self.attempt += 1
        writer = TableWriter(self.task_id, self.attempt)
        tables = PostgresDirectTables(lambda: self.dsn)

        def open_tables() -> DirectOutputs:
            # As a worker does, it asks for the boundary each time.
            declared = [
                (self.outputs[table], msgspec.structs.replace(self.declared[table], boundary=self.boundary))
                for table in EVM_TABLES
            ]
            return DirectOutputs.open(tables, declared, WHOLE_TABLE, writer, self._emit, RANGES)

        store = TableChainStore(open_tables, self.outputs, live=True)
        follower = BlockFollower(
            store,
            [ShownNode(self.world, "node-1")],
            self.outputs,
            replace(OPTIONS, repair=permit),
            self.attempt,
            self._emit,
            clock=lambda: self.world.now,
            ranges=RANGES,
        )
        return follower, store

    def run(self, permit: RepairPermit | None = None, until: str = "at_head") -> None:
        follower, store = self.begin(permit)
        with closing(store):
            for _ in range(20):
                if (outcome := follower.run_once()).state == until:
                    return
        raise AssertionError(f"it ended with {outcome}")

    def _emit(self, events: Sequence[EventIn]) -> None:
        self.schedule.step()
        for event in events:
            key = (event.dataset_uuid, event.partition_key, event.revision)
            if key not in self.announced:
                self._take(event)
            # Only now: a crash while files are made ends that job too, and it is repeated.
            assert self.announced.setdefault(key, event) == event, "a repeated event says something else"
        self.schedule.step()

    def _take(self, event: EventIn) -> None:
        assert event.start is not None
        assert event.end is not None
        numbers = range(event.start, event.end + 1)
        if event.dataset_uuid == RANGES.history.dataset_uuid:
            self.read_again.append((event.start, event.end))
            self.files |= {number: bytes.fromhex(self.world.chain[number].hash[2:]) for number in numbers}
        elif event.dataset_uuid == RANGES.final.dataset_uuid:
            stored = self.stored_hashes()
            self.files |= {number: stored[number] for number in numbers}
            if self.boundary is not None:
                keys = [table.dataset_uuid for table in self.declared.values()]
                PostgresDirectTables(lambda: self.dsn).remove_rows(keys, self.boundary)
            self.boundary = event.end

    def stored_hashes(self) -> dict[int, bytes]:
        return dict(stored_rows(self.dsn, self.declared["blocks"], "block_number", "block_hash"))

    def check(self) -> None:
        assert self.boundary is not None
        chain = {block.number: bytes.fromhex(block.hash[2:]) for block in self.world.chain}
        stored = {number: name for number, name in self.stored_hashes().items() if number > self.boundary}
        files = {number: name for number, name in self.files.items() if number <= self.boundary}
        assert files | stored == chain
        for table in EVM_TABLES:
            blocks = self.world.chain[self.boundary + 1 :]
            expected = [comparable(row) for block in blocks for row in block.rows[table]]
            place = schema_of(table).names.index("block_number")
            assert [comparable(row) for row in self.rows(table) if row[place] > self.boundary] == expected


@pytest.fixture
def schedule(monkeypatch: pytest.MonkeyPatch) -> CrashSchedule:
    """Each statement and each commit of the adapter is a step."""
    schedule = CrashSchedule()
    transaction = direct_tables._transaction

    @contextmanager
    def counted(connection: DataConnection) -> Iterator[Run]:
        with transaction(connection) as run:

            def step(*arguments: Any) -> Any:
                schedule.step()
                answer = run(*arguments)
                schedule.step()
                return answer

            yield step
        schedule.step()

    monkeypatch.setattr(direct_tables, "_transaction", counted)
    return schedule


def crash_repairs(dsn: str, schedule: CrashSchedule, stride: int) -> int:
    """A repair for each of the chosen steps; returns how many steps one has."""
    world = ChainWorld(random.Random(9), 6)
    tables = LiveTables(dsn, world, schedule)
    tables.run()
    world.grow(54)
    tables.run()
    permit, point, crashed = None, 0, True
    while crashed:
        tables.read_again.clear()
        world.reorganise(30, 31)
        first = world.head.number - 30
        # What an earlier repair was permitted, whether it crashed or not, is used up.
        tables.run(permit, until="reorg_too_deep")
        permit = RepairPermit(point + 1, world.now + 1, None)
        schedule.arm(point)
        try:
            tables.run(permit)
            crashed = False
        except CrashError:
            schedule.arm(None)
            tables.run(permit)
        tables.check()
        (again,) = tables.read_again
        assert again[0] == first - first % UNIT
        steps, point = schedule.passed, point + stride
        schedule.arm(None)
    return steps


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


def test_a_crash_at_some_steps_of_a_repair_changes_nothing(dsn: str, schedule: CrashSchedule) -> None:
    assert crash_repairs(dsn, schedule, 11) > 50


@pytest.mark.soak
def test_a_crash_at_any_step_of_a_repair_changes_nothing(dsn: str, schedule: CrashSchedule) -> None:
    assert crash_repairs(dsn, schedule, 1) > 50

"""Writers at once, crashes between the steps, and random interleavings, on a real Postgres against a model."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.direct.support import (
    BLOCKS,
    LOGS,
    ask,
    block_rows,
    direct_table,
    log_rows,
    new_writer,
    range_event,
    stored_rows,
)
from tests.support.postgres import TestCluster, wait_until
from tracelake.catalogue.context import CanceledError, NonRetryableError
from tracelake.errors import StoreUnavailableError
from tracelake.ports.direct_tables import (
    WHOLE_TABLE,
    PendingEvent,
    RangeReplacement,
    RangeSealedError,
    RowsRefusedError,
    TableExtent,
    TableWriter,
    WriteFencedError,
)
from tracelake.storage.data_connection import Run
from tracelake.storage.direct_tables import PostgresDirectTables, PostgresTableWriter
from tracelake.storage.output_tables import DirectOutputs
from tracelake.wire.direct import DirectTable
from tracelake.wire.units import EventIn, StorageOut, TaskOutput

VERSION = UUID(int=7)


@pytest.fixture(scope="module")
def dsn(cluster: TestCluster) -> str:
    return cluster.fresh("data")


@pytest.fixture
def tables(dsn: str) -> PostgresDirectTables:
    return PostgresDirectTables(lambda: dsn)


def change(table: DirectTable, start: int, end: int, fork: str = "a") -> RangeReplacement:
    rows = {table.dataset_uuid: block_rows(range(start, end + 1), fork)}
    return RangeReplacement(start, end, rows, [range_event(table, start, end, fork)], above=True)


def output_of(table: DirectTable, index: int = 0) -> TaskOutput:
    storage = StorageOut(kind="postgres", location=f"postgres_table:dataset_{table.dataset_uuid}")
    return TaskOutput(
        output_index=index, dataset_uuid=table.dataset_uuid, dataset_version=VERSION, name=table.name, storage=storage
    )


@pytest.fixture
def halted_write(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """A write that stops before its commit, with all its rows in the transaction, until it is let go."""
    inside, go_on = threading.Event(), threading.Event()
    store_events = PostgresTableWriter._store_events

    def wait(self: PostgresTableWriter, run: Run, events: list[EventIn]) -> list[int]:
        numbers = store_events(self, run, events)
        if events and events[0].revision == "halted":
            inside.set()
            assert go_on.wait(60)
        return numbers

    monkeypatch.setattr(PostgresTableWriter, "_store_events", wait)
    yield inside, go_on
    go_on.set()


def test_a_successor_waits_for_a_write_in_flight_and_sees_it(
    dsn: str, tables: PostgresDirectTables, halted_write: tuple[threading.Event, threading.Event]
) -> None:
    inside, go_on = halted_write
    table, identity = direct_table(BLOCKS), new_writer()
    with closing(tables.open([table], WHOLE_TABLE, identity)) as first, ThreadPoolExecutor(2) as threads:
        write = threads.submit(first.replace, change(table, 0, 1, "halted"))
        assert inside.wait(60)
        opening = threads.submit(tables.open, [table], WHOLE_TABLE, TableWriter(identity.task_id, 2))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%direct_fences%'"
        )
        wait_until(lambda: ask(dsn, waiting) == [(1,)], "the successor at the fence", 20)
        go_on.set()
        committed = write.result(60)
        with closing(opening.result(60)) as second:
            assert [item.event_id for item in second.pending] == [item.event_id for item in committed]
            assert second.read_newest(table.dataset_uuid, ["block_number"], 9).num_rows == 2
        with pytest.raises(WriteFencedError):
            first.replace(change(table, 0, 0))


def test_a_reader_sees_all_of_a_write_or_nothing(
    dsn: str, tables: PostgresDirectTables, halted_write: tuple[threading.Event, threading.Event]
) -> None:
    inside, go_on = halted_write
    blocks, logs = direct_table(BLOCKS), direct_table(LOGS, "logs")

    def replacement(fork: str) -> RangeReplacement:
        rows = {blocks.dataset_uuid: block_rows(range(5), fork), logs.dataset_uuid: log_rows(range(5), str(len(fork)))}
        return RangeReplacement(0, 4, rows, [range_event(blocks, 0, 4, fork)])

    def seen() -> tuple[set[bytes], set[Any]]:
        hashes = {row[1][:1] for row in stored_rows(dsn, blocks, "block_number", "block_hash")}
        return hashes, {int(row[1]) for row in stored_rows(dsn, logs, "block_number", "amount")}

    with closing(tables.open([blocks, logs], WHOLE_TABLE, new_writer())) as writer, ThreadPoolExecutor(1) as threads:
        writer.replace(replacement("a"))
        write = threads.submit(writer.replace, replacement("halted"))
        assert inside.wait(60)
        assert seen() == ({b"a"}, {1})
        go_on.set()
        write.result(60)
        assert seen() == ({b"h"}, {6})


def test_a_fence_that_stays_locked_is_a_retryable_error(
    dsn: str, halted_write: tuple[threading.Event, threading.Event]
) -> None:
    inside, go_on = halted_write
    table, identity = direct_table(BLOCKS), new_writer()
    tables = PostgresDirectTables(lambda: dsn, lock_seconds=0.2)
    with closing(tables.open([table], WHOLE_TABLE, identity)) as first, ThreadPoolExecutor(1) as threads:
        write = threads.submit(first.replace, change(table, 0, 1, "halted"))
        assert inside.wait(60)
        with pytest.raises(StoreUnavailableError):
            tables.open([table], WHOLE_TABLE, TableWriter(identity.task_id, 2))
        go_on.set()
        write.result(60)


def test_two_attempts_that_write_at_once_never_mix(dsn: str, tables: PostgresDirectTables) -> None:
    """Attempts race for many ranges; each range is of one of them, and none of the older one after it was fenced."""
    table, identity = direct_table(BLOCKS), new_writer()
    barrier = threading.Barrier(4)

    def work(attempt: int) -> int:
        barrier.wait(60)
        written = 0
        try:
            with closing(tables.open([table], WHOLE_TABLE, TableWriter(identity.task_id, attempt))) as writer:
                for number in range(25):
                    writer.replace(change(table, 0, 3, f"{attempt}."))
                    written = number + 1
        except WriteFencedError:
            pass
        return written

    with ThreadPoolExecutor(4) as threads:
        counts = dict(zip((1, 2, 3, 4), threads.map(work, (1, 2, 3, 4)), strict=True))
    assert counts[4] == 25
    hashes = {row[1] for row in stored_rows(dsn, table, "block_number", "block_hash")}
    assert hashes == {f"4.{number}".encode() for number in range(4)}


# --- crash points


@dataclass
class Announcements:
    """Takes events as the Dispatcher does, or crashes before or after it has them."""

    events: list[EventIn] = field(default_factory=list)
    crash: str = ""

    def __call__(self, events: Any) -> None:
        if self.crash == "before":
            raise CanceledError
        self.events += events
        if self.crash == "after":
            raise CanceledError

    @property
    def keys(self) -> set[tuple[Any, ...]]:
        return {
            (event.dataset_uuid, event.dataset_version, event.partition_key, event.revision) for event in self.events
        }


@pytest.mark.parametrize("crash", ["before", "after"])
def test_a_crash_around_the_announcement_loses_no_event(tables: PostgresDirectTables, crash: str) -> None:
    table, identity = direct_table(BLOCKS), new_writer()
    declared = [(output_of(table), table)]
    dying = Announcements(crash=crash)
    first = DirectOutputs.open(tables, declared, WHOLE_TABLE, identity, dying)
    with pytest.raises(CanceledError):
        first.replace(0, 1, {0: block_rows([0, 1])}, [range_event(table, 0, 1)])
    first.close()
    announced = Announcements()
    second = DirectOutputs.open(tables, declared, WHOLE_TABLE, TableWriter(identity.task_id, 2), announced)
    assert [(event.partition_key, event.dataset_version) for event in announced.events] == [("0-1", VERSION)]
    if crash == "after":
        assert announced.keys == dying.keys  # so the Dispatcher takes it for a repeat
    assert [row["block_number"] for row in second.read_newest(0, ["block_number"], 9).to_pylist()] == [1, 0]
    second.close()
    third = DirectOutputs.open(tables, declared, WHOLE_TABLE, TableWriter(identity.task_id, 3), announced)
    assert len(announced.events) == 1
    third.close()


def test_a_crash_before_the_commit_leaves_nothing(
    dsn: str, tables: PostgresDirectTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, identity = direct_table(BLOCKS), new_writer()

    def crash(*_: Any) -> list[int]:
        raise KeyboardInterrupt

    with closing(tables.open([table], WHOLE_TABLE, identity)) as writer:
        monkeypatch.setattr(PostgresTableWriter, "_store_events", crash)
        with pytest.raises(KeyboardInterrupt):
            writer.replace(change(table, 0, 1))
    assert stored_rows(dsn, table, "block_number", "block_hash") == []
    assert tables.open([table], WHOLE_TABLE, identity).pending == ()


def test_a_crash_before_the_commit_leaves_no_seal_no_mark_and_no_used_permission(
    tables: PostgresDirectTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, identity = direct_table(BLOCKS), new_writer()
    key = table.dataset_uuid

    def crash(*_: Any) -> list[int]:
        raise KeyboardInterrupt

    with closing(tables.open([table], WHOLE_TABLE, identity)) as writer:
        rows = {key: block_rows(range(4))}
        events = [range_event(table, 0, 3)]
        write = RangeReplacement(0, 3, rows, events, seal=3, marks={key: {1: b"one", 3: b"three"}}, permit_id=2**62)
        with monkeypatch.context() as patch:
            patch.setattr(PostgresTableWriter, "_store_events", crash)
            with pytest.raises(KeyboardInterrupt):
                writer.replace(write)
        assert writer.read_extent(key) == TableExtent()
        assert writer.read_marks(key) == {}
        writer.replace(write)
        assert writer.read_extent(key) == TableExtent(0, 3, permit_id=2**62)
        writer.replace(RangeReplacement(4, 5, {key: block_rows(range(4, 6))}, marks={key: {3: b"new", 5: b"five"}}))
        assert writer.read_extent(key) == TableExtent(0, 3, permit_id=2**62)
        assert writer.read_marks(key) == {1: b"one", 3: b"new", 5: b"five"}


def test_a_removal_that_ends_early_says_what_is_gone(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go with the extent that says so, a part at a time; who comes next removes the rest."""
    table = direct_table(BLOCKS)
    tables = PostgresDirectTables(lambda: dsn, rows_per_removal=3)
    parts = PostgresDirectTables._remove_part
    calls: list[int] = []

    def crash(self: PostgresDirectTables, run: Run, dataset_uuid: UUID, to: int) -> tuple[int, bool]:
        outcome = parts(self, run, dataset_uuid, to)
        calls.append(outcome[0])
        if len(calls) == 2:  # with the second part in its transaction
            raise KeyboardInterrupt
        return outcome

    with closing(tables.open([table], WHOLE_TABLE, new_writer())) as writer:
        writer.replace(RangeReplacement(0, 9, {table.dataset_uuid: block_rows(range(10))}, seal=9))
        with monkeypatch.context() as patch:
            patch.setattr(PostgresDirectTables, "_remove_part", crash)
            with pytest.raises(KeyboardInterrupt):
                tables.remove_rows([table.dataset_uuid], 8)
        left = [row[0] for row in stored_rows(dsn, table, "block_number")]
        extent = writer.read_extent(table.dataset_uuid)
        assert extent.removed_to is not None
        assert sorted(left) == list(range(extent.removed_to + 1, 10))
        assert 0 < len(left) < 10
        tables.remove_rows([table.dataset_uuid], 8)
        assert [row[0] for row in stored_rows(dsn, table, "block_number")] == [9]
        assert writer.read_extent(table.dataset_uuid) == TableExtent(0, 9, 8)


def test_removals_and_a_writer_at_once(dsn: str) -> None:
    """Several removals of the same rows, while a writer goes on above them and seals."""
    table = direct_table(BLOCKS)
    tables = PostgresDirectTables(lambda: dsn, rows_per_removal=7)
    key = table.dataset_uuid
    with closing(tables.open([table], WHOLE_TABLE, new_writer())) as writer, ThreadPoolExecutor(3) as threads:
        writer.replace(RangeReplacement(0, 99, {key: block_rows(range(100))}, seal=79))
        removals = [threads.submit(tables.remove_rows, [key], 79) for _ in range(3)]
        for number in range(100, 120):
            rows = {key: block_rows([number])}
            writer.replace(RangeReplacement(number, number, rows, above=True, seal=number - 10))
        assert sum(removal.result(60) for removal in removals) == 80
        assert writer.read_extent(key) == TableExtent(0, 109, 79)
    assert sorted(row[0] for row in stored_rows(dsn, table, "block_number")) == list(range(80, 120))


def test_a_write_announces_outputs_without_a_table_too(tables: PostgresDirectTables) -> None:
    table, control, identity = direct_table(BLOCKS), direct_table(LOGS, "final"), new_writer()
    final = TaskOutput(
        output_index=1,
        dataset_uuid=control.dataset_uuid,
        dataset_version=VERSION,
        name="final",
        storage=StorageOut(kind="none"),
    )
    declared, dying, announced = [(output_of(table), table)], Announcements(crash="before"), Announcements()
    first = DirectOutputs.open(tables, declared, WHOLE_TABLE, identity, dying, [final])
    events = [range_event(table, 0, 3), range_event(control, 0, 1)]
    with pytest.raises(NonRetryableError, match="no output of the job"):
        first.replace(0, 3, {0: block_rows(range(4))}, [range_event(direct_table(LOGS), 0, 1)], seal=1)
    with pytest.raises(CanceledError):
        first.replace(0, 3, {0: block_rows(range(4))}, events, seal=1)
    assert first.read_extent(0) == TableExtent(0, 1)
    first.close()
    # A version without the output announces the rest, and one that has it again the event that was left.
    DirectOutputs.open(tables, declared, WHOLE_TABLE, new_writer(), announced).close()
    assert [event.dataset_uuid for event in announced.events] == [table.dataset_uuid]
    last = DirectOutputs.open(tables, declared, WHOLE_TABLE, new_writer(), announced, [final])
    assert [event.dataset_uuid for event in announced.events] == [table.dataset_uuid, control.dataset_uuid]
    with pytest.raises(NonRetryableError, match="range_sealed"):
        last.replace(1, 3, {0: block_rows([1, 2, 3])})
    last.close()
    DirectOutputs.open(tables, declared, WHOLE_TABLE, new_writer(), announced, [final]).close()
    assert len(announced.events) == 2


def test_a_lost_connection_is_opened_again(dsn: str, tables: PostgresDirectTables) -> None:
    table = direct_table(BLOCKS)
    with closing(tables.open([table], WHOLE_TABLE, new_writer())) as writer:
        writer.replace(change(table, 0, 0))
        ask(
            dsn,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()",
        )
        with pytest.raises(StoreUnavailableError):
            writer.replace(change(table, 1, 1))
        writer.replace(change(table, 1, 1))
    assert len(stored_rows(dsn, table, "block_number", "block_hash")) == 2


def test_operators_get_a_final_error_once_they_are_replaced(tables: PostgresDirectTables) -> None:
    table = direct_table(BLOCKS)
    outputs = DirectOutputs.open(tables, [(output_of(table), table)], WHOLE_TABLE, new_writer(), Announcements())
    tables.open([table], WHOLE_TABLE, new_writer()).close()
    with pytest.raises(NonRetryableError, match="write_fenced"):
        outputs.replace(0, 0, {0: block_rows([0])})
    with pytest.raises(NonRetryableError, match="output 4"):
        outputs.replace(0, 0, {4: block_rows([0])})
    outputs.close()


# --- any interleaving

SCOPES = ("one", "two")
PHASES = tuple(phase for phase in Phase if phase is not Phase.shrink)


@dataclass
class OpenWriter:
    identity: TableWriter
    scope: str
    writer: Any
    unannounced: list[PendingEvent]


class FenceMachine(RuleBasedStateMachine):
    """Tasks and attempts of two scopes open, write, announce, acknowledge and die in any order."""

    dsn: str

    @initialize()
    def begin(self) -> None:
        self.tables = PostgresDirectTables(lambda: self.dsn, rows_per_removal=2)
        self.table = direct_table(BLOCKS)
        self.logs = direct_table(LOGS, "logs")
        self.tasks = {scope: [new_writer().task_id for _ in range(2)] for scope in SCOPES}
        self.holder: dict[str, tuple[UUID, int]] = {}
        self.rows: dict[str, dict[int, str]] = {scope: {} for scope in SCOPES}
        self.open: list[OpenWriter] = []
        self.committed: dict[str, list[str]] = {scope: [] for scope in SCOPES}
        self.announced: set[str] = set()
        self.writes = self.removals = 0
        self.checked = (0, 0)
        self.start: int | None = None
        self.sealed = self.removed = -1

    def _is_stale(self, identity: TableWriter, scope: str) -> bool:
        holder = self.holder.get(scope)
        return holder is not None and (identity.task_id, identity.attempt) < holder

    @rule(scope=st.sampled_from(SCOPES), task=st.integers(0, 1), attempt=st.integers(1, 3))
    def open_tables(self, scope: str, task: int, attempt: int) -> None:
        identity = TableWriter(self.tasks[scope][task], attempt)
        if self._is_stale(identity, scope):
            with pytest.raises(WriteFencedError):
                self.tables.open([self.table, self.logs], scope, identity)
            return
        writer = self.tables.open([self.logs, self.table], scope, identity)
        self.holder[scope] = (identity.task_id, attempt)
        pending = [item.event.revision for item in writer.pending]
        assert [name for name in self.committed[scope] if name not in self.announced] == [
            name for name in pending if name not in self.announced
        ]
        self.open.append(OpenWriter(identity, scope, writer, list(writer.pending)))

    @precondition(lambda self: self.open)
    @rule(
        data=st.data(),
        start=st.integers(0, 5),
        length=st.integers(0, 3),
        above=st.booleans(),
        seal=st.none() | st.integers(0, 8),
    )
    def write(self, data: st.DataObject, start: int, length: int, above: bool, seal: int | None) -> None:
        chosen = data.draw(st.sampled_from(self.open))
        # Two scopes have keys of their own, and the lower ones are sealed. The table may grow below what is written,
        # but not below where it begins.
        place = SCOPES.index(chosen.scope) * 100
        self.writes += 1
        fork = f"{self.writes}."
        first, last = place + start, place + start + length
        numbers = range(first, last + 1)
        event = range_event(self.table, first, last, fork)
        rows = {
            self.table.dataset_uuid: block_rows(numbers, fork),
            self.logs.dataset_uuid: log_rows(numbers, fork[:-1]),
        }
        seal = None if seal is None or place else min(seal, last)
        replacement = RangeReplacement(first, last, rows, [event], above, seal=seal)
        expected = (
            WriteFencedError
            if self._is_stale(chosen.identity, chosen.scope)
            else RangeSealedError
            if first <= self.sealed
            else RowsRefusedError
            if self.start is not None and first < self.start
            else None
        )
        if expected is not None:
            with pytest.raises(expected):
                chosen.writer.replace(replacement)
            return
        chosen.unannounced += chosen.writer.replace(replacement)
        kept = {n: text for n, text in self.rows[chosen.scope].items() if n < first or (n > last and not above)}
        self.rows[chosen.scope] = kept | {number: f"{fork}{number}" for number in numbers}
        self.committed[chosen.scope].append(fork)
        if seal is not None:
            self.start = (
                min(min(rows, default=first) for rows in self.rows.values()) if self.start is None else self.start
            )
            self.sealed = max(self.sealed, seal if seal >= self.start else -1)

    @rule(to=st.integers(0, 8))
    def remove(self, to: int) -> None:
        keys = [self.table.dataset_uuid, self.logs.dataset_uuid]
        if to > self.sealed:
            with pytest.raises(RowsRefusedError):
                self.tables.remove_rows(keys, to)
            return
        self.tables.remove_rows(keys, to)
        self.removals += 1
        self.removed = max(self.removed, to)
        self.rows = {scope: {n: text for n, text in rows.items() if n > to} for scope, rows in self.rows.items()}

    @precondition(lambda self: any(item.unannounced for item in self.open))
    @rule(data=st.data(), acknowledged=st.booleans())
    def announce(self, data: st.DataObject, acknowledged: bool) -> None:
        chosen = data.draw(st.sampled_from([item for item in self.open if item.unannounced]))
        self.announced |= {item.event.revision for item in chosen.unannounced}
        if acknowledged:
            chosen.writer.acknowledge(chosen.unannounced)
            chosen.unannounced = []

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        chosen = data.draw(st.sampled_from(self.open))
        self.open.remove(chosen)
        chosen.writer.close()

    @invariant()
    def tables_equal_the_model(self) -> None:
        if (self.writes, self.removals) == self.checked:
            return
        self.checked = (self.writes, self.removals)
        model = {number: text for rows in self.rows.values() for number, text in rows.items()}
        stored = stored_rows(self.dsn, self.table, "block_number", "block_hash")
        assert {number: text.decode() for number, text in stored} == model
        logs = {number: int(amount) for number, amount in stored_rows(self.dsn, self.logs, "block_number", "amount")}
        assert logs == {number: int(text.split(".")[0]) for number, text in model.items()}
        ends = [(self.start, *(end if end >= 0 else None for end in (self.sealed, self.removed)))]
        for table in (self.table, self.logs):
            extents = "SELECT table_start, sealed_to, removed_to FROM table_extents WHERE dataset_uuid"
            assert ask(self.dsn, f"{extents} = '{table.dataset_uuid}'") == ([] if self.start is None else ends)

    def teardown(self) -> None:
        for item in getattr(self, "open", ()):
            item.writer.close()
        for scope in SCOPES if getattr(self, "writes", 0) else ():
            writer = self.tables.open([self.table, self.logs], scope, new_writer())
            left = {item.event.revision for item in writer.pending}
            writer.close()
            assert set(self.committed[scope]) <= left | self.announced, "an event was lost"


def test_any_interleaving_equals_the_model(dsn: str) -> None:
    run_state_machine_as_test(
        type("Case", (FenceMachine,), {"dsn": dsn}),
        settings=settings(max_examples=8, stateful_step_count=25, deadline=None, phases=PHASES),
    )

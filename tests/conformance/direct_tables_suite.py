"""Every promise of the DirectTables port. Each adapter subclasses the suite and provides a `store` fixture."""

from typing import Protocol
from uuid import uuid4

import msgspec
import pyarrow as pa
import pytest

from tests.direct.support import (
    BALANCES,
    BLOCKS,
    LOGS,
    TIMED,
    balance_rows,
    block_rows,
    cursor_event,
    direct_table,
    log_rows,
    new_writer,
    range_event,
    timed_rows,
)
from tracelake.ports.direct_tables import (
    WHOLE_TABLE,
    DirectTables,
    DirectTableWriter,
    RangeReplacement,
    RangeSealedError,
    RowsRefusedError,
    TableExtent,
    TableWriter,
    WriteFencedError,
)
from tracelake.wire.direct import DirectTable
from tracelake.wire.units import EventIn


class DirectStore(Protocol):
    def connect(self) -> DirectTables:
        """Another client of the same store."""
        ...


def replace_blocks(
    writer: DirectTableWriter, table: DirectTable, start: int, end: int, fork: str = "a", *, above: bool = False
) -> None:
    rows = {table.dataset_uuid: block_rows(range(start, end + 1), fork)}
    event = range_event(table, start, end, fork)
    writer.replace(RangeReplacement(start, end, rows, [event], above))


def block_hashes(writer: DirectTableWriter, table: DirectTable, limit: int = 100) -> dict[int, str]:
    rows = writer.read_newest(table.dataset_uuid, ["block_number", "block_hash"], limit)
    return {row["block_number"]: row["block_hash"].decode() for row in rows.to_pylist()}


class DirectTablesSuite:
    def test_a_range_is_replaced_and_the_rest_stays(self, store: DirectStore) -> None:
        table = direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        replace_blocks(writer, table, 0, 4)
        replace_blocks(writer, table, 2, 3, "b")
        assert block_hashes(writer, table) == {0: "a0", 1: "a1", 2: "b2", 3: "b3", 4: "a4"}

    def test_everything_above_a_range_goes_if_asked(self, store: DirectStore) -> None:
        table = direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        replace_blocks(writer, table, 0, 9)
        replace_blocks(writer, table, 3, 4, "b", above=True)
        assert block_hashes(writer, table) == {0: "a0", 1: "a1", 2: "a2", 3: "b3", 4: "b4"}

    def test_the_newest_rows_come_first(self, store: DirectStore) -> None:
        table = direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        replace_blocks(writer, table, 0, 9)
        assert list(block_hashes(writer, table, limit=3)) == [9, 8, 7]
        assert writer.read_newest(table.dataset_uuid, ["gas_used"], 1).num_rows == 1

    def test_an_empty_table_has_columns(self, store: DirectStore) -> None:
        table = direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        rows = writer.read_newest(table.dataset_uuid, ["block_number", "block_hash"], 5)
        assert rows.num_rows == 0
        assert rows.schema.names == ["block_number", "block_hash"]

    def test_several_tables_are_written_together_or_not_at_all(self, store: DirectStore) -> None:
        blocks, logs = direct_table(BLOCKS), direct_table(LOGS, "logs")
        writer = store.connect().open([logs, blocks], WHOLE_TABLE, new_writer())
        rows = {blocks.dataset_uuid: block_rows([5, 6]), logs.dataset_uuid: log_rows([5, 6])}
        writer.replace(RangeReplacement(5, 6, rows))
        bad = {blocks.dataset_uuid: block_rows([7], "b"), logs.dataset_uuid: log_rows([7, 7])}  # one key twice
        with pytest.raises(RowsRefusedError):
            writer.replace(RangeReplacement(5, 7, bad, [range_event(blocks, 5, 7)]))
        assert block_hashes(writer, blocks) == {6: "a6", 5: "a5"}
        assert writer.read_newest(logs.dataset_uuid, ["block_number"], 9).num_rows == 2
        assert store.connect().open([blocks, logs], WHOLE_TABLE, new_writer()).pending == ()

    def test_a_table_that_is_not_named_keeps_its_rows(self, store: DirectStore) -> None:
        blocks, logs = direct_table(BLOCKS), direct_table(LOGS, "logs")
        writer = store.connect().open([blocks, logs], WHOLE_TABLE, new_writer())
        writer.replace(
            RangeReplacement(0, 1, {blocks.dataset_uuid: block_rows([0, 1]), logs.dataset_uuid: log_rows([0, 1])})
        )
        writer.replace(RangeReplacement(1, 1, {logs.dataset_uuid: []}))
        assert block_hashes(writer, blocks) == {1: "a1", 0: "a0"}
        assert writer.read_newest(logs.dataset_uuid, ["block_number"], 9).to_pylist() == [{"block_number": 0}]

    # --- the fence

    def test_an_earlier_attempt_is_fenced_once_its_successor_has_opened(self, store: DirectStore) -> None:
        table, first = direct_table(BLOCKS), new_writer()
        stale = store.connect().open([table], WHOLE_TABLE, first)
        replace_blocks(stale, table, 0, 1)
        current = store.connect().open([table], WHOLE_TABLE, TableWriter(first.task_id, 2))
        for use in (
            lambda: replace_blocks(stale, table, 0, 1, "stale"),
            lambda: block_hashes(stale, table),
            lambda: store.connect().open([table], WHOLE_TABLE, first),
        ):
            with pytest.raises(WriteFencedError) as raised:
                use()
            assert raised.value.code == "write_fenced"
        assert block_hashes(current, table) == {1: "a1", 0: "a0"}
        assert len(store.connect().open([table], WHOLE_TABLE, TableWriter(first.task_id, 3)).pending) == 1

    def test_an_older_task_is_fenced_whatever_its_attempt(self, store: DirectStore) -> None:
        table, old, new = direct_table(BLOCKS), new_writer(9), new_writer(1)
        stale = store.connect().open([table], WHOLE_TABLE, old)
        current = store.connect().open([table], WHOLE_TABLE, new)
        with pytest.raises(WriteFencedError):
            replace_blocks(stale, table, 0, 1)
        with pytest.raises(WriteFencedError):
            store.connect().open([table], WHOLE_TABLE, TableWriter(old.task_id, 10))
        replace_blocks(current, table, 0, 1)

    def test_the_same_attempt_opens_again(self, store: DirectStore) -> None:
        table, identity = direct_table(BLOCKS), new_writer()
        first = store.connect().open([table], WHOLE_TABLE, identity)
        replace_blocks(first, table, 0, 0)
        again = store.connect().open([table], WHOLE_TABLE, identity)
        replace_blocks(again, table, 1, 1)
        assert block_hashes(first, table) == {1: "a1", 0: "a0"}

    def test_scopes_are_apart(self, store: DirectStore) -> None:
        table, newer = direct_table(BLOCKS), new_writer()
        one = store.connect().open([table], "one", newer)
        other = store.connect().open([table], "two", TableWriter(newer.task_id, 7))
        replace_blocks(one, table, 0, 1)
        replace_blocks(other, table, 2, 3)
        one.replace(RangeReplacement(0, 9, {table.dataset_uuid: []}))
        assert block_hashes(one, table) == {}
        assert block_hashes(other, table) == {3: "a3", 2: "a2"}
        assert [item.event.start for item in store.connect().open([table], "one", newer).pending] == [0]

    def test_one_stale_table_fences_the_whole_write(self, store: DirectStore) -> None:
        blocks, logs, old = direct_table(BLOCKS), direct_table(LOGS, "logs"), new_writer()
        stale = store.connect().open([blocks, logs], WHOLE_TABLE, old)
        store.connect().open([logs], WHOLE_TABLE, new_writer())
        with pytest.raises(WriteFencedError):
            replace_blocks(stale, blocks, 0, 0)
        assert block_hashes(store.connect().open([blocks], WHOLE_TABLE, new_writer()), blocks) == {}

    # --- events

    def test_the_next_attempt_gets_events_that_were_not_acknowledged_in_their_order(self, store: DirectStore) -> None:
        table, identity = direct_table(BLOCKS), new_writer()
        writer = store.connect().open([table], WHOLE_TABLE, identity)
        events = [range_event(table, number, number, invalidates=number == 1) for number in range(3)]
        stored = [
            writer.replace(RangeReplacement(number, number, {table.dataset_uuid: block_rows([number])}, [event]))
            for number, event in enumerate(events)
        ]
        writer.acknowledge(stored[0])
        writer.acknowledge(stored[0])
        successor = store.connect().open([table], WHOLE_TABLE, TableWriter(identity.task_id, 2))
        assert [item.event.start for item in successor.pending] == [1, 2]
        assert [item.event for item in successor.pending] == [item.event for (item,) in stored[1:]]
        writer.acknowledge(stored[1])  # announced by the stale attempt too: the same key
        successor.acknowledge(successor.pending)
        assert successor.pending == ()
        assert store.connect().open([table], WHOLE_TABLE, new_writer()).pending == ()

    def test_events_say_where_a_write_begins_and_the_times_of_its_positions(self, store: DirectStore) -> None:
        clock, logs = direct_table(TIMED), direct_table(LOGS, "logs")
        writer = store.connect().open([clock, logs], WHOLE_TABLE, new_writer())

        def write(times: dict[int, int], invalidates: tuple[int, int] | None = None) -> list[EventIn]:
            first, last = min(times), max(times)
            rows = {clock.dataset_uuid: timed_rows(times), logs.dataset_uuid: log_rows([last])}
            events = [cursor_event(table, last, invalidates) for table in (clock, logs)]
            stored = writer.replace(RangeReplacement(first, last, rows, events, above=True))
            return [item.event for item in stored]

        assert [(event.first, event.times) for event in write({6: 70, 5: 60})] == [(5, (60, 70))] * 2
        first, second = write({6: 75, 7: 76}, (6, 6))
        assert first.invalidates == second.invalidates
        assert first.invalidates is not None
        assert (first.invalidates.time_min, first.invalidates.time_max) == (70, 70), "as they were before"
        (event, _) = write({8: 90, 10: 100})
        assert (event.first, event.times) == (8, ()), "a position has no row, so its time is unknown"
        pending = store.connect().open([clock, logs], WHOLE_TABLE, new_writer()).pending
        assert [item.event.first for item in pending] == [5, 5, 6, 6, 8, 8]

    def test_positions_without_a_time_that_blocks_have(self, store: DirectStore) -> None:
        clock = direct_table(TIMED)
        writer = store.connect().open([clock], WHOLE_TABLE, new_writer())

        def write(times: dict[int, int], invalidates: tuple[int, int] | None = None) -> EventIn:
            rows = {clock.dataset_uuid: timed_rows(times)}
            event = cursor_event(clock, max(times), invalidates)
            (stored,) = writer.replace(RangeReplacement(min(times), max(times), rows, [event], above=True))
            return stored.event

        assert write({0: 0, 1: 50}).times == (0, 50), "whoever records them knows block 0"
        wrong = write({0: 0, 1: 55}, (0, 1)).invalidates
        assert wrong is not None
        assert (wrong.time_min, wrong.time_max) == (50, 50), "a genesis without a time was in no window of 1970"
        assert write({2: 60, 3: 2**32}).times == ()
        wrong = write({3: 70}, (3, 3)).invalidates
        assert wrong is not None
        assert (wrong.time_min, wrong.time_max) == (None, None)

    def test_positions_of_a_scope_say_nothing_of_the_table(self, store: DirectStore) -> None:
        table = direct_table(TIMED)
        writer = store.connect().open([table], "one", new_writer())
        rows = {table.dataset_uuid: timed_rows({1: 10})}
        (stored,) = writer.replace(RangeReplacement(1, 1, rows, [cursor_event(table, 1)]))
        assert (stored.event.first, stored.event.times) == (None, ())

    # --- the newest row of a key

    def test_the_newest_position_wins_and_the_one_before_comes_back(self, store: DirectStore) -> None:
        table = direct_table(BALANCES, "balances")
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())

        def write(start: int, end: int, rows: list[tuple[int, str, int]], *, above: bool = False) -> dict[str, int]:
            batches = balance_rows(rows) if rows else []
            writer.replace(RangeReplacement(start, end, {table.dataset_uuid: batches}, above=above))
            shown = writer.read_newest(table.dataset_uuid, ["holder", "balance"], 100).to_pylist()
            assert len({row["holder"] for row in shown}) == len(shown)
            return {row["holder"]: row["balance"] for row in shown}

        assert write(1, 2, [(1, "ann", 10), (2, "bob", 20)]) == {"ann": 10, "bob": 20}
        assert write(3, 4, [(3, "ann", 11), (4, "ann", 12), (4, "eve", 1)]) == {"ann": 12, "bob": 20, "eve": 1}
        assert write(0, 0, [(0, "bob", 99)]) == {"ann": 12, "bob": 20, "eve": 1}, "late, and not newer"
        assert write(4, 5, [(5, "bob", 21)], above=True) == {"ann": 11, "bob": 21}, "a fork took block 4 away"
        assert write(2, 9, [], above=True) == {"ann": 10, "bob": 99}

    def test_a_table_without_a_key_has_no_newest_row(self, store: DirectStore) -> None:
        schema = msgspec.structs.replace(BLOCKS, newest_wins=True)
        with pytest.raises(RowsRefusedError, match="no key"):
            store.connect().open([direct_table(schema)], WHOLE_TABLE, new_writer())

    def test_an_event_of_another_table_is_refused(self, store: DirectStore) -> None:
        table, other = direct_table(BLOCKS), direct_table(LOGS, "logs")
        writer = store.connect().open([table, other], WHOLE_TABLE, new_writer())
        with pytest.raises(RowsRefusedError):
            writer.replace(RangeReplacement(0, 0, {table.dataset_uuid: []}, [range_event(other, 0, 0)]))

    # --- rows

    @pytest.mark.parametrize(
        "rows",
        [
            pytest.param(block_rows([9]), id="beyond the range"),
            pytest.param(log_rows([1]), id="of other columns"),
            pytest.param([pa.RecordBatch.from_pydict({"block_number": [1]})], id="without a required column"),
            pytest.param(
                [pa.RecordBatch.from_pydict({"block_number": [1], "block_hash": [b"a"], "gas_used": [0.5]})],
                id="with a value that does not fit",
            ),
            pytest.param(
                [pa.RecordBatch.from_pydict({"block_number": [1, 1], "block_hash": [b"a", b"b"]})],
                id="with one key twice",
            ),
        ],
    )
    def test_rows_that_do_not_fit_are_refused_whole(self, store: DirectStore, rows: list[pa.RecordBatch]) -> None:
        table = direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        replace_blocks(writer, table, 0, 2)
        with pytest.raises(RowsRefusedError):
            writer.replace(RangeReplacement(0, 2, {table.dataset_uuid: rows}, [range_event(table, 0, 2, "bad")]))
        assert block_hashes(writer, table) == {2: "a2", 1: "a1", 0: "a0"}
        replace_blocks(writer, table, 3, 3)  # the connection goes on

    def test_a_table_that_was_not_opened_is_refused(self, store: DirectStore) -> None:
        table, other = direct_table(BLOCKS), direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        with pytest.raises(RowsRefusedError):
            replace_blocks(writer, other, 0, 0)
        with pytest.raises(RowsRefusedError):
            writer.read_newest(other.dataset_uuid, ["block_number"], 1)

    def test_a_table_needs_a_position_and_a_scope_a_name(self, store: DirectStore) -> None:
        unplaced = direct_table(BLOCKS)
        schema = type(BLOCKS)(columns=BLOCKS.columns, unique=("block_hash",))
        with pytest.raises(RowsRefusedError):
            store.connect().open([direct_table(schema)], WHOLE_TABLE, new_writer())
        for scope in ("", "x" * 513):
            with pytest.raises(RowsRefusedError):
                store.connect().open([unplaced], scope, new_writer())

    # --- extents

    def test_plain_tables_have_no_extent(self, store: DirectStore) -> None:
        table = direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        replace_blocks(writer, table, 5, 9)
        replace_blocks(writer, table, 2, 9)
        assert writer.read_extent(table.dataset_uuid) == TableExtent()

    def test_a_live_table_begins_at_its_first_write(self, store: DirectStore) -> None:
        blocks, logs = direct_table(BLOCKS), direct_table(LOGS, "logs")
        writer = store.connect().open([blocks, logs], WHOLE_TABLE, new_writer())
        rows = {blocks.dataset_uuid: block_rows([5, 6]), logs.dataset_uuid: log_rows([6])}
        writer.replace(RangeReplacement(5, 6, rows, live=True))
        writer.replace(RangeReplacement(6, 6, {blocks.dataset_uuid: block_rows([6])}, live=True))
        for table in (blocks, logs):
            assert writer.read_extent(table.dataset_uuid) == TableExtent(5)
        with pytest.raises(RowsRefusedError, match="begins at position 5"):
            writer.replace(RangeReplacement(4, 6, {blocks.dataset_uuid: block_rows([4])}, live=True))
        assert block_hashes(writer, blocks) == {6: "a6", 5: "a5"}

    def test_a_live_table_with_earlier_rows_begins_with_them(self, store: DirectStore) -> None:
        table = direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        replace_blocks(writer, table, 3, 4)
        writer.replace(RangeReplacement(5, 5, {table.dataset_uuid: block_rows([5])}, seal=4))
        assert writer.read_extent(table.dataset_uuid) == TableExtent(3, 4)

    def test_sealed_rows_never_change(self, store: DirectStore) -> None:
        table = direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        writer.replace(RangeReplacement(0, 9, {table.dataset_uuid: block_rows(range(10))}, seal=4))
        for start, above in ((0, False), (4, True), (4, False)):
            with pytest.raises(RangeSealedError) as raised:
                replace_blocks(writer, table, start, 9, "b", above=above)
            assert raised.value.code == "range_sealed"
        # An older scope's writer is bound by it as well: the seal is the table's.
        with pytest.raises(RangeSealedError):
            replace_blocks(store.connect().open([table], "other", new_writer()), table, 4, 9, "c")
        replace_blocks(writer, table, 5, 9, "b")
        assert block_hashes(writer, table, 6) == {**{n: f"b{n}" for n in range(5, 10)}, 4: "a4"}
        assert store.connect().open([table], WHOLE_TABLE, new_writer()).pending[-1].event.start == 5

    def test_a_seal_is_never_lowered_and_never_above_the_range(self, store: DirectStore) -> None:
        table = direct_table(BLOCKS)
        writer = store.connect().open([table], WHOLE_TABLE, new_writer())
        writer.replace(RangeReplacement(0, 9, {table.dataset_uuid: block_rows(range(10))}, seal=7))
        writer.replace(RangeReplacement(9, 9, {table.dataset_uuid: block_rows([9])}, seal=3))
        assert writer.read_extent(table.dataset_uuid) == TableExtent(0, 7)
        with pytest.raises(RowsRefusedError, match="seal"):
            writer.replace(RangeReplacement(9, 9, {table.dataset_uuid: block_rows([9])}, seal=10))
        assert writer.read_extent(table.dataset_uuid) == TableExtent(0, 7)

    def test_one_sealed_table_refuses_the_whole_write(self, store: DirectStore) -> None:
        blocks, logs = direct_table(BLOCKS), direct_table(LOGS, "logs")
        writer = store.connect().open([blocks, logs], WHOLE_TABLE, new_writer())
        writer.replace(RangeReplacement(0, 3, {logs.dataset_uuid: log_rows(range(4))}, seal=2))
        both = {blocks.dataset_uuid: block_rows(range(4)), logs.dataset_uuid: []}
        with pytest.raises(RangeSealedError):
            writer.replace(RangeReplacement(0, 3, both, [range_event(blocks, 0, 3)], seal=3))
        assert block_hashes(writer, blocks) == {}
        assert writer.read_extent(blocks.dataset_uuid) == TableExtent()
        assert writer.read_extent(logs.dataset_uuid) == TableExtent(0, 2)
        assert store.connect().open([blocks, logs], WHOLE_TABLE, new_writer()).pending == ()

    def test_events_of_outputs_without_a_table_wait_with_the_others(self, store: DirectStore) -> None:
        table, control, identity = direct_table(BLOCKS), direct_table(LOGS, "final"), new_writer()
        writer = store.connect().open([table], WHOLE_TABLE, identity)
        events = [range_event(table, 0, 4), range_event(control, 0, 2)]
        stored = writer.replace(RangeReplacement(0, 4, {table.dataset_uuid: block_rows(range(5))}, events, seal=2))
        units = [(event.dataset_uuid, event.partition_key) for event in events]
        assert [(item.event.dataset_uuid, item.event.partition_key) for item in stored] == units
        successor = store.connect().open([table], WHOLE_TABLE, TableWriter(identity.task_id, 2))
        assert [item.event for item in successor.pending] == [item.event for item in stored]
        successor.acknowledge(successor.pending)
        assert store.connect().open([table], WHOLE_TABLE, new_writer()).pending == ()

    # --- removal

    def test_sealed_rows_of_every_scope_are_removed(self, store: DirectStore) -> None:
        blocks, logs = direct_table(BLOCKS), direct_table(LOGS, "logs")
        tables = store.connect()
        other = tables.open([blocks], "other", new_writer())
        replace_blocks(other, blocks, 0, 1)
        writer = tables.open([blocks, logs], WHOLE_TABLE, new_writer())
        rows = {blocks.dataset_uuid: block_rows(range(2, 10)), logs.dataset_uuid: log_rows([3, 8])}
        writer.replace(RangeReplacement(2, 9, rows, seal=7))
        assert tables.remove_rows([logs.dataset_uuid, blocks.dataset_uuid], 4) == 5 + 1
        assert tables.remove_rows([logs.dataset_uuid, blocks.dataset_uuid], 4) == 0
        assert tables.remove_rows([blocks.dataset_uuid], 2) == 0
        assert sorted(block_hashes(writer, blocks)) == [5, 6, 7, 8, 9]
        assert block_hashes(other, blocks) == {}
        assert writer.read_extent(blocks.dataset_uuid) == TableExtent(0, 7, 4)
        assert writer.read_extent(logs.dataset_uuid) == TableExtent(2, 7, 4)
        replace_blocks(writer, blocks, 8, 10, "b")  # the writer goes on

    def test_rows_that_are_not_sealed_stay(self, store: DirectStore) -> None:
        table, plain = direct_table(BLOCKS), direct_table(BLOCKS)
        tables = store.connect()
        writer = tables.open([table, plain], WHOLE_TABLE, new_writer())
        rows = block_rows(range(10))
        writer.replace(RangeReplacement(0, 9, {table.dataset_uuid: rows}, seal=4))
        writer.replace(RangeReplacement(0, 9, {plain.dataset_uuid: rows}, live=True))
        for key in (table.dataset_uuid, plain.dataset_uuid, uuid4()):
            with pytest.raises(RowsRefusedError, match="sealed up to"):
                tables.remove_rows([key], 5)
        assert len(block_hashes(writer, table)) == len(block_hashes(writer, plain)) == 10
        assert writer.read_extent(table.dataset_uuid) == TableExtent(0, 4)

"""Sinks drop the tables of purged DAGs, and nobody creates them again."""

from uuid import uuid4

import pytest

from tests.direct.support import BLOCKS, block_rows, direct_table, new_writer
from tests.removal.support import Removal
from tests.sink.conftest import MakeFlow, flow, make_flow
from tests.sink.flow import BufferFlow
from tests.sink.test_loop import shows, sink_of
from tests.support.postgres import wait_until
from tracelake.model.buffered import quoted, table_name
from tracelake.ports.direct_tables import RangeReplacement, RowsRefusedError, WriteFencedError
from tracelake.sink.store import TableStore
from tracelake.storage.data_connection import StoreAwayError
from tracelake.storage.direct_tables import PostgresDirectTables

__all__ = ["flow", "make_flow"]

RECORDS = (
    "buffer_tables",
    "buffer_commits",
    "buffer_parts",
    "buffer_changes",
    "direct_fences",
    "direct_events",
    "table_extents",
    "table_marks",
)


def left(flow: BufferFlow, dataset_uuid: object) -> dict[str, int]:
    """What Postgres data has of a dataset."""
    counts = {
        name: flow.data_sql(f"SELECT count(*) FROM {name} WHERE dataset_uuid = '{dataset_uuid}'")[0][0]
        for name in RECORDS
    }
    relations = f"SELECT count(*) FROM pg_class WHERE relname LIKE '%{dataset_uuid}%'"
    views = f"SELECT count(*) FROM pg_views WHERE definition LIKE '%{dataset_uuid}%'"
    counts |= {"relations": flow.data_sql(relations)[0][0], "views": flow.data_sql(views)[0][0]}
    return {name: number for name, number in counts.items() if number}


def test_a_sink_drops_the_table_and_goes_on_with_the_others(make_flow: MakeFlow) -> None:
    gone, kept = make_flow(), make_flow()
    removal = Removal(gone.flow)
    dataset = gone.dataset
    with sink_of(gone):
        for each in (gone, kept):
            each.publish([{"key": 1, "value": "a"}])
        gone.relay()
        wait_until(shows(gone, rows=[(1, "a")]), "the row")
        assert {"buffer_tables", "buffer_commits", "buffer_parts", "relations", "views"} <= left(
            gone, dataset.dataset_uuid
        ).keys()
        removal.remove("transfers")
        assert gone.rows() == [(1, "a")], "it may be restored"
        removal.purge("transfers")
        removal.delete_all()
        wait_until(lambda: left(gone, dataset.dataset_uuid) == {}, "the table to go")
        wait_until(lambda: not gone.harness.sql("SELECT FROM removed_tables WHERE dropped_at IS NULL"), "the report")
        removal.delete_all()
        assert not gone.harness.sql("SELECT FROM removed_tables")
        kept.publish([{"key": 2, "value": "b"}])
        kept.relay()
        wait_until(shows(kept, rows=[(1, "a"), (2, "b")]), "the second row of the other")
    store = TableStore(gone.data_dsn)
    try:
        with pytest.raises(StoreAwayError, match="was removed with its DAG"):
            store.follow(dataset)
        store.drop(dataset.dataset_uuid)  # again
    finally:
        store.close()
    assert left(gone, dataset.dataset_uuid) == {}
    gone.deploy()
    assert gone.dataset.dataset_uuid != dataset.dataset_uuid
    gone.triggered.clear()
    gone.publish([{"key": 5, "value": "new"}])
    gone.sink()
    assert gone.rows() == [(5, "new")]


def test_a_late_writer_of_a_dropped_table_is_fenced(flow: BufferFlow) -> None:
    tables = PostgresDirectTables(lambda: flow.data_dsn)
    table = direct_table(BLOCKS)
    writer = tables.open([table], "all", new_writer())
    change = RangeReplacement(start=1, end=2, rows={table.dataset_uuid: block_rows([1, 2])}, events=[])
    writer.replace(change)
    store = TableStore(flow.data_dsn)
    try:
        store.drop(table.dataset_uuid)
        with pytest.raises(WriteFencedError, match="removed"):
            writer.replace(change)
        with pytest.raises(RowsRefusedError, match="removed"):
            tables.open([table], "all", new_writer())
        assert left(flow, table.dataset_uuid) == {}
        store.drop(uuid4())  # one that never was
    finally:
        writer.close()
        store.close()


def test_a_new_dataset_of_the_name_keeps_its_view(flow: BufferFlow) -> None:
    """The old table is dropped late: its name was free before."""
    old = flow.dataset
    store = TableStore(flow.data_dsn)
    try:
        store.follow(old)
        removal = Removal(flow.flow)
        removal.remove("transfers")
        removal.purge("transfers")
        removal.delete_all()
        flow.deploy()
        new = flow.dataset
        store.follow(new)
        store.drop(old.dataset_uuid)
        assert (left(flow, old.dataset_uuid), left(flow, new.dataset_uuid)["views"]) == ({}, 1)
        assert flow.data_sql(f"SELECT count(*) FROM {quoted(table_name(new.dataset_uuid))}") == [(0,)]
    finally:
        store.close()

"""Sinks count the rows of all tables, and a dataset shows them: of buffered tables and of those that tasks write."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.api.support import User
from tests.deploy.support import say
from tests.direct.support import BLOCKS, ask, block_rows, direct_table, new_writer
from tests.sink.flow import BufferFlow, DispatcherCalls
from tests.support.configs import sink_config
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.model.buffered import quoted, table_name
from tracelake.ports.direct_tables import WHOLE_TABLE, RangeReplacement
from tracelake.sink import table_sizes
from tracelake.sink.loop import Sink
from tracelake.sink.store import TableStore
from tracelake.storage.direct_tables import PostgresDirectTables
from tracelake.wire.buffers import TableSize, TablesMeasuredReply, TablesMeasuredRequest

LIVE = """
name: chain_of_blocks
jobs:
  - {name: head, activation: source, runtime: ecs_platform, operator: block_follower,
     source: {kind: always_on}, config: {chain_id: 1337001, tables: [blocks]}}
publish:
  head_blocks: {from: {job: head}, storage: postgres}
"""


class CountingCalls(DispatcherCalls):
    def __init__(self, harness: DispatcherHarness, measured: asyncio.Event) -> None:
        super().__init__(harness)
        self.measured = measured

    async def tables_measured(self, request: TablesMeasuredRequest) -> TablesMeasuredReply:
        reply = await super().tables_measured(request)
        self.measured.set()
        return reply


@pytest.fixture
def flow(cluster: TestCluster, state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[BufferFlow]:
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    yield BufferFlow(harness, cluster.fresh("data"))
    harness.stop()


def measure(dsn: str) -> dict[UUID, tuple[int, bool]]:
    with closing(TableStore(dsn)) as store:
        return {size.dataset_uuid: (size.rows, size.bytes > 0) for size in store.measure()}


def content(flow: BufferFlow, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = User(flow.harness, flow.org).get(f"/v1/datasets/{name}")["content"]
    return shown


def report(flow: BufferFlow, *sizes: TableSize) -> int:
    request = TablesMeasuredRequest(tables=list(sizes))
    return flow.harness.run(flow.harness.dispatcher.buffers.tables_measured(request)).recorded


def test_small_tables_are_counted_and_large_ones_estimated(cluster: TestCluster, monkeypatch: Any) -> None:
    dsn, table = cluster.fresh("data"), direct_table(BLOCKS)
    with closing(PostgresDirectTables(lambda: dsn).open([table], WHOLE_TABLE, new_writer())) as writer:
        writer.replace(RangeReplacement(0, 299, {table.dataset_uuid: block_rows(range(300))}))
        assert measure(dsn) == {table.dataset_uuid: (300, True)}
        monkeypatch.setattr(table_sizes, "SMALL_BYTES", 0)
        ask(dsn, f"ANALYZE {quoted(table_name(table.dataset_uuid))}")
        assert measure(dsn) == {table.dataset_uuid: (300, True)}


def test_a_sink_reports_what_its_tables_hold(flow: BufferFlow) -> None:
    flow.publish([{"key": 1, "value": "a"}, {"key": 2, "value": "b"}])
    flow.sink()
    with closing(TableStore(flow.data_dsn)) as store:
        (measured,) = store.measure()
    assert (measured.dataset_uuid, measured.rows) == (flow.dataset.dataset_uuid, 2)
    report(flow, measured)
    shown = content(flow, flow.dataset.name)
    assert (shown["rows"], shown["estimated"]) == (2, True)
    assert shown["bytes"] > 0
    assert report(flow, measured) == 0, "nothing has changed"


def test_a_running_sink_counts(flow: BufferFlow) -> None:
    flow.publish([{"key": 1, "value": "a"}, {"key": 2, "value": "b"}])
    flow.sink()
    calls, stop = CountingCalls(flow.harness, asyncio.Event()), asyncio.Event()

    async def work() -> None:
        queue = PostgresQueue(flow.harness.queue_dsn)
        sink = Sink(
            sink_config(poll_seconds=0.01, wait_seconds=0.1),
            queue=queue,
            objects=flow.harness.objects,
            calls=calls,
            data_dsn=lambda: flow.data_dsn,
        )
        running = asyncio.create_task(sink.run(stop))
        try:
            await asyncio.wait_for(calls.measured.wait(), 30)
        finally:
            stop.set()
            await running
            await queue.close()

    flow.harness.run(work())
    assert content(flow, flow.dataset.name)["rows"] == 2


def test_rows_of_a_table_that_tasks_write(flow: BufferFlow) -> None:
    flow.flow.deploy(LIVE)
    (row,) = flow.harness.sql("SELECT dataset_uuid, current_version FROM datasets WHERE name = 'head_blocks'")
    say(flow.harness, (row["dataset_uuid"], row["current_version"]), 7)
    assert "rows" not in content(flow, "head_blocks"), "no sink has looked yet"
    report(flow, TableSize(dataset_uuid=row["dataset_uuid"], rows=1234, bytes=8192))
    shown = content(flow, "head_blocks")
    assert (shown["rows"], shown["bytes"], shown["estimated"]) == (1234, 8192, True)

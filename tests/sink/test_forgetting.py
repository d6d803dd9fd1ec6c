"""Batches are remembered in Postgres data for a while, and one that comes after that is still taken for what it is."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.sink.flow import BufferFlow, DispatcherCalls
from tests.sink.support import dataset
from tests.support.configs import sink_config
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.adapters.postgres_queue import PostgresQueue
from tracelake.sink import merge
from tracelake.sink.loop import Sink
from tracelake.sink.merge import COMMITS_DAYS, FORGOTTEN_AT_ONCE
from tracelake.sink.store import TableStore


@pytest.fixture
def flow(cluster: TestCluster, state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[BufferFlow]:
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    yield BufferFlow(harness, cluster.fresh("data"))
    harness.stop()


def run(dsn: str, *statements: str) -> list[Any]:
    """What the last of them answers: the first column."""

    async def execute() -> list[Any]:
        connection = await asyncpg.connect(dsn)
        try:
            for statement in statements:
                rows = await connection.fetch(statement)
            return [row[0] for row in rows]
        finally:
            await connection.close()

    return asyncio.run(execute())


def age_commits(dsn: str) -> None:
    """As if what is remembered had come too long ago: the data database has no clock that tests move."""
    run(dsn, f"UPDATE buffer_commits SET committed_at = committed_at - interval '{COMMITS_DAYS + 1} days'")


def forget_all(dsn: str) -> None:
    age_commits(dsn)
    store = TableStore(dsn)
    try:
        assert not store.forget()
    finally:
        store.close()
    assert run(dsn, "SELECT count(*) FROM buffer_commits") == [0]


def copy_messages(flow: BufferFlow) -> None:
    """Every message of now once more, for later: a relay that dies may send twice."""
    while flow.harness.relay():
        pass
    run(
        flow.harness.queue_dsn,
        "INSERT INTO messages (queue, key, body, published_at, visible_at) "
        "SELECT queue, key, body, published_at, now() + interval '1 day' FROM messages WHERE queue LIKE 'buffers.%'",
    )


def commits(flow: BufferFlow) -> list[int]:
    return [
        row["commit_seq"] for row in flow.harness.sql("SELECT commit_seq FROM buffer_publishes ORDER BY publish_seq")
    ]


def take_all(flow: BufferFlow) -> int:
    """What comes, be it fresh or hidden before; how many batches a sink finished with."""
    flow.come_back()
    return flow.sink()


def test_those_that_came_long_ago_go_page_by_page_along_an_index(cluster: TestCluster) -> None:
    dsn = cluster.fresh("data")
    store = TableStore(dsn)
    of = dataset()
    store.follow(of)
    for age, number in ((COMMITS_DAYS + 1, FORGOTTEN_AT_ONCE + 5), (COMMITS_DAYS - 1, 10)):
        run(
            dsn,
            "INSERT INTO buffer_commits (publish_id, dataset_uuid, publish_seq, commit_seq, row_count, committed_at) "
            f"SELECT gen_random_uuid(), '{of.dataset_uuid}', n, n, 0, trace_now() - interval '{age} days' "
            f"FROM generate_series(1, {number}) n",
        )
    run(dsn, "ANALYZE buffer_commits")
    statement = merge._FORGET.replace("$1", "30").replace("$2", "10")
    plan = "\n".join(run(dsn, "SET enable_seqscan = off", f"EXPLAIN {statement}"))
    assert "buffer_commits_by_age" in plan
    assert "Sort" not in plan
    assert [store.forget(), store.forget(), store.forget()] == [True, False, False]
    assert run(dsn, "SELECT count(*) FROM buffer_commits") == [10]
    store.close()


def test_a_forgotten_batch_that_comes_with_a_new_one_harms_neither(flow: BufferFlow) -> None:
    flow.publish([{"key": 1, "value": "a"}, {"key": 2, "value": "b"}])
    flow.publish([{"key": 2, "value": "c"}])
    copy_messages(flow)
    assert flow.sink() == 2
    forget_all(flow.data_dsn)
    flow.publish([{"key": 3, "value": "d"}])
    assert take_all(flow) == 3
    assert flow.rows() == [(1, "a"), (2, "c"), (3, "d")]
    assert commits(flow) == [1, 1, 2]
    assert flow.reader_units() == ["c:1", "c:2"], "the new one was told"
    assert flow.letters() == []
    assert take_all(flow) == 0


def test_a_forgotten_batch_whose_artifact_was_collected_is_no_dead_letter(flow: BufferFlow) -> None:
    old = flow.publish([{"key": 1, "value": "a"}])
    copy_messages(flow)
    flow.sink()
    forget_all(flow.data_dsn)
    flow.harness.run(flow.harness.objects.delete(old["uri"]))
    assert take_all(flow) == 1
    assert (flow.rows(), flow.letters(), commits(flow)) == ([(1, "a")], [], [1])
    assert take_all(flow) == 0


def test_a_batch_that_was_forgotten_before_the_dispatcher_heard_of_it_is_told_in_the_end(flow: BufferFlow) -> None:
    flow.publish([{"key": 1, "value": "a"}])
    flow.deaths.append("committed")
    flow.sink()
    assert commits(flow) == [None]
    forget_all(flow.data_dsn)
    assert take_all(flow) == 1
    assert (flow.rows(), commits(flow), flow.reader_units()) == ([(1, "a")], [2], ["c:2"])


def test_a_sink_does_it_by_itself_until_nothing_is_left(flow: BufferFlow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "FORGOTTEN_AT_ONCE", 1)
    for key in (1, 2, 3):
        flow.publish([{"key": key}])
    assert flow.sink() == 3
    age_commits(flow.data_dsn)
    stop = asyncio.Event()

    async def work() -> None:
        queue = PostgresQueue(flow.harness.queue_dsn)
        sink = Sink(
            sink_config(poll_seconds=0.01, wait_seconds=0.1),
            queue=queue,
            objects=flow.harness.objects,
            calls=DispatcherCalls(flow.harness),
            data_dsn=lambda: flow.data_dsn,
        )
        try:
            await sink.run(stop)
        finally:
            await queue.close()

    async def until_empty() -> None:
        async with asyncio.timeout(30):
            while await asyncio.to_thread(run, flow.data_dsn, "SELECT 1 FROM buffer_commits"):
                await asyncio.sleep(0.02)

    running = asyncio.run_coroutine_threadsafe(work(), flow.harness.background.loop)
    try:
        asyncio.run(until_empty())
    finally:
        flow.harness.background.loop.call_soon_threadsafe(stop.set)
    running.result(30)

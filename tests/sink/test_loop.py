"""The sink as a whole: it makes tables of datasets it hears of, follows them, drains them, and ends when told to."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sink.flow import BufferFlow, DispatcherCalls
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster
from tracelake.adapters.lite.postgres_queue import PostgresQueue
from tracelake.model.retry import Backoff
from tracelake.sink.drain import SinkConfig
from tracelake.sink.loop import Sink


@pytest.fixture
def flow(cluster: TestCluster, state_dsn: str, queue_dsn: str, tmp_path: Path) -> Iterator[BufferFlow]:
    harness = DispatcherHarness.start(state_dsn, queue_dsn, tmp_path)
    yield BufferFlow(harness, cluster.fresh("data"))
    harness.stop()


def test_from_the_deploy_to_the_end(flow: BufferFlow) -> None:
    harness = flow.harness
    stop = asyncio.Event()

    async def until(condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not await asyncio.to_thread(condition):
                await asyncio.sleep(0.02)

    async def run() -> None:
        queue = PostgresQueue(harness.queue_dsn)
        sink = Sink(
            SinkConfig(poll_seconds=0.05, wait_seconds=0.2, backoff=Backoff(0.01, 0.05)),
            queue=queue,
            objects=harness.objects,
            calls=DispatcherCalls(harness),
            data_dsn=lambda: flow.data_dsn,
        )
        try:
            await sink.run(stop)
        finally:
            await queue.close()

    running = asyncio.run_coroutine_threadsafe(run(), harness.background.loop)
    try:
        asyncio.run(until(flow.has_table))
        flow.publish([{"key": 1, "value": "a"}])
        harness.relay()
        asyncio.run(until(lambda: flow.rows() == [(1, "a")]))
        flow.deploy("name: memo, type: text")
        asyncio.run(until(lambda: flow.has_column("memo")))
        flow.publish([{"key": 2, "memo": "x"}])
        harness.relay()
        asyncio.run(until(lambda: flow.rows("key", "memo") == [(1, None), (2, "x")]))
    finally:
        harness.background.loop.call_soon_threadsafe(stop.set)
    running.result(30)

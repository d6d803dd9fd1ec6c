"""One Dispatcher per module: tests make an org or a job of their own and look at whole tables before and after."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster


@pytest.fixture(scope="module")
def harness(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    state, queue = cluster.fresh("state"), cluster.fresh("queue", role="trace_queue")
    running = DispatcherHarness.start(state, queue, tmp_path_factory.mktemp("home"))
    running.use_movable_clock()
    try:
        yield running
    finally:
        running.stop()
        for dsn in (state, queue):
            asyncio.run(cluster.drop(dsn))

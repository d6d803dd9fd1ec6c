"""One Dispatcher per module; every test makes orgs of its own."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.support.configs import dispatcher_config
from tests.support.dispatcher import DispatcherHarness
from tests.support.postgres import TestCluster

UNLIMITED = dispatcher_config(user_rate_per_second=10**6, user_rate_burst=10**6)


@pytest.fixture(scope="module")
def harness(cluster: TestCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DispatcherHarness]:
    state, queue = cluster.fresh("state"), cluster.fresh("queue", role="trace_queue")
    running = DispatcherHarness.start(state, queue, tmp_path_factory.mktemp("home"), UNLIMITED)
    running.use_movable_clock()
    try:
        yield running
    finally:
        running.stop()
        for dsn in (state, queue):
            asyncio.run(cluster.drop(dsn))
